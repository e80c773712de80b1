"""Diagnostics of a spec: position, message, expected value and a suggestion."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from headrace.errors import did_you_mean
from headrace.spec.base import InvalidValue, SpecModel, model_keys, names_parts, parts_in
from headrace.spec.model import Spec, is_secret
from headrace.spec.renamed import renamed_key, renamed_value
from headrace.spec.units import size, spell_duration, spell_size
from headrace.spec.yaml_reader import Path, Spot, YamlNode

MISSING_KEY = "required key is missing"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Error or warning in a spec."""

    file: str
    line: int
    column: int
    key: str
    message: str
    expected: str = ""
    suggestion: str = ""
    severity: Literal["error", "warning"] = "error"

    def fields(self) -> dict[str, str | int]:
        """JSON representation."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "key": self.key,
            "message": self.message,
            "expected": self.expected,
            "suggestion": self.suggestion,
            "severity": self.severity,
        }

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file  # arguments have no lines
        key = f" {self.key}:" if self.key else ""
        expected = f"; expected: {self.expected}" if self.expected else ""
        if self.expected and self.message == MISSING_KEY:
            expected = f" ({self.expected})"  # the description of the key
        return f"{where}{key} {self.message}{expected}{did_you_mean(self.suggestion)}"


@dataclass(frozen=True, slots=True)
class UnlocatedDiagnostic:
    """Diagnostic before its key is located in the file."""

    path: Path
    message: str
    expected: str = ""
    suggestion: str = ""
    severity: Literal["error", "warning"] = "error"
    on_key: bool = False
    depends_on: tuple[Path, ...] | None = None  # other values that it depends on; None: any, (): its own value alone


@dataclass(frozen=True, slots=True)
class Document:
    """One pipeline of a spec file, as written."""

    file: str
    root: YamlNode

    def locate(self, diagnostic: UnlocatedDiagnostic) -> Diagnostic:
        """Locate a diagnostic at its key, or at the nearest enclosing key."""
        spot, node = self.root.spot, self.root
        for step in diagnostic.path:
            entry = node.child(step)
            if entry is None:
                break
            key_spot, node = entry
            spot = key_spot if diagnostic.on_key else node.spot
        return Diagnostic(
            self.file,
            spot.line,
            spot.column,
            dotted(diagnostic.path),
            _printable(diagnostic.message, 400),
            _printable(diagnostic.expected, 1200),
            _printable(diagnostic.suggestion),
            diagnostic.severity,
        )

    def at(self, path: Path) -> YamlNode | None:
        """Value at a path."""
        node: YamlNode | None = self.root
        for step in path:
            entry = node.child(step) if node else None
            node = entry[1] if entry else None
        return node


def locate(spec: Spec, diagnostic: UnlocatedDiagnostic) -> Diagnostic:
    """Locate a diagnostic about a spec, or one of its branches, in the spec file.

    A branch defines only some keys; all others belong to the pipeline.
    """
    written = spec.written
    if written is None:
        return Document(spec.pipeline, YamlNode(None, Spot())).locate(diagnostic)
    document = Document(written.file, written.root)
    own = (*written.path, *diagnostic.path)
    return document.locate(
        replace(diagnostic, path=own if document.at(own[: len(written.path) + 1]) else diagnostic.path)
    )


def diagnostic_at(file: str, spot: Spot, message: str, expected: str) -> Diagnostic:
    """Diagnostic that belongs to no key."""
    return Diagnostic(file, spot.line, spot.column, "", _printable(message, 400), expected)


def dotted(path: Path) -> str:
    """Path in spec notation: `tables[0].match`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return _printable(text.removeprefix("."))


