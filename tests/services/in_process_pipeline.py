"""A whole pipeline in this process, without a broker and without a JVM: records are given to it, batch by batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace import run
from headrace.dead_letters.reader import DeadLetters, Selection
from headrace.dead_letters.replay import replay
from headrace.delta.schema import RECORD_SCHEMA
from headrace.faults import Abandoned, armed
from headrace.pipeline import task
from headrace.pipeline.events import Summary
from headrace.pipeline.manifest import Manifest
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.rebuild_ledger import rebuild
from headrace.recovery.startup import StartupRecovery
from headrace.source.base import SOURCES, Bounds, Lag, Offsets, ends_of
from headrace.source.kafka import topic_gone
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.validate.load import loads
from services.pipelines import storage
from services.plans import envelope
from services.s3 import S3

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class InProcess(Pipeline):
    """A pipeline whose tasks run right here."""

    def stage(self, frame: Any, batch: int, now: datetime) -> list[Manifest]:
        manifest = task._manifest(self.task_input(batch), batch, now, frame if isinstance(frame, list) else [frame])
        task.raise_task_error([manifest])
        return [manifest]

    def _same_topics(self, ranges: Any) -> None:
        """There is no broker to ask."""


def no_spark() -> Any:
    """Whoever asks for Spark here is wrong."""
    raise AssertionError("a JVM was asked for")


def ingest(
    spec: Spec,
    envelopes: pa.Table,
    spark: Callable[[], Any] = no_spark,
    report: Callable[[dict[str, Any]], None] = lambda event: None,
) -> None:
    """One batch of records into their tables, by a pipeline that is started for it and ends."""
    pipeline = InProcess(spec, spark, report=report, recovery=StartupRecovery())
    with pipeline.take_lease():
        pipeline.open_ledger()
        rebuild(pipeline.context)
        pipeline.finish_open_batch()
        pipeline.refill_tables()
        pipeline.tables.open()
        if len(envelopes):
            pipeline.one_batch(Records(envelopes.combine_chunks().to_batches()), ranges_of(envelopes))


def run_once(spec: Spec, batch_records: int = 7) -> int:
    """Start a pipeline, read all that is there and end; returns the number of batches."""
    pipeline = InProcess(spec, no_spark, recovery=StartupRecovery())
    batches = 0
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.finish_open_batch()
        pipeline.verify_source()
        pipeline.tables.open()
        while waiting := pipeline._waiting_records():
            [((topic, number), start)] = pipeline.position.items()
            until = start + min(batch_records, waiting)
            ranges = (Range(topic, number, start, until, pipeline.topics[topic]),)
            pipeline.one_batch(pipeline.source.read(None, ranges), ranges)  # type: ignore[arg-type]
            batches += 1
    pipeline.source.close()
    return batches


def ranges_of(envelopes: pa.Table) -> tuple[Range, ...]:
    """What was read of each partition."""
    read = envelopes.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return tuple(
        Range(each["topic"], each["partition"], each["offset_min"], each["offset_max"] + 1, "id") for each in read
    )


class Records(list[pa.RecordBatch]):
    """Envelopes in several parts, as much of a frame as a pipeline asks of one."""

    is_counted = False

    def coalesce(self, _: int) -> Records:
        """There is one task."""
        return self

    def union(self, others: Records) -> Records:
        """Both."""
        return Records([*self, *others])


@dataclass
class Served:
    """The topic of a harness as a source, which can be asked and read again."""

    harness: Harness

    def topics(self) -> dict[str, str]:
        """The topic, by the id that its ranges have."""
        if self.harness.topic_id is None:
            raise topic_gone(self.harness.topic, "localhost:9")
        return {self.harness.topic: self.harness.topic_id}

    def bounds(self) -> dict[tuple[str, int], Bounds]:
        """Everything that was sent, without what the broker has deleted."""
        bounds = {(self.harness.topic, partition): Bounds(0, 0) for partition in range(self.harness.partitions)}
        first = {(self.harness.topic, 0): Bounds(self.harness.earliest, len(self.harness.sent))}
        return bounds | first if bounds else {}

    def latest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Where each partition ends."""
        return {each: found.latest for each, found in self.bounds().items() if each in partitions}

    def start(self, bounds: Mapping[tuple[str, int], Bounds]) -> dict[tuple[str, int], int]:
        """From the first record on."""
        return {each: found.earliest for each, found in bounds.items()}

    def lag(self, position: dict[tuple[str, int], int]) -> Lag:
        """Nobody looks."""
        return Lag(0, None, ends_of(self.bounds()))

    def read(self, spark: Any, ranges: Iterable[Range]) -> Records:
        """Exactly these ranges."""
        whole = self.harness.envelopes().combine_chunks()
        return Records(
            batch for each in ranges for batch in whole.slice(each.start, each.until - each.start).to_batches()
        )

    def committed(self, position: Offsets) -> None:
        """Nothing is released."""

    def tail(self, records: int, where: str) -> pa.Table:
        """The first or the last records."""
        return (
            self.harness.envelopes(max(0, len(self.harness.sent) - records))
            if where == "end"
            else self.harness.envelopes()
        )

    def close(self) -> None:
        """There is nothing to close."""


