"""Old rows leave PostgreSQL, not by a wrong clock; and the table of the analytics platform."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.delta.schema import SOURCE
from headrace.errors import HotStoreTableInvalid
from services.hot_stores import Followed, sources
from services.postgres import Database

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def orders(tmp_path: Path, database: Database) -> Iterator[Followed]:
    orders = Followed(tmp_path, database, {"retention": "7d", "retention_column": "at"})
    yield orders
    orders.restart()


def at(orders: Followed, *days: float | None) -> None:
    """One row of each age."""
    times = pa.array([None if age is None else NOW - timedelta(days=age) for age in days], pa.timestamp("us", "UTC"))
    orders.append(pa.table({"at": times, "number": pa.array(range(len(days))), SOURCE.name: sources(range(len(days)))}))


def date_commit(orders: Followed, version: int, age: timedelta) -> None:
    """Set the time of a commit, as if it had been made then."""
    path = Path(orders.path, "_delta_log", f"{version:020}.json")
    time = round((NOW - age).timestamp() * 1000)
    path.write_text(re.sub(r'("commitInfo":\{"timestamp":)\d+', rf"\g<1>{time}", path.read_text()))
    assert str(time) in path.read_text()


def test_rows_expire_by_the_time_that_the_log_proves(orders: Followed):
    at(orders, 1, 6, 8.5, 30, None)
    date_commit(orders, 0, timedelta(days=2))
    orders.catch_up()
    assert orders.numbers() == [0, 1, 2, 4]  # the log proves that it was two days ago
    orders.append(pa.table({"number": pa.array([9]), SOURCE.name: sources([9])}), schema_mode="merge")
    date_commit(orders, 1, timedelta(days=1, hours=1))
    orders.restart()
    orders.catch_up()
    assert orders.numbers() == [0, 1, 4, 9]
    assert orders.events[-1]["state"] == "expired"


def test_a_clock_that_is_ahead_deletes_nothing(orders: Followed):
    """A commit of a machine whose clock is a year ahead proves nothing."""
    at(orders, 1, 6)
    date_commit(orders, 0, timedelta(days=-365))
    orders.catch_up()
    assert orders.numbers() == [0, 1]


def test_the_column_must_exist(orders: Followed):
    orders.orders(1)
    with pytest.raises(HotStoreTableInvalid, match="it has no column 'at'"):
        orders.catch_up()


def test_the_table_of_the_analytics_platform(tmp_path: Path, database: Database):
    events = Followed(tmp_path, database, {"preset": "analytics"})
    texts = ("channel", "event_type", "event_category", "resource_id", "session_id", "user_id")
    count = 4
    rows = {name: pa.array([f"{name}-{at % 2}" for at in range(count)]) for name in texts}
    rows |= {
        "timestamp": pa.array([NOW] * count, pa.timestamp("us", "UTC")),
        "interaction_value": pa.array([0.1, 0.30000000000000004, None, 2.0]),
        "metadata": pa.array([json.dumps({"at": at}) for at in range(count)]),
        "custom_data": pa.array(["extra"] * count),
        SOURCE.name: sources(range(count)),
    }
    rows["channel"] = pa.array(["web", "web", "x" * 51, "web"])
    events.append(pa.table(rows))
    events.catch_up()
    stored = database.rows("analytics_events", "id")
    assert [row["interaction_value"] and str(row["interaction_value"]) for row in stored] == [
        "0.1",
        "0.30000000000000004",
        "2",
    ]
    assert [row["metadata"] for row in stored] == [{"at": 0}, {"at": 1}, {"at": 3}]
    assert stored[0]["custom_data"] == "extra"
    assert stored[0]["created_at"] is not None
    assert events.events[-1]["rejected"] == 1
    indexes = "\n".join(
        row[0] for row in database.query("SELECT indexdef FROM pg_indexes WHERE tablename = 'analytics_events'")
    )
    for column in (*texts, '"timestamp" DESC'):
        assert f"btree ({column})" in indexes
    assert "USING gin (metadata)" in indexes
    assert "(id, " in indexes
    columns = "channel, event_count, unique_sessions"
    summary = database.query(f"SELECT {columns} FROM headrace.analytics_summary ORDER BY event_type")
    assert summary == [("web", 1, 1), ("web", 2, 1)]
    events.restart()
