"""A whole pipeline that merges, in this process: change events in any order, doubled, cut anywhere, and it dies."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.errors import OperationDisabled
from headrace.faults import Abandoned, Point, armed
from services.in_process_pipeline import Harness, ingest

POINTS = [
    Point.BEFORE_STAGING,
    Point.AFTER_STAGING,
    Point.AFTER_TABLE_CREATION,
    Point.AFTER_COMMIT,
    Point.BEFORE_LEDGER_WRITE,
]
COLUMNS = [{"name": name, "type": kind} for name, kind in (("id", "bigint"), ("seq", "bigint"), ("name", "string"))]
State = dict[int, tuple[int, str]]


def harness(folder: str, mode: str, **merge: Any) -> Harness:
    """One table that merges by `id`, ordered by `seq`."""
    made = Harness(Path(folder))
    table = {"path": f"{folder}/lake/orders", "columns": COLUMNS, "mode": mode}
    made.options = {
        "decode": {"json": {"envelope": "debezium"}},
        "route": {"by": "fixed"},
        "table": {**table, "merge": {"keys": ["id"], "sequence_by": "seq", **merge}},
    }
    return made


def brought(made: Harness, events: list[Any], deaths: list[Point | None]) -> None:
    """The events, a few each time, by pipelines of which some die; whoever comes next finds more of them."""
    size = -(-len(events) // max(len(deaths), 1))
    for number, point in enumerate(deaths):
        made.send(events[number * size : (number + 1) * size])
        if point is None:
            go_on(made)
            continue
        try:
            with armed(point, "abandon"):
                go_on(made)
        except Abandoned:
            pass
    made.send(events[len(deaths) * size :])
    go_on(made)


def go_on(made: Harness) -> None:
    """Finish what was begun, then read on from where the ledger stands."""
    ingest(made.spec, made.envelopes(len(made.sent)))
    ingest(made.spec, made.envelopes(booked(made)))


def booked(made: Harness) -> int:
    return max((item["until"] for row in made.rows("lake/_headrace/shop/ledger") for item in row["ranges"]), default=0)


@st.composite
def days(draw: st.DrawFn) -> tuple[list[dict[str, Any]], State]:
    """What a database does to a small table, as Debezium tells it, and the rows it ends with."""
    rows: State = {}
    events: list[dict[str, Any]] = []
    for seq in range(1, draw(st.integers(2, 12))):
        key, name = draw(st.integers(1, 4)), draw(st.sampled_from("abc"))
        old, new = rows.get(key), draw(st.none() | st.integers(1, 4))
        before = None if old is None else {"id": key, "seq": seq, "name": old[1]}
        if old is None or new is None:
            op = "c" if old is None else "d"
        elif new != key and new in rows:
            continue  # a key that is taken
        else:
            op = "u"
        rows.pop(key, None)
        after = None if op == "d" else {"id": key if op == "c" or new is None else new, "seq": seq, "name": name}
        if after is not None:
            rows[after["id"]] = (seq, name)
        events.append({"op": op, "before": before, "after": after, "ts_ms": seq, "source": {"table": "orders"}})
    return events, rows


@settings(max_examples=12, deadline=None)
@given(days(), st.data())
def test_a_day_in_any_order_with_duplicates_and_deaths_ends_as_its_table_did(given_: Any, data: st.DataObject) -> None:
    events, wanted = given_
    doubles = data.draw(st.lists(st.sampled_from(events), max_size=3)) if events else []
    mixed = data.draw(st.permutations([*events, *doubles]))
    deaths = data.draw(st.lists(st.none() | st.sampled_from(POINTS), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        made = harness(folder, "upsert")
        brought(made, mixed, deaths)
        found = made.rows("lake/orders")
        assert {row["id"]: (row["seq"], row["name"]) for row in found} == wanted
        assert len(found) == len(wanted)
        assert (booked(made), made.dead()) == (len(mixed), [])


@settings(max_examples=8, deadline=None)
@given(days(), st.data())
def test_a_history_in_any_order_ends_as_that_of_the_day_in_order(given_: Any, data: st.DataObject) -> None:
    events, wanted = given_
    mixed = data.draw(st.permutations([*events, *events[:2]]))
    deaths = data.draw(st.lists(st.none() | st.sampled_from(POINTS), min_size=1, max_size=3))
    told = []
    for order, dying in ((events, [None]), (mixed, deaths)):
        with tempfile.TemporaryDirectory() as folder:
            made = harness(folder, "scd2")
            brought(made, list(order), list(dying))
            names = ("id", "name", "valid_from", "valid_to", "current")
            told.append(sorted(str([row[name] for name in names]) for row in made.rows("lake/orders")))
            now = {row["id"]: (row["seq"], row["name"]) for row in made.rows("lake/orders") if row["current"]}
            assert now == wanted
    assert told[0] == told[1]


STRIKING = [*POINTS, Point.DURING_STAGING, Point.BEFORE_DEAD_LETTERS, Point.AFTER_LEDGER_WRITE]


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
@pytest.mark.parametrize("point", STRIKING)
def test_a_batch_that_dies_is_merged_once(point: Point, mode: str, tmp_path: Path) -> None:
    made = harness(str(tmp_path), mode)
    first = 1 if point is Point.AFTER_TABLE_CREATION else 2
    for number in range(1, 3):
        after = {"id": 1, "seq": number, "name": "ab"[number - 1]}
        made.send([{"op": "c" if number == 1 else "u", "before": None, "after": after, "ts_ms": number}, b"{"])
        if number == first:
            with armed(point, "abandon"), pytest.raises(Abandoned):
                go_on(made)
        go_on(made)
    found = sorted((row["seq"], row["name"]) for row in made.rows("lake/orders"))
    assert found == ([(2, "b")] if mode == "upsert" else [(1, "a"), (2, "b")])
    assert (booked(made), len(made.dead())) == (4, 2)


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_a_merging_batch_that_dies_once_its_table_is_evolved_is_merged_once(mode: str, tmp_path: Path) -> None:
    made = harness(str(tmp_path), mode)
    del made.options["table"]["columns"]
    made.feed([{"op": "c", "before": None, "after": {"id": 1, "seq": 1, "name": "a"}, "ts_ms": 1}])
    made.send([{"op": "u", "before": None, "after": {"id": 1, "seq": 2, "name": "b", "note": "x"}, "ts_ms": 2}])
    with armed(Point.AFTER_SCHEMA_CHANGE, "abandon"), pytest.raises(Abandoned):
        go_on(made)
    assert "note" in Table(tmp_path / "lake/orders").metadata().schema.names
    assert [row["seq"] for row in made.rows("lake/orders")] == [1]
    go_on(made)
    found = sorted((row["seq"], row["name"], row["note"]) for row in made.rows("lake/orders"))
    assert found == [(2, "b", "x")] if mode == "upsert" else [(1, "a", None), (2, "b", "x")]
    assert booked(made) == 2


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "also in its recovery"])
def test_a_batch_that_dies_between_two_merges_is_merged_once(
    mode: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.pipeline.commit_order._PARALLEL_COMMITS", 1)  # else both may have begun
    made = harness(str(tmp_path), mode)
    made.options |= {"decode": {"json": {}}, "route": {"by": {"field": "name"}}}
    made.options["table"]["path"] = f"{tmp_path}/lake/{{route}}"
    made.feed([{"id": 1, "seq": 1, "name": name} for name in "ab"])
    made.send([{"id": 1, "seq": 2, "name": name} for name in "ab"])
    for _ in range(1 + again):
        with armed(Point.AFTER_FIRST_TABLE, "abandon"), pytest.raises(Abandoned):
            go_on(made)
    held = [max(row["seq"] for row in made.rows(f"lake/{name}")) for name in "ab"]
    assert sorted(held) == [1, 2], "one table has the batch, the other has not"
    go_on(made)
    for name in "ab":
        found = sorted(row["seq"] for row in made.rows(f"lake/{name}"))
        assert found == ([2] if mode == "upsert" else [1, 2])
    assert booked(made) == 4


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_a_reingest_of_a_merged_table_is_refused_before_anything_is_done(mode: str, tmp_path: Path) -> None:
    """And what the refusal advises gives the rows back."""
    made = harness(str(tmp_path), mode)
    events = [("c", 1, 1), ("c", 2, 2), ("u", 1, 3), ("c", 3, 4), ("d", 2, 5), ("u", 3, 6)]
    for op, key, seq in events:
        row = {"id": key, "seq": seq, "name": f"n{seq}"}
        after, before = (None, row) if op == "d" else (row, None)
        made.feed([{"op": op, "before": before, "after": after, "ts_ms": seq}])
    wanted = rows_of(made, mode)
    table = Table(tmp_path / "lake/orders")
    lost = max((Path(path) for path in DeltaTable(table.path).file_uris()), key=lambda path: path.stat().st_size)
    lost.unlink()
    before = {str(path): path.stat().st_mtime_ns for path in (tmp_path / "lake").rglob("*") if path.is_file()}
    for dry_run in (True, False):
        with pytest.raises(OperationDisabled, match="another `pipeline` name"):
            table.repair(reingest=made.spec, dry_run=dry_run)
    after = {str(path): path.stat().st_mtime_ns for path in (tmp_path / "lake").rglob("*") if path.is_file()}
    assert after == before
    assert table.repair().missing
    assert rows_of(made, mode) != wanted
    made.options["pipeline"] = "again"
    ingest(made.spec, made.envelopes())
    assert rows_of(made, mode) == wanted


def rows_of(made: Harness, mode: str) -> list[Any]:
    names = ("id", "seq", "name", *(("valid_from", "valid_to", "current") if mode == "scd2" else ()))
    return sorted(str([row[name] for name in names]) for row in made.rows("lake/orders"))


def test_a_column_that_comes_later_is_added_and_merged(tmp_path: Path) -> None:
    made = harness(str(tmp_path), "upsert")
    del made.options["table"]["columns"]
    for seq, more in enumerate(({}, {"note": "x"}, {"note": "y", "deep": {"a": 1}}), 1):
        after = {"id": 1, "seq": seq, "name": "a", **more}
        made.feed([{"op": "c" if seq == 1 else "u", "before": None, "after": after, "ts_ms": seq}])
    (row,) = made.rows("lake/orders")
    assert (row["seq"], row["note"], row["deep"]) == (3, "y", {"a": 1})
    table = Table(tmp_path / "lake" / "orders")
    assert table.metadata().writer == "merge"
    assert [entry.operation for entry in table.history()][:2] == ["MERGE", "CHANGE COLUMNS"]


@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_the_first_batch_that_is_all_deletes_makes_an_empty_table(mode: str, tmp_path: Path) -> None:
    made = harness(str(tmp_path), mode)
    made.feed([{"op": "d", "before": {"id": 1, "seq": 5, "name": "a"}, "after": None, "ts_ms": 1}])
    made.feed([{"op": "c", "before": None, "after": {"id": 1, "seq": 4, "name": "late"}, "ts_ms": 1}])
    now = [row for row in made.rows("lake/orders") if row.get("current", True)]
    assert now == []
