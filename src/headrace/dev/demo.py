"""Demo: a local broker, generated events and one pipeline, verified by an independent consumer."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.dev.kafka import Broker
from headrace.dev.spark_cluster import StandaloneCluster
from headrace.errors import UsageError
from headrace.pipeline.events import Summary
from headrace.runtime.cache import cache_folder
from headrace.runtime.environment_archive import build_environment
from headrace.runtime.jars import ensure, pinned
from headrace.runtime.java import find_java
from headrace.serve.monitor import Monitor
from headrace.serve.runner import Service, run_all
from headrace.source.sample_events import events
from headrace.validate.load import loads

TESTED_DUCKDB = "1.5.5"  # for `delta_scan`: the extension fits one version of DuckDB, not the one that Headrace uses
MARKER = ".headrace-demo"
TOPIC = "shop.events"
PARTITIONS = 4
_BAD_RATIO = 0.02
_QUIET = {"log_level": 0}
_SEED = 7
_SPEC = """\
pipeline: shop
source: {{kafka: {{brokers: "{brokers}", topics: [shop.events]}}}}
transform:
  - set: {{day: "CAST(occurred_at AS DATE)"}}
  - where: "coalesce(status, 200) < 500"
route: {{by: {{field: type}}}}
table:
  path: "./lake/{{route}}"
  partition_by: [day]
  columns:
    - {{name: id, type: bigint, nullable: false}}
    - {{name: type, type: string}}
    - {{name: occurred_at, type: timestamp}}
    - {{name: user, type: "struct<id: bigint, country: string, plan: string>"}}
  contract: {{new_field: evolve}}
flush: {{every: 1s}}
"""
_CLUSTER = """\
spark:
  master: "{master}"
  shared_mounts: ["."]
  conf: {{spark.driver.host: 127.0.0.1, spark.driver.bindAddress: 127.0.0.1}}
"""
_SPARK = """\
# Query with plain PySpark; requires Java 17 or newer. These three settings let Spark read Delta tables;
# on other machines use .config("spark.jars.packages", "{at}") instead of spark.jars.
{java}from pyspark.sql import SparkSession

