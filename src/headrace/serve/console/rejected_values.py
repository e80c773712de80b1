"""Values of dead letters, with the bytes marked that the detail speaks of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BEFORE, _AFTER = 400, 600  # bytes shown around the mark
_BYTE = re.compile(r"\bbyte (\d+)\b")
_CHARACTER = re.compile(r"\b(?:at character|ends at character) (\d+)\b(?P<tail> of \d+)?")
_QUOTED = re.compile(r"'((?:[^']|'(?=\w))*)'")
_NUMBER = re.compile(r"\bnumber (-?\d[\d.eE+-]*)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a value as text; `is_marked`: the part that was rejected."""

    text: str
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class RejectedValue:
    """A value for display."""

    pieces: tuple[Piece, ...]
    size: int | None  # bytes; None: the value is null
    marked: str  # the marked bytes in words; empty if they are unknown
    is_masked: bool


def rejected_value(value: bytes | None, detail: str, *, masked: bool) -> RejectedValue:
    """A value with its rejected bytes marked; `masked`: without letters and digits, which may be private data."""
    if value is None:
        return RejectedValue((), None, "", masked)
    span = rejected_span(value, detail)
    start, end = span or (0, 0)
    first, last = max(0, start - _BEFORE), min(len(value), end + _AFTER)
    pieces = [Piece("…")] if first else []
    pieces.append(Piece(_shown(value[first:start], masked)))
    if span is not None:
        pieces.append(Piece(_shown(value[start:end], masked) or "end of the value", is_marked=True))
    pieces.append(Piece(_shown(value[end:last], masked)))
    pieces += [Piece("…")] if last < len(value) else []
    return RejectedValue(tuple(each for each in pieces if each.text), len(value), _words(span, len(value)), masked)


def _words(span: tuple[int, int] | None, size: int) -> str:
    if span is None:
        return ""
    start, end = span
    if start >= size:
        return "the end of the value"
    return f"byte {start:,}" if end - start == 1 else f"bytes {start:,} to {end - 1:,}"


def rejected_span(value: bytes, detail: str) -> tuple[int, int] | None:
    """Start and end of the bytes that a detail names; None if it names none, or if they are in several places."""
    if match := _BYTE.search(detail):
        start = min(int(match[1]), len(value))
        return start, min(start + 1, len(value))
    if match := _CHARACTER.search(detail):
        start = len(value.decode("utf-8", "replace")[: int(match[1])].encode())
        return min(start, len(value)), len(value) if match["tail"] else min(start + 1, len(value))
    return next(_places(value, detail), None)


def _places(value: bytes, detail: str) -> Iterator[tuple[int, int]]:
    """Where texts and numbers of the detail are, the last one first: it is the value, the others are names."""
    is_repeated = "twice" in detail
    for match in reversed([*_QUOTED.finditer(detail), *_NUMBER.finditer(detail)]):
        for text in (json.dumps(match[1]), match[1]):
            data = text.encode()
            count = value.count(data)
            if data and (count == 1 or (is_repeated and count > 1)):
                start = value.rindex(data)
                yield start, start + len(data)


def masked_detail(detail: str) -> str:
    """A detail without the values that it quotes."""
    return _NUMBER.sub("number …", _QUOTED.sub("'…'", detail))


def _shown(data: bytes, masked: bool) -> str:
    text = data.decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() or char == "\n" else f"\\u{ord(char):04x}" for char in text)
    return re.sub(r"[^\W\d_]", "x", re.sub(r"\d", "0", shown)) if masked else shown
