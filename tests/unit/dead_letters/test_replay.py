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
from services.in_process_pipeline import THEN, Harness, no_spark

STRICT = [{"match": "^alpha$", "columns": [{"name": "id", "type": "bigint"}, {"name": "kind", "type": "string"}]}]
LOOSE = [{"match": "^alpha$", "columns": [{"name": "id", "type": "string"}, {"name": "kind", "type": "string"}]}]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Two good records, a misfit of a table that is not there yet, one that is not JSON, one without a route."""
    harness = Harness(tmp_path, {"tables": STRICT})
    harness.feed(
        [{"id": "x1", "kind": "alpha"}, {"id": 2, "kind": "beta"}, {"id": "x2", "kind": "alpha"}, b"{", {"id": 5}]
    )
    return harness


def test_dead_letters_become_rows_once_and_keep_their_source(harness: Harness):
    assert [row["reason"] for row in harness.dead()] == ["type", "type", "malformed", "unrouted"]
    harness.options["tables"] = LOOSE
    summary = harness.replay()
    assert (summary.counts.read, summary.counts.routed, summary.counts.dead) == (4, 2, 2)
    assert harness.offsets("alpha") == {0: 1, 2: 1}
    row = harness.rows("lake/alpha")[0]
    assert row["id"] in ("x1", "x2")
    assert (row["_source"]["topic"], row["_source"]["partition"], row["_source"]["timestamp"]) == ("orders", 0, THEN)
    again = harness.replay()
    assert (again.counts.read, again.counts.routed, again.counts.dead) == (2, 0, 2)
    assert harness.offsets("alpha") == {0: 1, 2: 1}
    assert harness.marks("alpha") == [1]
    assert harness.marks("_headrace/shop/replays") == [1, 2]
    assert len(harness.dead()) == 4  # never written a second time, never changed


def test_outcomes_tell_what_became_of_each_dead_letter(harness: Harness):
    harness.options["tables"] = LOOSE
    harness.replay()
    told = {row["offset"]: (row["outcome"], row["into"], row["reason"]) for row in harness.outcomes()}
    alpha = f"{harness.folder}/lake/alpha"
    assert told == {
        0: ("replayed", [alpha], None),
        2: ("replayed", [alpha], None),
        3: ("still_dead", None, "malformed"),
        4: ("still_dead", None, "unrouted"),
    }
    [letter] = harness.dead_letters.find(RecordPosition("orders", 0, 0))
    assert letter["value"] == b'{"id": "x1", "kind": "alpha"}'
    assert letter["headers"] == [{"key": "trace", "value": b"\xff0"}]
    assert [each["outcome"] for each in letter["outcomes"]] == ["replayed"]


def test_a_dead_letter_without_a_table_is_routed_again(harness: Harness):
    harness.options |= {"tables": LOOSE, "route": {"by": "topic"}}
    harness.replay(Selection(reasons=("unrouted",)))
    assert harness.offsets("orders") == {4: 1}
    assert [row["outcome"] for row in harness.outcomes()] == ["replayed"]


def test_a_dead_letter_of_a_table_goes_only_there(harness: Harness):
    harness.options |= {"tables": LOOSE, "route": {"by": "topic"}}
    harness.replay(Selection(reasons=("type",)))
    assert harness.rows("lake/orders") == []
    assert {(row["outcome"], row["reason"]) for row in harness.outcomes()} == {("still_dead", "unrouted")}
    del harness.options["route"]
    harness.replay(Selection(reasons=("type",)))
    assert harness.offsets("alpha") == {0: 1, 2: 1}


def test_a_dead_letter_that_the_spec_now_leaves_out_is_settled(harness: Harness):
    harness.options |= {"tables": LOOSE, "transform": [{"where": "id <> 'x1'"}]}
    summary = harness.replay()
    assert summary.counts.filtered == 1
    assert harness.offsets("alpha") == {2: 1}
    del harness.options["transform"]
    assert harness.replay(Selection(reasons=("type",))).counts.read == 0


def test_a_dead_letter_whose_row_the_table_has_already_is_reported_as_such(tmp_path: Path):
    """A producer sent a record that was rejected, and then once more, mended."""
    once = {"match": "^alpha$", "deduplicate": {"keys": ["id"], "within": "1h"}}
    small = {"name": "small", "expect": "n < 10", "on_violation": "reject"}
    harness = Harness(tmp_path, {"tables": [{**once, "expectations": [small]}]})
    harness.feed([{"id": id_, "n": n, "kind": "alpha"} for id_, n in ((1, 50), (1, 5), (2, 50))])
    harness.feed([{"id": 2, "n": 60, "kind": "alpha"}])
    harness.options["tables"] = [once]
    summary = harness.replay()
    told = {row["offset"]: (row["outcome"], row["into"], row["detail"]) for row in harness.outcomes()}
    alpha = f"{harness.folder}/lake/alpha"
    filtered = ("filtered", None, f"{alpha} already has a row with its keys")
    assert told == {0: filtered, 2: ("replayed", [alpha], None), 3: filtered}
    assert harness.offsets("alpha") == {1: 1, 2: 1}
    assert (summary.counts.routed, summary.counts.filtered) == (1, 2)
    assert harness.replay().counts.read == 0
    assert not [
        path for path in (tmp_path / "lake/_headrace/shop/replays").glob("*.parquet") if path.name not in named(harness)
    ]


def named(harness: Harness) -> set[str]:
    """The files that the table of outcomes stands on."""
    return {Path(uri).name for uri in DeltaTable(str(harness.place / "lake/_headrace/shop/replays")).file_uris()}


def test_new_fields_met_in_a_replay_become_columns(harness: Harness):
    harness.feed([b'{"id": 7, "kind": "beta", "note": "a", "kind": "beta"}', {"id": "x8", "kind": "alpha", "more": 1}])
    harness.options["tables"] = []
    summary = harness.replay(Selection(reasons=("type",)))
    assert summary.counts.routed == 3
    assert {row["more"] for row in harness.rows("lake/alpha")} == {None, 1}


def test_only_the_selected_dead_letters_are_taken(harness: Harness):
    harness.options["tables"] = LOOSE
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert harness.replay(Selection(since=soon)).counts.read == 0
    assert harness.replay(Selection(tables=("elsewhere",))).counts.read == 0
    assert harness.replay(Selection(reasons=("malformed",))).counts.read == 1
    assert harness.replay(Selection(tables=(f"{harness.folder}/lake/alpha",))).counts.routed == 2
    assert not (harness.folder / "lake/_headrace/shop/replay_intents/000000000003").exists()


def test_without_dead_letters_there_is_no_plan(tmp_path: Path):
    harness = Harness(tmp_path)
    assert harness.replay().batches == 0
    harness.feed([{"id": 1, "kind": "beta"}])
    assert harness.replay().batches == 0
    assert harness.outcomes() == []


def test_the_pipeline_goes_on_after_a_replay(harness: Harness):
    harness.options["tables"] = LOOSE
    harness.replay()
    harness.feed([{"id": "x9", "kind": "alpha"}])
    assert harness.offsets("alpha") == {0: 1, 2: 1, 5: 1}
    harness.replay()
    harness.feed([{"id": "x10", "kind": "alpha"}])
    assert harness.offsets("alpha") == {0: 1, 2: 1, 5: 1, 6: 1}


def test_offsets_of_a_recreated_topic_are_other_dead_letters(tmp_path: Path):
    harness = Harness(tmp_path)
    for text in ("old", "new"):
        harness.sent = []
        harness.options["limits"] = {"record_bytes": 10}
        harness.feed([{"id": text, "kind": "alpha"}])
        del harness.options["limits"]
        assert harness.replay().counts.routed == 1
    assert harness.offsets("alpha") == {0: 2}
    assert sorted(row["id"] for row in harness.rows("lake/alpha")) == ["new", "old"]
    assert harness.replay().counts.read == 0


def test_a_running_pipeline_is_not_disturbed(harness: Harness):
    with Pipeline(harness.spec, no_spark, recovery=StartupRecovery()).take_lease(), pytest.raises(LeaseHeld):
        harness.replay()


# ---- records with many rows ----


def test_a_record_with_rows_in_several_tables_is_replayed_into_the_one_that_lacks_it(tmp_path: Path):
    harness = Harness(tmp_path, {"decode": {"json": {"rows": "array"}}, "route": {"by": {"sql": "kind"}}})
    harness.options["limits"] = {"tables": 2}
    harness.feed([[{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "beta"}, {"id": 3, "kind": "gamma"}]])
    [dead] = harness.dead()
    assert dead["reason"] == "too_many_tables"
    assert harness.rows(f"lake/{Path(dead['table']).name}") == []
    harness.options["limits"] = {"tables": 3}
    assert harness.replay().counts.routed == 1
    assert (harness.offsets("alpha"), harness.offsets("beta"), harness.offsets("gamma")) == ({0: 1}, {0: 1}, {0: 1})
    assert harness.replay().counts.read == 0


def test_a_record_of_which_one_row_has_no_table_has_no_row_anywhere(tmp_path: Path):
    """Else its letter, which has no table, would bring the others a second time."""
    harness = Harness(tmp_path, {"decode": {"json": {"rows": "array"}}, "route": {"by": {"sql": "kind"}}})
    harness.feed([[{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "../x"}], [{"id": 3, "kind": "alpha"}]])
    assert [(row["offset"], row["reason"], row["table"]) for row in harness.dead()] == [(0, "bad_route", None)]
    assert harness.offsets("alpha") == {1: 1}
    harness.options["route"] = {"by": {"sql": "replace(kind, '../', '')"}}
    assert harness.replay().counts.routed == 1
    assert (harness.offsets("alpha"), harness.offsets("x")) == ({0: 1, 1: 1}, {0: 1})
    [told] = harness.outcomes()
    assert sorted(told["into"]) == [harness.spec.uri_of(RouteId("", "alpha")), harness.spec.uri_of(RouteId("", "x"))]


def test_a_dead_letter_of_the_other_table_is_written_under_the_same_plan(tmp_path: Path):
    """A record without a table that one of two tables takes and the other does not."""
    harness = Harness(tmp_path, {"decode": {"json": {"rows": "array"}}, "route": {"by": {"sql": "kind"}}})
    harness.feed([[{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "../x"}]])
    harness.options |= {"route": {"by": {"sql": "replace(kind, '../', '')"}}, "limits": {"tables": 1}}
    for _ in range(2):
        with armed("before_dead_letters", "abandon"), pytest.raises(Abandoned):
            harness.replay()
    assert harness.replay(Selection(reasons=("bad_route",))).recovered == 1
    assert harness.offsets("alpha", "x") == {0: 1}
    assert sorted(row["reason"] for row in harness.dead()) == ["bad_route", "too_many_tables"]
    del harness.options["limits"]
    assert harness.replay().counts.routed == 1
    assert (harness.offsets("alpha"), harness.offsets("x")) == ({0: 1}, {0: 1})
    assert harness.replay().counts.read == 0
