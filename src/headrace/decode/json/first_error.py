"""Find the first error of many texts at once: the same reason, position and words as the parser, which reads one.

All texts advance together, byte by byte, each with the state of a parser; no object is made for a value or a text:

    text     {"a":1,"b":x
    state    before a key, in a key, after a key, before a value, in a number, …, before a value: stop at `x`

What the parser says depends on the state and on the byte at which it stops. It is asked once for each such pair, with
the shortest text that leads to the state: `{"":x`, and says: Expecting value at character 4, which is the last one.
Where that does not hold (errors inside escapes, deep nesting), the text is left to the parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import CODES, DecodeLimits, ReasonCodes
from headrace.decode.byte_scan import Mask, Numbers, TextBytes
from headrace.decode.json.nesting import escaped_quotes
from headrace.decode.json.strict import Parser, space
from headrace.decode.scalars import UnfitValue
from headrace.reasons import Reason

_NESTED = 30  # objects and arrays in a text at most: two bits of 64 for each
_LONGEST = 4_096  # bytes of a text beyond which the parser is as fast
_TEXTS = 32_768  # texts that advance together
_PER_BYTE = 4  # texts for each byte of the longest one, so that their number pays for the steps
_OFTEN = 16  # bytes after which finished texts are removed
_BYTES = 256
_END = _BYTES  # in place of a byte, where a text ends
_SPACES = b" \t\r\n"
_IS_SPACE = np.isin(np.arange(_BYTES), list(_SPACES))

# What a value is in, and the shortest text before it; the fourth is a key instead of a value.
_ROOT, _OBJECT, _ARRAY, _KEY = range(4)
_BEFORE = ("", '{"":', "[0,", "{")

_START, _AFTER, _NEXT_KEY = "value", "after", "next key"
_FIRST_KEY, _FIRST_ELEMENT, _COLON = "first key", "first element", "colon"
_WORDS = ("true", "false", "null")
_CONSTANTS = ("NaN", "Infinity", "-Infinity")  # which the parser reads, and refuses
_UNTOLD = ("escape", "hex0", "hex1", "hex2", "hex3", "unicode")  # where the parser's answer depends on what follows

# States inside of a value, with the shortest text that leads to each.
_INSIDE = {
    "string": '"',
    "escape": '"\\',
    **{f"hex{count}": '"\\u' + "0" * count for count in range(4)},
    "unicode": '"\\u0000',
    "-": "-",
    "zero": "0",
    "whole": "1",
    "point": "0.",
    "fraction": "0.0",
    "e": "0e",
    "sign": "0e+",
    "exponent": "0e0",
    **{word[:end]: word[:end] for word in (*_WORDS, *_CONSTANTS) for end in range(1, len(word))},
}
# What may be added without leaving the state.
_MORE = {"string": "abc", "whole": "1", "fraction": "0", "exponent": "0", **dict.fromkeys((_START, _AFTER), " ")}
_MORE |= dict.fromkeys((_FIRST_KEY, _FIRST_ELEMENT, _NEXT_KEY, _COLON), " ")

_ParserState = tuple[str, int]  # a name, and what the value is in
_OTHERS = {
    (_FIRST_KEY, _OBJECT): "{",
    (_NEXT_KEY, _OBJECT): '{"":0,',
    (_COLON, _OBJECT): '{""',
    (_FIRST_ELEMENT, _ARRAY): "[",
}
_DEAD, _STOP, _OPEN_OBJECT, _OPEN_ARRAY, _CLOSE = (("dead", 0), ("stop", 0), ("{", 0), ("[", 0), ("}", 0))


def _texts_of_states() -> dict[_ParserState, str]:
    texts = dict(_OTHERS)
    for within, before in enumerate(_BEFORE[:_KEY]):
        texts |= {(name, within): before + text for name, text in {_START: "", _AFTER: '""', **_INSIDE}.items()}
    return texts | {(name, _KEY): _BEFORE[_KEY] + _INSIDE[name] for name in ("string", *_UNTOLD)}


class _Automaton:
    """The states of the parser, and the state that follows each with each byte."""

    def __init__(self) -> None:
        self.texts = _texts_of_states()
        self.states = [*self.texts, _DEAD, _STOP, _OPEN_OBJECT, _OPEN_ARRAY, _CLOSE]
        self.row = {state: nth * _BYTES for nth, state in enumerate(self.states)}  # its place in the table
        self.within = np.array([within for _, within in self.states], np.uint64)
        self.after = np.array([self.row[_AFTER, within] for within in range(_KEY)])
        table = np.full((len(self.states), _BYTES), self.row[_STOP], np.int64)
        table[self.row[_DEAD] // _BYTES] = self.row[_DEAD]
        for state in self.texts:
            for characters, following in _steps(*state):
                table[self.row[state] // _BYTES, list(characters)] = self.row[following]
        self.table = table.reshape(-1)


def _steps(name: str, within: int) -> Iterator[tuple[bytes, _ParserState]]:
    """The bytes that the parser accepts in a state, and the states that follow; later ones replace earlier ones."""
    if name in _MORE and _MORE[name] == " ":
        yield _SPACES, (name, within)
    if name in (_START, _FIRST_ELEMENT):
        yield from _value_steps(within)
    elif name in (_FIRST_KEY, _NEXT_KEY):
        yield b'"', ("string", _KEY)
    elif name == _COLON:
        yield b":", (_START, _OBJECT)
    elif name in ("string", *_UNTOLD):
        yield from _string_steps(name, within)
    elif name in _INSIDE and name not in ("zero", "whole", "fraction", "exponent"):
        yield from _word_steps(name, within)
    else:
        yield from _after_steps(name, within)
    if name in (_FIRST_KEY, _FIRST_ELEMENT):
        yield b"}" if name == _FIRST_KEY else b"]", _CLOSE


def _value_steps(within: int) -> Iterator[tuple[bytes, _ParserState]]:
    yield b'"', ("string", within)
    yield b"-", ("-", within)
    yield b"0", ("zero", within)
    yield b"123456789", ("whole", within)
    for first in b"tfnNI":
        yield bytes([first]), (chr(first), within)
    yield b"{", _OPEN_OBJECT
    yield b"[", _OPEN_ARRAY


def _string_steps(name: str, within: int) -> Iterator[tuple[bytes, _ParserState]]:
    if name in ("string", "unicode"):
        yield bytes(range(0x20, _BYTES)), ("string", within)
        yield b"\\", ("escape", within)
        yield b'"', (_COLON, _OBJECT) if within == _KEY else (_AFTER, within)
    elif name == "escape":
        yield b'"\\/bfnrt', ("string", within)
        yield b"u", ("hex0", within)
    else:
        digits = int(name.removeprefix("hex"))
        yield b"0123456789abcdefABCDEF", ("unicode" if digits == 3 else f"hex{digits + 1}", within)


def _word_steps(name: str, within: int) -> Iterator[tuple[bytes, _ParserState]]:
    """Of words, and of numbers that are not complete."""
    digits = {"-": "whole", "point": "fraction", "e": "exponent", "sign": "exponent"}
    if name in digits:
        yield b"0123456789", (digits[name], within)
    if name == "-":
        yield b"0", ("zero", within)
    if name == "e":
        yield b"+-", ("sign", within)
    for word in (*_WORDS, *_CONSTANTS):
        if word.startswith(name) and (len(word) > len(name) + 1 or word in _WORDS):
            following = name + word[len(name)]
            yield word[len(name)].encode(), (following if following in _INSIDE else _AFTER, within)


def _after_steps(name: str, within: int) -> Iterator[tuple[bytes, _ParserState]]:
    """After a value; a number that is complete may go on."""
    yield _SPACES, (_AFTER, within)
    if within == _OBJECT:
        yield b",", (_NEXT_KEY, _OBJECT)
        yield b"}", _CLOSE
    if within == _ARRAY:
        yield b",", (_START, _ARRAY)
        yield b"]", _CLOSE
    if name in ("whole", "fraction", "exponent"):
        yield b"0123456789", (name, within)
    if name in ("zero", "whole"):
        yield b".", ("point", within)
    if name in ("zero", "whole", "fraction"):
        yield b"eE", ("e", within)


_automaton = cache(_Automaton)


@dataclass(slots=True)
class _Lanes:
    """Texts that advance together, the shortest first."""

    row: Numbers
    at: Numbers  # the next byte of each
    end: Numbers
    state: Numbers
    parents: np.ndarray[Any, np.dtype[np.uint64]]  # what each open object or array is in, two bits for each

    def some(self, which: Any) -> _Lanes:
        return _Lanes(*(getattr(self, name)[which] for name in self.__slots__))


class ParserStops:
    """Where the parser stops in each text: the state, the byte, and its position; no state where that is not known."""

    def __init__(self, texts: TextBytes, limits: DecodeLimits) -> None:
        self._machine, self._content = _automaton(), texts.content
        count, sizes = len(texts.starts) - 1, texts.sizes
        longest = min(_LONGEST, count // _PER_BYTE)
        self.state = np.full(count, -1)
        self.byte, self.at = np.zeros(count, np.int64), np.zeros(count, np.int64)
        rows = np.flatnonzero((sizes <= longest) & (texts.openers() < min(_NESTED, limits.depth)))
        rows = rows[np.argsort(sizes[rows], kind="stable")]
        for begin in range(0, len(rows), _TEXTS):
            some = rows[begin : begin + _TEXTS]
            start, end = (each[some].astype(np.int64) for each in (texts.starts[:-1], texts.starts[1:]))
            state = np.full(len(some), self._machine.row[_START, _ROOT])
            self._run(_Lanes(some, start, end, state, np.zeros(len(some), np.uint64)))

    def _run(self, lanes: _Lanes) -> None:
        machine, content = self._machine, self._content
        step = 0
        while len(lanes.row):
            if step % _OFTEN == 0:
                alive = lanes.state != machine.row[_DEAD]
                lanes = lanes.some(alive) if np.count_nonzero(alive) * 2 < len(alive) else lanes
                sizes = lanes.end - lanes.at
                ended = np.searchsorted(sizes, np.arange(_OFTEN), side="right").tolist()
                gone = 0
            if (over := ended[step % _OFTEN]) > gone:
                self._stop(lanes.some(slice(over - gone)), _END)
                lanes, gone = lanes.some(slice(over - gone, None)), over
            before = lanes.state
            lanes.state = machine.table.take(before + content.take(lanes.at))
            special = np.flatnonzero(lanes.state >= machine.row[_STOP])
            if len(special):
                self._special(lanes, special, before[special])
            lanes.at += 1
            step += 1

    def _special(self, lanes: _Lanes, which: Numbers, before: Numbers) -> None:
        """Stop, or open or close an object or array."""
        machine, state = self._machine, lanes.state[which]
        stopped = state == machine.row[_STOP]
        if stopped.any():
            at = which[stopped]
            lanes.state[at] = before[stopped]
            self._stop(lanes.some(at), None)
            lanes.state[at] = machine.row[_DEAD]
        closed = which[state == machine.row[_CLOSE]]
        lanes.state[closed] = machine.after[(lanes.parents[closed] & np.uint64(3)).astype(np.int64)]
        lanes.parents[closed] >>= np.uint64(2)
        for code, first in ((_OPEN_OBJECT, (_FIRST_KEY, _OBJECT)), (_OPEN_ARRAY, (_FIRST_ELEMENT, _ARRAY))):
            opened = state == machine.row[code]
            parent = machine.within[before[opened] // _BYTES]
            lanes.parents[which[opened]] = lanes.parents[which[opened]] << np.uint64(2) | parent
            lanes.state[which[opened]] = machine.row[first]

    def _stop(self, lanes: _Lanes, byte: int | None) -> None:
        lanes = lanes.some(lanes.state != self._machine.row[_DEAD])
        self.state[lanes.row] = lanes.state
        self.byte[lanes.row] = self._content.take(lanes.at) if byte is None else byte
        self.at[lanes.row] = lanes.at


# ---- what the parser says ----


@dataclass(frozen=True, slots=True)
class ParserError:
    """What the parser says of a text; `at` is a character of it."""

    reason: Reason
    words: str
    at: int | None = None


def parser_error(parser: Parser, text: str) -> ParserError | None:
    """The error of one text; None if it is JSON."""
    try:
        _, end = parser.scan(text, space(text, 0))
    except json.JSONDecodeError as error:
        return ParserError(Reason.MALFORMED, f"{error.msg} at character ", error.pos)
    except UnfitValue as unfit:
        return ParserError(unfit.reason, unfit.detail)
    if space(text, end) == len(text):
        return None
    return ParserError(Reason.TRAILING_DATA, "the value ends at character ", end)


@dataclass(frozen=True, slots=True)
class ErrorColumns:
    """What the parser says of many texts."""

    index: Numbers  # of the text
    code: ReasonCodes
    words: pa.StringArray
    at: Numbers  # in characters; -1: none
    total: Numbers  # characters of a text with trailing data; -1: other errors

    def take(self, which: Numbers) -> ErrorColumns:
        """The errors at these places."""
        words = self.words.take(pa.array(which))
        return ErrorColumns(self.index[which], self.code[which], words, self.at[which], self.total[which])

    def join(self, other: ErrorColumns) -> ErrorColumns:
        """These errors and others."""
        return ErrorColumns(
            np.concatenate([self.index, other.index]),
            np.concatenate([self.code, other.code]),
            pa.concat_arrays([self.words, other.words]),
            np.concatenate([self.at, other.at]),
            np.concatenate([self.total, other.total]),
        )

    def details(self, before: Numbers | int = 0) -> pa.StringArray:
        """The details; `before` characters precede each text."""
        at, total = (pa.array(each + before, mask=each < 0).cast(pa.string()) for each in (self.at, self.total))
        end = pc.binary_join_element_wise(" of ", total, "")
        return pc.binary_join_element_wise(self.words, pc.fill_null(at, ""), pc.fill_null(end, ""), "")


def error_columns(
    index: Numbers, errors: list[ParserError], which: Numbers, at: Numbers, sizes: Numbers
) -> ErrorColumns:
    """Errors as columns: `which` has the one of each text, `at` its position, `sizes` the length of the text."""
    code = np.array([CODES[error.reason] for error in errors], np.uint8)[which]
    words = pa.array([error.words for error in errors], pa.string()).take(pa.array(which))
    return ErrorColumns(index, code, words, at, np.where(code == CODES[Reason.TRAILING_DATA], sizes, -1))


_UNKNOWN, _VALID, _PLAIN, _BACK, _OPENING, _VALUE_END = range(6)  # where the position of an error is


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the parser says of all texts that stop in one state at one byte."""

    kind: int
    error: ParserError = ParserError(Reason.MALFORMED, "")
    back: int = 0  # characters from the stop to the position


