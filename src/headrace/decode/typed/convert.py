"""Convert scalars to another type without loss, with the rules of JSON's exact path."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.nested import is_there
from headrace.decode.payload import PayloadNode
from headrace.decode.scalars import UnfitValue, describe, leaf_reader, proven
from headrace.engine import decimals
from headrace.reasons import Reason
from headrace.spec.types import type_name

_EPOCH = ("s", "ms", "us", "ns")


def converted(values: pa.Array, node: PayloadNode) -> pa.Array | None:
    """A leaf's values in its own type, NULL where one does not fit; None if no value of the type can fit."""
    have, want = values.type, node.type
    if pa.types.is_timestamp(want):
        return _moments(values, node)
    if have == want:
        return values
    if pa.types.is_integer(have):
        return _from_integers(values, node)
    if pa.types.is_floating(have):
        return _from_floats(values, node)
    if pa.types.is_decimal(have):
        return _from_decimals(values, node)
    if pa.types.is_string(have) and (pa.types.is_date(want) or pa.types.is_binary(want)):
        return proven(node, values)
    return None


def _moments(values: pa.Array, node: PayloadNode) -> pa.Array | None:
    have, want = values.type, node.type
    if pa.types.is_string(have) and node.unit not in _EPOCH:
        return proven(node, values)
    if pa.types.is_integer(have) and not pa.types.is_uint64(have) and node.unit in _EPOCH:
        return proven(node, values.cast(pa.int64()))
    if pa.types.is_date(have) and node.unit == "date":
        return values.cast(want)
    if not pa.types.is_timestamp(have):
        return None
    if (have.tz is None) != (want.tz is None) and not (have.tz is None and node.unit == "local-utc"):
        return None
    counts = pc.fill_null(values.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    micros = proven(PayloadNode("leaf", pa.timestamp("us", "UTC"), unit=have.unit), pa.array(counts))
    return pc.if_else(pa.array(is_there(values)), micros.cast(want), pa.scalar(None, want))


def _from_integers(values: pa.Array, node: PayloadNode) -> pa.Array | None:
    want = node.type
    if pa.types.is_integer(want):
        limit = 1 << (want.bit_width - 1)
        high = pc.less_equal(values, pa.scalar(min(limit - 1, _largest(values.type)), values.type))
        low = high if pa.types.is_uint64(values.type) else pc.greater_equal(values, _smallest(values.type, limit))
        return pc.if_else(pc.and_(high, low), values, pa.scalar(None, values.type)).cast(want)
    if pa.types.is_floating(want):
        return values.cast(want, safe=False)
    return decimals.from_integers(values, want) if pa.types.is_decimal(want) else None


def _largest(kind: pa.DataType) -> int:
    return int((1 << kind.bit_width) - 1 if pa.types.is_unsigned_integer(kind) else (1 << (kind.bit_width - 1)) - 1)


def _smallest(kind: pa.DataType, limit: int) -> pa.Scalar:
    return pa.scalar(max(-limit, -(1 << (kind.bit_width - 1))), kind)


def _from_floats(values: pa.Array, node: PayloadNode) -> pa.Array | None:
    want = node.type
    if not pa.types.is_floating(want):
        return None
    numbers = values.cast(want, safe=False)
    grown = pc.and_(pc.is_inf(numbers), pc.invert(pc.is_inf(values)))
    return pc.if_else(grown, pa.scalar(None, want), numbers)


def _from_decimals(values: pa.Array, node: PayloadNode) -> pa.Array | None:
    want = node.type
    if pa.types.is_decimal(want):
        return decimals.rescaled(values, want)
    if pa.types.is_floating(want):
        return values.cast(pa.string()).cast(want)  # through its digits: Arrow converts 0.3 to 0.30000000000000004
    if pa.types.is_integer(want) and values.type.scale <= 0:
        limit = 1 << (want.bit_width - 1)
        exact = [None if value is None or not -limit <= value < limit else int(value) for value in values.to_pylist()]
        return pa.array(exact, want)
    return None


def as_python(value: pa.Scalar) -> Any:
    """A value in Python; times as numbers, because Python's range is smaller."""
    return value.value if pa.types.is_timestamp(value.type) else value.as_py()


def why(value: Any, kind: pa.DataType, node: PayloadNode, where: str) -> tuple[Reason, str]:
    """The message for one value that could not be converted."""
    if isinstance(value, str):
        try:
            leaf_reader(node)(value)
        except UnfitValue as unfit:
            return unfit.reason, f"{where}: {unfit.what}"
    if pa.types.is_timestamp(node.type):
        return Reason.TIMESTAMP, f"{where}: {describe(value)} is not a time of the years 1 to 9999"
    return Reason.OVERFLOW, f"{where}: {describe(value)} does not fit {type_name(node.type)}"
