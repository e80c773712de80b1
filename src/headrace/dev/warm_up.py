"""Create class archives by running a minimal pipeline: a topic, read by Spark, into a Delta table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.dev import kafka
from headrace.runtime import class_archive, jars, session
from headrace.runtime.java import find_java
from headrace.source.base import select_record_columns


def make_archives(*, progress: jars.ReportDownload | None = None) -> None:
    """Create missing archives of Spark and Kafka for this Java and these jars."""
    say = progress or (lambda _: None)
    java = find_java(progress=progress)
    spark_jars, kafka_jars = session.class_path(progress=progress), jars.ensure("kafka", progress=progress)
    with (
        class_archive.making("spark", java, spark_jars) as spark_jvm,
        class_archive.making("kafka", java, kafka_jars) as kafka_jvm,
    ):
        if not spark_jvm and not kafka_jvm:
            return
        say("Creating class archives, so that Java starts faster")
        with tempfile.TemporaryDirectory() as scratch:
            _run_once(Path(scratch), spark_jvm, kafka_jvm)


def _run_once(scratch: Path, spark_jvm: list[str], kafka_jvm: list[str]) -> None:
    with kafka.Broker.start(scratch / "kafka", jvm=kafka_jvm) as broker:
        _produce(broker.bootstrap)
        if spark_jvm:
            spark = session.start("warm", cores=1, jvm=["-XX:TieredStopAtLevel=1", *spark_jvm], work=scratch)
            _read(spark, broker.bootstrap, scratch)
            session.stop_session(spark, within=600)  # it writes the archive at its end


def _produce(bootstrap: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    client.create_topics([NewTopic("warm", 1)])["warm"].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for _ in range(100):
        producer.produce("warm", b"{}")
    producer.flush(30)


def _read(spark: Any, bootstrap: str, scratch: Path) -> None:
    """Run one batch that loads all JVM classes a pipeline uses."""

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    options = {"kafka.bootstrap.servers": bootstrap, "assign": '{"warm": [0]}', "includeHeaders": "true"}
    options |= {"startingOffsets": '{"warm": {"0": 0}}', "endingOffsets": '{"warm": {"0": 100}}'}
    frame = select_record_columns(spark.read.format("kafka").options(**options).load()).coalesce(1)
    session.map_in_arrow(frame.select("value"), same, {"value": "binary"}).collect()
    frame.write.format("delta").mode("append").save(str(scratch / "lake"))
    spark.read.format("delta").load(str(scratch / "lake")).count()
