"""Plain Python consumers: confluent-kafka and `write_deltalake`. `python -m bench.consumers ORDER` drains one topic."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.columns import ARROW

Drain = Callable[[Mapping[str, Any], Path], dict[str, Any]]


def _batches(order: Mapping[str, Any], topic: str, size: int) -> Iterator[list[Any]]:
    """Batches of a topic's records; offsets are committed to the broker after each batch."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"enable.auto.commit": False, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    group = f"bench-{os.getpid()}-{time.monotonic_ns()}"
    consumer = Consumer({"bootstrap.servers": order["bootstrap"], "group.id": group, **settings, "log_level": 0})
    try:
        partitions = [TopicPartition(topic, part, 0) for part in consumer.list_topics(topic).topics[topic].partitions]
        remaining = sum(consumer.get_watermark_offsets(partition)[1] for partition in partitions)
        consumer.assign(partitions)
        while remaining:
            batch: list[Any] = []
            while len(batch) < min(size, remaining):
                batch += consumer.consume(min(size, remaining) - len(batch), timeout=1)
            yield batch
            consumer.commit(asynchronous=False)
            remaining -= len(batch)
    finally:
        consumer.close()


def _source(record: Any) -> dict[str, Any]:
    return {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": record.timestamp()[1] * 1000,
    }


def _schema(options: Mapping[str, Any]) -> Any:
    """Columns of a drain; all, unless it names them."""
    import pyarrow as pa

    return pa.schema([ARROW.field(name) for name in options.get("names", ARROW.names)])


def pandas_consumer(order: Mapping[str, Any]) -> Drain:
    """`json` and pandas, 10,000 records per batch."""
    import pandas as pd
    import pyarrow as pa
    from deltalake import write_deltalake

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        batches, schema = 0, _schema(options)
        for batch in _batches(order, options["topic"], 10_000):
            frame = pd.DataFrame([json.loads(record.value()) for record in batch])
            frame["timestamp"] = pd.to_datetime(frame["timestamp"], format="ISO8601", utc=True)
            if "headers" in schema.names:
                frame["headers"] = [record.headers() or [] for record in batch]
            frame["_source"] = [_source(record) for record in batch]
            table = pa.Table.from_pandas(frame, schema, preserve_index=False)
            write_deltalake(str(folder / "lake"), table, mode="append")
            batches += 1
        return {"batches": batches}

    return drain


def arrow_consumer(order: Mapping[str, Any]) -> Drain:
    """orjson and pyarrow, 100,000 records per batch."""
    import orjson
    import pyarrow as pa
    from deltalake import write_deltalake

    def drain(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        batches, schema = 0, _schema(options)
        stamp = schema.get_field_index("timestamp")
        text = schema.set(stamp, pa.field("timestamp", pa.string()))
        headers = "headers" in schema.names
        for batch in _batches(order, options["topic"], 100_000):
            rows = [{**orjson.loads(record.value()), "_source": _source(record)} for record in batch]
            if headers:
                for row, record in zip(rows, batch, strict=True):
                    row["headers"] = record.headers() or []
            table = pa.Table.from_pylist(rows, text)
            table = table.set_column(stamp, schema.field(stamp), table.column(stamp).cast(schema.field(stamp).type))
            write_deltalake(str(folder / "lake"), table, mode="append")
            batches += 1
        return {"batches": batches}

    return drain


CONSUMERS: dict[str, Callable[[Mapping[str, Any]], Drain]] = {"pandas": pandas_consumer, "arrow": arrow_consumer}

if __name__ == "__main__":
    ORDER = json.loads(sys.argv[1])
    CONSUMERS[ORDER["peer"]](ORDER)(ORDER, Path(ORDER["folder"]))
