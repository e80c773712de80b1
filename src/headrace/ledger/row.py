"""Row of a batch in the ledger: ranges, counts, and the version of each table."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.delta.log import newest_version
from headrace.delta.receipt import Receipt
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import open_at
from headrace.delta.staged_file import StagedFile
from headrace.errors import StorageUnreachable
from headrace.plan.accounting import COUNTERS, KEYED
from headrace.spec.types import TIMESTAMP
from headrace.stage.parquet import read_parquet
from headrace.storage.store import Store
from headrace.write.intent import Intent

_RANGE = [("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32())]
_TABLE = [("path", pa.string()), ("version", pa.int64())]
_COUNTED = ("rows", "files", "bytes", "inserted", "updated", "deleted")  # the last three where the table merges


def _list_of(*fields: tuple[str, pa.DataType]) -> pa.DataType:
    return pa.list_(pa.field("element", pa.struct(list(fields))))


SCHEMA = pa.schema(
    [
        ("batch", pa.int64()),
        ("kind", pa.string()),  # one of `IntentKind`
        ("started", TIMESTAMP),
        ("finished", TIMESTAMP),
        ("ranges", _list_of(*_RANGE, ("from", pa.int64()), ("until", pa.int64()))),
        *((name, pa.map_(pa.string(), pa.int64()) if name in KEYED else pa.int64()) for name in COUNTERS),
        ("written", pa.int64()),  # rows, dead letters not among them
        ("runs", pa.int32()),
        ("tables", _list_of(*_TABLE, *((name, pa.int64()) for name in _COUNTED))),
        ("note", pa.string()),
        ("spec", pa.string()),
        ("headrace", pa.string()),
    ]
)
SCHEMA_JSON = to_delta(SCHEMA)


def row(intent: Intent, receipts: Sequence[Receipt], finished: datetime, note: str) -> dict[str, Any]:
    """The row of a finished batch."""
    return {
        "batch": intent.batch,
        "kind": intent.kind.value,
        "started": intent.started,
        "finished": finished,
        "ranges": [
            {"topic": r.topic, "topic_id": r.topic_id, "partition": r.partition, "from": r.start, "until": r.until}
            for r in intent.ranges
        ],
        **{name: sorted(value.items()) if name in KEYED else value for name, value in intent.counts.counters().items()},
        "written": sum(file.rows for table in intent.tables if not table.dead_letters for file in table.files),
        "runs": intent.runs,
        "tables": [{name: getattr(receipt, name) for name in ("path", "version", *_COUNTED)} for receipt in receipts],
        "note": note,
        "spec": intent.digest,
        "headrace": intent.headrace,
    }


def stage(store: Store, content: dict[str, Any]) -> StagedFile:
    """Write one row as a Parquet file."""
    return stage_rows(store, pa.Table.from_pylist([content], SCHEMA))


def stage_rows(store: Store, rows: pa.Table) -> StagedFile:
    """Write rows, ordered by batch, as one Parquet file with a new name: an existing one may be committed."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="snappy")
    data = sink.getvalue().to_pybytes()
    first, last = rows["batch"][0].as_py(), rows["batch"][-1].as_py()
    path = f"batch-{last:012}-{uuid.uuid4()}.parquet"
    store.put(path, data)
    bounds = {"minValues": {"batch": first}, "maxValues": {"batch": last}}
    stats = {"numRecords": len(rows), **bounds, "nullCount": {"batch": 0}}
    return StagedFile(store.uri, path, (), len(data), len(rows), json.dumps(stats))


def newest_rows(store: Store, above: int) -> list[dict[str, Any]]:
    """Rows of the batches after `above`, oldest first, from the files whose statistics include them."""
    version = newest_version(store)
    if version is None:
        raise StorageUnreachable(f"{store.uri} disappeared while it was opened.")
    table = open_at(store, version)
    rows: list[dict[str, Any]] = []
    for file in pa.table(table.get_add_actions(flatten=True)).select(["path", "max.batch"]).to_pylist():
        if file["max.batch"] is None or file["max.batch"] > above:
            content = read_parquet(store.get(file["path"]))
            rows += content.to_pylist(maps_as_pydicts="strict")
    return sorted((row for row in rows if row["batch"] > above), key=lambda row: row["batch"])
