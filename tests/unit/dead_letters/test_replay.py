"""Replay: letters become rows exactly once, go only where they were meant, and their outcomes are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.dead_letters.reader import RecordPosition, Selection
from headrace.errors import LeaseHeld
from headrace.faults import Abandoned, armed
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from headrace.spec.route_id import RouteId
from services.desk import THEN, Desk, no_spark

STRICT = [{"match": "^alpha$", "columns": [{"name": "id", "type": "bigint"}, {"name": "kind", "type": "string"}]}]
LOOSE = [{"match": "^alpha$", "columns": [{"name": "id", "type": "string"}, {"name": "kind", "type": "string"}]}]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Two good records, a misfit of a table that is not there yet, one that is not JSON, one without a route."""
    desk = Desk(tmp_path, {"tables": STRICT})
    desk.feed(
        [{"id": "x1", "kind": "alpha"}, {"id": 2, "kind": "beta"}, {"id": "x2", "kind": "alpha"}, b"{", {"id": 5}]
    )
    return desk


def test_letters_become_rows_once_and_keep_their_source(desk: Desk):
    assert [row["reason"] for row in desk.dead()] == ["type", "type", "malformed", "unrouted"]
    desk.options["tables"] = LOOSE
    summary = desk.replay()
    assert (summary.counts.read, summary.counts.routed, summary.counts.dead) == (4, 2, 2)
    assert desk.offsets("alpha") == {0: 1, 2: 1}
    row = desk.rows("lake/alpha")[0]
    assert row["id"] in ("x1", "x2")
    assert (row["_source"]["topic"], row["_source"]["partition"], row["_source"]["timestamp"]) == ("orders", 0, THEN)
    again = desk.replay()
    assert (again.counts.read, again.counts.routed, again.counts.dead) == (2, 0, 2)
    assert desk.offsets("alpha") == {0: 1, 2: 1}
    assert desk.marks("alpha") == [1]
    assert desk.marks("_headrace/shop/replays") == [1, 2]
    assert len(desk.dead()) == 4  # never written a second time, never changed


def test_outcomes_tell_what_became_of_each_letter(desk: Desk):
    desk.options["tables"] = LOOSE
    desk.replay()
    told = {row["offset"]: (row["outcome"], row["into"], row["reason"]) for row in desk.outcomes()}
    alpha = f"{desk.folder}/lake/alpha"
    assert told == {
        0: ("replayed", [alpha], None),
        2: ("replayed", [alpha], None),
        3: ("still_dead", None, "malformed"),
        4: ("still_dead", None, "unrouted"),
    }
    [letter] = desk.dead_letters.find(RecordPosition("orders", 0, 0))
    assert letter["value"] == b'{"id": "x1", "kind": "alpha"}'
    assert letter["headers"] == [{"key": "trace", "value": b"\xff0"}]
    assert [each["outcome"] for each in letter["outcomes"]] == ["replayed"]


def test_a_letter_without_a_table_is_routed_anew(desk: Desk):
    desk.options |= {"tables": LOOSE, "route": {"by": "topic"}}
    desk.replay(Selection(reasons=("unrouted",)))
    assert desk.offsets("orders") == {4: 1}
    assert [row["outcome"] for row in desk.outcomes()] == ["replayed"]


def test_a_letter_of_a_table_goes_only_there(desk: Desk):
    desk.options |= {"tables": LOOSE, "route": {"by": "topic"}}
    desk.replay(Selection(reasons=("type",)))
    assert desk.rows("lake/orders") == []
    assert {(row["outcome"], row["reason"]) for row in desk.outcomes()} == {("still_dead", "unrouted")}
    del desk.options["route"]
    desk.replay(Selection(reasons=("type",)))
    assert desk.offsets("alpha") == {0: 1, 2: 1}


def test_a_letter_that_the_spec_now_leaves_out_is_settled(desk: Desk):
    desk.options |= {"tables": LOOSE, "transform": [{"where": "id <> 'x1'"}]}
    summary = desk.replay()
    assert summary.counts.filtered == 1
    assert desk.offsets("alpha") == {2: 1}
    del desk.options["transform"]
    assert desk.replay(Selection(reasons=("type",))).counts.read == 0


def test_a_letter_whose_row_the_table_has_already_is_told_as_such(tmp_path: Path):
    """A producer sent a record that was rejected, and then once more, mended."""
    once = {"match": "^alpha$", "deduplicate": {"keys": ["id"], "within": "1h"}}
    small = {"name": "small", "expect": "n < 10", "on_violation": "reject"}
    desk = Desk(tmp_path, {"tables": [{**once, "expectations": [small]}]})
    desk.feed([{"id": id_, "n": n, "kind": "alpha"} for id_, n in ((1, 50), (1, 5), (2, 50))])
    desk.feed([{"id": 2, "n": 60, "kind": "alpha"}])
    desk.options["tables"] = [once]
    summary = desk.replay()
    told = {row["offset"]: (row["outcome"], row["into"], row["detail"]) for row in desk.outcomes()}
    alpha = f"{desk.folder}/lake/alpha"
    filtered = ("filtered", None, f"{alpha} already has a row with its keys")
    assert told == {0: filtered, 2: ("replayed", [alpha], None), 3: filtered}
    assert desk.offsets("alpha") == {1: 1, 2: 1}
    assert (summary.counts.routed, summary.counts.filtered) == (1, 2)
    assert desk.replay().counts.read == 0
    assert not [
        path for path in (tmp_path / "lake/_headrace/shop/replays").glob("*.parquet") if path.name not in named(desk)
    ]


