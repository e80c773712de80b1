"""Types of results: which types, and which of their values, can be stored."""

from __future__ import annotations

import pyarrow as pa

from headrace.engine.duck import literal, quote
from headrace.errors import UsageError
from headrace.spec.types import TIMESTAMP, TIMESTAMP_NTZ

LONGEST = 16 * 1024 * 1024  # bytes of one text or binary result

_SCALARS: dict[pa.DataType, pa.DataType] = {
    **{kind: kind for kind in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())},
    **{kind: kind for kind in (pa.string(), pa.binary(), pa.date32(), TIMESTAMP, TIMESTAMP_NTZ)},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_WIDEST = {
    **{kind: pa.int64() for kind in (pa.int8(), pa.int16(), pa.int32())},
    pa.float32(): pa.float64(),
}
_SQL = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMPTZ",
    TIMESTAMP_NTZ: "TIMESTAMP",
}


def storable(kind: pa.DataType, where: str, *, widest: bool = False) -> pa.DataType:
    """The type that a result is stored as; raises UsageError if a table cannot have it. NULL stays NULL.

    `widest` is for expressions over fields that no record has yet: `x + 1` is an INTEGER while x is unknown and a
    BIGINT once it is a long, so numbers get the widest type at once.
    """
    if pa.types.is_null(kind):
        return kind
    plain = _storable(kind, where)
    return _WIDEST.get(plain, plain) if widest else plain


def _storable(kind: pa.DataType, where: str) -> pa.DataType:
    if kind in _SCALARS:
        return _SCALARS[kind]
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else TIMESTAMP_NTZ
    if pa.types.is_map(kind):
        return pa.map_(_key(kind.key_type, where), _storable(kind.item_type, where))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(item.name, _storable(item.type, where)) for item in _named(kind, where)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _storable(kind.value_type, where)))
    if pa.types.is_null(kind):
        raise UsageError(f"{where} has a NULL without a type.", hint="Write CAST(… AS type) around it.")
    raise UsageError(f"{where} yields {kind}, which a table cannot store.", hint="Write CAST(… AS type) around it.")


def _key(kind: pa.DataType, where: str) -> pa.DataType:
    if _SCALARS.get(kind) != pa.string():
        raise UsageError(f"{where} yields a map whose keys are {kind}; map keys must be strings.")
    return pa.string()


def _named(kind: pa.StructType, where: str) -> pa.StructType:
    names = [item.name.lower() for item in kind]
    if not names or "" in names or len(set(names)) < len(names):
        raise UsageError(f"{where} yields a struct with unnamed fields.")
    return kind


def sql_type(kind: pa.DataType) -> str:
    """The DuckDB name of a type."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"MAP({sql_type(kind.key_type)}, {sql_type(kind.item_type)})"
    if pa.types.is_struct(kind):
        return "STRUCT(" + ", ".join(f"{quote(item.name)} {sql_type(item.type)}" for item in kind) + ")"
    if pa.types.is_list(kind):
        return f"{sql_type(kind.value_type)}[]"
    return _SQL[kind]


def sound(value: str, kind: pa.DataType, depth: int = 0) -> str | None:
    """SQL that is false for a value that cannot be stored (not finite, beyond year 9999, too long); None: all can.

    Never NULL, so that it can be negated.
    """
    if test := _sound_scalar(value, kind):
        return f"coalesce({test}, true)"
    if pa.types.is_struct(kind):
        tests = (sound(f"struct_extract({value}, {literal(item.name)})", item.type, depth) for item in kind)
        return " AND ".join(test for test in tests if test) or None
    if pa.types.is_map(kind):
        return _sound_list(f"map_values({value})", kind.item_type, depth)
    if pa.types.is_list(kind):
        return _sound_list(value, kind.value_type, depth)
    return None


def _sound_scalar(value: str, kind: pa.DataType) -> str | None:
    if pa.types.is_floating(kind):
        return f"isfinite({value})"
    if pa.types.is_date(kind):
        return f"{value} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'"
    if pa.types.is_timestamp(kind):
        name = sql_type(kind)
        return f"{value} >= {name} '0001-01-01 00:00:00' AND {value} < {name} '10000-01-01 00:00:00'"
    if pa.types.is_string(kind):
        return f"strlen({value}) <= {LONGEST}"
    if pa.types.is_binary(kind):
        return f"octet_length({value}) <= {LONGEST}"
    return None


def _sound_list(value: str, kind: pa.DataType, depth: int) -> str | None:
    # Texts inside lists are bounded by their record; only numbers and times can be invalid there.
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return None
    test = sound(f"e{depth}", kind, depth + 1)
    return f"coalesce(len(list_filter({value}, lambda e{depth}: NOT ({test}))) = 0, true)" if test else None
