"""Table operations of each peer, in its own process: `python -m bench.lakes ORDER` reports to the meter.

All peers use the same base table, copied before each turn. Creating and copying it is not measured.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.meter import report

Work = Callable[[Path, Mapping[str, Any]], dict[str, Any]]  # in a folder with a copy of the table, `table`

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
FILES = 20  # of the target table of a merge
PIECE = 20_000  # rows of a small file


# ---- input ----


def rows(ids: Any, seq: int) -> pa.Table:
    """Rows of about 80 bytes."""
    generator = np.random.default_rng(seq)
    numbers = generator.integers(0, 1 << 40, len(ids))
    columns = [
        pa.array(ids, pa.int64()),
        pa.array(np.full(len(ids), seq), pa.int64()),
        pa.array(numbers % 10_000).cast(pa.string()),
        pa.array(generator.random(len(ids)) * 1000),
        pa.array([f"{number:040d}" for number in numbers.tolist()]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def write_merge_target(folder: Path, count: int, changes: int) -> None:
    """Write the target table of a merge, ordered by key, and changes: random keys, highest keys, and a few."""
    from deltalake import write_deltalake

    for part in np.array_split(np.arange(count), FILES):
        write_deltalake(str(folder / "table"), rows(part, 0), mode="append")
    generator = np.random.default_rng(7)
    everywhere = generator.choice(count, changes, replace=False)
    at_the_end = count - changes // 2 + np.arange(changes)  # half of them are new
    few = at_the_end[: max(2, changes // 1000)]
    for name, ids in (("everywhere", everywhere), ("at the end", at_the_end), ("a thousandth of them", few)):
        pq.write_table(rows(ids, 1), folder / f"{name}.parquet")


def write_pieces(folder: Path, count: int) -> None:
    """Write the rows to append, in small files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(max(2, count // PIECE)):
        pq.write_table(rows(np.arange(number * PIECE, (number + 1) * PIECE), 0), folder / f"{number:06}.parquet")


def write_history(folder: Path, commits: int) -> None:
    """Create a table with many commits of the log writer."""
    from bench import commit_loop
    from headrace.storage.store import Store

    for _ in commit_loop.growth("local", Store(str(folder)), [commits], files=1):
        pass


# ---- merge ----


def merge_headrace(order: Mapping[str, Any]) -> Work:
    """Commit of a batch to a table with `mode: upsert`; the peer `headrace-spark` merges with Spark."""
    from headrace.delta.schema import to_delta
    from headrace.plan.accounting import Counts
    from headrace.runtime import session
    from headrace.source.ranges import Range
    from headrace.storage.store import Store
    from headrace.write.intent import Intent, MergeRules, TableIntent
    from headrace.write.leased_writer import LeasedWriter

    spark, in_process_bytes = session.start("headrace"), 0 if order["peer"].endswith("-spark") else 1_000_000_000

    def work(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
        store = Store(str(folder / "table"))
        table = LeasedWriter(lambda: spark, store, "bench", Store(str(folder / "tombstones")), in_process_bytes)
        assert table.state is not None
        files = (job["staged"],)
        merging = MergeRules(("id",), "seq", tombstone_retention=60.0)
        part = TableIntent(store.uri, table.state.table_id, False, to_delta(SCHEMA), (), {}, files, False, merging)
        ranges, counts = (Range("t", 0, 0, job["changes"]),), Counts(read=job["changes"], routed=job["changes"])
        intent = Intent("bench", 1, ranges, (part,), counts, datetime.now(UTC), "", "", "digest", "0")
        result = table.commit(part, intent)
        return {"updated": result.updated, "inserted": result.inserted}

    return work


def staged_changes(folder: Path, source: Path) -> Any:
    """Stage changes as a batch does."""
    from headrace.stage.change_schema import CHANGE, PUT, staged_schema
    from headrace.stage.layout import FileLayout
    from headrace.stage.stager import Stager
    from headrace.storage.store import Store

    changes = pq.read_table(source, schema=SCHEMA)
    count = len(changes)
    moment = pa.scalar(datetime.now(UTC), CHANGE.type.field("timestamp").type)
    parts = {
        "op": pa.repeat(pa.scalar(PUT), count),
        "topic": pa.repeat(pa.scalar("t"), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.repeat(moment, count),
        "row": pa.array(range(count), pa.int64()),
    }
    fields = list(CHANGE.type)
    change = pa.StructArray.from_arrays([parts[item.name].cast(item.type) for item in fields], fields=fields)
    schema = staged_schema(SCHEMA, ("id",))
    stager = Stager(lambda uri: Store(uri), "bench")
    stager.add(
        FileLayout(str(folder / "staging"), schema), pa.Table.from_arrays([change, *changes.columns], schema=schema)
    )
    (file,) = stager.finish()
    return file


def merge_spark(order: Mapping[str, Any]) -> Work:
    """The same merge as a MERGE statement, in a session with the same settings."""
    from headrace.runtime import session

    spark = session.start("spark")

    def work(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
        result = spark.sql(
            f"MERGE INTO delta.`{folder / 'table'}` AS t USING parquet.`{job['source']}` AS s ON t.id = s.id "
            "WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()[0]
        return {"updated": result.num_updated_rows, "inserted": result.num_inserted_rows}

    return work


def merge_delta_rs(order: Mapping[str, Any]) -> Work:
    """The same with delta-rs."""
    from deltalake import DeltaTable

    def work(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
        merge = DeltaTable(str(folder / "table")).merge(
            pq.read_table(job["source"]), "t.id = s.id", source_alias="s", target_alias="t"
        )
        result = merge.when_matched_update_all("s.seq > t.seq").when_not_matched_insert_all().execute()
        return {"updated": result["num_target_rows_updated"], "inserted": result["num_target_rows_inserted"]}

    return work


# ---- append and compact ----


def compact_headrace(order: Mapping[str, Any]) -> Work:
    """One direct commit per piece, then a compaction; no JVM."""
    from headrace import Table

    def work(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
        table = Table.get_or_create(folder / "table", SCHEMA)
        for piece in _pieces(job):
            table.bulk_insert(pq.read_table(piece))
        return {"files": table.statistics().files - table.optimize().files_removed}

    return work


def compact_spark(order: Mapping[str, Any]) -> Work:
    """The same in Spark: appends, then OPTIMIZE."""
    from headrace.runtime import session

    spark = session.start("spark")

    def work(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
        path = str(folder / "table")
        for piece in _pieces(job):
            spark.read.parquet(str(piece)).write.format("delta").mode("append").save(path)
        spark.sql(f"OPTIMIZE delta.`{path}`").collect()
        return {}

    return work


def compact_delta_rs(order: Mapping[str, Any]) -> Work:
    """The same with delta-rs, whose compaction would compress with Zstandard by default."""
    from deltalake import DeltaTable, WriterProperties, write_deltalake

    snappy = WriterProperties(compression="SNAPPY")

    def work(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
        path = str(folder / "table")
        for piece in _pieces(job):
            write_deltalake(path, pq.read_table(piece), mode="append")
        DeltaTable(path).optimize.compact(writer_properties=snappy)
        return {}

    return work


def _pieces(job: Mapping[str, Any]) -> list[Path]:
    return sorted(Path(job["source"]).glob("*.parquet"))


# ---- history and statistics ----


def history_headrace(order: Mapping[str, Any]) -> Work:
    """History and statistics of a table with many commits."""
    from headrace import Table

    def work(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
        table = Table(Path(job["table"]) / "grown")
        if job["label"] == "statistics":
            return {"files": table.statistics().files}
        return {"commits": len(table.history())}

    return work


PEERS: dict[str, Callable[[Mapping[str, Any]], Work]] = {
    "merge headrace": merge_headrace,
    "merge headrace-spark": merge_headrace,
    "merge spark": merge_spark,
    "merge delta-rs": merge_delta_rs,
    "merge headrace-vectors": merge_headrace,
    "merge spark-vectors": merge_spark,
    "compact headrace": compact_headrace,
    "compact spark": compact_spark,
    "compact delta-rs": compact_delta_rs,
    "history headrace": history_headrace,
}


def main(order: dict[str, Any]) -> None:
    """Warm up once, then run all jobs in each turn, each on a copy of the table."""
    work = PEERS[order["peer"]](order)
    base = Path(order["folder"])
    for turn in range(-1, order.get("turns", 1)):
        for number, job in enumerate(order["drains"]):
            folder = base / f"{turn + 1}-{number}-{uuid.uuid4().hex[:4]}"
            folder.mkdir(parents=True)
            ready = _prepare(order["peer"], folder, job)
            if turn < 0:
                work(folder, ready)
            else:
                report("begin", job["label"])
                result = work(folder, ready)
                report("end", job["label"], result)
            shutil.rmtree(folder)
    sys.stdout.flush()
    os._exit(0)  # stopping the session takes seconds


def _prepare(peer: str, folder: Path, job: Mapping[str, Any]) -> Mapping[str, Any]:
    if job.get("copy"):
        shutil.copytree(job["table"], folder / "table")
    if peer.endswith("-vectors"):
        _with_vectors(folder / "table")
    if peer.startswith("merge headrace"):
        return {**job, "staged": staged_changes(folder, Path(job["source"]))}
    return job


def _with_vectors(table: Path) -> None:
    """Enable deletion vectors, in the session that merges."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