def named(desk: Desk) -> set[str]:
    """The files that the table of outcomes stands on."""
    return {Path(uri).name for uri in DeltaTable(str(desk.place / "lake/_headrace/shop/replays")).file_uris()}


def test_new_fields_met_in_a_replay_become_columns(desk: Desk):
    desk.feed([b'{"id": 7, "kind": "beta", "note": "a", "kind": "beta"}', {"id": "x8", "kind": "alpha", "more": 1}])
    desk.options["tables"] = []
    summary = desk.replay(Selection(reasons=("type",)))
    assert summary.counts.routed == 3
    assert {row["more"] for row in desk.rows("lake/alpha")} == {None, 1}


def test_only_the_selected_letters_are_taken(desk: Desk):
    desk.options["tables"] = LOOSE
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert desk.replay(Selection(since=soon)).counts.read == 0
    assert desk.replay(Selection(tables=("elsewhere",))).counts.read == 0
    assert desk.replay(Selection(reasons=("malformed",))).counts.read == 1
    assert desk.replay(Selection(tables=(f"{desk.folder}/lake/alpha",))).counts.routed == 2
    assert not (desk.folder / "lake/_headrace/shop/replay_intents/000000000003").exists()


def test_without_letters_there_is_no_plan(tmp_path: Path):
    desk = Desk(tmp_path)
    assert desk.replay().batches == 0
    desk.feed([{"id": 1, "kind": "beta"}])
    assert desk.replay().batches == 0
    assert desk.outcomes() == []


def test_the_pipeline_goes_on_after_a_replay(desk: Desk):
    desk.options["tables"] = LOOSE
    desk.replay()
    desk.feed([{"id": "x9", "kind": "alpha"}])
    assert desk.offsets("alpha") == {0: 1, 2: 1, 5: 1}
    desk.replay()
    desk.feed([{"id": "x10", "kind": "alpha"}])
    assert desk.offsets("alpha") == {0: 1, 2: 1, 5: 1, 6: 1}


def test_offsets_of_a_topic_made_anew_are_other_letters(tmp_path: Path):
    desk = Desk(tmp_path)
    for text in ("old", "new"):
        desk.sent = []
        desk.options["limits"] = {"record_bytes": 10}
        desk.feed([{"id": text, "kind": "alpha"}])
        del desk.options["limits"]
        assert desk.replay().counts.routed == 1
    assert desk.offsets("alpha") == {0: 2}
    assert sorted(row["id"] for row in desk.rows("lake/alpha")) == ["new", "old"]
    assert desk.replay().counts.read == 0


def test_a_running_pipeline_is_not_disturbed(desk: Desk):
    with Pipeline(desk.spec, no_spark, recovery=StartupRecovery()).take_lease(), pytest.raises(LeaseHeld):
        desk.replay()


# ---- records with many rows ----


def test_a_record_with_rows_in_several_tables_is_replayed_into_the_one_that_lacks_it(tmp_path: Path):
    desk = Desk(tmp_path, {"decode": {"json": {"rows": "array"}}, "route": {"by": {"sql": "kind"}}})
    desk.options["limits"] = {"tables": 2}
    desk.feed([[{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "beta"}, {"id": 3, "kind": "gamma"}]])
    [dead] = desk.dead()
    assert dead["reason"] == "too_many_tables"
    assert desk.rows(f"lake/{Path(dead['table']).name}") == []
    desk.options["limits"] = {"tables": 3}
    assert desk.replay().counts.routed == 1
    assert (desk.offsets("alpha"), desk.offsets("beta"), desk.offsets("gamma")) == ({0: 1}, {0: 1}, {0: 1})
    assert desk.replay().counts.read == 0


def test_a_record_of_which_one_row_has_no_table_has_no_row_anywhere(tmp_path: Path):
    """Else its letter, which has no table, would bring the others a second time."""
    desk = Desk(tmp_path, {"decode": {"json": {"rows": "array"}}, "route": {"by": {"sql": "kind"}}})
    desk.feed([[{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "../x"}], [{"id": 3, "kind": "alpha"}]])
    assert [(row["offset"], row["reason"], row["table"]) for row in desk.dead()] == [(0, "bad_route", None)]
    assert desk.offsets("alpha") == {1: 1}
    desk.options["route"] = {"by": {"sql": "replace(kind, '../', '')"}}
    assert desk.replay().counts.routed == 1
    assert (desk.offsets("alpha"), desk.offsets("x")) == ({0: 1, 1: 1}, {0: 1})
    [told] = desk.outcomes()
    assert sorted(told["into"]) == [desk.spec.uri_of(RouteId("", "alpha")), desk.spec.uri_of(RouteId("", "x"))]


def test_a_letter_of_the_other_table_is_written_under_the_same_plan(tmp_path: Path):
    """A record without a table that one of two tables takes and the other does not."""
    desk = Desk(tmp_path, {"decode": {"json": {"rows": "array"}}, "route": {"by": {"sql": "kind"}}})
    desk.feed([[{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "../x"}]])
    desk.options |= {"route": {"by": {"sql": "replace(kind, '../', '')"}}, "limits": {"tables": 1}}
    for _ in range(2):
        with armed("before_dead_letters", "abandon"), pytest.raises(Abandoned):
            desk.replay()
    assert desk.replay(Selection(reasons=("bad_route",))).recovered == 1
    assert desk.offsets("alpha", "x") == {0: 1}
    assert sorted(row["reason"] for row in desk.dead()) == ["bad_route", "too_many_tables"]
    del desk.options["limits"]
    assert desk.replay().counts.routed == 1
    assert (desk.offsets("alpha"), desk.offsets("x")) == ({0: 1}, {0: 1})
    assert desk.replay().counts.read == 0
