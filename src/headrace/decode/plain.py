"""Plain values: text, a number, bytes; each has one or two fields, named as in the Danube sink."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, DecodeLimits, Decoder, NewField, Rejects
from headrace.decode.byte_scan import Numbers, matches
from headrace.decode.input import sized, spread, texts_of
from headrace.decode.json.decoder import bound_errors
from headrace.decode.payload import payload_schema_of
from headrace.decode.scalars import describe
from headrace.decode.typed.fit import fit_values
from headrace.decode.typed.text import as_json
from headrace.decode.unpack import UnpackedValues, UnpackingDecoder
from headrace.reasons import Reason
from headrace.spec.decode import BytesFormat, Int64Format, NumberFormat, RawFormat, StringFormat

# (values, positions, rejects) -> (natural columns, positions of valid values); invalid values are added to the rejects.
Reading = Callable[[pa.BinaryArray, Numbers, Rejects], tuple[pa.Table, Numbers]]

_INT64 = np.dtype(">i8")
_INTEGER = r"^-?(?:0|[1-9][0-9]{0,18})$"
_BEFORE, _AFTER = '{"value":', "}"
_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"


class PlainDecoder:
    """Decodes values without fields to the rows of one payload schema."""

    def __init__(
        self, read: Reading, payload: pa.Schema, new_field: NewField, limits: DecodeLimits, *, empty: bool = False
    ) -> None:
        self._read = read
        self._layout = payload_schema_of(payload)
        self._new_field = new_field
        self._limits = limits
        self._empty = empty  # whether a value without bytes is valid

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        natural, at, rejects = self._natural(values)
        return fit_values(natural, at, self._layout, self._new_field, rejects, self._limits)

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """A field as text, NULL if there is no field of that name; unreadable values are rejected."""
        natural, at, rejects = self._natural(values)
        name = path.removeprefix("/")
        texts = _as_texts(natural[name]) if name in natural.column_names else pa.nulls(len(natural), pa.string())
        return spread(texts, at, len(values)), rejects.in_order()

    def _natural(self, values: pa.BinaryArray) -> tuple[pa.Table, Numbers, Rejects]:
        kept, at, rejects = sized(values, self._limits, empty=self._empty)
        natural, at = self._read(kept, at, rejects)
        return natural, at, rejects


def _as_texts(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if pa.types.is_string(whole.type) else as_json(whole)


def _texts(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> tuple[pa.Table, Numbers]:
    texts, at = texts_of(values, at, rejects)
    return pa.table({"data": texts}), at


def _bytes(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> tuple[pa.Table, Numbers]:
    """The bytes in base64, and their number."""
    natural = pa.table({"data": values, "size": pc.binary_length(values).cast(pa.int64())})
    return natural.set_column(0, "data", pc.cast(_base64(values), pa.string())), at


def _base64(values: pa.BinaryArray) -> pa.Array:
    from headrace.engine import duck

    result = duck.plan_of_query("SELECT to_base64(v) AS t FROM seen", seen=pa.table({"v": values}))
    return result["t"].combine_chunks()


def _raw(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> tuple[pa.Table, Numbers]:
    return pa.table({"data": values}), at


def _big_endian(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> tuple[pa.Table, Numbers]:
    sizes = pc.binary_length(values).to_numpy(zero_copy_only=False)
    for position in np.flatnonzero(sizes != 8).tolist():
        rejects.add(int(at[position]), Reason.TYPE, f"an int64 has 8 bytes, saw {sizes[position]}")
    fit = sizes == 8
    joined = b"".join(values.filter(pa.array(fit)).to_pylist())
    return pa.table({"value": pa.array(np.frombuffer(joined, _INT64).astype(np.int64))}), at[fit]


def _decimal_text(values: pa.BinaryArray, at: Numbers, rejects: Rejects) -> tuple[pa.Table, Numbers]:
    texts, at = texts_of(values, at, rejects)
    fit = matches(texts, _INTEGER)
    for position in np.flatnonzero(~fit).tolist():
        text = texts[position].as_py()
        reason = Reason.OVERFLOW if _is_integer(text) else Reason.TYPE
        rejects.add(int(at[position]), reason, f"expected a 64-bit integer as text, saw {describe(text)}")
    kept, at = texts.filter(pa.array(fit)), at[fit]
    try:
        return pa.table({"value": kept.cast(pa.int64())}), at
    except pa.ArrowInvalid:  # 19 digits can exceed 64 bits
        numbers = [int(text) for text in kept.to_pylist()]
    inside = np.array([-(1 << 63) <= number < 1 << 63 for number in numbers], bool)
    for position in np.flatnonzero(~inside).tolist():
        rejects.add(int(at[position]), Reason.OVERFLOW, f"{describe(numbers[position])} does not fit long")
    return pa.table({"value": pa.array(np.array(numbers, object)[inside].tolist(), pa.int64())}), at[inside]


def _is_integer(text: str) -> bool:
    return bool(re.fullmatch(r"-?(?:0|[1-9][0-9]*)", text))


def _as_objects(values: pa.BinaryArray, limits: DecodeLimits) -> UnpackedValues:
    """Numbers as JSON objects with one field; values that are not numbers are rejected."""
    kept, at, rejects = sized(values, limits)
    texts, at = texts_of(kept, at, rejects)
    texts = pc.utf8_trim(texts, " \t\r\n")
    fit = matches(texts, _NUMBER)
    for position in np.flatnonzero(~fit).tolist():
        rejects.add(int(at[position]), Reason.TYPE, f"expected a number, saw {describe(texts[position].as_py())}")
    objects = pc.binary_join_element_wise(_BEFORE, texts.filter(pa.array(fit)), _AFTER, "")
    return UnpackedValues(objects.cast(pa.binary()), at[fit], rejects)


def string_decoder(
    payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: StringFormat
) -> PlainDecoder:
    """Text; an empty value is valid."""
    return PlainDecoder(_texts, payload, new_field, limits, empty=True)


def int64_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: Int64Format) -> PlainDecoder:
    """A whole number of 64 bits."""
    return PlainDecoder(_decimal_text if options.text else _big_endian, payload, new_field, limits)


def bytes_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: BytesFormat) -> PlainDecoder:
    """Bytes in base64; an empty value is valid."""
    return PlainDecoder(_bytes, payload, new_field, limits, empty=True)


def number_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: NumberFormat) -> Decoder:
    """A number in JSON syntax, with JSON's rules: exact, and each value on its own."""
    wider = replace(limits, record_bytes=limits.record_bytes + len(_BEFORE) + len(_AFTER))
    return UnpackingDecoder(bound_errors(payload_schema_of(payload), new_field, wider), _as_objects, limits)


def raw_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits, options: RawFormat) -> PlainDecoder:
    """Bytes; an empty value is valid."""
    return PlainDecoder(_raw, payload, new_field, limits, empty=True)
