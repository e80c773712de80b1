"""Draft of a spec: values with their places in the imported configuration, and comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from headrace.importers.settings import NOWHERE, Place, Setting
from headrace.spec.diagnostics import Diagnostic, Document, UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.yaml_reader import Path, YamlNode

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*|[0-9]+(?:ms|[smhd]|[kMGT]i?B)")
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))
_UNPRINTABLE = re.compile(r"[\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff\ufffe\uffff]")
_SHORT = 110  # characters of a mapping or list on one line
Value: TypeAlias = "Setting | SpecDraft | str | int | float | bool | Mapping[str, Any] | Sequence[Any] | None"


@dataclass
class _Entry:
    """Value of a key of the spec."""

    value: Any  # scalar, dict of entries or list of entries
    origin: Setting | None = None
    comment: str = ""

    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        return [entry.plain() for entry in self.value] if isinstance(self.value, list) else self.value

    def has_comments(self) -> bool:
        inner = self.value.values() if isinstance(self.value, dict) else self.value
        return bool(self.comment) or (
            isinstance(self.value, dict | list) and any(entry.has_comments() for entry in inner)
        )


@dataclass(frozen=True, slots=True)
class ImportedDocument(Document):
    """Document whose diagnostics name the keys of the imported configuration."""

    names: Mapping[Path, tuple[str, str]] = field(default_factory=dict)  # name and file of the closest key

    def locate(self, diagnostic: UnlocatedDiagnostic) -> Diagnostic:
        """Locate a diagnostic at the key that its value comes from."""
        located = Document.locate(self, diagnostic)
        for length in range(len(diagnostic.path), -1, -1):
            if origin := self.names.get(diagnostic.path[:length]):
                return replace(
                    located, file=origin[1], key=f"{origin[0]} ({located.key})" if located.key else origin[0]
                )
        return located


class SpecDraft:
    """Spec of one pipeline, built key by key in the order of the printed text."""

    def __init__(self, place: Place, system: str) -> None:
        self.place = place
        self._system = system  # as in `default of kafka-delta-ingest`
        self.root = _Entry({})

    def set(self, path: str, value: Value, comment: str = "", *, native_default: Any = None) -> None:
        """Set a key, such as `source.kafka.topics`.

        A default of the other system is left out if it is `native_default`, and has a comment otherwise.
        """
        if isinstance(value, Setting) and not value.is_set:
            if value.value is None or value.value == native_default:
                return
            comment = comment or f"default of {self._system}"
        *parents, last = path.split(".")
        entry = self.root
        for step in parents:
            entry = entry.value.setdefault(step, _Entry({}))
        entry.value[last] = _entry(value, comment)

    def set_in(self, path: str, key: str, value: Value) -> None:
        """Set a key that contains dots, such as a table property, in a mapping."""
        entry = self.root
        for step in path.split("."):
            entry = entry.value.setdefault(step, _Entry({}))
        entry.value[key] = _entry(value)

    def append(self, path: str, value: Value, comment: str = "") -> None:
        """Append an item to a list; a draft is a mapping with comments."""
        *parents, last = path.split(".")
        entry = self.root
        for step in parents:
            entry = entry.value.setdefault(step, _Entry({}))
        entry.value.setdefault(last, _Entry([])).value.append(_entry(value, comment))

    def plain(self) -> dict[str, Any]:
        """Spec as plain data."""
        content: dict[str, Any] = self.root.plain()
        return content

    def document(self) -> ImportedDocument:
        """Spec as a document whose positions are those of the imported configuration."""
        names: dict[Path, tuple[str, str]] = {}
        root = _node(self.root, self.place, (), names)
        return ImportedDocument(self.place.file, root, names)

    def text(self) -> str:
        """Spec as YAML with comments, in the order of the reference."""
        keys = sorted(self.root.value, key=list(Spec.model_fields).index)
        return "\n".join(_lines(_Entry({key: self.root.value[key] for key in keys}), 0)) + "\n"


def _entry(value: Value, comment: str = "") -> _Entry:
    if isinstance(value, SpecDraft):
        return value.root
    origin = value if isinstance(value, Setting) else None
    content = value.value if isinstance(value, Setting) else value
    if isinstance(content, Mapping):
        return _Entry({key: _entry(inner) for key, inner in content.items()}, origin, comment)
    if isinstance(content, Sequence) and not isinstance(content, str):
        return _Entry([_entry(inner) for inner in content], origin, comment)
    return _Entry(content, origin, comment)


def _node(entry: _Entry, place: Place, path: Path, names: dict[Path, tuple[str, str]]) -> YamlNode:
    """Node of an entry. A value without a place of its own has that of the mapping around it."""
    if entry.origin is not None:
        place = entry.origin.place
        names[path] = entry.origin.name, place.file
    spot = place.spot or NOWHERE
    if isinstance(entry.value, dict):
        children = {key: _node(inner, place, (*path, key), names) for key, inner in entry.value.items()}
        return YamlNode({key: (node.spot, node) for key, node in children.items()}, spot)
    if isinstance(entry.value, list):
        return YamlNode(tuple(_node(inner, place, (*path, at), names) for at, inner in enumerate(entry.value)), spot)
    return YamlNode(entry.value, spot)


def _lines(entry: _Entry, indent: int) -> Iterator[str]:
    """Lines of a mapping in block style."""
    pad = "  " * indent
    for key, inner in entry.value.items():
        head = f"{pad}{_scalar(key)}:"
        flow = _flow(inner)
        is_commented = bool(inner.comment and isinstance(inner.value, dict) and inner.value)
        if flow is not None and not is_commented and _fits(inner, len(head) + len(flow)):
            yield f"{head} {flow}" + _comment(inner)
        else:
            yield head + _comment(inner)
            yield from _lines(inner, indent + 1) if isinstance(inner.value, dict) else _items(inner, indent + 1)


def _items(entry: _Entry, indent: int) -> Iterator[str]:
    """Lines of a list in block style."""
    pad = "  " * indent
    for item in entry.value:
        flow = _flow(item)
        if flow is not None and _fits(item, len(pad) + len(flow)):
            yield f"{pad}- {flow}" + _comment(item)
        elif isinstance(item.value, dict):
            first, *rest = _lines(item, indent + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{pad}-"
            yield from _items(item, indent + 1)


def _fits(entry: _Entry, length: int) -> bool:
    """Whether a value is written on one line: a list or mapping is, if it is short."""
    return length < _SHORT or not isinstance(entry.value, dict | list) or not entry.value


def _comment(entry: _Entry) -> str:
    return f"  # {' '.join(entry.comment.split())}" if entry.comment else ""


def _flow(entry: _Entry) -> str | None:
    """Value on one line; None for nested mappings, and where a comment is inside."""
    if isinstance(entry.value, dict):
        if any(each.has_comments() or (isinstance(each.value, dict) and each.value) for each in entry.value.values()):
            return None
        parts = {_scalar(key): _flow(inner) for key, inner in entry.value.items()}
        return (
            None if None in parts.values() else "{" + ", ".join(f"{key}: {part}" for key, part in parts.items()) + "}"
        )
    if isinstance(entry.value, list):
        if any(item.has_comments() or (isinstance(item.value, dict) and item.value) for item in entry.value):
            return None
        items = [_flow(inner) for inner in entry.value]
        return None if None in items else "[" + ", ".join(map(str, items)) + "]"
    return _scalar(entry.value)


def _scalar(value: Any) -> str:
    """Scalar in YAML 1.2 and 1.1 alike; texts that could be anything else are in quotes."""
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or value.lower() in _WORDS):
        text = json.dumps(value, ensure_ascii=False)
        return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return value if isinstance(value, str) else json.dumps(value)
