"""The one Spark session of a process, shared by its pipelines."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.delta.features import append_blocker
from headrace.delta.snapshot import load_state as load_table
from headrace.pipeline.events import Report
from headrace.spec import Spec
from headrace.storage.store import Profile, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERLY = 10.0  # seconds until the JVM is killed


class SharedSession:
    """The Spark session of all pipelines of a process, started when the first one needs it."""

    def __init__(
        self, specs: Sequence[Spec], stop: threading.Event | None = None, report: Report = lambda event: None
    ) -> None:
        self._specs, self._stop, self._report = specs, stop, report
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def close(self, within: float = ORDERLY) -> None:
        """Stop the session; its JVM ends with the last user, killed after `within` seconds."""
        from headrace.runtime import session

        with self._lock:
            if self._spark is not None:
                session.stop_session(self._spark, within=within)
                self._spark = None

    def get(self) -> SparkSession:
        """The session; a new one if its JVM has died."""
        from headrace.runtime import jars, session

        with self._lock:
            if self._spark is None or not session.alive(self._spark):
                for spec in self._specs:
                    self._report({"event": "setup", "pipeline": spec.pipeline, "text": "Starting Spark…"})
                spark = self._specs[0].spark
                needs = [spec for spec in self._specs if spark_touches_s3(spec)]
                extra = jars.ensure("s3") if needs else []
                conf = Profile(**needs[0].storage_profile()).hadoop_conf() if needs else {}
                self._spark = session.start(
                    "headrace", cores=spark.cores, memory=spark.memory, extra_jars=extra, conf=conf, stop=self._stop
                )
            return self._spark


def spark_touches_s3(spec: Spec) -> bool:
    """Whether Spark writes a table on S3: by the spec, or because its features rule out direct commits."""
    branches = [each for each in spec.branch_specs().values() if each.table.path.startswith("s3://")]
    if any(rules.by_spark for each in branches for rules in each.all_rules()):
        return True
    profile = Profile(**spec.storage_profile())
    states = [load_table(Store(each.table.path, profile)) for each in branches if each.route.kind == "fixed"]
    return any(state is not None and append_blocker(state) is not None for state in states)
