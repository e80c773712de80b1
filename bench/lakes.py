"""What is done to tables, by each peer in a process of its own: `python -m bench.lakes ORDER` (see meter).

The same base table for everybody, copied anew before each turn; making and copying it is in nobody's figures.
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

from bench.meter import say

Work = Callable[[Path, Mapping[str, Any]], dict[str, Any]]  # in a folder with the copied table: `table`

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
FILES = 20  # of the table that is merged into
PIECE = 20_000  # rows of a small file


# ---- what everybody gets ----


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


def merged_into(folder: Path, count: int, changes: int) -> None:
    """The table that is merged into, in the order of its keys; and changes to all of it, to its end, and a few."""
    from deltalake import write_deltalake

    for part in np.array_split(np.arange(count), FILES):
        write_deltalake(str(folder / "table"), rows(part, 0), mode="append")
    generator = np.random.default_rng(7)
    everywhere = generator.choice(count, changes, replace=False)
    at_the_end = count - changes // 2 + np.arange(changes)  # half of them are new
    few = at_the_end[: max(2, changes // 1000)]
    for name, ids in (("everywhere", everywhere), ("at the end", at_the_end), ("a thousandth of them", few)):
        pq.write_table(rows(ids, 1), folder / f"{name}.parquet")


def in_pieces(folder: Path, count: int) -> None:
    """The rows to be appended, in small pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(max(2, count // PIECE)):
        pq.write_table(rows(np.arange(number * PIECE, (number + 1) * PIECE), 0), folder / f"{number:06}.parquet")


def grown(folder: Path, commits: int) -> None:
    """A table of so many commits, made through the log tail."""
    from bench import commit_loop
    from headrace.storage.store import Store

    for _ in commit_loop.growth("local", Store(str(folder)), [commits], files=1):
        pass


# ---- merge ----


def merge_headrace(order: Mapping[str, Any]) -> Work:
    """The commit of a batch of a table with `mode: upsert`; by Spark where the peer's name says so."""
    from headrace.delta.schema import to_delta
    from headrace.plan.accounting import Counts
    from headrace.runtime import session
    from headrace.source.ranges import Range
    from headrace.storage.store import Store
    from headrace.write.intent import Intent, MergeRules, TableIntent
    from headrace.write.leased_writer import LeasedWriter

    spark, in_process_bytes = session.start("headrace"), 0 if order["peer"].endswith("-spark") else 1_000_000_000

    def work(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        store = Store(str(folder / "table"))
        table = LeasedWriter(lambda: spark, store, "bench", Store(str(folder / "tombstones")), in_process_bytes)
        assert table.state is not None
        files = (asked["staged"],)
        merging = MergeRules(("id",), "seq", tombstone_retention=60.0)
        part = TableIntent(store.uri, table.state.table_id, False, to_delta(SCHEMA), (), {}, files, False, merging)
        ranges, counts = (Range("t", 0, 0, asked["changes"]),), Counts(read=asked["changes"], routed=asked["changes"])
        decided = Intent("bench", 1, ranges, (part,), counts, datetime.now(UTC), "", "", "digest", "0")
        done = table.commit(part, decided)
        return {"updated": done.updated, "inserted": done.inserted}

    return work


def staged_changes(folder: Path, source: Path) -> Any:
    """The changes as a batch stages them."""
    from headrace.stage.change_schema import CHANGE, PUT, staged_schema
    from headrace.stage.layout import FileLayout
    from headrace.stage.stager import Stager
    from headrace.storage.store import Store

    found = pq.read_table(source, schema=SCHEMA)
    count = len(found)
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
        FileLayout(str(folder / "staging"), schema), pa.Table.from_arrays([change, *found.columns], schema=schema)
    )
    (file,) = stager.finish()
    return file


def merge_spark(order: Mapping[str, Any]) -> Work:
    """The same MERGE as one writes it by hand, in a session with the same settings."""
    from headrace.runtime import session

    spark = session.start("by hand")

    def work(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        done = spark.sql(
            f"MERGE INTO delta.`{folder / 'table'}` AS t USING parquet.`{asked['source']}` AS s ON t.id = s.id "
            "WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()[0]
        return {"updated": done.num_updated_rows, "inserted": done.num_inserted_rows}

    return work


def merge_delta_rs(order: Mapping[str, Any]) -> Work:
    """The same by delta-rs."""
    from deltalake import DeltaTable

    def work(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        merge = DeltaTable(str(folder / "table")).merge(
            pq.read_table(asked["source"]), "t.id = s.id", source_alias="s", target_alias="t"
        )
        done = merge.when_matched_update_all("s.seq > t.seq").when_not_matched_insert_all().execute()
        return {"updated": done["num_target_rows_updated"], "inserted": done["num_target_rows_inserted"]}

    return work


# ---- append and compact ----


def compact_headrace(order: Mapping[str, Any]) -> Work:
    """Each piece in a commit of its own, by the log; then a compaction. No JVM."""
    from headrace import Table

    def work(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        table = Table.get_or_create(folder / "table", SCHEMA)
        for piece in _pieces(asked):
            table.bulk_insert(pq.read_table(piece))
        return {"files": table.statistics().files - table.optimize().files_removed}

    return work


def compact_spark(order: Mapping[str, Any]) -> Work:
    """The same as one writes it by hand: appends, then OPTIMIZE."""
    from headrace.runtime import session

    spark = session.start("by hand")

    def work(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        path = str(folder / "table")
        for piece in _pieces(asked):
            spark.read.parquet(str(piece)).write.format("delta").mode("append").save(path)
        spark.sql(f"OPTIMIZE delta.`{path}`").collect()
        return {}

    return work


def compact_delta_rs(order: Mapping[str, Any]) -> Work:
    """The same by delta-rs."""
    from deltalake import DeltaTable, write_deltalake

    def work(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        path = str(folder / "table")
        for piece in _pieces(asked):
            write_deltalake(path, pq.read_table(piece), mode="append")
        DeltaTable(path).optimize.compact()
        return {}

    return work


def _pieces(asked: Mapping[str, Any]) -> list[Path]:
    return sorted(Path(asked["source"]).glob("*.parquet"))


# ---- look ----


def look_headrace(order: Mapping[str, Any]) -> Work:
    """History and statistics of a table of many commits."""
    from headrace import Table

    def work(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
        table = Table(Path(asked["table"]) / "grown")
        if asked["label"] == "statistics":
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
    "look headrace": look_headrace,
}


def main(order: dict[str, Any]) -> None:
    """Once without being watched, then as often as asked, each time on a copy of the table."""
    work = PEERS[order["peer"]](order)
    base = Path(order["folder"])
    for turn in range(-1, order.get("turns", 1)):
        for number, asked in enumerate(order["drains"]):
            folder = base / f"{turn + 1}-{number}-{uuid.uuid4().hex[:4]}"
            folder.mkdir(parents=True)
            ready = _prepared(order["peer"], folder, asked)
            if turn < 0:
                work(folder, ready)
            else:
                say("begin", asked["label"])
                said = work(folder, ready)
                say("end", asked["label"], said)
            shutil.rmtree(folder)
    sys.stdout.flush()
    os._exit(0)  # a session's good end takes seconds that nobody measures


def _prepared(peer: str, folder: Path, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    if asked.get("copy"):
        shutil.copytree(asked["table"], folder / "table")
    if peer.endswith("-vectors"):
        _with_vectors(folder / "table")
    if peer.startswith("merge headrace"):
        return {**asked, "staged": staged_changes(folder, Path(asked["source"]))}
    return asked


def _with_vectors(table: Path) -> None:
    """Turn deletion vectors on, in the session that is about to merge."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
