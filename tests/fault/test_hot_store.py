"""The hot store where programs are killed and connections cut: afterwards both stores have the same rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace import faults
from headrace.cli import app
from headrace.errors import HotStoreTableInvalid, HotStoreUnreachable, HotStoreValueRejected
from headrace.faults import HotStorePoint, armed
from services.hot_stores import Followed
from services.in_process_pipeline import Harness
from services.postgres import Database
from services.relay import relay_to
from services.wait import eventually

_CATCH_UP = """
import sys
from headrace.hot_store.hot_store import PostgresHotStore
from headrace.validate.load import load
from pathlib import Path
hot = PostgresHotStore(load(Path(sys.argv[1]))[0], print)
hot.add([sys.argv[2]])
hot.catch_up()
"""
_POINTS = list(HotStorePoint)


@pytest.fixture
def orders(tmp_path: Path, database: Database) -> Iterator[Followed]:
    orders = Followed(tmp_path, database)
    yield orders
    orders.restart()


def catch_up_in_a_child(orders: Followed, fault: str = "") -> int:
    """Follow the table in a process of its own; returns its exit code."""
    spec = orders.folder / "shop.yaml"
    spec.write_text(orders.spec.text)
    environment = {**os.environ, faults.VARIABLE: fault}
    command = [sys.executable, "-c", _CATCH_UP, str(spec), orders.path]
    return subprocess.run(command, env=environment, timeout=60, capture_output=True).returncode


@pytest.mark.parametrize("point", _POINTS)
def test_headrace_is_killed_between_any_two_steps(orders: Followed, point: HotStorePoint):
    orders.orders(1, 2)
    orders.catch_up()
    orders.orders(3)
    DeltaTable(orders.path).delete("number = 1")
    assert catch_up_in_a_child(orders, f"{point}:nth=2=kill") == -signal.SIGKILL  # at the delete
    orders.restart()
    orders.orders(4)
    orders.catch_up()
    assert orders.numbers() == [2, 3, 4]
    orders.check_equal()


@pytest.mark.parametrize("point", [point for point in _POINTS if point != HotStorePoint.STAGED])
def test_headrace_is_killed_while_it_loads_a_table(orders: Followed, point: HotStorePoint):
    orders.orders(1, 2)
    assert catch_up_in_a_child(orders, f"{point}=kill") == -signal.SIGKILL
    orders.catch_up()
    orders.check_equal()


@pytest.mark.parametrize("point", _POINTS)
def test_postgresql_is_killed(orders: Followed, point: HotStorePoint):
    server = orders.database.server
    orders.orders(1, 2)
    orders.catch_up()
    orders.orders(3)
    with armed(point, server.kill):
        try:
            orders.catch_up()
        except HotStoreUnreachable:
            assert point is not HotStorePoint.AFTER_COMMIT
    orders.orders(4)
    with pytest.raises(HotStoreUnreachable):
        orders.catch_up()
    orders.restart()
    server.start()
    orders.catch_up()
    orders.check_equal()


def test_the_reply_to_a_commit_is_lost(tmp_path: Path, database: Database):
    with relay_to(database.server.port) as relay:
        orders = Followed(tmp_path, database, {"port": relay.port})
        orders.orders(1)
        orders.catch_up()
        orders.orders(2)
        with armed(HotStorePoint.BEFORE_COMMIT, relay.loses_answers.set), pytest.raises(HotStoreUnreachable):
            orders.catch_up()
        orders.restart()
        eventually(lambda: orders.numbers() == [1, 2])  # it was committed
        orders.catch_up()
        orders.check_equal()
        assert [event["state"] for event in orders.events] == ["loaded"]
        orders.restart()


def test_a_session_that_an_administrator_ends_is_opened_again(orders: Followed):
    orders.orders(1)
    orders.catch_up()
    orders.orders(2)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headrace shop'"
    with armed(HotStorePoint.STAGED, lambda: orders.database.query(end)), pytest.raises(HotStoreUnreachable):
        orders.catch_up()
    orders.restart()
    orders.catch_up()
    orders.check_equal()


# ---- the pipeline and its thread ----


@pytest.fixture
def shop(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    harness = Harness(tmp_path, {"hot_store": {"postgres": database.settings()}})
    harness.serve(monkeypatch)
    yield harness
    if database.server.child is None or database.server.child.poll() is not None:
        database.server.start()


def offsets(database: Database, table: str = "a") -> list[int]:
    return [row["_source_offset"] for row in database.rows(table)]


def test_best_effort_goes_on_without_postgresql_and_catches_up(shop: Harness, database: Database):
    shop.send([{"kind": "a", "id": 1}, {"kind": "b", "id": 2}])
    assert shop.run().batches == 1
    assert (offsets(database), offsets(database, "b")) == ([0], [1])
    database.server.kill()
    shop.send([{"kind": "a", "id": 3}])
    assert shop.run().drained
    retries = [event for event in shop.events if event["event"] == "retry"]
    assert {event["error"] for event in retries} == {"HotStoreUnreachable"}
    assert shop.offsets("a").total() == 2
    database.server.start()
    assert shop.run().batches == 0
    assert offsets(database) == [0, 2]


def test_required_waits_for_postgresql(shop: Harness, database: Database):
    shop.options["hot_store"] = {"postgres": database.settings(policy="required")}
    shop.send([{"kind": "a", "id": 1}])
    database.server.kill()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(shop.run()), daemon=True)
    thread.start()
    eventually(lambda: [event for event in shop.events if event.get("error") == "HotStoreUnreachable"])
    assert thread.is_alive()
    assert shop.offsets("a").total() <= 1  # the first batch does not wait, as PostgreSQL lacks nothing before it
    database.server.start()
    thread.join(60)
    assert results
    assert results[0].drained
    assert offsets(database) == [0]
    assert {event["state"] for event in shop.events if event["event"] == "hot_store"} == {"loaded", "recovered"}


def test_a_row_that_postgresql_cannot_store_is_deleted_by_the_command_of_its_error(shop: Harness, database: Database):
    shop.options["hot_store"] = {"postgres": database.settings(policy="required")}
    shop.send([{"kind": "a", "id": 1, "name": "x"}])
    shop.run()
    shop.send([{"kind": "a", "id": 2, "name": "x\0y"}, {"kind": "a", "id": 3, "name": "z"}])
    for _ in range(2):
        with pytest.raises(HotStoreValueRejected, match=r"orders/0, offset 1: column name: .*U\+0000") as stopped:
            shop.run()
    assert "`headrace table delete`" in stopped.value.hint
    deleted = CliRunner().invoke(app, ["table", "delete", f"{shop.folder}/lake/a", "--where", "id = 2", "--yes"])
    assert deleted.exit_code == 0, deleted.output
    shop.send([{"kind": "a", "id": 4, "name": "w"}])
    shop.run()
    assert offsets(database) == [0, 2, 3]
    assert shop.offsets("a") == {0: 1, 2: 1, 3: 1}


def test_a_table_that_cannot_hold_the_rows_is_dropped_as_its_error_says(shop: Harness, database: Database):
    shop.options["hot_store"] = {"postgres": database.settings(policy="required")}
    shop.send([{"kind": "a", "id": 1}])
    shop.run()
    database.query("ALTER TABLE headrace.a ADD COLUMN note text NOT NULL DEFAULT 'x'")
    database.query("ALTER TABLE headrace.a ALTER COLUMN note DROP DEFAULT")
    shop.send([{"kind": "a", "id": 2}])
    for _ in range(2):
        with pytest.raises(HotStoreTableInvalid, match="note") as stopped:
            shop.run()
    assert stopped.value.hint.startswith("Change the table of the hot store")
    database.query("DROP TABLE headrace.a")
    shop.run()
    assert offsets(database) == [0, 1]
