"""Safe YAML parser that records line numbers: no tags, no duplicate keys, limits on size, depth and aliases."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_ALIASES = 10
MAX_NODES = 100_000

Scalar: TypeAlias = str | int | float | bool | None
Path: TypeAlias = tuple[str | int, ...]

# Core schema of YAML 1.2: `no`, `on`, `1:30` and dates are text.
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]{1,40}|[0-9]{1,40}(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Spot:
    """Position in the file, starting at 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class YamlNode:
    """YAML value with its position; mapping entries also have the position of their key."""

    content: Scalar | tuple[YamlNode, ...] | Mapping[str, tuple[Spot, YamlNode]]
    spot: Spot
    height: int = 1
    count: int = 1

    def plain(self) -> Any:
        """Value as plain data."""
        if isinstance(self.content, Mapping):
            return {key: node.plain() for key, (_, node) in self.content.items()}
        return [node.plain() for node in self.content] if isinstance(self.content, tuple) else self.content

    def child(self, step: str | int) -> tuple[Spot, YamlNode] | None:
        """Entry of a key, or item at an index."""
        if isinstance(self.content, Mapping):
            return self.content.get(str(step))
        if isinstance(self.content, tuple) and isinstance(step, int) and step < len(self.content):
            return self.content[step].spot, self.content[step]
        return None


@dataclass(frozen=True, slots=True)
class SpecSource:
    """Source of a spec or branch: the YAML document and the path in it.

    Not part of equality: specs with the same content are equal, wherever they were read from.
    """

    file: str = field(compare=False)
    root: YamlNode = field(compare=False)
    path: Path = field(default=(), compare=False)


class InvalidYaml(ValueError):
    """Invalid YAML, or a YAML feature that specs do not support."""

    def __init__(self, spot: Spot, message: str, expected: str) -> None:
        super().__init__(message)
        self.spot, self.message, self.expected = spot, message, expected


def parse_yaml(text: str) -> list[YamlNode]:
    """Non-empty documents of a text; InvalidYaml if it contains an error or an unsupported feature."""
    if len(text.encode()) > MAX_BYTES:
        raise InvalidYaml(Spot(), "the file is larger than 1 MiB", "at most 1 MiB")
    try:
        return [node for node in _Reader(text).documents() if node.content is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidYaml(_spot(mark) if mark else Spot(), f"invalid YAML: {error.problem}", "YAML") from None
    except yaml.reader.ReaderError as error:
        before = text.encode()[: error.position].decode(errors="replace")
        spot = Spot(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise InvalidYaml(spot, "a character that is not allowed in YAML", "printable characters") from None


def _spot(mark: Any) -> Spot:
    return Spot(mark.line + 1, mark.column + 1)


class _Reader:
    """Builds nodes from parser events, so that limits apply before memory is allocated."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._anchors: dict[str, YamlNode] = {}
        self._aliases = 0
        self._count = 0

    def documents(self) -> Iterator[YamlNode]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if event.tags or event.version not in (None, (1, 2)):
                    raise InvalidYaml(_spot(event.start_mark), "a directive", "plain YAML 1.2 without directives")
                self._anchors = {}
                yield self._node(next(self._events), 1)

    def _node(self, event: Any, depth: int) -> YamlNode:
        spot = _spot(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), spot)
        if event.tag is not None:
            raise InvalidYaml(spot, f"tag {event.tag!r}", "plain values without tags")
        if depth > MAX_DEPTH:
            raise InvalidYaml(spot, "nested too deeply", f"at most {MAX_DEPTH} levels")
        node = self._new(event, spot, depth)
        self._count_nodes(1, spot)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _new(self, event: Any, spot: Spot, depth: int) -> YamlNode:
        if isinstance(event, yaml.SequenceStartEvent):
            items = tuple(self._items(depth))
            return _collection(items, items, spot)
        if isinstance(event, yaml.MappingStartEvent):
            entries = self._entries(depth)
            return _collection(entries, tuple(node for _, node in entries.values()), spot)
        plain = event.implicit[0]
        return YamlNode(_scalar(event.value) if plain else event.value, spot)

    def _items(self, depth: int) -> Iterator[YamlNode]:
        for event in iter(self._events.__next__, None):
            if isinstance(event, yaml.SequenceEndEvent):
                return
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> dict[str, tuple[Spot, YamlNode]]:
        entries: dict[str, tuple[Spot, YamlNode]] = {}
        for event in iter(self._events.__next__, None):
            if isinstance(event, yaml.MappingEndEvent):
                break
            key, spot = self._key(event), _spot(event.start_mark)
            if key in entries:
                raise InvalidYaml(spot, f"duplicate key {key[:60]!r}", "unique keys")
            entries[key] = (spot, self._node(next(self._events), depth + 1))
        return entries

    def _key(self, event: Any) -> str:
        spot = _spot(event.start_mark)
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or event.anchor is not None:
            raise InvalidYaml(spot, "a key that is not a plain scalar", "a plain scalar as key")
        if event.value == "<<" and event.implicit[0]:
            raise InvalidYaml(spot, "a merge key", "the merged keys written out")
        return str(event.value)

    def _alias(self, anchor: str, spot: Spot) -> YamlNode:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise InvalidYaml(spot, "too many aliases", f"at most {MAX_ALIASES}")
        if anchor not in self._anchors:
            raise InvalidYaml(spot, f"alias *{anchor[:60]} before the end of its anchor", "an anchor defined earlier")
        node = self._anchors[anchor]
        self._count_nodes(node.count, spot)
        return node

    def _count_nodes(self, count: int, spot: Spot) -> None:
        self._count += count
        if self._count > MAX_NODES:
            raise InvalidYaml(spot, "too many values", f"at most {MAX_NODES}")


def _collection(content: Any, inner: tuple[YamlNode, ...], spot: Spot) -> YamlNode:
    height = 1 + max((node.height for node in inner), default=0)
    if height > MAX_DEPTH:
        raise InvalidYaml(spot, "nested too deeply", f"at most {MAX_DEPTH} levels")
    return YamlNode(content, spot, height, 1 + sum(node.count for node in inner))


def _scalar(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text
