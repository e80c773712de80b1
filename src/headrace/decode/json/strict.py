"""Strict JSON, one value at a time: RFC 8259, no duplicate keys, within limits, numbers as written."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from headrace.decode.base import DecodeLimits
from headrace.decode.json.nesting import too_deep
from headrace.decode.payload import PayloadNode, walk_nodes
from headrace.decode.scalars import UnfitValue, describe
from headrace.reasons import Reason

_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
BOM = "\ufeff"
_DIGITS = 4_000  # digits beyond which an integer fits no type
_BEYOND: int = 10**_DIGITS


class Real(float):
    """A number with a fraction or an exponent, and its text."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Real:
        real = super().__new__(cls, text)
        real.text = text
        return real


class Span(str):
    """The original text of a value."""

    __slots__ = ()


def integer(text: str) -> int:
    """A whole number; one with thousands of digits is replaced by a number that fits no type."""
    if len(text) < _DIGITS:
        return int(text)
    return -_BEYOND if text[0] == "-" else _BEYOND


def _no_constant(name: str) -> Any:
    raise UnfitValue(Reason.MALFORMED, f"{name} is not JSON")


class Parser:
    """Strict JSON parser: RFC 8259, no duplicate keys, within the limits."""

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits
        self._twice: str | None = None
        self._widest = 0
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_float=Real, parse_int=integer, parse_constant=_no_constant
        )

    @staticmethod
    def text(raw: bytes) -> str:
        """The value's text, without a byte-order mark."""
        try:
            return raw.decode().removeprefix(BOM)
        except UnicodeDecodeError as error:
            raise UnfitValue(Reason.ENCODING, f"byte {error.start} is not valid UTF-8") from None

    def parse(self, text: str) -> dict[str, Any]:
        """The object of a text; raises UnfitValue with the reason."""
        self._twice, self._widest = None, 0
        self._refuse_depth(text)
        value = self._whole(text)
        if self._twice is not None:
            raise UnfitValue(Reason.DUPLICATE_KEY, f"the key {describe(self._twice)} appears twice in one object")
        if self._widest > self._limits.keys:
            raise UnfitValue(Reason.TOO_WIDE, f"an object has {self._widest} keys, the limit is {self._limits.keys}")
        if _SURROGATE.search(text):
            _refuse_lone_surrogates(value)
        if not isinstance(value, dict):
            raise UnfitValue(Reason.NOT_AN_OBJECT, f"the value is {describe(value)}")
        return value

    def value(self, text: str) -> Any:
        """Any JSON value of a text; raises UnfitValue."""
        return self._whole(text)

    def scan(self, text: str, at: int) -> tuple[Any, int]:
        """The value at a position, and the position after it."""
        result: tuple[Any, int] = self._decoder.raw_decode(text, at)
        return result

    def _whole(self, text: str) -> Any:
        try:
            value, end = self.scan(text, space(text, 0))
        except json.JSONDecodeError as error:
            raise UnfitValue(Reason.MALFORMED, f"{error.msg} at character {error.pos}") from None
        if space(text, end) != len(text):
            raise UnfitValue(Reason.TRAILING_DATA, f"the value ends at character {end} of {len(text)}")
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs) and self._twice is None:
            keys = [key for key, _ in pairs]
            self._twice = next(key for key in keys if keys.count(key) > 1) if len(keys) < 1000 else "…"
        self._widest = max(self._widest, len(pairs))
        return members

    def _refuse_depth(self, text: str) -> None:
        limit = self._limits.depth
        if text.count("{") + text.count("[") < limit:
            return
        raw = text.encode(errors="surrogatepass")
        if (place := too_deep(np.frombuffer(raw, np.uint8), limit)) is not None:
            at = len(raw[:place].decode(errors="surrogatepass"))
            raise UnfitValue(Reason.TOO_DEEP, f"nested {limit} deep or deeper at character {at}")


def space(text: str, at: int) -> int:
    """The first position from `at` that is not white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UnfitValue(Reason.ENCODING, "an escape is an unpaired surrogate") from None


class Cutter:
    """Reads a valid value again and returns the original text where a column stores text."""

    def __init__(self, parser: Parser, root: PayloadNode) -> None:
        self._parser = parser
        self._root = root

    def cut(self, text: str) -> Any:
        """The value, with a Span wherever a column stores text."""
        return self._spans(self._root, text, space(text, 0))[0]

    def _spans(self, node: PayloadNode | None, text: str, at: int) -> tuple[Any, int]:
        if node is not None and node.kind == "json":
            value, end = self._parser.scan(text, at)
            return (None if value is None else Span(text[at:end])), end
        if node is not None and holds_text(node):
            if text[at] == "{" and node.kind in ("object", "map"):
                return self._span_members(node, text, at)
            if text[at] == "[" and node.kind == "list":
                return self._span_elements(node, text, at)
        return self._parser.scan(text, at)

    def _span_members(self, node: PayloadNode, text: str, at: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        at = space(text, at + 1)
        while text[at] != "}":
            key, at = self._parser.scan(text, at)
            at = space(text, space(text, at) + 1)
            child = node.children.get("*" if node.kind == "map" else key)
            members[key], at = self._spans(child, text, at)
            at = _past_comma(text, at)
        return members, at + 1

    def _span_elements(self, node: PayloadNode, text: str, at: int) -> tuple[list[Any], int]:
        elements: list[Any] = []
        at = space(text, at + 1)
        while text[at] != "]":
            item, at = self._spans(node.children["*"], text, at)
            elements.append(item)
            at = _past_comma(text, at)
        return elements, at + 1


def holds_text(node: PayloadNode) -> bool:
    """Whether a column at or below the node stores original text."""
    return node.kind == "json" or any(child.kind == "json" for _, child in walk_nodes(node))


def _past_comma(text: str, at: int) -> int:
    at = space(text, at)
    return space(text, at + 1) if text[at] == "," else at
