"""Partition columns derived from another column: date, hour or hash bucket. Deterministic on every machine."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine import duck
from headrace.errors import UsageError
from headrace.spec.partition import PartitionBy
from headrace.spec.types import TIMESTAMP, type_name

RECORD_TIME = "_timestamp"  # the timestamp of the record; need not be a column of the table
_BUCKET = "CAST('0x' || left(md5(v), 8) AS UBIGINT)"


def derived_field(by: PartitionBy) -> pa.Field:
    """The derived column of an entry of partition_by."""
    return pa.field(by.column, pa.date32() if by.kind == "date" else pa.int32())


def check_origin(by: PartitionBy, schema: pa.Schema) -> None:
    """UsageError unless the column can be derived from the columns of the table."""
    if by.origin == RECORD_TIME and by.kind != "hash":
        return
    if by.origin not in schema.names:
        columns = ", ".join(schema.names)
        raise UsageError(f"partition_by: unknown column '{by.origin}', required for '{by.column}'. Columns: {columns}.")
    kind = schema.field(by.origin).type
    fits = _hashes(kind) if by.kind == "hash" else pa.types.is_timestamp(kind)
    if not fits:
        types = "a string or integer" if by.kind == "hash" else "a timestamp"
        raise UsageError(
            f"partition_by derives '{by.column}' from '{by.origin}', which is {type_name(kind)}.",
            hint=f"Use {types} column for {by.kind}.",
        )


def _hashes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind))


def derive(by: PartitionBy, values: Any) -> pa.Array:
    """Derive the values of the column; NULL stays NULL."""
    flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if by.kind == "hash":
        return _buckets(flat, by.buckets or 1)
    moments = flat if flat.type.tz is None else flat.cast(TIMESTAMP)
    return moments.cast(pa.date32(), safe=False) if by.kind == "date" else pc.hour(moments).cast(pa.int32())


def _buckets(values: pa.Array, buckets: int) -> pa.Array:
    """The first 32 bits of the MD5 of a value's text, modulo the number of buckets: every engine can compute it.

    MD5('42') = a1d0c6e8…, 0xa1d0c6e8 = 2714814184, so with 16 buckets the value is in bucket 8.
    """
    encoded = values.dictionary_encode()  # each distinct value is hashed once
    texts = pa.table({"v": encoded.dictionary.cast(pa.string())})
    answer = duck.query(f"SELECT {_BUCKET} % {buckets} AS b FROM t", t=texts)  # noqa: S608 - a number
    return answer["b"].combine_chunks().cast(pa.int32()).take(encoded.indices)
