"""Partition columns that are made from another: its day, its hour, its bucket. The same on every machine, for good."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine import duck
from headrace.errors import UsageError
from headrace.spec.partition import PartitionBy
from headrace.spec.types import TIMESTAMP, type_name

RECORD_TIME = "_timestamp"  # the record's own, which no column of the table need hold
_BUCKET = "CAST('0x' || left(md5(v), 8) AS UBIGINT)"


def derived_field(by: PartitionBy) -> pa.Field:
    """The column that an entry makes."""
    return pa.field(by.column, pa.date32() if by.kind == "date" else pa.int32())


def check_origin(by: PartitionBy, schema: pa.Schema) -> None:
    """UsageError unless the column can be made from what is there."""
    if by.origin == RECORD_TIME and by.kind != "hash":
        return
    if by.origin not in schema.names:
        columns = ", ".join(schema.names)
        raise UsageError(f"partition_by makes '{by.column}' of '{by.origin}', which is not a column: {columns}.")
    kind = schema.field(by.origin).type
    fits = _hashes(kind) if by.kind == "hash" else pa.types.is_timestamp(kind)
    if not fits:
        wanted = "texts or whole numbers" if by.kind == "hash" else "timestamps"
        raise UsageError(
            f"partition_by makes '{by.column}' of '{by.origin}', which is {type_name(kind)}.",
            hint=f"A {by.kind} is made of {wanted}.",
        )


def _hashes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind))


def derive(by: PartitionBy, values: Any) -> pa.Array:
    """The column's values; NULL where there is nothing to make them of."""
    flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if by.kind == "hash":
        return _buckets(flat, by.buckets or 1)
    moments = flat if flat.type.tz is None else flat.cast(TIMESTAMP)
    return moments.cast(pa.date32(), safe=False) if by.kind == "date" else pc.hour(moments).cast(pa.int32())


def _buckets(values: pa.Array, buckets: int) -> pa.Array:
    """By the first 32 bits of the MD5 of a value's text: a hash that every engine has, of each value once."""
    few = values.dictionary_encode()
    texts = pa.table({"v": few.dictionary.cast(pa.string())})
    answer = duck.query(f"SELECT {_BUCKET} % {buckets} AS b FROM t", t=texts)  # noqa: S608 - a number
    return answer["b"].combine_chunks().cast(pa.int32()).take(few.indices)
