"""Structured Streaming around a pipeline: starts its query, turns Spark's offsets into ranges, ends it in time."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, SparkDied
from headrace.faults import Abandoned
from headrace.pipeline.verify_source import ordered_by_offset, same_topics, verify_source
from headrace.runtime import session, spark_errors
from headrace.runtime.work_folder import work_folder
from headrace.source.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.pipeline import Pipeline

_GRACE = 25.0  # of the 30 seconds in which a request to stop is answered
_TICK = 0.2
_BURIAL = 1.0


class StreamingBatches:
    """One streaming query on a checkpoint of its own, thrown away at the end: nothing rests on it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.failure: BaseException | None = None
        self.idle = threading.Event()
        self.idle.set()
        self.ending = False
        self._turn = threading.Lock()
        self._work = threading.Lock()  # held by a batch, or by maintenance between two of them
        self._limited = self._limits()
        self._spark = pipeline.spark  # the one that the query lives in, also once it is dead
        self.checkpoint = _scratch(pipeline.spec.pipeline)

    def run(self) -> bool:
        """Until the drain's end, a request to stop, or a failure (raised under its own name); True: start anew."""
        try:
            query = self._started()
            try:
                again = self._watch(query)
            finally:
                self._end(query)
            self._raise(query)
            return again
        finally:
            shutil.rmtree(self.checkpoint, ignore_errors=True)

    def _started(self) -> Any:
        try:
            return self._start()
        except HeadraceError:
            raise
        except Exception as error:
            raise spark_errors.error_of(error, self.checkpoint.parent) from error

    def _start(self) -> Any:
        pipeline = self.pipeline
        frame = pipeline.source.stream(self._spark, pipeline.position, self._limited)
        writer = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", str(self.checkpoint))
        writer = writer.queryName(f"headrace {pipeline.spec.pipeline} {self.checkpoint.name}")  # a deaf one may linger
        if pipeline.until == "latest":
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._tick_ms()} milliseconds").start()

    def _limits(self) -> dict[str, int | str]:
        """What starts a batch and what caps it. A drain knows only the cap: a minimum would end it early."""
        spec = self.pipeline.spec
        every = spec.flush.every.total_seconds()
        if spec.source.rate is not None:
            return {"maxOffsetsPerTrigger": max(1, min(spec.limits.batch_rows, int(spec.source.rate * every)))}
        limits: dict[str, int | str] = {"maxOffsetsPerTrigger": spec.limits.batch_rows}
        if self.pipeline.until is None:
            waiting = min(spec.flush.rows, max(1, int(spec.flush.bytes / self.pipeline.mean_bytes())))
            limits |= {
                "minOffsetsPerTrigger": min(waiting, spec.limits.batch_rows),
                "maxTriggerDelay": f"{int(every * 1000)}ms",
            }
        return limits

    def _tick_ms(self) -> int:
        spec = self.pipeline.spec
        every = int(spec.flush.every.total_seconds() * 1000)
        return every if spec.source.rate is not None else max(100, min(500, every // 10))

    # ---- a batch, as Spark calls it ----

    def _batch(self, frame: DataFrame, epoch: int) -> None:
        with self._work:
            with self._turn:
                if self.ending or self.failure is not None or self.pipeline.stop.is_set():
                    return
                self.idle.clear()
            try:
                ranges = self._ranges(epoch)
                if ranges:
                    self.pipeline.one_batch(frame, ranges)
                self.pipeline.maintain()
            except BaseException as error:
                self.failure = error
                raise RuntimeError("the batch failed; the pipeline knows why") from None
            finally:
                self.idle.set()

    def _ranges(self, epoch: int) -> tuple[Range, ...]:
        """What Spark wrote down before it called us, as ranges that begin where the last batch ended."""
        pipeline = self.pipeline
        text = (self.checkpoint / "offsets" / str(epoch)).read_text().splitlines()
        ends = pipeline.source.ends(text[2])
        return tuple(
            Range(topic, partition, pipeline.position[(topic, partition)], until, pipeline.topics[topic])
            for (topic, partition), until in sorted(ends.items())
            if until > pipeline.position[(topic, partition)]
        )

    # ---- watching ----

    def _watch(self, query: Any) -> bool:
        asked: float | None = None
        while self.failure is None and not _ended(query):
            if self.pipeline.lease.lost.is_set():
                return False
            if self.pipeline.stop.is_set():
                asked = asked or time.monotonic()
                if self.idle.is_set() or time.monotonic() - asked > _GRACE:
                    return False
            elif self._outgrown() or self.pipeline.repartitioned:
                return True
            self.pipeline.on_tick()
            self._maintain()
        return False

    def _maintain(self) -> None:
        """Run maintenance between batches; a batch that comes meanwhile waits."""
        if self._work.acquire(blocking=False):
            try:
                self.pipeline.maintain()
            finally:
                self._work.release()

    def _outgrown(self) -> bool:
        """Records turned out much larger or smaller than thought: `flush.bytes` means another number of them now."""
        before, now = self._limited.get("minOffsetsPerTrigger"), self._limits().get("minOffsetsPerTrigger")
        return before is not None and now is not None and not 0.5 <= int(now) / int(before) <= 2

    def _end(self, query: Any) -> None:
        with self._turn:
            self.ending = True
        if session.alive(self._spark):
            self.idle.wait(0 if self.pipeline.stop.is_set() else _GRACE)
            # Its JVM may die at this moment, or the query not end in time: `ending` has made it deaf already.
            with suppress(Exception):
                query.stop()

    def _raise(self, query: Any) -> None:
        """A failure under its own name: ours as it is, Spark's by looking at the source and the JVM."""
        if isinstance(self.failure, HeadraceError | Abandoned):
            raise self.failure
        error = self.failure or _exception(query)
        if error is not None and self._jvm_is_gone():
            raise SparkDied("The JVM that runs Spark is gone.", hint="Start the pipeline again; nothing is lost.")
        self.pipeline.lease.check()
        if error is None or self.pipeline.stop.is_set():
            return
        same_topics(self.pipeline.source, self.pipeline.topics)
        verify_source(self.pipeline.source, self.pipeline.ledger, ordered_by_offset(self.pipeline.spec))
        raise spark_errors.error_of(error, self.checkpoint.parent)

    def _jvm_is_gone(self) -> bool:
        """Its connections end a moment before the operating system calls it dead."""
        deadline = time.monotonic() + _BURIAL
        while session.alive(self._spark) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not session.alive(self._spark)


def _exception(query: Any) -> BaseException | None:
    """What a query that has ended, ended with; asked this way it brings the Java exception along."""
    try:
        query.awaitTermination(_TICK)
    except Exception as error:
        return error
    return None


def _ended(query: Any) -> bool:
    try:
        return bool(query.awaitTermination(_TICK))
    except Exception:
        return True


def _scratch(pipeline: str) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="checkpoint-", dir=work_folder(pipeline)))
    except OSError as error:
        if error.errno not in spark_errors.NO_ROOM:
            raise
        raise spark_errors.storage_full(Path(error.filename or tempfile.gettempdir()).parent) from None
