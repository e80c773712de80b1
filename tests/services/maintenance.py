"""A pipeline in this process whose batches and maintenance take turns, on a clock of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.delta import commit_builder as actions
from headrace.delta.checkpoints import SHARED
from headrace.delta.staged_file import StagedFile
from headrace.maintain.scheduler import MaintenanceScheduler
from headrace.recovery.startup import StartupRecovery
from headrace.storage import local
from headrace.write.append import AppendWriter
from headrace.write.intent import TableIntent
from services.in_process_pipeline import Harness, InProcess, no_spark, ranges_of
from services.staging import intent

LOG = "_delta_log"


@dataclass
class Clock:
    """A second for each tick, some days ago: what expires by delta-rs's own clock has expired, too."""

    now: float = field(default_factory=lambda: time.time() - 5 * 86_400)

    def __call__(self) -> float:
        return self.now

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Let commits and files be of this clock's time."""
        written = local._write

        def write(path: Path, data: bytes) -> str:
            written(path, data)
            os.utime(path, (self.now, self.now))
            return local._file_tag(path.stat())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "_write", write)
            patch.setattr(actions, "now", lambda: int(self.now * 1000))
            yield

    def age(self, table: Path) -> None:
        """Checkpoints of the log are delta-rs's, of the real time."""
        for path in (table / LOG).glob("*.checkpoint.parquet"):
            if path.stat().st_mtime > self.now:
                os.utime(path, (self.now, self.now))


class Keeping:
    """One record a batch, a second a batch, and maintenance after each."""

    def __init__(self, folder: Path, clock: Clock | None = None, **options: Any) -> None:
        columns = [{"name": "id", "type": "bigint"}, {"name": "day", "type": "string"}]
        table = {"path": f"{folder}/lake/web", "columns": columns, **options.pop("table", {})}
        self.harness = Harness(folder, {"route": {"by": "fixed"}, "table": table, "maintenance": {}, **options})
        self.clock = clock or Clock()
        self.spark: Callable[[], Any] = no_spark
        self.place = Path(table["path"])
        self.events: list[dict[str, Any]] = []
        self.sent = 0

    @contextmanager
    def open(self) -> Iterator[Keeping]:
        """Start the pipeline, as after a death: nothing is left of the last one but what is in the lake."""
        spec = self.harness.spec
        assert spec.maintenance is not None
        self.pipeline = InProcess(spec, self.spark, report=self.events.append, recovery=StartupRecovery())
        self.pipeline.lag_seconds = 0.0
        self.pipeline.maintenance = self.scheduler = MaintenanceScheduler(spec.maintenance, self.clock)
        with self.clock.worn(), self.pipeline.take_lease():
            self.pipeline.open_ledger()
            self.pipeline.finish_open_batch()
            self.pipeline.tables.open()
            yield self

    def batch(self, *days: str) -> None:
        """One record for each day."""
        values = [{"id": self.sent + at, "day": day} for at, day in enumerate(days or "-")]
        self.sent += len(values)
        self.records(values)

    def records(self, values: Iterable[Mapping[str, Any]]) -> None:
        """One batch of these."""
        start = len(self.harness.sent)
        self.harness.send(values)
        envelopes = self.harness.envelopes(start)
        self.pipeline.one_batch(envelopes.combine_chunks().to_batches()[0], ranges_of(envelopes))
        self.clock.now += 1

    def commit(self, number: int) -> None:
        """A batch's commit to the table alone, of one row: it takes a few milliseconds, without decode and ledger."""
        table = next(each for _, each, rules in self.pipeline.tables.written() if rules is not None)
        assert isinstance(table, AppendWriter)
        assert table.state is not None
        sink = pa.BufferOutputStream()
        columns = [pa.array([self.sent]), *(pa.nulls(1, item.type) for item in list(table.state.schema)[1:])]
        pq.write_table(pa.table(columns, schema=table.state.schema), sink)
        path, data = f"part-{number}.parquet", sink.getvalue().to_pybytes()
        table.log_writer.store.put(path, data)
        file = StagedFile(str(self.place), path, (), len(data), 1, '{"numRecords":1}')
        part = TableIntent(str(self.place), table.state.table_id, False, table.state.schema_json, (), {}, (file,))
        table.commit(part, intent(number))
        self.pipeline.ledger.log_writer.note("BOOKED", {}, {})  # the time that it proves goes on as with a booking
        self.sent += 1
        self.clock.now += 1

    def settle(self) -> None:
        """Wait for log checkpoints that are being written."""
        assert SHARED.wait(120)
        self.clock.age(self.place)

    def ids(self) -> list[int]:
        """Every id in the table, in order."""
        return sorted(DeltaTable(self.place).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    def files(self) -> int:
        """How many the table stands on."""
        return len(DeltaTable(self.place).file_uris())

    def on_disk(self) -> int:
        """Data files, named by a commit or not."""
        return sum(LOG not in path.parts for path in self.place.rglob("*.parquet"))

    def done(self, what: str = "") -> list[dict[str, Any]]:
        """The maintenance events that are done."""
        told = [each for each in self.events if each["event"] == "maintenance" and each["state"] == "done"]
        return [each for each in told if not what or each["operation"] == what]
