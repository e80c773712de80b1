"""Delta tables that other programs write, and their hot tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from headrace.delta.schema import SOURCE
from headrace.hot_store.hot_store import PostgresHotStore
from headrace.spec import Spec
from headrace.validate.load import loads
from services.postgres import Database

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def sources(offsets: Iterable[int], topic: str = "orders", partition: int = 0) -> pa.Array:
    """A column `_source` with these offsets."""
    return pa.array(
        [{"topic": topic, "partition": partition, "offset": offset, "timestamp": AT} for offset in offsets], SOURCE.type
    )


@dataclass
class Followed:
    """One Delta table, its pipeline, which is not run, and its hot store, which is."""

    folder: Path
    database: Database
    options: dict[str, Any] = field(default_factory=dict)  # of hot_store.postgres
    events: list[dict[str, Any]] = field(default_factory=list)
    _hot: PostgresHotStore | None = None

    @property
    def path(self) -> str:
        """The Delta table."""
        return str(self.folder / "lake" / "orders")

    @property
    def spec(self) -> Spec:
        """A pipeline with one table."""
        content = {
            "pipeline": "shop",
            "source": {"kafka": {"brokers": "localhost:9", "topics": ["orders"]}},
            "table": {"path": self.path},
            "retry": {"unreachable": {"initial_interval": "10ms", "max_interval": "50ms"}},
            "hot_store": {"postgres": self.database.settings(**self.options)},
        }
        return loads(json.dumps(content), self.folder)[0]

    def append(self, rows: pa.Table, **more: Any) -> None:
        """Append rows in one commit."""
        write_deltalake(self.path, rows, mode="append", **more)

    def orders(self, *offsets: int, **columns: Any) -> None:
        """Append one row for each offset: its number, and these values in other columns."""
        number = pa.array(list(offsets), pa.int64())
        columns = {name: pa.array([value] * len(offsets)) for name, value in columns.items()}
        self.append(pa.table({"number": number, **columns, SOURCE.name: sources(offsets)}), schema_mode="merge")

    def catch_up(self) -> None:
        """Follow the table to its newest commit, as the thread does."""
        if self._hot is None:
            self._hot = PostgresHotStore(self.spec, self.events.append)
            self._hot.add([self.path])
        self._hot.catch_up()

    def restart(self) -> None:
        """Forget everything that is in memory."""
        if self._hot is not None:
            self._hot.disconnect()
        self._hot = None

    def delta(self) -> list[dict[str, Any]]:
        """The rows of the Delta table."""
        return DeltaTable(self.path).to_pyarrow_table().to_pylist()

    def hot(self) -> list[dict[str, Any]]:
        """The rows of the hot table."""
        return self.database.rows("orders")

    def numbers(self) -> list[int]:
        """The column `number` of the hot table."""
        return [row["number"] for row in self.hot()]

    def check_equal(self) -> None:
        """Both stores have the same rows."""
        expected = sorted((row["_source"]["offset"], row["number"]) for row in self.delta())
        assert sorted((row["_source_offset"], row["number"]) for row in self.hot()) == expected
