"""The one Spark session of a process, shared by its pipelines."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import StopRequested, UsageError
from headrace.pipeline.events import Report
from headrace.runtime import external_session, jars, session
from headrace.runtime.cluster import Cluster
from headrace.runtime.kafka_options import kafka_options
from headrace.spec import Spec
from headrace.spec.running import SparkSpec
from headrace.spec.sasl import MSK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.storage.store import Store

STARTING = "Starting Spark…"
SHORT_RECORDS = 1_000_000  # up to which a JVM that optimizes its code does not pay off

_START_SECONDS = 15.0  # that a request to stop waits for a start of Spark
_END_SECONDS = 10.0  # for an orderly end of an application on a cluster


class SharedSession:
    """The Spark session of all pipelines of a process, started when the first one needs it."""

    def __init__(
        self,
        specs: Sequence[Spec],
        stop: threading.Event | None = None,
        report: Report = lambda event: None,
        external: SparkSession | None = None,
    ) -> None:
        """`external`: a session of the caller, which is used instead and not stopped."""
        self._specs, self._stop, self._report = list(specs), stop, report
        self._external = external
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None
        self._closed = threading.Event()
        self._preparation: threading.Thread | None = None
        self._is_short = self._is_on_cluster = False

    def add(self, spec: Spec) -> None:
        """Use the session for one more pipeline, or for a changed spec of one.

        A session that has been started keeps its settings and jars: a table of a store whose connector it lacks raises
        UsageError when it is opened.
        """
        self.remove(spec.pipeline)
        self._specs.append(spec)

    def remove(self, pipeline: str) -> None:
        """Forget a pipeline."""
        self._specs = [spec for spec in self._specs if spec.pipeline != pipeline]

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
        if self._spark is not None and self._external is None:
            # The master of a cluster releases the executors of an application that ends.
            session.stop_session(self._spark, within=_END_SECONDS if self._is_on_cluster else 0)
            self._spark = None

    def prepare(self, records: int | None = None) -> None:
        """Start the session and its Python workers in the background; `get` waits for it and raises its error.

        `records`: how many the pipeline is going to read, if it ends then.
        """
        if self._preparation is None and self._external is None:
            self._is_short = records is not None and records <= SHORT_RECORDS and len(self._specs) == 1
            self._preparation = threading.Thread(target=self._prepare, name="start of Spark", daemon=True)
            self._preparation.start()

    def _prepare(self) -> None:
        with suppress(Exception):  # `get` tries again, and raises the error
            start_workers(self.get())

    def get(self) -> SparkSession:
        """The session; a new one if its JVM has died."""
        with self._lock:
            if self._external is not None:
                self._spark = self._spark or self._separate(self._external)
            elif self._spark is None or not session.alive(self._spark):
                for spec in self._specs:
                    self._setup(spec, STARTING)
                spark = self._specs[0].spark
                self._is_on_cluster = spark.is_cluster
                self._spark = session.start(
                    "headrace",
                    cores=_local_cores(spark),
                    memory=spark.memory,
                    extra_jars=_extra_jars(self._specs, self._download),
                    progress=self._download,
                    is_short=self._is_short,
                    runs_python=True,
                    cluster=_cluster(spark, token_urls(self._specs)),
                    cancelled=self._is_cancelled,
                )
                if self._closed.is_set():
                    self._stop_session()
                    raise StopRequested("Stopped while Spark was starting.")
            session.allow_token_urls(self._spark, token_urls(self._specs))
            return self._spark

    def _setup(self, spec: Spec, text: str) -> None:
        self._report({"event": "setup", "pipeline": spec.pipeline, "text": text})

    def _download(self, text: str) -> None:
        """Report a download, which all pipelines wait for, once."""
        self._setup(self._specs[0], text)

    def _separate(self, external: SparkSession) -> SparkSession:
        kafka = any(spec.source.read_from_kafka is not None for spec in self._specs)
        own: SparkSession = external_session.separate_session(external, session.settings(), kafka=kafka)
        if not own.sparkContext.master.startswith("local"):
            for spec in self._specs:
                check_shared(spec)
        return own

    def _is_cancelled(self) -> bool:
        return self._closed.is_set() or (self._stop is not None and self._stop.is_set())


def application_settings(specs: Sequence[Spec]) -> dict[str, str]:
    """Settings for spark-submit of an application that runs these pipelines; UsageError with a local master."""
    cluster = _cluster(specs[0].spark, token_urls(specs))
    if cluster is None:
        raise UsageError(
            f"spark.master is {specs[0].spark.master}, which needs no spark-submit.",
            hint="Use `headrace run`, or set spark.master to a cluster.",
        )
    driver = {"spark.driver.extraJavaOptions": " ".join(kafka_options(cluster.token_urls))}
    return cluster.settings(session.settings() | driver, [*jars.ensure("spark"), *_extra_jars(specs)])


def _extra_jars(specs: Sequence[Spec], progress: jars.ReportDownload | None = None) -> list[Path]:
    """Jars for object stores, whose settings are set when a table is opened, and for the brokers of AWS MSK."""
    groups = set[str]().union(*map(jar_groups, specs))
    return list(dict.fromkeys(jar for group in sorted(groups) for jar in jars.ensure(group, progress=progress)))


def check_shared(spec: Spec) -> None:
    """UsageError if executors on other machines cannot reach a path of the pipeline."""
    for _, path in spec.unshared_paths():
        raise UsageError(
            f"Spark executors on other machines cannot reach the local path {path}.",
            hint="Use an object store, or list the directory in spark.shared_mounts if all nodes mount it.",
        )


def _local_cores(spark: SparkSpec) -> int | None:
    number = spark.master.removeprefix("local[").removesuffix("]")
    return int(number) if number.isdigit() else spark.cores


def token_urls(specs: Sequence[Spec]) -> tuple[str, ...]:
    """The URLs that Kafka's clients get tokens from."""
    sasls = [kafka.sasl for spec in specs if (kafka := spec.source.read_from_kafka) is not None]
    return tuple(sasl.token_url for sasl in sasls if sasl is not None and sasl.token_url)


