"""The rows of one data file, in the columns of its table."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import TableDamaged
from headrace.storage import NotThere, Store
from headrace.tables.files import File


def value_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """A partition value out of its text."""
    return pa.scalar(text, pa.string()).cast(kind)


def rows_of(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> pa.Table:
    """The rows of one file in the columns of its table; a column that it was written without is NULL."""
    try:
        held = pq.ParquetFile(pa.BufferReader(store.get(file.path))).read()
    except NotThere:
        raise TableDamaged(
            f"{store.uri}: the file {file.path} is gone: vacuumed, or deleted by something else.",
            next="`headrace table repair PATH --dry-run` tells what is missing.",
        ) from None
    by = set(partition_by)
    columns = [
        pa.repeat(value_of(file.partition.get(item.name), item.type), len(held))
        if item.name in by
        else (held[item.name].cast(item.type) if item.name in held.column_names else pa.nulls(len(held), item.type))
        for item in schema
    ]
    return pa.table(columns, schema=schema)