spark = (
    SparkSession.builder
    .config("spark.jars", "{jars}")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
spark.read.format("delta").load("{table}").groupBy("path").count().show(truncate=False)
"""


class Demo:
    """Demo in one directory; only files of an earlier demo are deleted."""

    def __init__(
        self,
        folder: Path,
        records: int,
        report: Callable[[dict[str, Any]], None],
        *,
        on_cluster: bool = False,
        monitor: Monitor | None = None,
        services: Sequence[Service] = (),
    ) -> None:
        """`on_cluster`: run on a standalone Spark cluster of two workers instead of in one process.

        `monitor`: gets the events. `services`: as for `run_all`.
        """
        self.folder = folder
        self.records = records
        self.report = report
        self.on_cluster = on_cluster
        self.monitor, self.services = monitor or Monitor(), services
        self.stop = threading.Event()

    def run(self) -> dict[str, Any]:
        """Run the demo; returns the counts of the pipeline and of an independent consumer and reader."""
        _clear(self.folder)
        self._say("starting a local Kafka broker")
        with (
            tempfile.TemporaryDirectory(prefix="headrace-demo-") as scratch,
            Broker.start(Path(scratch) / "kafka", progress=self._say) as broker,
            self._cluster(Path(scratch) / "spark") as spark,
        ):
            _make_topic(broker.bootstrap)
            summary = self._stream(broker.bootstrap, spark)
            return self._account(summary, broker.bootstrap)

    @contextmanager
    def _cluster(self, folder: Path) -> Iterator[str]:
        """The keys of the spec for a cluster that runs during the block; none without a cluster."""
        if not self.on_cluster:
            yield ""
            return
        build_environment(progress=self._say)
        self._say("starting a Spark cluster: a master and two workers with one core each")
        with StandaloneCluster.start(folder, workers=2) as cluster:
            yield _CLUSTER.format(master=cluster.master)

    def _stream(self, brokers: str, spark: str) -> Summary:
        """Produce while the pipeline runs; stop it once it has caught up."""
        text = _SPEC.format(brokers=brokers) + spark
        (self.folder / "shop.yaml").write_text(text)
        spec = loads(text, self.folder)[0]
        producer = threading.Thread(target=self._produce, args=(brokers,), daemon=True)
        producer.start()
        self._say("starting Spark")
        outcome = run_all([spec], report=self._watch, stop=self.stop, monitor=self.monitor, services=self.services)[0]
        if outcome.error is not None:
            raise outcome.error
        return outcome.summary

    def _watch(self, event: dict[str, Any]) -> None:
        self.monitor(event)
        self.report(event)
        if event["event"] == "batch":
            self._read = getattr(self, "_read", 0) + event["read"]
            if self._read >= self.records:
                self.stop.set()

    def _produce(self, brokers: str) -> None:
        producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20, **_QUIET})
        per_partition = -(-self.records // PARTITIONS)
        sent = 0
        for chunk in range(0, per_partition, 500):
            for partition in range(PARTITIONS):
                upto = min(chunk + 500, per_partition, chunk + self.records - sent)
                for item in events(_SEED, partition, chunk, upto, _BAD_RATIO):
                    producer.produce(TOPIC, item.value, item.key, partition, headers=list(item.headers))
                    sent += 1
            producer.flush(30)

    def _account(self, summary: Summary, brokers: str) -> dict[str, Any]:
        counts = summary.counts
        consumed = count_consumed(brokers)
        tables = {path: _rows(path) for path in sorted(summary.tables)}
        dead_letters = sum(rows for path, rows in tables.items() if path.endswith("dead_letters"))
        rows = sum(tables.values()) - dead_letters
        matches = (consumed, rows, dead_letters) == (counts.read, counts.routed, counts.dead)
        return {
            "pipeline": summary.pipeline,
            **counts.records(),
            "reasons": dict(sorted(counts.reasons.items())),
            "tables": tables,
            "lag": consumed - counts.read,
            "consumer_count": consumed,
            "counts_match": counts.is_complete and matches,
            "spec": str(self.folder / "shop.yaml"),
            "lake": str(self.folder / "lake"),
            "spark": str(self._spark_script(_first(tables))),
            "programs": {name: _as_typed(Path(sys.executable).parent / name) for name in ("headrace", "python")},
        }

    def _spark_script(self, table: str) -> Path:
        """Write a plain PySpark query with the settings for Delta tables."""
        script = self.folder / "spark_query.py"
        jars = [str(path) for path in ensure("spark") if path.name.startswith("delta-")]
        at = next(jar.at for jar in pinned()["spark"] if "delta-spark" in jar.at)
        script.write_text(_SPARK.format(java=_java_home(), jars=",".join(jars), at=at, table=table))
        return script

    def _say(self, text: str) -> None:
        self.report({"event": "setup", "pipeline": "demo", "text": text})


def _clear(folder: Path) -> None:
    if folder.exists() and not (folder / MARKER).exists():
        if any(folder.iterdir()):
            raise UsageError(
                f"{folder} is not empty and was not created by the demo.", hint="Choose another directory."
            )
    elif folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text(
        "Created by `headrace demo`, which deletes the content of this directory when it runs again.\n"
    )


def _make_topic(brokers: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers, **_QUIET})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)


def count_consumed(brokers: str) -> int:
    """Number of records that an independent consumer reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "independent",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **_QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        count, ended = 0, 0
        while ended < PARTITIONS:
            for record in consumer.consume(10_000, timeout=0.2):
                ended += record.error() is not None
                count += record.error() is None
        return count
    finally:
        consumer.close()


def _rows(path: str) -> int:
    from headrace.dead_letters.reader import dataset
    from headrace.storage.store import Store

    table = dataset(Store(path))
    return 0 if table is None else int(table.count_rows())


def _java_home() -> str:
    """Lines that set JAVA_HOME; not to the downloaded JRE, which lacks a module that PySpark needs."""
    home = find_java().home
    if home.is_relative_to(cache_folder()):
        return ""
    return f'import os\n\nos.environ.setdefault("JAVA_HOME", "{home}")\n'


def _first(tables: Iterable[str]) -> str:
    """Table used in the sample queries."""
    return next((path for path in tables if path.endswith("page_view")), next(iter(tables)))


def _as_typed(program: Path) -> str:
    """Path of a program as typed in a shell."""
    return str(program.relative_to(Path.cwd())) if program.is_relative_to(Path.cwd()) else str(program)


def demo_text(summary: dict[str, Any]) -> str:
    """Summary of the demo as text."""
    table = _first(summary["tables"])
    counts = [f"{summary[key]:,}" for key in ("read", "routed", "dead", "filtered")]
    headrace, python = summary["programs"]["headrace"], summary["programs"]["python"]
    verdict = "they match" if summary["counts_match"] else "MISMATCH"
    lines = [
        "",
        "Rows by table (counted with delta-rs)",
        *(f"  {rows:>9,}  {path}" for path, rows in summary["tables"].items()),
        "Dead letters by reason",
        *(f"  {number:>9,}  {reason}" for reason, number in summary["reasons"].items()),
        "Record counts",
        f"  read {counts[0]} = routed {counts[1]} + dead {counts[2]} + filtered {counts[3]}",
        f"  an independent consumer read {summary['consumer_count']:,} records; lag {summary['lag']:,}: {verdict}",
        "Query the tables",
        f"  Headrace  {headrace} table sql \"SELECT path, count(*) FROM '{table}' GROUP BY ALL\"",  # noqa: S608
        f"  DuckDB    SELECT path, count(*) FROM delta_scan('{table}') GROUP BY ALL;"  # noqa: S608
        f"  -- tested with DuckDB {TESTED_DUCKDB}",
        f"  Polars    pl.read_delta('{table}').group_by('path').len()",
        f"  Spark     {python} {summary['spark']}",
        f"Spec: {summary['spec']}; tables: {summary['lake']}.",
    ]
    return "\n".join(lines)
