"""Rows of CSV files as JSON objects, by columns. Fields keep their text: nothing is guessed or rounded."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Mask, Numbers, cut
from headrace.decode.typed.text import as_json
from headrace.reasons import Reason
from headrace.source.files.indexed_file import FileFormat
from headrace.source.files.rows import FileRows, Reject
from headrace.source.files.text_blocks import Bytes, Cuts, line_bounds, outside

_LITERAL = r"^(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false)$"
_RETURN = 0x0D
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
_DELIMITERS = {b",": "a comma", b";": "a semicolon", b"\t": "a tab", b"|": "a vertical bar"}
_BAD_QUOTES = Reason.MALFORMED, "a quote inside a field that is not quoted, or a quoted field that does not end"


class CsvCutter:
    """Rows of a CSV file, and their values; the first row has the names of the columns unless they are given."""

    resync = False

    def __init__(self, form: FileFormat, columns: tuple[str, ...] = ()) -> None:
        self._form = form
        self._quote, self._delimiter = ord(form.quote), ord(form.delimiter)
        self.columns = columns or form.columns

    def cut(self, buffer: bytes, *, final: bool) -> Cuts:
        """Cut at line breaks outside of quotes."""
        content = np.frombuffer(buffer, np.uint8)
        newlines = np.flatnonzero(content == 0x0A)
        newlines = newlines[outside(np.flatnonzero(content == self._quote), newlines)]
        starts, ends, rest = line_bounds(content, newlines, final=final)
        starts, ends = starts[starts < ends], ends[starts < ends]
        if self.columns or not len(starts):
            return Cuts(starts, ends, rest)
        if damage := self._read_header(buffer, starts[:1], ends[:1]):
            return Cuts(damage=damage)
        return Cuts(starts[1:], ends[1:], rest)

    def _read_header(self, buffer: bytes, starts: Numbers, ends: Numbers) -> Reject | None:
        """Take the names of the columns from a row; the reason why they are not valid."""
        header = buffer[starts[0] : ends[0]]
        if header.startswith(_UTF16):
            return Reason.ENCODING, "the file is UTF-16, expected UTF-8"
        fields = _Fields(buffer, self._quote, self._delimiter, starts, ends)
        if fields.has_bare(_RETURN):  # without this check, the whole file would be the header row
            return Reason.MALFORMED, "the header row has a carriage return: lines must end with \\n or \\r\\n"
        count = int(fields.counts()[0])
        bounds = fields.bounds(np.array([0]), count)
        if fields.bad_quotes(*bounds)[0]:
            return _BAD_QUOTES
        try:
            names = [fields.texts(*(side[:, at] for side in bounds))[0].as_py() for at in range(count)]
        except pa.ArrowInvalid:
            return Reason.ENCODING, "the header row is not valid UTF-8"
        if count == 1 and self._form.quote.encode() not in header:
            # Otherwise every row would be one field that no column has: a row of NULLs.
            for delimiter, called in _DELIMITERS.items():
                if delimiter in header:
                    return Reason.MALFORMED, f"the header row is one field with {called}: check csv.delimiter"
        if not all(names) or len(set(names)) < count:
            return Reason.MALFORMED, "the header row has an empty or a duplicate name"
        self.columns = tuple(names)
        return None

    def rows(self, buffer: bytes, starts: Numbers, ends: Numbers) -> FileRows:
        """The rows with these bounds as JSON; rejected ones as they are in the file."""
        fields = _Fields(buffer, self._quote, self._delimiter, starts, ends)
        rejects: dict[int, Reject] = {}
        counts = fields.counts()
        for row in np.flatnonzero(counts != len(self.columns)).tolist():
            rejects[row] = Reason.MALFORMED, f"{counts[row]} fields, expected {len(self.columns)}"
        at = np.flatnonzero(counts == len(self.columns))
        bad = fields.bad_quotes(*fields.bounds(at, len(self.columns)))
        rejects |= dict.fromkeys(at[bad].tolist(), _BAD_QUOTES)
        at = at[~bad]
        wrong = fields.not_utf8(at)
        rejects |= dict.fromkeys(at[wrong].tolist(), (Reason.ENCODING, "not valid UTF-8"))
        at = at[~wrong]
        return FileRows(_combined(fields, at, self._objects(fields, at), sorted(rejects)), rejects)

    def _objects(self, fields: _Fields, at: Numbers) -> pa.BinaryArray:
        """Rows as JSON objects; a field without quotes and without bytes is null."""
        if not len(at):
            return pa.array([], pa.binary())
        begins, ends = fields.bounds(at, len(self.columns))
        parts: list[pa.Array | str] = []
        for nth, name in enumerate(self.columns):
            texts = fields.texts(begins[:, nth], ends[:, nth])
            values = as_json(texts)
            if name in self._form.literals:
                values = pc.if_else(pc.fill_null(pc.match_substring_regex(texts, _LITERAL), False), texts, values)
            values = pc.if_else(pa.array(begins[:, nth] == ends[:, nth]), "null", values)
            parts += [f"{',' if nth else '{'}{json.dumps(name, ensure_ascii=False)}:", values]
        return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


class _Fields:
    """Fields of rows by their bounds in a buffer."""

    def __init__(self, buffer: bytes, quote: int, delimiter: int, starts: Numbers, ends: Numbers) -> None:
        self.buffer, self.starts, self.ends, self._quote = buffer, starts, ends, quote
        self._content: Bytes = np.frombuffer(buffer, np.uint8)
        self._quotes = np.flatnonzero(self._content == quote)
        delimiters = np.flatnonzero(self._content == delimiter)
        self._delimiters = delimiters[outside(self._quotes, delimiters)]

    def has_bare(self, byte: int) -> bool:
        """Whether a byte is in a row, outside of quotes."""
        at = np.flatnonzero(self._content == byte)
        at = at[outside(self._quotes, at)]
        return bool((np.searchsorted(at, self.ends) > np.searchsorted(at, self.starts)).any())

    def counts(self) -> Numbers:
        """Number of fields of each row."""
        at = np.searchsorted(self._delimiters, self.starts)
        counts: Numbers = np.searchsorted(self._delimiters, self.ends) - at + 1
        return counts

    def bounds(self, at: Numbers, count: int) -> tuple[Numbers, Numbers]:
        """First and last bounds of the fields of rows that have `count` of them: a row of numbers for each row."""
        first = np.searchsorted(self._delimiters, self.starts[at])
        between = self._delimiters[first[:, None] + np.arange(count - 1)] if count > 1 else np.zeros((len(at), 0), int)
        begins = np.concatenate([self.starts[at][:, None], between + 1], axis=1)
        ends = np.concatenate([between, self.ends[at][:, None]], axis=1)
        return begins, ends

    def _quote_counts(self, begins: Numbers, ends: Numbers) -> Numbers:
        counts: Numbers = np.searchsorted(self._quotes, ends) - np.searchsorted(self._quotes, begins)
        return counts

    def bad_quotes(self, begins: Numbers, ends: Numbers) -> Mask:
        """Which rows have a field with quotes that is not quoted as a whole."""
        counts = self._quote_counts(begins, ends)
        first, last = self._at(begins), self._at(ends - 1)
        whole = (counts > 1) & (first == self._quote) & (last == self._quote)
        bad: Mask = ((counts > 0) & ~whole).any(axis=1)
        quote = bytes([self._quote])
        for row, nth in zip(*(side.tolist() for side in np.nonzero(counts > 2)), strict=True):
            inner = self.buffer[begins[row, nth] + 1 : ends[row, nth] - 1]
            bad[row] |= quote in inner.replace(quote * 2, b"")
        return bad

    def _at(self, positions: Numbers) -> Bytes:
        if not len(self._content):
            return np.zeros(positions.shape, np.uint8)
        return self._content[np.clip(positions, 0, len(self._content) - 1)]

    def not_utf8(self, at: Numbers) -> Mask:
        """Which rows are not valid UTF-8."""
        rows = cut(self.buffer, self.starts[at], self.ends[at], pa.binary())
        wrong = np.zeros(len(at), bool)
        try:
            rows.cast(pa.string())
        except pa.ArrowInvalid:
            for nth, raw in enumerate(rows.to_pylist()):
                try:
                    raw.decode()
                except UnicodeDecodeError:
                    wrong[nth] = True
        return wrong

    def texts(self, begins: Numbers, ends: Numbers) -> pa.StringArray:
        """Fields without their quotes."""
        counts = self._quote_counts(begins, ends)
        quoted = counts > 0
        texts = cut(self.buffer, begins + quoted, ends - quoted, pa.binary()).cast(pa.string())
        if not (counts > 2).any():
            return texts
        quote = chr(self._quote)
        return pc.if_else(pa.array(counts > 2), pc.replace_substring(texts, quote * 2, quote), texts)


def _combined(fields: _Fields, at: Numbers, objects: pa.BinaryArray, rejected: list[int]) -> pa.BinaryArray:
    """Objects at their positions, and the bytes of rejected rows at theirs."""
    if not rejected:
        return objects
    others = np.array(rejected, np.int64)
    raw = cut(fields.buffer, fields.starts[others], fields.ends[others], pa.binary())
    order = np.argsort(np.concatenate([at, others]), kind="stable")
    return pa.concat_arrays([objects, raw]).take(pa.array(order))
