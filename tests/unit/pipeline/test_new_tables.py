"""How many tables a pipeline may have, and how many of them one batch may make."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.recovery.startup import StartupRecovery
from services.desk import Desk, InProcess, no_spark, ranges_of


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, {"limits": {"new_tables": 2}})


def test_a_batch_makes_only_so_many_and_the_others_are_letters_that_come_back(desk: Desk):
    desk.feed({"kind": kind, "id": nth} for nth, kind in enumerate("abcdac"))
    assert {row["offset"]: row["reason"] for row in desk.dead()} == dict.fromkeys((2, 3, 5), "too_many_tables")
    assert "or of 2 new tables per batch" in desk.dead()[0]["detail"]
    desk.feed({"kind": kind, "id": nth} for nth, kind in enumerate("acb"))
    assert (desk.offsets("a", "b"), desk.offsets("c")) == ({0: 1, 1: 1, 4: 1, 6: 1, 8: 1}, {7: 1})
    assert desk.replay().counts.routed == 3
    assert (desk.offsets("c"), desk.offsets("d")) == ({2: 1, 5: 1, 7: 1}, {3: 1})
    assert desk.replay().counts.read == 0


@pytest.mark.parametrize("route", [{"by": {"field": "kind"}}, {"by": {"sql": "kind"}}], ids=["field", "sql"])
def test_the_next_batch_of_the_same_run_has_room_again(desk: Desk, route: dict[str, object]):
    desk.options["route"] = route
    pipeline = InProcess(desk.spec, no_spark, recovery=StartupRecovery())
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        for _ in range(3):
            start = len(desk.sent)
            desk.send({"kind": kind} for kind in "abcde")
            records = desk.envelopes(start)
            pipeline.one_batch(records.combine_chunks().to_batches()[0], ranges_of(records))
    assert sorted(len(desk.rows(f"lake/{kind}")) for kind in "abcde") == [1, 2, 2, 3, 3]
    assert len(desk.dead()) == 3 + 1


def test_tables_beyond_the_pipelines_own_limit_stay_refused(desk: Desk):
    desk.options["limits"] = {"tables": 2, "new_tables": 1}
    for _ in range(3):
        desk.feed({"kind": kind} for kind in "abc")
    assert [len(desk.rows(f"lake/{kind}")) for kind in "abc"] == [3, 2, 0]
    assert {row["reason"] for row in desk.dead()} == {"too_many_tables"}


def test_a_new_table_of_an_expression_has_the_columns_of_the_others_after_a_restart(desk: Desk):
    """Nobody has to show them again: they are what the route's records are read by."""
    desk.options["route"] = {"by": {"sql": "kind"}}
    desk.options["tables"] = [{"match": "z", "contract": {"new_field": "ignore"}}]
    record = {"id": 1, "to": {"city": "Faro", "tags": ["x"]}, "mixed": 1, "none": None}
    desk.feed([{**record, "kind": "a"}, {**record, "kind": "a", "mixed": "x"}])
    desk.feed([{**record, "kind": "b"}])
    desk.feed([{**record, "kind": "c", "new": 1.5}, {**record, "kind": "a"}])
    (b,), (c,) = (desk.rows(f"lake/{kind}") for kind in "bc")
    assert (b["id"], b["kind"], b["to"], b["mixed"]) == (1, "b", record["to"], "1")
    assert (c["id"], c["to"], c["new"]) == (1, record["to"], 1.5)
    assert desk.dead() == []
