"""What the driver does for a batch grows with its tables and partitions, and not with their product or square."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.ledger.ledger import Ledger
from headrace.plan.accounting import Counts
from headrace.recovery.startup import StartupRecovery
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.storage.store import Store
from headrace.write.intent import Intent
from services.in_process_pipeline import InProcess, Records, no_spark, ranges_of
from services.plans import envelopes, spec_of


class Calls:
    """The number of calls of Python functions in this block, in threads that it starts too."""

    def __enter__(self) -> Calls:
        self._seen: list[None] = []  # appending is atomic
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self._seen.append(None)

    @property
    def count(self) -> int:
        return len(self._seen)


class Counted(InProcess):
    """A pipeline that counts the calls of the driver after the tasks of a batch."""

    calls = 0

    def intend(self, *arguments: Any) -> Intent:
        with Calls() as calls:
            intent = super().intend(*arguments)
        self.calls = calls.count
        return intent

    def execute(self, intent: Intent) -> Intent:
        with Calls() as calls:
            intent = super().execute(intent)
        self.calls += calls.count
        return intent


def spec_with_tables(lake: Path) -> Spec:
    columns = [{"name": "id", "type": "bigint"}, {"name": "kind", "type": "string"}]
    return spec_of(route={"by": {"field": "kind"}}, table={"path": f"{lake}/{{route}}", "columns": columns})


def calls_for_tables(lake: Path, count: int) -> int:
    """The calls for the second batch to existing tables."""
    pipeline = Counted(spec_with_tables(lake), no_spark, recovery=StartupRecovery())
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        records = envelopes([{"id": number % count, "kind": f"k{number % count}"} for number in range(2 * count)])
        for part in (records.slice(0, count), records.slice(count)):
            pipeline.one_batch(Records(pa.table(part).combine_chunks().to_batches()), ranges_of(part))
    return pipeline.calls


def test_calls_per_table_are_constant(tmp_path: Path) -> None:
    few, some, many = (calls_for_tables(tmp_path / f"{count}", count) for count in (10, 60, 110))
    assert many - some < 1.1 * (some - few), (few, some, many)


def test_calls_per_partition_are_few_and_constant(tmp_path: Path) -> None:
    calls = []
    for count in (100, 1_000):
        ledger, now = Ledger.open(Store(f"{tmp_path}/{count}"), "shop"), datetime.now(UTC)
        ranges = tuple(Range("orders", number, 0, 10) for number in range(count))
        intent = Intent("shop", 1, ranges, (), Counts(read=10 * count), now, "", "", "digest", "0")
        with Calls() as block:
            ledger.begin(intent)
            ledger.record(intent, (), now)
        calls.append(block.count / count)
    assert calls[1] < calls[0]
    assert calls[1] < 12, calls
