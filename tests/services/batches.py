"""Pipelines whose batches a test makes up, task by task, on the real session and real tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from headrace.source.ranges import Range
from headrace.source.record_frame import RecordFrame
from headrace.write.intent import Intent
from services.plans import MOMENT, spec_of

ENVELOPE = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


class Batches:
    """A pipeline whose batches a test makes up, task by task, on the real session and real tables."""

    def __init__(self, spark: Any, lake: Path, **content: Any) -> None:
        fixed = content.get("route", {}).get("by", "fixed") == "fixed"
        table = {"path": f"{lake}/web" if fixed else f"{lake}/{{route}}", **content.pop("table", {})}
        self.spark, self.lake = spark, lake
        self.pipeline = Pipeline(spec_of(table=table, **content), lambda: spark, recovery=StartupRecovery())
        self.lease = self.pipeline.take_lease()
        self.pipeline.open_ledger()
        self.pipeline.tables.open()
        self.offset = 0

    def run(self, *tasks: Sequence[Any]) -> tuple[Intent, int]:
        """One batch, one Spark task for each list of values: what was decided, and how many jobs that took."""
        context, pipeline = self.spark.sparkContext, self.pipeline
        batch, start = pipeline.ledger.batch + 1, self.offset
        frame = self._frame(tasks)
        context.setJobGroup(group := f"{self.lake}-{batch}", group)
        manifests, runs = pipeline.discover_and_stage(RecordFrame(frame), batch, datetime.now(UTC))
        ranges = (Range("web", 0, start, self.offset, "id"),)
        intent = pipeline.intend(batch, ranges, manifests, datetime.now(UTC), runs)
        context._jsc.sc().listenerBus().waitUntilEmpty()
        jobs = len(context.statusTracker().getJobIdsForGroup(group))
        pipeline.ledger.begin(intent)
        pipeline.settle(intent)
        counts = intent.counts
        assert counts.read == sum(map(len, tasks)) == counts.routed + counts.dead + counts.filtered
        return intent, jobs

    def _frame(self, tasks: Sequence[Sequence[Any]]) -> Any:
        rows = [self._rows(values) for values in tasks]
        each_its_own = self.spark.sparkContext.parallelize(rows, len(rows)).flatMap(list)
        return self.spark.createDataFrame(each_its_own, ENVELOPE)

    def _rows(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        made = []
        for value in values:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            made.append(("web", 0, self.offset, MOMENT, 0, None, bytearray(raw), None))
            self.offset += 1
        return made

    def table(self, name: str = "web") -> DeltaTable:
        return DeltaTable(f"{self.lake}/{name}")

    def rows(self, name: str = "web") -> list[dict[str, Any]]:
        """As delta-rs reads them, in the order of their records."""
        found = self.table(name).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: row.pop("_source")["offset"])

    def types(self, name: str = "web") -> dict[str, Any]:
        return {item["name"]: item["type"] for item in json.loads(self.table(name).schema().to_json())["fields"]}

    def staged(self) -> int:
        """Data files on disk, named by a commit or not."""
        return len([path for path in self.lake.rglob("*.parquet") if not {"_headrace", "_delta_log"} & set(path.parts)])