def closest(word: object, options: Collection[str]) -> str:
    """Closest option to a misspelled word; empty if none is close."""
    folded = {option.lower(): option for option in options}
    matches = get_close_matches(str(word).lower(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else ""


def from_validation(error: ValidationError, document: Document) -> Iterator[UnlocatedDiagnostic]:
    """Diagnostics for all validation errors of the models."""
    details = error.errors(include_url=False, include_input=False)
    diagnostics: dict[
        UnlocatedDiagnostic, None
    ] = {}  # without duplicates: the pieces of a split text have the same error
    for detail in details:
        # Pydantic also reports a list with invalid items as too short.
        has_item_errors = any(other["loc"][:-1] == detail["loc"] for other in details)
        if not (detail["type"] == "too_short" and has_item_errors):
            diagnostic = _diagnostic(detail, document)
            diagnostics[replace(diagnostic, depends_on=diagnostic.depends_on or (diagnostic.path,))] = None
    for diagnostic in diagnostics:
        yield diagnostic
        if diagnostic.on_key and renamed_key(part_at(diagnostic.path[:-1]), str(diagnostic.path[-1])):
            yield from _renamed_inside(diagnostic.path, (*diagnostic.path[:-1], diagnostic.suggestion), document)


def _diagnostic(error: Any, document: Document) -> UnlocatedDiagnostic:
    path, kind, context = _path(error, document), error["type"], error.get("ctx", {})
    value = show(document.at(path), path)
    if kind == "extra_forbidden":
        if path[-1] != error["loc"][-1]:
            return _unknown_word(path, value, error["loc"][-1])
        return _split_text(path, document) or _unknown(path)
    if kind == "missing":
        return UnlocatedDiagnostic(path, MISSING_KEY, _description(path))
    if kind == "value_error":
        return _invalid_value(path, value, context["error"], error["loc"][-1] == "[key]")
    if kind == "literal_error":
        return _not_a_choice(path, value, document.at(path), context["expected"])
    return UnlocatedDiagnostic(path, value, _expected(kind, context, path) or error["msg"])


def _path(error: Any, document: Document) -> Path:
    """Part of a pydantic location that exists in the document (pydantic also adds union tags)."""
    path: Path = ()
    last = len(error["loc"]) - 1
    for index, step in enumerate(error["loc"]):
        absent = index == last and error["type"] == "missing"
        if absent or document.at((*path, step)) is not None:
            path = (*path, step)
    return path


def part_at(path: Path) -> type[SpecModel] | None:
    """Model at a path of the spec."""
    part: type[SpecModel] | None = Spec
    is_name = False  # the next step is a user-defined name, not a spec key
    for step in path:
        if isinstance(step, str) and not is_name:
            field = model_keys(part).get(step) if part else None
            part = next(parts_in(field.annotation), None) if field else None
            is_name = field is not None and names_parts(field.annotation)
        else:
            is_name = False
    return part


def _unknown(path: Path) -> UnlocatedDiagnostic:
    part, word = part_at(path[:-1]), str(path[-1])
    keys = list(model_keys(part)) if part else []
    suggestion = renamed_key(part, word) or closest(word, keys)
    return UnlocatedDiagnostic(path, "unknown key", ", ".join(keys), suggestion, on_key=True)


def _renamed_inside(path: Path, new: Path, document: Document) -> Iterator[UnlocatedDiagnostic]:
    """Diagnostics for renamed keys below a renamed key, which validation does not visit; `new` is its current path."""
    node = document.at(path)
    content = node.plain() if node else None
    part = part_at(new)
    for step in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        present = renamed_key(part, step) if isinstance(step, str) else ""
        if present and part:
            yield UnlocatedDiagnostic((*path, step), "unknown key", ", ".join(model_keys(part)), present, on_key=True)
        yield from _renamed_inside((*path, step), (*new, present or step), document)


def _split_text(path: Path, document: Document) -> UnlocatedDiagnostic | None:
    """Diagnostic for `{type: decimal(10,2)}` without quotes, which YAML parses as `type: decimal(10` and a key `2)`."""
    parent = document.at(path[:-1])
    entries = parent.plain() if parent else None
    if not isinstance(entries, dict) or entries.get(str(path[-1])) is not None:
        return None
    before = list(entries)[: list(entries).index(str(path[-1]))]
    key = next((name for name in reversed(before) if entries[name] is not None), None)
    text = _closed(str(entries[key]), list(entries)[before.index(key) + 1 :]) if key else ""
    if not key or not text:
        return None
    message = f"{text} must be quoted: inside {{…}}, YAML splits at the comma"
    return UnlocatedDiagnostic((*path[:-1], key), message, "a quoted value", f'{key}: "{_quotable(key, text)}"')


def _closed(text: str, pieces: Sequence[str]) -> str:
    """Value with an unclosed bracket joined with the keys after it up to the closing one; empty if it is not closed."""
    for piece in pieces:
        if sum(map(text.count, "(<")) <= sum(map(text.count, ")>")):
            return ""
        text += f",{piece}"
        if sum(map(text.count, "(<")) == sum(map(text.count, ")>")):
            return text
    return ""


def _quotable(key: str, text: str) -> str:
    """Value to suggest in quotes; for a type, the closest valid type."""
    from headrace.spec.types import suggested_type  # its imports take long, and most specs are valid

    return (suggested_type(text) or text) if key == "type" else text


def _unknown_word(path: Path, value: str, word: str) -> UnlocatedDiagnostic:
    """Mapping with one key that a bare word stands for."""
    part = part_at(path)
    keys = list(model_keys(part)) if part else []
    return UnlocatedDiagnostic(path, value, ", ".join(keys), closest(word, keys))


def _field(path: Path) -> FieldInfo | None:
    part = part_at(path[:-1]) if path else None
    return model_keys(part).get(str(path[-1])) if part else None


def _description(path: Path) -> str:
    field = _field(path)
    return (field.description or "").removesuffix(".") if field else ""


def _invalid_value(path: Path, value: str, error: ValueError, on_key: bool) -> UnlocatedDiagnostic:
    whole = (path,)  # a model checks its own keys
    if not isinstance(error, InvalidValue):
        return UnlocatedDiagnostic(path, value, str(error), depends_on=whole)
    path = (*path, error.key) if error.key else path
    suggestion = error.suggestion or (closest(path[-1], error.options) if path else "")
    message = error.message or value
    return UnlocatedDiagnostic(path, message, error.expected, suggestion, on_key=on_key, depends_on=whole)


def _not_a_choice(path: Path, value: str, node: YamlNode | None, expected: str) -> UnlocatedDiagnostic:
    options = re.findall(r"'([^']*)'", expected)
    part = part_at(path)
    keys = list(model_keys(part)) if part else []
    mapping = f", or a mapping with one of {', '.join(keys)}" if keys else ""
    word = node.content if node and isinstance(node.content, str) else ""
    suggestion = renamed_value(str(path[-1]), word) or closest(word, [*options, *keys])
    return UnlocatedDiagnostic(path, value, ", ".join(options) + mapping, suggestion)


def _expected(kind: str, context: dict[str, Any], path: Path) -> str:
    part = part_at(path)
    return {
        "model_type": f"a mapping with {', '.join(model_keys(part))}" if part else "a mapping",
        "model_attributes_type": f"a mapping with {', '.join(model_keys(part))}" if part else "a mapping",
        "mapping_type": "a mapping",
        "dict_type": "a mapping",
        "tuple_type": "a list",
        "string_type": "text (quote numbers and words such as true)",
        "string_pattern_mismatch": _description(path) + f" ({context.get('pattern')})",
        "string_too_short": "non-empty text",
        "string_too_long": f"at most {context.get('max_length')} characters",
        "too_short": f"at least {context.get('min_length')}",
        "greater_than_equal": f"at least {_bound(path, 'ge')}",
        "less_than_equal": f"at most {_bound(path, 'le')}",
    }.get(kind, "")


def _bound(path: Path, name: str) -> str:
    """Bound of a field, formatted like its values."""
    field = _field(path)
    metadata = field.metadata if field else []
    bound = next((getattr(item, name) for item in metadata if hasattr(item, name)), "")
    sized = any(getattr(item, "func", None) is size for item in metadata)
    if isinstance(bound, timedelta):
        return spell_duration(bound)
    return spell_size(bound) if sized and isinstance(bound, int) else str(bound)


def show(node: YamlNode | None, path: Path) -> str:
    """Value for display: short, printable, without secrets."""
    if node is None or node.content is None:
        return "no value"
    if isinstance(node.content, tuple):
        return "a list"
    if not isinstance(node.content, str | int | float):
        return "a mapping"
    if is_secret(path):
        return "a secret"
    text = str(node.content).lower() if isinstance(node.content, bool) else str(node.content)
    if "-----BEGIN" in text:
        return "PEM text"
    return f"'{_printable(re.sub(r'[^ /,]+@', '…@', text))}'"


def _printable(text: str, max_length: int = 80) -> str:
    printable = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return printable if len(printable) <= max_length else printable[: max_length - 1] + "…"
