"""Branches after a misfortune: a RESTORE of one of their tables, and a ledger that is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable

from headrace.errors import TableRestored, TxnMismatch
from headrace.faults import Abandoned, Point, armed
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.resume import Decision, decide
from services.desk import Desk

ITEMS = {
    "name": "items",
    "explode": {"column": "items", "keep": {"order_id": "id"}},
    "table": {
        "columns": [
            {"name": "order_id", "type": "bigint"},
            {"name": "sku", "type": "string"},
            {"name": "qty", "type": "int"},
        ]
    },
}
KINDS = {"name": "kinds", "route": {"by": {"sql": "kind"}}}
FIRST = [{"id": 1, "kind": "a", "items": [{"sku": "a", "qty": 1}, {"sku": "b", "qty": 2}]}, b"{"]
SECOND = [
    {"id": 2, "kind": "b", "items": [{"sku": "c", "qty": 3}, {"sku": "d", "qty": 4}, {"sku": "e", "qty": 5}]},
    b"[",
    {"id": 3, "kind": "a", "items": []},
    {"id": 4, "kind": "b", "items": [{"sku": "f", "qty": 2**40}]},  # a letter of the items, a row of the others
]
THIRD = [{"id": 5, "kind": "b", "items": [{"sku": "g", "qty": 6}]}, {"id": 6, "items": [{"sku": "h"}]}]
LATER = [{"id": 7, "kind": "b", "items": [{"sku": "i", "qty": 7}]}]
STATE = "lake/_headrace/shop"
TABLES = ["lake/orders", "lake/items", "lake/kinds/a", "lake/kinds/b", f"{STATE}/dead_letters"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Orders, the items in them, and the orders again by kind; its topic can be read again."""
    items = {**ITEMS, "table": {**ITEMS["table"], "path": f"{tmp_path}/lake/items"}}
    kinds = {**KINDS, "table": {"path": f"{tmp_path}/lake/kinds/{{route}}"}}
    own = {"path": f"{tmp_path}/lake/orders"}
    made = Desk(tmp_path, {"route": {}, "table": own, "branches": [items, kinds], "state": f"{tmp_path}/{STATE}"})
    made.serve(monkeypatch)
    return made


def contents(desk: Desk) -> dict[str, Counter[Any]]:
    """Every row of every table, without what changes from run to run."""
    left_out = {"rejected_at", "date"}
    return {
        path: Counter(str({key: row[key] for key in row if key not in left_out}) for row in desk.rows(path))
        for path in TABLES
    }


def restored(desk: Desk, path: str) -> None:
    """As it was when it was made."""
    DeltaTable(str(desk.place / path)).restore(0)


def account(desk: Desk) -> list[tuple[int, int]]:
    """Of each booked batch, what was read and what became of it."""
    rows = sorted(desk.rows(f"{STATE}/ledger"), key=lambda row: row["batch"])
    return [(row["read"], row["routed"] + row["dead"] + row["filtered"] + row["skipped"]) for row in rows]


def versions(desk: Desk) -> dict[str, int]:
    return {path: DeltaTable(str(desk.place / path)).version() for path in TABLES}


# ---- a table that was restored ----


@pytest.mark.parametrize("path", TABLES)
def test_a_refill_brings_one_table_back_and_touches_no_other(desk: Desk, path: str):
    for values in (FIRST, SECOND, THIRD):
        desk.feed(values)
    before = contents(desk)
    restored(desk, path)
    undone = before[path].total() - contents(desk)[path].total()
    assert undone > 0
    with pytest.raises(TableRestored):
        desk.feed([])
    stood = versions(desk)
    said = decide(desk.spec, [Decision.REFILLED_TABLE])
    assert any(f"{undone} undone rows" in each for each in said), said
    assert contents(desk) == before
    assert {each: versions(desk)[each] for each in TABLES if each != path} == {
        each: stood[each] for each in TABLES if each != path
    }
    desk.feed(LATER)
    assert Counter(row["sku"] for row in desk.rows("lake/items")) == Counter("abcdeghi")
    assert all(read == told for read, told in account(desk))


