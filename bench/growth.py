"""What grows with versions of a table, with tables of a pipeline, and with partitions of a source.

Commits and ledger rows are real, on disk. Most versions of the oldest table are copies of a commit, written
without the log writer; the commits that are measured are its own.
"""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.commit_loop import LAST, STATS, many_tables, table_in
from bench.runs import Bench, Figures
from headrace.delta.checkpoints import CheckpointWriter
from headrace.delta.log_writer import LogWriter
from headrace.delta.snapshot import open_at
from headrace.delta.txn import txn_names
from headrace.ledger.ledger import Ledger
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.storage.store import Store
from headrace.write.intent import Intent

VERSIONS = (200, 1_000, 10_000, 100_000)
TABLES = (1, 10, 100, 1_000)
PARTITIONS = (4, 100, 1_000, 10_000)
BATCHES = 20  # per number of tables or partitions


def growth(bench: Bench) -> list[Figures]:
    """All three series; shorter with fewer records."""
    lake = Store(str(bench.folder / "growth"))
    share = min(1.0, bench.scale.records / 1_000_000)
    return [
        *_versions(lake.child("versions"), [count for count in VERSIONS if count <= max(1_000, 100_000 * share)]),
        *_tables(lake, [count for count in TABLES if count <= max(10, 1_000 * share)]),
        *_partitions(lake, [count for count in PARTITIONS if count <= max(100, 10_000 * share)]),
    ]


def _row(series: str, count: int, per_batch: list[float], **more: float) -> Figures:
    """Milliseconds per batch, and what else grows."""
    cuts = statistics.quantiles(per_batch, n=100)
    p50, p95 = (round(cuts[number - 1] * 1000, 2) for number in (50, 95))
    return {"series": series, "count": count, "p50": p50, "p95": p95, **more}


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# ---- versions ----


def _versions(store: Store, milestones: list[int]) -> Iterator[Figures]:
    """The last commits before each milestone, by a log writer that has just opened the table."""
    checkpoints, table_id = CheckpointWriter(), str(uuid.uuid4())
    for end in milestones:
        first = end - LAST + 1  # batch n is version n - 1
        if end > LAST:
            _copy_commits(store, first - 1)
            open_at(store, first - 2).create_checkpoint()  # of all copies, so not measured
        opening = _seconds(lambda: LogWriter.open(store, txn_names("bench")))
        table = table_in(store, checkpoints, files=1, table_id=table_id)
        commits = [table.commit(batch) for batch in range(first, end + 1)]
        checkpoints.wait(300)
        if (version := table.committer.log_writer.state.version) != end - 1:
            raise AssertionError(f"The table is at version {version} instead of {end - 1}.")
        checkpoint = _seconds(lambda at=version: open_at(store, at).create_checkpoint())
        yield _row("versions", end, commits, open_ms=_ms(opening), checkpoint_ms=_ms(checkpoint))


def _copy_commits(store: Store, until: int) -> None:
    """Add versions, up to `until` in number, that differ only in their txns and their file."""
    log = Path(store.root) / "_delta_log"
    version = len(list(log.glob("[0-9]*.json"))) - 1
    actions = [json.loads(line) for line in (log / f"{version:020}.json").read_text().splitlines()]
    for number in range(version + 1, until):
        for action in actions:
            if "txn" in action:
                action["txn"]["version"] += 1 if action["txn"]["appId"].count(":") < 2 else 10
            if "add" in action:
                action["add"] |= {"path": f"part-{uuid.uuid4()}.c000.snappy.parquet", "stats": STATS}
        (log / f"{number:020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))


# ---- tables ----


def _tables(lake: Store, counts: list[int]) -> Iterator[Figures]:
    """Batches that commit to all tables, eight at a time, divided by the number of tables."""
    for count in counts:
        figure = many_tables("local", lake, count, BATCHES)
        yield {
            "series": "tables",
            "count": count,
            "p50": round(figure.batch, 2),
            "p95": None,
            "per_item_ms": round(figure.batch / count, 3),
        }


# ---- partitions ----


def _partitions(lake: Store, counts: list[int]) -> Iterator[Figures]:
    """Batches of the ledger, without tables: an intent and a row with a range of each partition."""
    for count in counts:
        store = lake.child(f"partitions-{count}")
        ledger = Ledger.open(store, "bench")
        batches = [_ledger_batch(ledger, batch, count) for batch in range(1, BATCHES + 1)]
        opening = _seconds(lambda at=store: Ledger.open(at, "bench"))
        intent = max(Path(store.root, "intents").glob("*"))
        log = max(Path(store.root, "ledger", "_delta_log").glob("[0-9]*.json"))
        yield _row(
            "partitions",
            count,
            batches,
            open_ms=_ms(opening),
            per_item_ms=round(statistics.median(batches) * 1000 / count, 4),
            intent_kb=round(intent.stat().st_size / 1000, 1),
            commit_kb=round(log.stat().st_size / 1000, 1),
        )


def _ledger_batch(ledger: Ledger, batch: int, count: int) -> float:
    """Seconds of one batch."""
    ranges = tuple(Range("orders", number, batch * 10, batch * 10 + 10) for number in range(count))
    now = datetime.now(UTC)
    intent = Intent("bench", batch, ranges, (), Counts(read=10 * count), now, "", "", "digest", "0")
    start = time.perf_counter()
    ledger.begin(intent)
    ledger.record(intent, (), now)
    return time.perf_counter() - start


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
