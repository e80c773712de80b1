"""From a file to specs: read, follow references, validate, cross-check; every finding at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from headrace.errors import SpecError
from headrace.spec import yaml_reader
from headrace.spec.diagnostics import Diagnostic, Document, UnlocatedDiagnostic, at_spot, from_validation
from headrace.spec.model import Spec, canonical_json
from headrace.spec.reader import follow
from headrace.validate.partial import salvage
from headrace.validate.rules import check_spec


def load(path: str | os.PathLike[str]) -> list[Spec]:
    """The pipelines of a spec file; SpecError with all findings when something is wrong."""
    return _accept(*examine(path))


def loads(text: str, base: str | os.PathLike[str] = ".", file: str = "<spec>") -> list[Spec]:
    """The pipelines of a spec's text, relative paths starting from `base`."""
    return _accept(*examine_text(text, Path(base), file))


def examine(path: str | os.PathLike[str]) -> tuple[list[Spec], list[Diagnostic]]:
    """The pipelines of a file that can be read, and everything that is wrong or doubtful."""
    file = os.fspath(path)
    try:
        with Path(path).open("rb") as opened:
            content = opened.read(yaml_reader.LARGEST + 1)
        return examine_text(content.decode("utf-8-sig"), Path(path).absolute().parent, file)
    except OSError as trouble:
        return [], [at_spot(file, yaml_reader.Spot(), f"cannot read file: {trouble.strerror}", "a spec file")]
    except UnicodeDecodeError as trouble:
        line = content[: trouble.start].count(b"\n") + 1
        return [], [at_spot(file, yaml_reader.Spot(line), "not valid UTF-8", "UTF-8 text")]


def examine_text(text: str, base: Path, file: str = "<spec>") -> tuple[list[Spec], list[Diagnostic]]:
    """The same for a text."""
    try:
        documents = [Document(file, root) for root in yaml_reader.parse_yaml(text)]
    except yaml_reader.InvalidYaml as trouble:
        return [], [at_spot(file, trouble.spot, trouble.message, trouble.allowed)]
    if not documents:
        return [], [at_spot(file, yaml_reader.Spot(), "no pipeline", "pipeline, source and table")]
    specs, findings = [], []
    for document in documents:
        spec, complaints = _spec(document, base.absolute())
        findings += [document.finding(each) for each in complaints]
        if spec is not None:
            specs.append((document, spec))
    findings += [document.finding(each) for document, each in _between(specs)]
    return [spec for _, spec in specs], sorted(findings, key=lambda each: (each.line, each.column))


def _accept(specs: list[Spec], findings: Sequence[Diagnostic]) -> list[Spec]:
    errors = [each for each in findings if each.severity == "error"]
    if errors:
        raise SpecError("\n".join(str(each) for each in errors), tuple(findings))
    return specs


def _spec(document: Document, base: Path) -> tuple[Spec | None, list[UnlocatedDiagnostic]]:
    raw = document.root.plain()
    complaints: list[UnlocatedDiagnostic] = []
    followed = follow(raw, (), base, complaints)
    try:
        spec = Spec.model_validate(followed, context={"base": base})
    except ValidationError as trouble:
        astray = {each.path for each in complaints}
        complaints += [each for each in from_validation(trouble, document) if each.path not in astray]
        return None, [*complaints, *salvage(followed, complaints, document, base)]
    spec.remember(canonical_json(raw), base, yaml_reader.SpecSource(document.file, document.root))
    return spec, [*complaints, *check_spec(spec)]


def _between(specs: Sequence[tuple[Document, Spec]]) -> Iterator[tuple[Document, UnlocatedDiagnostic]]:
    """What pipelines of one file must not share."""
    names = Counter(spec.pipeline for _, spec in specs)
    states = Counter(spec.state_uri for _, spec in specs)
    for document, spec in specs:
        if names[spec.pipeline] > 1:
            yield (
                document,
                UnlocatedDiagnostic(
                    ("pipeline",), f"duplicate pipeline name '{spec.pipeline}'", "unique pipeline names"
                ),
            )
        elif states[spec.state_uri] > 1:
            yield (
                document,
                UnlocatedDiagnostic(
                    ("state",), f"duplicate state path {spec.state_uri}", "a separate state path for each pipeline"
                ),
            )
