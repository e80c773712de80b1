"""Rows per second into PostgreSQL: the hot store follows a Delta table, in this process; fsync is on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import compute as pc

from bench.meter import tree_cpu
from headrace.delta.schema import SOURCE
from services.hot_stores import Followed, sources
from services.postgres import postgres_server

COMMITS = 4


def hot_store(folder: Path, count: int) -> list[dict[str, Any]]:
    """Catch up with the commits of a table of 12 columns, and load the table at once."""
    with postgres_server(fsync=True) as server:
        database = server.database()
        os.environ["HOT_STORE_PASSWORD"] = database.password
        followed = Followed(folder / "followed", database)
        for number in range(COMMITS + 1):  # the first one creates both tables
            rows = count // COMMITS if number else 1
            followed.append(_events(number * count, rows))
            if number == 0:
                followed.catch_up()
        figures = [_measured("commits of a quarter of the rows", followed, count)]
        followed.restart()
        database.query("DROP TABLE headrace.orders")
        figures.append(_measured("load of the whole table", followed, count + 1))
        followed.restart()
        return figures


def _measured(label: str, followed: Followed, count: int) -> dict[str, Any]:
    server = followed.database.server.child
    assert server is not None
    start, cpu, server_cpu = time.monotonic(), time.process_time(), tree_cpu(server.pid)
    followed.catch_up()
    seconds, own_cpu = time.monotonic() - start, time.process_time() - cpu
    server_cpu = tree_cpu(server.pid) - server_cpu
    [(rows,)] = followed.database.query("SELECT count(*) FROM headrace.orders")
    expected = DeltaTable(followed.path).to_pyarrow_dataset().count_rows()
    if rows != expected:
        raise AssertionError(f"{label}: {rows} rows instead of {expected}")
    return {
        "label": label,
        "count": count,
        "per_second": round(count / seconds),
        "cpu_per_million": round(own_cpu / count * 1e6, 2),
        "server_cpu_per_million": round(server_cpu / count * 1e6, 2),
    }


def _events(start: int, count: int) -> pa.Table:
    """Events with values of all common types, about 250 bytes each."""
    numbers = np.arange(start, start + count)
    digits = pc.cast(pa.array(numbers), pa.string())

    def text(prefix: str) -> pa.Array:
        return pc.binary_join_element_wise(prefix, digits, "")

    return pa.table(
        {
            "id": pa.array(numbers),
            "event_type": pc.take(pa.array(["view", "click", "purchase"]), pa.array(numbers % 3)),
            "timestamp": pa.array(1_760_000_000_000_000 + numbers * 1_000, pa.timestamp("us", "UTC")),
            "session_id": text("session-0000-"),
            "user_id": pa.array(numbers % 100_000),
            "url": text("https://shop.example.com/products/"),
            "status": pa.array(numbers % 500, pa.int32()),
            "duration_ms": pa.array(numbers / 7.0),
            "amount": pa.array(numbers % 10_000).cast(pa.decimal128(21, 2)),
            "country": pc.take(pa.array(["DE", "FR", None, "US"]), pa.array(numbers % 4)),
            "ok": pa.array(numbers % 2 == 0),
            SOURCE.name: sources(numbers.tolist()),
        }
    )
