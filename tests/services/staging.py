"""Files staged for a table without Spark, and what a reader that is not ours finds in it."""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headrace.delta.schema import to_delta
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_txn
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.storage.store import Store
from headrace.write.intent import Intent, TableIntent

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.string())])
WIDER = SCHEMA.append(pa.field("note", pa.string()))


def staged(store: Store, ids: list[int], day: str | None = None) -> StagedFile:
    """One Parquet file with these ids; with a day it goes into that partition, without one the column is NULL."""
    folder = "" if day is None else f"day={quote(day, safe='')}/"
    path = f"{folder}part-{uuid.uuid4()}.parquet"
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    if day is None:
        rows = rows.append_column("day", pa.nulls(len(ids), pa.string()))
    buffer = io.BytesIO()
    pq.write_table(rows, buffer)
    store.put(path, buffer.getvalue())
    partition = () if day is None else (("day", day),)
    return StagedFile(store.uri, path, partition, buffer.tell(), len(ids), f'{{"numRecords":{len(ids)}}}')


def marks(batch: int, pipeline: str = "shop") -> dict[str, int]:
    """The marks of a batch that read one partition."""
    return {batch_txn(pipeline): batch, f"{batch_txn(pipeline)}:orders:0": batch * 10 - 1}


def intent(batch: int, pipeline: str = "shop") -> Intent:
    """A decided batch without tables."""
    ranges = (Range("orders", 0, batch * 10 - 10, batch * 10),)
    return Intent(pipeline, batch, ranges, (), Counts(read=10, routed=10), datetime.now(UTC), "", "", "digest", "0")


def table_intent(
    store: Store,
    files: list[StagedFile],
    table_id: str,
    *,
    create: bool = False,
    schema: pa.Schema = SCHEMA,
    properties: Mapping[str, str] | None = None,
) -> TableIntent:
    """What a batch does to a table that is not partitioned."""
    return TableIntent(store.uri, table_id, create, to_delta(schema), (), properties or {}, tuple(files))


def opened(store: Store) -> DeltaTable:
    """The table as delta-rs sees it now."""
    return DeltaTable(store.delta_uri, storage_options=store.delta_options)


def ids(store: Store) -> list[int]:
    """Every id in the table, in order."""
    return sorted(opened(store).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def rows(store: Store) -> list[dict[str, Any]]:
    """Every row, ordered by id."""
    return sorted(opened(store).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
