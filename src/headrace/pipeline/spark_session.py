"""The one Spark session of a process, shared by its pipelines."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import StopRequested
from headrace.pipeline.events import Report
from headrace.runtime import jars, session
from headrace.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_SECONDS = 15.0  # that a request to stop waits for a start of Spark


class SharedSession:
    """The Spark session of all pipelines of a process, started when the first one needs it."""

    def __init__(
        self, specs: Sequence[Spec], stop: threading.Event | None = None, report: Report = lambda event: None
    ) -> None:
        self._specs, self._stop, self._report = specs, stop, report
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None
        self._closed = threading.Event()
        self._preparation: threading.Thread | None = None

    def close(self) -> None:
        """Release the session; the last release kills the JVM: nothing depends on an orderly end, which takes 1.4 s."""
        self._closed.set()
        if not self._lock.acquire(timeout=_START_SECONDS):
            return  # the start, which cannot be interrupted everywhere, ends its own JVM
        try:
            self._stop_session()
        finally:
            self._lock.release()

    def _stop_session(self) -> None:
        if self._spark is not None:
            session.stop_session(self._spark, within=0)
            self._spark = None

    def prepare(self) -> None:
        """Start the session and its Python workers in the background; `get` waits for it and raises its error."""
        if self._preparation is None:
            self._preparation = threading.Thread(target=self._prepare, name="start of Spark", daemon=True)
            self._preparation.start()

    def _prepare(self) -> None:
        with suppress(Exception):  # `get` tries again, and raises the error
            start_workers(self.get())

    def get(self) -> SparkSession:
        """The session; a new one if its JVM has died."""
        from headrace.storage.store import Profile

        with self._lock:
            if self._spark is None or not session.alive(self._spark):
                for spec in self._specs:
                    self._report({"event": "setup", "pipeline": spec.pipeline, "text": "Starting Spark…"})
                spark = self._specs[0].spark
                needs = [spec for spec in self._specs if spark_touches_s3(spec)]
                extra = jars.ensure("s3") if needs else []
                conf = Profile(**needs[0].storage_profile()).hadoop_conf() if needs else {}
                self._spark = session.start(
                    "headrace",
                    cores=spark.cores,
                    memory=spark.memory,
                    extra_jars=extra,
                    conf=conf,
                    cancelled=self._is_cancelled,
                )
                if self._closed.is_set():
                    self._stop_session()
                    raise StopRequested("Stopped while Spark was starting.")
            return self._spark

    def _is_cancelled(self) -> bool:
        return self._closed.is_set() or (self._stop is not None and self._stop.is_set())


def start_workers(spark: SparkSession) -> None:
    """Start the Python daemon and a worker per core, and load the Java classes that pass records to them."""
    cores = spark.sparkContext.defaultParallelism
    frame = spark.range(0, cores, 1, cores)
    session.map_in_arrow(frame, lambda batches: batches, "id bigint").collect()


def spark_touches_s3(spec: Spec) -> bool:
    """Whether Spark writes a table on S3: by the spec, or because its features rule out direct commits."""
    branches = [each for each in spec.branch_specs().values() if each.table.path.startswith("s3://")]
    if any(rules.by_spark for each in branches for rules in each.all_rules()):
        return True
    if not branches:
        return False
    from headrace.delta.features import append_blocker
    from headrace.delta.snapshot import load_state
    from headrace.storage.store import Profile, Store

    profile = Profile(**spec.storage_profile())
    states = [load_state(Store(each.table.path, profile)) for each in branches if each.route.kind == "fixed"]
    return any(state is not None and append_blocker(state) is not None for state in states)
