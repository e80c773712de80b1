"""Structured Streaming query of a pipeline: start it, convert its offsets to ranges, stop it in time."""

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

_GRACE = 25.0  # seconds for a running batch after a request to stop, which takes at most 30
_TICK = 0.2
_EXIT_WAIT = 1.0


class StreamingBatches:
    """One streaming query with a temporary checkpoint; progress is in the ledger."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.failure: BaseException | None = None
        self.idle = threading.Event()
        self.idle.set()
        self.ending = False
        self._turn = threading.Lock()
        self._work = threading.Lock()  # held by a batch, or by maintenance between two of them
        self._limited = self._limits()
        self._spark = pipeline.spark  # the session of the query, even after its JVM has died
        self.checkpoint = _scratch(pipeline.spec.pipeline)

    def run(self) -> bool:
        """Run until the drain ends, a stop is requested or an error is raised; True to start another query."""
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
        writer = writer.queryName(f"headrace {pipeline.spec.pipeline} {self.checkpoint.name}")  # unique
        if pipeline.until == "latest":
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._tick_ms()} milliseconds").start()

    def _limits(self) -> dict[str, int | str]:
        """Minimum and maximum size of a batch; a drain has no minimum, which would end it early."""
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
                raise RuntimeError("the batch failed; the pipeline has the error") from None
            finally:
                self.idle.set()

    def _ranges(self, epoch: int) -> tuple[Range, ...]:
        """The offsets that Spark logged for this epoch, as ranges that start where the last batch ended."""
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
        """Whether the size of records has changed so much that `flush.bytes` is another number of records."""
        before, now = self._limited.get("minOffsetsPerTrigger"), self._limits().get("minOffsetsPerTrigger")
        return before is not None and now is not None and not 0.5 <= int(now) / int(before) <= 2

    def _end(self, query: Any) -> None:
        with self._turn:
            self.ending = True
        if session.alive(self._spark):
            self.idle.wait(0 if self.pipeline.stop.is_set() else _GRACE)
            # The JVM may die now, or the query not end in time: `ending` already keeps it from running another batch.
            with suppress(Exception):
                query.stop()

    def _raise(self, query: Any) -> None:
        """Raise the error of the query: Headrace's own as it is, Spark's after a check of the JVM and the source."""
        if isinstance(self.failure, HeadraceError | Abandoned):
            raise self.failure
        error = self.failure or _exception(query)
        if error is not None and self._jvm_is_gone():
            raise SparkDied("The JVM of Spark has exited.", hint="Restart the pipeline; nothing is lost.")
        self.pipeline.lease.check()
        if error is None or self.pipeline.stop.is_set():
            return
        same_topics(self.pipeline.source, self.pipeline.topics)
        verify_source(self.pipeline.source, self.pipeline.ledger, ordered_by_offset(self.pipeline.spec))
        raise spark_errors.error_of(error, self.checkpoint.parent)

    def _jvm_is_gone(self) -> bool:
        """Whether the JVM has ended; its connections close shortly before the process does."""
        deadline = time.monotonic() + _EXIT_WAIT
        while session.alive(self._spark) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not session.alive(self._spark)


def _exception(query: Any) -> BaseException | None:
    """The exception of a query that has ended; `awaitTermination` includes the Java exception."""
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
