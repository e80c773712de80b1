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
from services.in_process_pipeline import Harness

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
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Orders, the items in them, and the orders again by kind; its topic can be read again."""
    items = {**ITEMS, "table": {**ITEMS["table"], "path": f"{tmp_path}/lake/items"}}
    kinds = {**KINDS, "table": {"path": f"{tmp_path}/lake/kinds/{{route}}"}}
    own = {"path": f"{tmp_path}/lake/orders"}
    made = Harness(tmp_path, {"route": {}, "table": own, "branches": [items, kinds], "state": f"{tmp_path}/{STATE}"})
    made.serve(monkeypatch)
    return made


def contents(harness: Harness) -> dict[str, Counter[Any]]:
    """Every row of every table, without what changes from run to run."""
    left_out = {"rejected_at", "date"}
    return {
        path: Counter(str({key: row[key] for key in row if key not in left_out}) for row in harness.rows(path))
        for path in TABLES
    }


def restored(harness: Harness, path: str) -> None:
    """As it was when it was made."""
    DeltaTable(str(harness.place / path)).restore(0)


def account(harness: Harness) -> list[tuple[int, int]]:
    """Of each booked batch, what was read and what became of it."""
    rows = sorted(harness.rows(f"{STATE}/ledger"), key=lambda row: row["batch"])
    return [(row["read"], row["routed"] + row["dead"] + row["filtered"] + row["skipped"]) for row in rows]


def versions(harness: Harness) -> dict[str, int]:
    return {path: DeltaTable(str(harness.place / path)).version() for path in TABLES}


# ---- a table that was restored ----


@pytest.mark.parametrize("path", TABLES)
def test_a_refill_brings_one_table_back_and_touches_no_other(harness: Harness, path: str):
    for values in (FIRST, SECOND, THIRD):
        harness.feed(values)
    before = contents(harness)
    restored(harness, path)
    undone = before[path].total() - contents(harness)[path].total()
    assert undone > 0
    with pytest.raises(TableRestored):
        harness.feed([])
    stood = versions(harness)
    said = decide(harness.spec, [Decision.REFILLED_TABLE])
    assert any(f"{undone} undone rows" in each for each in said), said
    assert contents(harness) == before
    assert {each: versions(harness)[each] for each in TABLES if each != path} == {
        each: stood[each] for each in TABLES if each != path
    }
    harness.feed(LATER)
    assert Counter(row["sku"] for row in harness.rows("lake/items")) == Counter("abcdeghi")
    assert all(read == told for read, told in account(harness))


@pytest.mark.parametrize("point", [Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE, Point.AFTER_LEDGER_WRITE])
def test_a_refill_that_dies_is_finished(harness: Harness, point: Point):
    for values in (FIRST, SECOND, THIRD):
        harness.feed(values)
    before = contents(harness)
    restored(harness, "lake/items")
    with armed(point, "abandon"), pytest.raises(Abandoned):
        decide(harness.spec, [Decision.REFILLED_TABLE])
    harness.feed([])
    assert contents(harness) == before
    assert all(read == told for read, told in account(harness))


def test_a_refill_whose_files_are_gone_is_staged_again(harness: Harness):
    for values in (FIRST, SECOND, THIRD):
        harness.feed(values)
    before = contents(harness)
    restored(harness, "lake/items")
    files = set((harness.place / "lake/items").rglob("*.parquet"))
    with mock.patch.object(Pipeline, "_commit_one", side_effect=Abandoned), pytest.raises(Abandoned):
        decide(harness.spec, [Decision.REFILLED_TABLE])
    for staged in set((harness.place / "lake/items").rglob("*.parquet")) - files:
        staged.unlink()
    harness.feed([])
    assert contents(harness) == before


def test_a_branch_that_was_kept_as_it_was_restored_goes_on(harness: Harness):
    for values in (FIRST, SECOND):
        harness.feed(values)
    restored(harness, "lake/items")
    decide(harness.spec, [Decision.RESTORED_TABLE])
    harness.feed(THIRD)
    assert Counter(row["sku"] for row in harness.rows("lake/items")) == Counter("abgh")
    assert len(harness.rows("lake/orders")) == 6


# ---- a ledger that is lost ----


def lose(harness: Harness, *folders: str) -> None:
    """Parts of the state folder are gone."""
    for folder in folders:
        shutil.rmtree(harness.place / STATE / folder)


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
def test_a_lost_ledger_is_rebuilt_from_the_tables_of_all_branches(
    harness: Harness, point: Point | None, lost: tuple[str, ...]
):
    harness.feed(FIRST)
    if point is None:
        harness.feed(SECOND)
    else:
        with armed(point, "abandon"), pytest.raises(Abandoned):
            harness.feed(SECOND)
    lose(harness, *lost)
    harness.feed([])  # a start that finishes, or reads again, what only some tables have
    assert Counter(row["sku"] for row in harness.rows("lake/items")) == Counter("abcde")
    assert sorted(row["id"] for row in harness.rows("lake/orders")) == [1, 2, 3, 4]
    assert [sorted(row["id"] for row in harness.rows(f"lake/kinds/{each}")) for each in "ab"] == [[1, 3], [2, 4]]
    assert sorted((row["offset"], Path(row["table"] or "").name) for row in harness.dead()) == [
        (1, "items"),
        (1, "orders"),
        (1, "{route}"),
        (3, "items"),
        (3, "orders"),
        (3, "{route}"),
        (5, "items"),
    ]
    harness.feed(THIRD)
    assert Counter(row["sku"] for row in harness.rows("lake/items")) == Counter("abcdegh")
    assert all(read == told for read, told in account(harness))


def test_a_lost_state_asks_a_person_and_then_goes_on(harness: Harness):
    harness.feed(FIRST)
    harness.feed(SECOND)
    lose(harness, "ledger", "intents", "known_tables")
    with pytest.raises(TxnMismatch, match="--accept-lost-ledger"):
        harness.feed([])
    decide(harness.spec, [Decision.LOST_LEDGER])
    harness.feed(THIRD)
    assert Counter(row["sku"] for row in harness.rows("lake/items")) == Counter("abcdegh")
    assert sorted(row["id"] for row in harness.rows("lake/orders")) == [1, 2, 3, 4, 5, 6]
