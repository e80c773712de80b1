"""Peers, each in its own process: `python -m bench.peers ORDER` drains topics and reports to the meter.

An order has the peer, the broker and the drains: a label, a topic and, for Headrace, further keys of the spec.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.columns import FIELDS
from bench.consumers import arrow_consumer, pandas_consumer
from bench.meter import report

Drain = Callable[[Mapping[str, Any], Path], dict[str, Any]]
# Favour the textbook: Spark's default manager of checkpoints starts a dozen processes per batch.
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
STREAMING = {
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
# Java's defaults, which suit a long-running query of Spark; Headrace starts faster with higher thresholds.
EAGER_COMPILER = (
    "-XX:Tier4InvocationThreshold=5000",
    "-XX:Tier4MinInvocationThreshold=600",
    "-XX:Tier4CompileThreshold=15000",
    "-XX:Tier4BackEdgeThreshold=40000",
)
BATCH_ROWS = 1_000_000  # Headrace's default limit per batch, used for the textbook as well


# ---- Headrace ----


def spec_text(order: Mapping[str, Any], drain: Mapping[str, Any]) -> str:
    """Spec of a drain."""
    columns = [{"name": name, "type": kind} for name, kind in drain.get("columns", FIELDS).items()]
    with_headers = drain.get("headers", True)
    if with_headers:
        columns.append({"name": "headers", "type": "map<string, binary>"})
    routed = bool(drain.get("route"))
    table: dict[str, Any] = {"path": "./lake/{route}" if routed else "./lake/events", **drain.get("table", {})}
    if not drain.get("inferred"):
        table["columns"] = columns
    spec = {
        "pipeline": "bench",
        "source": {"kafka": {"brokers": order["bootstrap"], "topics": drain.get("topics", [drain["topic"]])}},
        "transform": [*([{"set": {"headers": "_headers"}}] if with_headers else ()), *drain.get("transform", ())],
        "table": table,
        **({"route": {"by": {"field": drain["route"]}}} if routed else {}),
        **drain.get("spec", {}),
    }
    return json.dumps(spec)


def headrace(order: Mapping[str, Any]) -> Drain:
    """`headrace run --until latest`, in a running session."""
    from headrace.runtime import session
    from headrace.serve.runner import run_all
    from headrace.validate.load import loads

    session.start("headrace")

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        outcome = run_all([loads(spec_text(order, options), folder)[0]], until="latest")[0]
        if outcome.error:
            raise outcome.error
        summary = outcome.summary
        if options.get("preview"):
            (folder / "spec.yaml").write_text(spec_text(order, options))
        return {"read": summary.counts.read, "dead": summary.counts.dead, "batches": summary.batches}

    return drain


# ---- textbook ----


def kafka_options(order: Mapping[str, Any], topic: str) -> dict[str, str]:
    """Options of Spark's source as Headrace sets them; they are faster than the defaults."""
    from headrace.source.kafka import CONSUMER

    return {
        **CONSUMER,
        "kafka.bootstrap.servers": order["bootstrap"],
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(BATCH_ROWS),
    }


def _textbook_query(spark: Any, order: Mapping[str, Any], topic: str, folder: Path, trigger: dict[str, Any]) -> Any:
    from pyspark.sql import functions as F

    schema = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
    source = spark.readStream.format("kafka").options(**kafka_options(order, topic)).load()
    rows = source.select(
        F.from_json(F.col("value").cast("string"), schema).alias("event"),
        F.map_from_entries("headers").alias("headers"),
        F.struct("topic", "partition", "offset", "timestamp").alias("_source"),
    ).select("event.*", "headers", "_source")
    sink = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    return sink.trigger(**trigger).start(str(folder / "lake"))


def textbook(order: Mapping[str, Any]) -> Drain:
    """`readStream` → `from_json` → Delta sink, in a session with the same settings."""
    from headrace.runtime import session

    os.environ["HEADRACE_JVM"] = " ".join(EAGER_COMPILER)
    spark = session.start("textbook", conf=STREAMING)

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        query = _textbook_query(spark, order, options["topic"], folder, {"availableNow": True})
        query.awaitTermination()
        return {"batches": query.lastProgress.batchId + 1}

    return drain


