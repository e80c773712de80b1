"""The loop of a pipeline: wait for records, read the next range of every partition as a batch, until the end."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, SparkExited
from headrace.faults import Abandoned
from headrace.pipeline.batch_size import BatchSize, Triggers, ends_of_batch, waiting_records
from headrace.pipeline.control import State
from headrace.pipeline.verify_source import ordered_by_offset, same_topics, verify_source
from headrace.runtime import session, spark_errors
from headrace.source.base import Offsets
from headrace.source.ranges import Range

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline

_GRACE = 25.0  # seconds for a running batch after a request to stop, which takes at most 30
_TICK, _IDLE_TICK = 0.2, 0.5  # seconds; idle pipelines cost little, so that a process can have many
_EXIT_WAIT = 1.0


class BatchLoop:
    """Batches of consecutive offset ranges; a drain ends at the offsets that are the latest at its start."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._size, self._triggers = BatchSize(pipeline.spec), Triggers(pipeline.spec)
        self._failure: BaseException | None = None
        self._ending = threading.Event()
        self._spark: Any = None  # the session of the loop, even after its JVM has died
        self._counts_rows = False  # whether Spark's metrics count the records of the current batch
        self._job_group = f"headrace {pipeline.spec.pipeline}"

    def run(self) -> bool:
        """Run until the drain ends, a stop is requested or an error is raised; True if partitions were added."""
        worker = threading.Thread(target=self._work, name=f"batches of {self.pipeline.spec.pipeline}", daemon=True)
        worker.start()
        self._watch(worker)
        self._raise()
        return self.pipeline.repartitioned and not self.pipeline.stop.is_set()

    # ---- batches, in a thread of their own ----

    def _work(self) -> None:
        try:
            self._connect()
            self.pipeline.on_state(State.RUNNING)
            if self.pipeline.until is None:
                self._follow()
            else:
                self._drain()
        except BaseException as error:
            self._failure = error

    def _connect(self) -> None:
        """Use the session of the process: another one if the JVM of the last one has died between two batches."""
        if self._spark is not None and session.alive(self._spark):
            return
        self._spark = self.pipeline.spark
        if self._spark is not None:
            self._spark.sparkContext.setJobGroup(self._job_group, self._job_group)
            self.pipeline.catalog.check(self._spark)

    def _drain(self) -> None:
        """Read up to the latest offsets at the start."""
        latest = self._latest()
        while not self._is_ending_after_pause() and (waiting := waiting_records(self.pipeline.position, latest)):
            self._one_batch(waiting)

    def _follow(self) -> None:
        """Read new records as `flush` requires."""
        while not self._is_ending_after_pause():
            waiting = waiting_records(self.pipeline.position, self._latest())
            if due := self._triggers.start(waiting, self.pipeline.mean_bytes(), time.monotonic()):
                self._one_batch(due)
            else:
                self.pipeline.maintain()
                self._ending.wait(self._triggers.wait(time.monotonic()))

    def _one_batch(self, waiting: Offsets) -> None:
        pipeline = self.pipeline
        ends = ends_of_batch(pipeline.position, waiting, self._size.records)
        ranges = tuple(
            Range(topic, partition, pipeline.position[topic, partition], until, pipeline.topics[topic])
            for (topic, partition), until in sorted(ends.items())
        )
        records = sum(each.until - each.start for each in ranges)
        left = sum(waiting.values()) if pipeline.until is not None else None
        self._connect()
        pipeline.progress.begin(pipeline.ledger.batch + 1, records, left)
        frame = pipeline.source.read(self._spark, ranges)
        self._counts_rows = frame.is_counted
        pipeline.one_batch(frame, ranges)
        pipeline.progress.end()
        self._size.measured(records, pipeline.staging_seconds)
        pipeline.maintain()

    def _latest(self) -> Offsets:
        """The latest offsets; an error if they are before those that were read."""
        position = self.pipeline.position
        latest = self.pipeline.source.latest(list(position))
        if any(latest[each] < offset for each, offset in position.items()):
            verify_source(self.pipeline.source, self.pipeline.ledger)  # raises SourceRewound or SourceReplaced
        return latest

    def _is_ending(self) -> bool:
        return self._ending.is_set() or self.pipeline.stop.is_set() or self.pipeline.repartitioned

    def _is_ending_after_pause(self) -> bool:
        """Whether the loop ends; waits while a pause is requested."""
        pipeline = self.pipeline
        if pipeline.pause.is_set and not self._is_ending():
            pipeline.on_state(State.PAUSED)
            pipeline.pause.wait(self._is_ending)
            if not self._is_ending():
                pipeline.on_state(State.RUNNING)
        return self._is_ending()

    # ---- watching ----

    def _watch(self, worker: threading.Thread) -> None:
        """Report the lag while batches run; cancel a batch that does not end in time."""
        pipeline, stopped_at = self.pipeline, None
        while worker.is_alive():
            worker.join(_TICK if pipeline.progress.is_reading or stopped_at else _IDLE_TICK)
            if pipeline.stop.is_set():
                self._ending.set()
                stopped_at = stopped_at or time.monotonic()
            if pipeline.lease.lost.is_set() or (stopped_at and time.monotonic() - stopped_at > _GRACE):
                self._ending.set()
                self._cancel_tasks()
            pipeline.on_tick(self._records_read)

    def _records_read(self) -> int:
        return session.rows_read(self._spark, self._job_group) if self._counts_rows else 0

    def _cancel_tasks(self) -> None:
        if self._spark is not None and session.alive(self._spark):
            with suppress(Exception):  # the JVM may die now
                self._spark.sparkContext.cancelJobGroup(self._job_group)

    def _raise(self) -> None:
        """Raise the error of a batch: Headrace's own as it is, Spark's after a check of the JVM and the source."""
        error, pipeline = self._failure, self.pipeline
        if error is not None and (isinstance(error, HeadraceError | Abandoned) or self._spark is None):
            raise error
        if error is not None and self._jvm_is_gone():
            raise SparkExited("The JVM of Spark has exited.", hint="Restart the pipeline; nothing is lost.")
        pipeline.lease.check()
        if error is None or pipeline.stop.is_set():
            return
        same_topics(pipeline.source, pipeline.topics)
        verify_source(pipeline.source, pipeline.ledger, ordered_by_offset(pipeline.spec))
        raise spark_errors.error_of(error, Path(tempfile.gettempdir())) from error

    def _jvm_is_gone(self) -> bool:
        """Whether the JVM has ended; its connections close shortly before the process does."""
        deadline = time.monotonic() + _EXIT_WAIT
        while session.alive(self._spark) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not session.alive(self._spark)
