"""Commit latency with 1, 10 and 50 tables, and of one table that grows to 10,000 commits and 50,000 files.

    PYTHONPATH=src python -m bench.commit_loop [--quick] [--json FILE]

Each commit is a real commit of the log writer, with txns and background log checkpoints. Its data files do not
exist: a commit does not open them. Local disk is fsynced; S3 is the server of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from headrace.delta.checkpoints import CheckpointWriter
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import SOURCE, to_delta
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import txn_names
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.storage.store import Profile, Store
from headrace.write.append import AppendWriter
from headrace.write.intent import Intent, TableIntent
from services.s3 import s3_server

SCHEMA = to_delta(pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string()), SOURCE]))
STATS = '{"numRecords":1000,"minValues":{"id":1},"maxValues":{"id":1000},"nullCount":{"id":0,"text":0}}'
LAST = 200  # commits per percentile
PARTITIONS = 4


@dataclass(frozen=True)
class Figure:
    """Milliseconds per commit of one table, under one condition."""

    storage: str
    condition: str
    p50: float
    p95: float
    p99: float
    batch: float  # median of all tables of a batch together


@dataclass
class Table:
    """A table under test."""

    committer: AppendWriter
    table_id: str
    files: int

    def commit(self, batch: int) -> float:
        """Commit once; returns the seconds it took."""
        store = self.committer.log_writer.store
        files = tuple(self._file(store.uri) for _ in range(self.files))
        part = TableIntent(store.uri, self.table_id, batch == 1, SCHEMA, (), {}, files)
        intent = _intent(batch)
        start = time.perf_counter()
        self.committer.commit(part, intent)
        return time.perf_counter() - start

    def _file(self, uri: str) -> StagedFile:
        return StagedFile(uri, f"part-{uuid.uuid4()}.c000.snappy.parquet", (), 50_000, 1000, STATS)


def _intent(batch: int) -> Intent:
    ranges = tuple(Range("orders", number, batch * 10, batch * 10 + 10) for number in range(PARTITIONS))
    counts = Counts(read=40, routed=40)
    return Intent("bench", batch, ranges, (), counts, datetime.now(UTC), "", "", "digest", "0")


def table_in(store: Store, checkpoints: CheckpointWriter, files: int, table_id: str = "") -> Table:
    """New table, or an existing one with its id."""
    writer = AppendWriter(LogWriter.open(store, txn_names("bench")), checkpoints)
    return Table(writer, table_id or str(uuid.uuid4()), files)


def bare_puts(storage: str, lake: Store) -> Figure:
    """Latency of one durable put-if-absent of the size of a commit: the minimum of any commit."""
    puts = []
    for _ in range(LAST):
        start = time.perf_counter()
        lake.put_new(f"puts/{uuid.uuid4()}", b"x" * 2000)
        puts.append(time.perf_counter() - start)
    return _figure(storage, "one bare put, no commit", puts, puts)


def many_tables(storage: str, lake: Store, count: int, batches: int) -> Figure:
    """Latency of batches that commit to all tables, eight at a time, as in a pipeline."""
    checkpoints = CheckpointWriter()
    tables = [table_in(lake.child(f"t{count}/{number}"), checkpoints, 2) for number in range(count)]
    commits: list[float] = []
    batch_times: list[float] = []
    with ThreadPoolExecutor(8) as pool:
        for batch in range(1, batches + 1):
            start = time.perf_counter()
            latencies = list(pool.map(lambda table, number=batch: table.commit(number), tables))
            batch_times.append(time.perf_counter() - start)
            commits += latencies
    checkpoints.wait(120)
    return _figure(storage, f"{count} tables, {batches} batches", commits, batch_times)


def growth(storage: str, lake: Store, milestones: list[int], files: int) -> Iterator[Figure]:
    """Latency of the last commits before each milestone, in one growing table."""
    checkpoints = CheckpointWriter()
    table = table_in(lake.child("grown"), checkpoints, files)
    commits: list[float] = []
    for batch in range(1, milestones[-1] + 1):
        commits.append(table.commit(batch))
        if batch in milestones:
            yield _figure(storage, f"commit {batch:,}, {batch * files:,} files", commits[-LAST:], commits[-LAST:])
    checkpoints.wait(120)


def _figure(storage: str, condition: str, commits: list[float], batch_times: list[float]) -> Figure:
    cuts = statistics.quantiles(commits, n=100) if len(commits) > 1 else commits * 99
    p50, p95, p99 = (round(cuts[number - 1] * 1000, 2) for number in (50, 95, 99))
    return Figure(storage, condition, p50, p95, p99, round(statistics.median(batch_times) * 1000, 1))


@contextmanager
def _lakes(folder: Path) -> Iterator[dict[str, Store]]:
    with s3_server(folder / "s3") as server:
        profile = Profile(server.settings)
        yield {"local": Store(str(folder / "lake")), "s3": Store(f"s3://{server.bucket()}/lake", profile)}


def measure(*, quick: bool = False, only: str = "") -> Iterator[Figure]:
    """Measure all figures."""
    batches, milestones = (50, [LAST, 400]) if quick else (1000, [LAST, 1000, 10_000])
    with tempfile.TemporaryDirectory() as folder, _lakes(Path(folder)) as lakes:
        for storage, lake in lakes.items():
            if only in ("", storage):
                yield bare_puts(storage, lake)
                for count in (1, 10, 50):
                    yield many_tables(storage, lake, count, batches)
                yield from growth(storage, lake, milestones, files=5)


def main() -> None:
    """Print each figure when it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["local", "s3"], default="")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{'storage':8} {'condition':32} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'batch ms':>9}")
    figures = []
    for figure in measure(quick=arguments.quick, only=arguments.only):
        figures.append(asdict(figure))
        print("{storage:8} {condition:32} {p50:8} {p95:8} {p99:8} {batch:9}".format(**figures[-1]), flush=True)
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