def read_json(order: Mapping[str, Any]) -> Drain:
    """`spark.read.json` → Delta table, in a session with the same settings; the warm-up reads the same files."""
    from headrace.runtime import session

    os.environ["HEADRACE_JVM"] = " ".join(EAGER_COMPILER)
    spark = session.start("read json")
    schema = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        path = options.get("path") or order["drains"][0]["path"]
        spark.read.schema(schema).json(path).write.format("delta").save(str(folder / "lake"))
        return {"batches": 1}

    return drain


# ---- minimum ----


def _count(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})


def floor(order: Mapping[str, Any]) -> Drain:
    """Spark's Kafka source, read as Headrace does, with a Python function that only counts."""
    from headrace.runtime import session
    from headrace.source.base import select_record_columns

    spark = session.start("floor")

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        source = spark.read.format("kafka").options(**kafka_options(order, options["topic"])).load()
        rows = session.map_in_arrow(select_record_columns(source), _count, {"n": "long"}).collect()
        return {"read": sum(row.n for row in rows), "batches": 1}

    return drain


# ---- micro-batches ----


def steady_textbook(order: Mapping[str, Any]) -> Drain:
    """Textbook with a trigger interval of one second; the time of a batch is Spark's `triggerExecution`."""
    from headrace.runtime import session

    os.environ["HEADRACE_JVM"] = " ".join(EAGER_COMPILER)
    spark = session.start("textbook", conf=STREAMING)

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        query = _textbook_query(spark, order, options["topic"], folder, {"processingTime": "1 second"})
        batches: dict[int, float] = {}
        deadline = time.monotonic() + options["seconds"]
        while len(batches) < options["batches"] and time.monotonic() < deadline:
            time.sleep(1)
            for progress in query.recentProgress:
                if "addBatch" in progress.durationMs:
                    batches[progress.batchId] = progress.durationMs["triggerExecution"]
        query.stop()
        return {"milliseconds": [batches[number] for number in sorted(batches)]}

    return drain


def steady_headrace(order: Mapping[str, Any]) -> Drain:
    """`headrace run` with `flush: {every: 1s}`; the time of a batch is from its start to its row in the ledger."""
    from headrace.runtime import session
    from headrace.serve.runner import run_all
    from headrace.validate.load import loads

    session.start("headrace")

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        spec = loads(spec_text(order, {**options, "spec": {"flush": {"every": "1s"}}}), folder)[0]
        stop, milliseconds = threading.Event(), list[float]()

        def note(event: Mapping[str, Any]) -> None:
            if event["event"] == "batch":
                milliseconds.append(event["seconds"] * 1000)
                if len(milliseconds) >= options["batches"]:
                    stop.set()

        timer = threading.Timer(options["seconds"], stop.set)
        timer.start()
        (result,) = run_all([spec], stop=stop, report=note)
        timer.cancel()
        if result.error:
            raise result.error
        return {"milliseconds": milliseconds}

    return drain


PEERS: dict[str, Callable[[Mapping[str, Any]], Drain]] = {
    "headrace": headrace,
    "textbook": textbook,
    "read json": read_json,
    "floor": floor,
    "pandas": pandas_consumer,
    "arrow": arrow_consumer,
    "steady headrace": steady_headrace,
    "steady textbook": steady_textbook,
}


def main(order: dict[str, Any]) -> None:
    """Warm up, then run all drains in each turn, each in its own folder, or into the tables of the drain before it."""
    drain = PEERS[order["peer"]](order)
    base = Path(order["folder"])
    if order.get("warm"):
        drain({"topic": order["warm"]}, _folder(base / "warm"))
    for turn in range(order.get("turns", 1)):
        for number, options in enumerate(order["drains"]):
            if not options.get("same_tables"):
                folder = _folder(base / f"{turn}-{number}")
            report("begin", options["label"])
            result = drain(options, folder)
            report("end", options["label"], result)
    sys.stdout.flush()
    os._exit(0)  # stopping the session takes seconds; its JVM ends with this process


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