def _cluster(spark: SparkSpec, urls: tuple[str, ...]) -> Cluster | None:
    if not spark.is_cluster:
        return None
    executors = spark.executors
    return Cluster(
        spark.master, executors.count, executors.cores, executors.memory, spark.environment, spark.conf, urls
    )


def start_workers(spark: SparkSession) -> None:
    """Start the Python daemon and a worker per core, and load the Java classes that pass records to them."""
    cores = spark.sparkContext.defaultParallelism
    frame = spark.range(0, cores, 1, cores)
    session.map_in_arrow(frame, lambda batches: batches, {"id": "long"}).collect()


def jar_groups(spec: Spec) -> set[str]:
    """Groups of jars for the broker, and for the object stores of tables that Spark writes.

    Spark writes tables by the spec or because of their features.
    The tables of a route may have such features, and are not all known: their jars are always included.
    """
    from headrace.storage.store import Profile, Store

    profile = Profile(**spec.storage_profile())
    stores = [
        store
        for branch in spec.branch_specs().values()
        if not (store := Store(branch.table.path, profile)).local and _may_need_spark(branch, store)
    ]
    state = Store(spec.state_uri, profile)  # merges read the tombstones there
    kafka = spec.source.read_from_kafka
    sasl = kafka.sasl if kafka is not None else None
    broker = {"msk"} if sasl is not None and sasl.mechanism == MSK else set()
    return broker | {store.access.jars for store in [*stores, state] if stores and not store.local}


def _may_need_spark(branch: Spec, store: Store) -> bool:
    if branch.route.kind != "fixed" or any(rules.by_spark for rules in branch.all_rules()):
        return True
    from headrace.delta.features import append_blocker
    from headrace.delta.snapshot import load_state

    state = load_state(store)
    return state is not None and append_blocker(state) is not None
