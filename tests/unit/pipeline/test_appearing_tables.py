"""Tables that appear, or change, after a batch was planned: the batch is planned again, and nobody is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.faults import Abandoned, Point, arm, armed, disarm
from services.in_process_pipeline import Harness


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    disarm()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """One table; its topic can be read again."""
    made = Harness(tmp_path, {"route": {}, "table": {"path": f"{tmp_path}/lake/orders"}})
    made.serve(monkeypatch)
    return made


def theirs(harness: Harness, **columns: Any) -> None:
    """Another tool creates the table."""
    write_deltalake(str(harness.place / "lake/orders"), pa.table(columns))


@pytest.mark.parametrize("point", [Point.BEFORE_STAGING, Point.AFTER_STAGING])
def test_a_table_that_appears_with_other_columns_is_written_as_it_is(harness: Harness, point: Point) -> None:
    with armed(point, lambda: theirs(harness, id=pa.array([0], pa.int64()), text=pa.array([7], pa.int64()))):
        harness.feed([{"id": 1, "text": 8}, {"id": 2, "text": "words"}, {"id": 3, "more": 1.5}])
    rows = sorted(harness.rows("lake/orders"), key=lambda row: row["id"])
    assert [(row["id"], row["text"], row["more"]) for row in rows] == [(0, 7, None), (1, 8, None), (3, None, 1.5)]
    assert [(row["offset"], row["reason"]) for row in harness.dead()] == [(1, "type")]
    harness.feed([{"id": 4}])
    assert sorted(row["id"] for row in harness.rows("lake/orders")) == [0, 1, 3, 4]


# ---- a batch of several tables, of which some have it already ----

ITEMS = {"name": "items", "transform": [{"where": "item IS NOT NULL"}], "table": {"infer": {"records": 1}}}
WORDS = [{"id": 1, "item": "a"}, {"id": 2, "item": 7}, {"id": 3, "item": {"deep": 1}}, b"{", {"id": 5}]
POINTS = [
    Point.AFTER_FIRST_TABLE,
    Point.AFTER_COMMIT,
    Point.BEFORE_DEAD_LETTERS,
    Point.BEFORE_LEDGER_WRITE,
    Point.AFTER_LEDGER_WRITE,
]


@pytest.fixture
def branches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Each record goes into two tables; the one that is committed first is `a_items`."""
    items = {**ITEMS, "table": {**ITEMS["table"], "path": f"{tmp_path}/lake/a_items"}}
    own = {"path": f"{tmp_path}/lake/orders"}
    made = Harness(tmp_path, {"route": {}, "table": own, "branches": [items]})
    made.serve(monkeypatch)
    return made


def settled(harness: Harness) -> None:
    """Each record is, for each of the tables, a row or a dead letter, once."""
    rows = [row["id"] - 1 for row in harness.rows("lake/orders") if row["id"]]  # of a record at offset n, it is n + 1
    dead = [row["offset"] for row in harness.dead() if row["table"].endswith("orders")]
    assert sorted(rows + dead) == list(range(len(harness.sent)))
    rows = [row["_source"]["offset"] for row in harness.rows("lake/a_items")]
    dead = [row["offset"] for row in harness.dead() if row["table"].endswith("a_items")]
    kept = [at for at, value in enumerate(harness.sent) if b"item" in (value or b"") or value == b"{"]
    assert sorted(rows + dead) == kept
    told = sorted(harness.rows("lake/_headrace/shop/ledger"), key=lambda row: row["batch"])
    assert all(row["read"] == row["routed"] + row["dead"] + row["filtered"] + row["skipped"] for row in told)
    assert sum(row["read"] for row in told) == len(harness.sent)


@pytest.mark.parametrize("death", [None, *POINTS])
@pytest.mark.parametrize("point", [Point.AFTER_STAGING, Point.AFTER_FIRST_TABLE])
def test_what_a_table_has_already_stays_and_the_rest_is_planned_again(
    branches: Harness, point: Point, death: Point | None
) -> None:
    """Also when the driver dies over it: a letter of the second plan is not lost by finishing the first."""

    def appear() -> None:
        theirs(branches, id=pa.array([0], pa.int64()), item=pa.array([1], pa.int64()))
        if death is not None:
            arm(death, "abandon")

    with armed(point, appear), nullcontext() if death is None else pytest.raises(Abandoned):
        branches.feed(WORDS)
    branches.feed([])
    settled(branches)
    assert {row["offset"] for row in branches.dead() if row["table"].endswith("orders")} == {0, 2, 3}
    branches.feed([{"id": 6, "item": "b"}, {"id": 7}])
    settled(branches)


def test_two_pipelines_make_one_new_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither saw the other's columns when it planned its first batch."""
    table = {"path": f"{tmp_path}/lake/both"}
    one = Harness(tmp_path, {"pipeline": "one", "route": {}, "table": table}, topic="one")
    two = Harness(tmp_path, {"pipeline": "two", "route": {}, "table": table}, topic="two")
    two.serve(monkeypatch)
    with armed(Point.AFTER_STAGING, lambda: one.feed([{"id": 1, "a": 1, "same": "x"}])):
        two.feed([{"id": 2, "b": 2.5, "same": 3}, {"id": 3, "b": 3.5}])
    rows = sorted(one.rows("lake/both"), key=lambda row: row["id"])
    assert [(row["id"], row["a"], row["b"]) for row in rows] == [(1, 1, None), (3, None, 3.5)]
    one.feed([{"id": 4, "b": 1}])
    two.feed([{"id": 5, "a": 9, "same": "y"}])
    assert sorted(row["id"] for row in one.rows("lake/both")) == [1, 3, 4, 5]
