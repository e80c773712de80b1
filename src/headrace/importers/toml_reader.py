"""TOML with the positions of its keys: values are of `tomllib`, and a scan of the text adds the positions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from headrace.spec.yaml_reader import InvalidYaml, Path, Spot, YamlNode

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
_TEXT = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\]|\\.)*"|\'[^\']*\'', re.DOTALL)
_BARE = re.compile(r"[^,\]}\n#]*")
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse_toml(text: str) -> YamlNode:
    """The document; InvalidYaml if the text is not TOML."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT.search(str(error))
        last_line = text.rstrip().count("\n") + 1
        spot = Spot(int(at[1]), int(at[2])) if at and at[1] else Spot(last_line)
        raise InvalidYaml(spot, f"invalid TOML: {_AT.sub('', str(error))}", "TOML") from None
    return _node(content, Spot(), (), _Scan(text).positions())


def _node(content: Any, spot: Spot, path: Path, positions: Mapping[Path, Spot]) -> YamlNode:
    if isinstance(content, dict):
        entries = {}
        for key, inner in content.items():
            at = positions.get((*path, key), spot)
            entries[key] = (at, _node(inner, at, (*path, key), positions))
        return YamlNode(entries, spot)
    if isinstance(content, list):
        items = enumerate(content)
        return YamlNode(
            tuple(_node(each, positions.get((*path, at), spot), (*path, at), positions) for at, each in items), spot
        )
    return YamlNode(content if isinstance(content, str | int | float) else str(content), spot)


class _Scan:
    """Positions of the keys and items of a valid TOML text, by path."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._positions: dict[Path, Spot] = {}
        self._lengths: dict[Path, int] = {}  # of arrays of tables

    def positions(self) -> dict[Path, Spot]:
        """Scan the whole text."""
        table: Path = ()
        while self._skip_space() < len(self._text):
            if self._text.startswith("[[", self._at):
                table = self._header(2)
            elif self._text[self._at] == "[":
                table = self._header(1)
            else:
                self._pair(table)
        return self._positions

    def _header(self, brackets: int) -> Path:
        """`[a.b]` or `[[a.b]]`: the path of the table."""
        start = self._spot()
        self._at += brackets
        keys = self._keys()
        self._skip_space()
        self._at += brackets
        path: Path = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            self._positions.setdefault(path, start)
            if path in self._lengths or (brackets == 2 and position == len(keys) - 1):
                is_new = brackets == 2 and position == len(keys) - 1
                self._lengths[path] = self._lengths.get(path, 0) + is_new
                path = (*path, self._lengths[path] - 1)
                self._positions.setdefault(path, start)
        return path

    def _pair(self, table: Path) -> None:
        """`a.b = value`."""
        start, path = self._spot(), table
        for key in self._keys():
            path = (*path, key)
            self._positions.setdefault(path, start)
        self._skip_space()
        self._at += 1  # the =
        self._value(path)

    def _keys(self) -> list[str]:
        """Parts of a dotted key."""
        keys: list[str] = []
        while True:
            self._skip_space()
            match = _KEY.match(self._text, self._at)
            if match is None:
                return keys
            self._at = match.end()
            keys.append(next(iter(tomllib.loads(f"{match[0]} = 0"))))
            self._skip_space()
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _value(self, path: Path) -> None:
        self._skip_space()
        first = self._text[self._at : self._at + 1]
        if first == "[":
            self._items(path)
        elif first == "{":
            self._inline_table(path)
        else:
            pattern = _TEXT if first in ("'", '"') else _BARE
            match = pattern.match(self._text, self._at)
            self._at = match.end() if match else len(self._text)

    def _items(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._skip_space() < len(self._text) and self._text[self._at] != "]":
            self._positions[(*path, number)] = self._spot()
            self._value((*path, number))
            number += 1
            self._skip_comma()
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._skip_space() < len(self._text) and self._text[self._at] != "}":
            self._pair(path)
            self._skip_comma()
        self._at += 1

    def _skip_comma(self) -> None:
        self._skip_space()
        self._at += self._text.startswith(",", self._at)

    def _skip_space(self) -> int:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _spot(self) -> Spot:
        line = self._text.count("\n", 0, self._at) + 1
        return Spot(line, self._at - self._text.rfind("\n", 0, self._at))