@dataclass
class Harness:
    """A topic of one partition in a list, a spec over it, and a lake."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    topic: str = "orders"
    sent: list[bytes | None] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    spark: Callable[[], Any] = no_spark
    s3: S3 | None = None  # serves the lake, out of the bucket
    bucket: str = ""
    topic_id: str | None = "id"  # None: the topic is gone
    earliest: int = 0  # the first record that the broker still has
    partitions: int = 1  # all but the first are empty; 0: the first is gone

    @property
    def place(self) -> Path:
        """What holds the lake on this machine's disk, also when S3 serves it."""
        return self.folder if self.s3 is None else self.s3.folder / "data" / self.bucket

    @property
    def spec(self) -> Spec:
        """The spec as it is now; `options` replace its keys."""
        content: dict[str, Any] = {
            "pipeline": "shop",
            "source": {"kafka": {"brokers": "localhost:9", "topics": [self.topic]}},
            "route": {"by": {"field": "kind"}},
            "table": {"path": f"{self.folder if self.s3 is None else f's3://{self.bucket}'}/lake/{{route}}"},
            "retry": {"unreachable": {"initial_interval": "10ms", "max_interval": "20ms"}},
        }
        if self.s3 is not None:
            content["storage"] = {"s3": storage(self.s3)}
        return loads(json.dumps(content | self.options), self.folder)[0]

    def write_spec(self) -> Path:
        """The spec as a file, for the command line."""
        path = self.folder / "shop.yaml"
        path.write_text(self.spec.text)
        return path

    def serve(self, patch: pytest.MonkeyPatch) -> None:
        """From now on every pipeline reads this harness's topic, and runs its tasks right here."""
        patch.setitem(SOURCES, "kafka", lambda spec: Served(self))
        patch.setattr(Pipeline, "stage", InProcess.stage)
        patch.setattr(Pipeline, "spark", None)

    def run(self) -> Summary:
        """Drain a topic that is served, as `headrace run --until latest` does."""
        return run(self.spec, until="latest", report=self.events.append)

    def feed(self, values: Iterable[Any]) -> None:
        """One batch of records."""
        start = len(self.sent)
        self.send(values)
        ingest(self.spec, self.envelopes(start), self.spark, self.events.append)

    def send(self, values: Iterable[Any]) -> None:
        """More records in the topic."""
        self.sent += [each if isinstance(each, bytes | None) else json.dumps(each).encode() for each in values]

    def envelopes(self, start: int = 0) -> pa.Table:
        """The records from an offset on."""
        made = [
            envelope(
                offset,
                self.sent[offset],
                topic=self.topic,
                timestamp=THEN,
                headers=[{"key": "trace", "value": b"\xff%d" % offset}],
            )
            for offset in range(start, len(self.sent))
        ]
        return pa.Table.from_pylist(made, RECORD_SCHEMA)

    def replay(self, selection: Selection | None = None) -> Summary:
        """Without a JVM."""
        return replay(self.spec, selection, report=self.events.append)

    def die(self, point: str, replay: int | None = None) -> None:
        """A replay that is given up at a crash point."""
        with armed(point, "abandon", batch=replay), pytest.raises(Abandoned):
            self.replay()

    @property
    def dead_letters(self) -> DeadLetters:
        """The dead letters, as Headrace reads them."""
        return DeadLetters(self.spec)

    def rows(self, path: str) -> list[dict[str, Any]]:
        """A table, by delta-rs; none where there is no table."""
        uri = str(self.place / path)
        return DeltaTable(uri).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(uri) else []

    def dead(self) -> list[dict[str, Any]]:
        """The rows of the dead-letter table."""
        return sorted(self.rows("lake/_headrace/shop/dead_letters"), key=lambda row: row["offset"])

    def outcomes(self) -> list[dict[str, Any]]:
        """The rows of the table of outcomes."""
        found = self.rows("lake/_headrace/shop/replays")
        return sorted(found, key=lambda row: (row["replay"], row["offset"]))

    def offsets(self, *tables: str) -> Counter[int]:
        """How often each record is in these tables."""
        return Counter(row["_source"]["offset"] for table in tables for row in self.rows(f"lake/{table}"))

    def marks(self, table: str) -> list[int]:
        """The replay marks of a table's log, in order."""
        log = sorted((self.place / "lake" / table / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for file in log for line in file.read_text().splitlines()]
        named = [each["txn"] for each in actions if "txn" in each]
        return [each["version"] for each in named if each["appId"] == "headrace:shop:replay"]