class FirstErrors:
    """Finds the first errors of texts, with the answers of a parser."""

    def __init__(self, parser: Parser, limits: DecodeLimits) -> None:
        self._parser, self._limits, self._machine = parser, limits, _automaton()
        self._answers: dict[int, _Answer] = {}

    def find(self, texts: pa.StringArray) -> tuple[ErrorColumns, Numbers]:
        """The errors that are certain, and the texts that are certainly JSON, but for keys, width and surrogates."""
        content = TextBytes(texts)
        stops = ParserStops(content, self._limits)
        pairs, which = np.unique(stops.state + stops.byte * len(self._machine.table), return_inverse=True)
        answers = [self._answer(pair) for pair in pairs.tolist()]
        kinds = np.array([answer.kind for answer in answers], np.int64)[which]
        kinds[_marked(content) & (stops.at == content.starts[:-1])] = _UNKNOWN
        at = stops.at + np.array([answer.back for answer in answers], np.int64)[which]
        opening, ending = np.flatnonzero(kinds == _OPENING), np.flatnonzero(kinds == _VALUE_END)
        if len(opening):
            at[opening] = _opening_quotes(content, stops.at[opening])
        at[ending] = _value_ends(content.content, at[ending])
        index = np.flatnonzero(kinds > _VALID)
        at = np.where(kinds == _PLAIN, -1, _characters(content, at))[index]
        sizes = pc.utf8_length(texts.take(pa.array(index))).to_numpy().astype(np.int64)
        errors = error_columns(index, [answer.error for answer in answers], which[index], at, sizes)
        return errors, np.flatnonzero(kinds == _VALID)

    def _answer(self, pair: int) -> _Answer:
        if pair < 0:
            return _Answer(_UNKNOWN)
        if pair not in self._answers:
            byte, state = divmod(pair, len(self._machine.table))
            self._answers[pair] = self._asked(state, byte)
        return self._answers[pair]

    def _asked(self, state: int, byte: int) -> _Answer:
        """The answer, asked twice where more characters do not change the state; unknown if it is not the same."""
        name, within = self._machine.states[state // _BYTES]
        if name in _UNTOLD:
            return _Answer(_UNKNOWN)
        text = self._machine.texts[name, within]
        added = "" if byte == _END else chr(byte) if byte < 0x80 else "\u00e9"
        texts = [text, text + _MORE.get(name, "")]
        errors = [parser_error(self._parser, each + added) for each in texts]
        if errors[0] is None or errors[1] is None:
            return _Answer(_VALID if errors[0] is errors[1] else _UNKNOWN)
        (first, at), (_, other) = ((error, error.at) for error in errors if error is not None)
        if first.words != errors[1].words or first.reason != errors[1].reason:
            return _Answer(_UNKNOWN)
        if at is None or other is None:
            return _Answer(_PLAIN, first)
        if (name, within) == (_AFTER, _ROOT):
            return _Answer(_VALUE_END, first)
        if at - len(texts[0]) == other - len(texts[1]):
            return _Answer(_BACK, first, at - len(texts[0]))
        return _Answer(_OPENING if name == "string" and at == other else _UNKNOWN, first)


def _marked(content: TextBytes) -> Mask:
    """Which texts may start with a byte-order mark, which the parser never sees."""
    marked: Mask = content.byte(0) == 0xEF
    return marked


def _opening_quotes(texts: TextBytes, at: Numbers) -> Numbers:
    """The quote that opens the string in which a position is."""
    opens, slashes = texts.content == ord('"'), np.flatnonzero(texts.content == ord("\\"))
    if len(slashes):
        # The first byte of a text is not escaped by the text before it.
        firsts = texts.starts[texts.starts < len(opens)]
        quoted = opens[firsts]
        opens[escaped_quotes(texts.content, slashes)] = False
        opens[firsts] = quoted
    quotes = np.flatnonzero(opens)
    opening: Numbers = quotes[np.searchsorted(quotes, at) - 1]
    return opening


def _value_ends(content: np.ndarray[Any, np.dtype[np.uint8]], at: Numbers) -> Numbers:
    """The end of the value before each position, from which spaces divide it."""
    ends, behind_space = at.copy(), np.flatnonzero(_IS_SPACE[content[at - 1]])
    if len(behind_space):
        is_space = _IS_SPACE[content]
        starts = np.flatnonzero(is_space[1:] & ~is_space[:-1]) + 1  # of runs of spaces
        ends[behind_space] = starts[np.searchsorted(starts, at[behind_space]) - 1]
    return ends


def _characters(texts: TextBytes, at: Numbers) -> Numbers:
    """Number of characters of each text before a position: UTF-8 continues a character with bytes 10xxxxxx."""
    start = texts.starts[:-1]
    further = np.flatnonzero((texts.content & 0xC0) == 0x80)
    characters: Numbers = at - start
    if len(further):
        characters -= np.searchsorted(further, at) - np.searchsorted(further, start)
    return characters