@pytest.mark.parametrize("point", [Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE, Point.AFTER_LEDGER_WRITE])
def test_a_refill_that_dies_is_finished(desk: Desk, point: Point):
    for values in (FIRST, SECOND, THIRD):
        desk.feed(values)
    before = contents(desk)
    restored(desk, "lake/items")
    with armed(point, "abandon"), pytest.raises(Abandoned):
        decide(desk.spec, [Decision.REFILLED_TABLE])
    desk.feed([])
    assert contents(desk) == before
    assert all(read == told for read, told in account(desk))


def test_a_refill_whose_files_are_gone_is_staged_again(desk: Desk):
    for values in (FIRST, SECOND, THIRD):
        desk.feed(values)
    before = contents(desk)
    restored(desk, "lake/items")
    files = set((desk.place / "lake/items").rglob("*.parquet"))
    with mock.patch.object(Pipeline, "_commit_one", side_effect=Abandoned), pytest.raises(Abandoned):
        decide(desk.spec, [Decision.REFILLED_TABLE])
    for staged in set((desk.place / "lake/items").rglob("*.parquet")) - files:
        staged.unlink()
    desk.feed([])
    assert contents(desk) == before


def test_a_branch_that_was_kept_as_it_was_restored_goes_on(desk: Desk):
    for values in (FIRST, SECOND):
        desk.feed(values)
    restored(desk, "lake/items")
    decide(desk.spec, [Decision.RESTORED_TABLE])
    desk.feed(THIRD)
    assert Counter(row["sku"] for row in desk.rows("lake/items")) == Counter("abgh")
    assert len(desk.rows("lake/orders")) == 6


# ---- a ledger that is lost ----


def lose(desk: Desk, *folders: str) -> None:
    """Parts of the state folder are gone."""
    for folder in folders:
        shutil.rmtree(desk.place / STATE / folder)


@pytest.mark.parametrize("lost", [("ledger",), ("ledger", "intents")], ids=lambda lost: " and ".join(lost))
@pytest.mark.parametrize(
    "point",
    [
        None,
        Point.AFTER_FIRST_TABLE,
        Point.AFTER_COMMIT,
        Point.BEFORE_DEAD_LETTERS,
        Point.BEFORE_LEDGER_WRITE,
        Point.AFTER_LEDGER_WRITE,
    ],
)
def test_a_lost_ledger_is_told_anew_by_the_tables_of_all_branches(
    desk: Desk, point: Point | None, lost: tuple[str, ...]
):
    desk.feed(FIRST)
    if point is None:
        desk.feed(SECOND)
    else:
        with armed(point, "abandon"), pytest.raises(Abandoned):
            desk.feed(SECOND)
    lose(desk, *lost)
    desk.feed([])  # a start that finishes, or reads again, what only some tables have
    assert Counter(row["sku"] for row in desk.rows("lake/items")) == Counter("abcde")
    assert sorted(row["id"] for row in desk.rows("lake/orders")) == [1, 2, 3, 4]
    assert [sorted(row["id"] for row in desk.rows(f"lake/kinds/{each}")) for each in "ab"] == [[1, 3], [2, 4]]
    assert sorted((row["offset"], Path(row["table"] or "").name) for row in desk.dead()) == [
        (1, "items"),
        (1, "orders"),
        (1, "{route}"),
        (3, "items"),
        (3, "orders"),
        (3, "{route}"),
        (5, "items"),
    ]
    desk.feed(THIRD)
    assert Counter(row["sku"] for row in desk.rows("lake/items")) == Counter("abcdegh")
    assert all(read == told for read, told in account(desk))


def test_a_lost_state_asks_a_person_and_then_goes_on(desk: Desk):
    desk.feed(FIRST)
    desk.feed(SECOND)
    lose(desk, "ledger", "intents", "known_tables")
    with pytest.raises(TxnMismatch, match="--accept-lost-ledger"):
        desk.feed([])
    decide(desk.spec, [Decision.LOST_LEDGER])
    desk.feed(THIRD)
    assert Counter(row["sku"] for row in desk.rows("lake/items")) == Counter("abcdegh")
    assert sorted(row["id"] for row in desk.rows("lake/orders")) == [1, 2, 3, 4, 5, 6]
