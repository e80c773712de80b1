"""How many tables a pipeline may have, and how many of them one batch may make."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.recovery.startup import StartupRecovery
from services.in_process_pipeline import Harness, InProcess, no_spark, ranges_of


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, {"limits": {"new_tables": 2}})


def test_a_batch_makes_only_so_many_and_the_others_are_dead_letters_that_come_back(harness: Harness):
    harness.feed({"kind": kind, "id": nth} for nth, kind in enumerate("abcdac"))
    assert {row["offset"]: row["reason"] for row in harness.dead()} == dict.fromkeys((2, 3, 5), "too_many_tables")
    assert "or of 2 new tables per batch" in harness.dead()[0]["detail"]
    harness.feed({"kind": kind, "id": nth} for nth, kind in enumerate("acb"))
    assert (harness.offsets("a", "b"), harness.offsets("c")) == ({0: 1, 1: 1, 4: 1, 6: 1, 8: 1}, {7: 1})
    assert harness.replay().counts.routed == 3
    assert (harness.offsets("c"), harness.offsets("d")) == ({2: 1, 5: 1, 7: 1}, {3: 1})
    assert harness.replay().counts.read == 0


@pytest.mark.parametrize("route", [{"by": {"field": "kind"}}, {"by": {"sql": "kind"}}], ids=["field", "sql"])
def test_the_next_batch_of_the_same_run_has_room_again(harness: Harness, route: dict[str, object]):
    harness.options["route"] = route
    pipeline = InProcess(harness.spec, no_spark, recovery=StartupRecovery())
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        for _ in range(3):
            start = len(harness.sent)
            harness.send({"kind": kind} for kind in "abcde")
            records = harness.envelopes(start)
            pipeline.one_batch(records.combine_chunks().to_batches()[0], ranges_of(records))
    assert sorted(len(harness.rows(f"lake/{kind}")) for kind in "abcde") == [1, 2, 2, 3, 3]
    assert len(harness.dead()) == 3 + 1


def test_tables_beyond_the_pipelines_own_limit_stay_refused(harness: Harness):
    harness.options["limits"] = {"tables": 2, "new_tables": 1}
    for _ in range(3):
        harness.feed({"kind": kind} for kind in "abc")
    assert [len(harness.rows(f"lake/{kind}")) for kind in "abc"] == [3, 2, 0]
    assert {row["reason"] for row in harness.dead()} == {"too_many_tables"}


def test_a_new_table_of_an_expression_has_the_columns_of_the_others_after_a_restart(harness: Harness):
    """Nobody has to show them again: they are what the route's records are read by."""
    harness.options["route"] = {"by": {"sql": "kind"}}
    harness.options["tables"] = [{"match": "z", "contract": {"new_field": "ignore"}}]
    record = {"id": 1, "to": {"city": "Faro", "tags": ["x"]}, "mixed": 1, "none": None}
    harness.feed([{**record, "kind": "a"}, {**record, "kind": "a", "mixed": "x"}])
    harness.feed([{**record, "kind": "b"}])
    harness.feed([{**record, "kind": "c", "new": 1.5}, {**record, "kind": "a"}])
    (b,), (c,) = (harness.rows(f"lake/{kind}") for kind in "bc")
    assert (b["id"], b["kind"], b["to"], b["mixed"]) == (1, "b", record["to"], "1")
    assert (c["id"], c["to"], c["new"]) == (1, record["to"], 1.5)
    assert harness.dead() == []
