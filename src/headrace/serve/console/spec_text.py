"""The spec of a pipeline as text, with its diagnostics; secrets are references, and are never resolved."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headrace.importers.detect import import_file
from headrace.spec import Spec
from headrace.spec.diagnostics import Diagnostic
from headrace.validate.load import examine_text

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s'\"]+@")


@dataclass(frozen=True, slots=True)
class SpecLine:
    """A line of a spec, with the diagnostics that are about it."""

    number: int
    text: str
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class SpecText:
    """A spec for display and for editing."""

    text: str
    file: str  # empty: the text is generated from what the pipeline runs
    diagnostics: tuple[Diagnostic, ...]

    @property
    def lines(self) -> list[SpecLine]:
        """The lines with their diagnostics."""
        return [
            SpecLine(number, line, tuple(each for each in self.diagnostics if each.line == number))
            for number, line in enumerate(self.text.splitlines(), 1)
        ]


def spec_text(spec: Spec) -> SpecText:
    """The text of the file, if it has only this pipeline and is what runs; otherwise one that is generated."""
    file = spec.written.file if spec.written is not None else ""
    text = _file_text(file)
    if text and import_file(file, text, {}) is None:  # that of another system may have secrets in plain text
        specs, diagnostics = examine_text(text, Path(file).absolute().parent, file)
        if [each.digest for each in specs] == [spec.digest]:
            return SpecText(without_credentials(text), file, tuple(diagnostics))
    content = json.loads(spec.text)
    ordered = {key: content[key] for key in (*type(spec).model_fields, *content) if key in content}
    text = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=100)
    return SpecText(without_credentials(text), "", tuple(examine_text(text, spec.base)[1]))


def _file_text(file: str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return Path(file).read_text("utf-8-sig") if file and Path(file).is_file() else ""
    except (OSError, UnicodeDecodeError):
        return ""


def without_credentials(text: str) -> str:
    """A text without user and password in URLs."""
    return _CREDENTIALS.sub("…@", text)


def plain_spec(spec: Spec) -> dict[str, Any]:
    """The spec as plain data, with unresolved references."""
    content: dict[str, Any] = json.loads(spec.text)
    return content
