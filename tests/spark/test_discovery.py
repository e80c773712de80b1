"""Discovery: a batch that meets what the spec does not say runs twice, every other once; its tasks agree on types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace import faults
from headrace.errors import ColumnMismatch
from headrace.faults import Point
from services.batches import Batches


@pytest.fixture
def batches(spark: Any, lake: Path) -> Iterator[Any]:
    """A maker of such pipelines; their leases end with the test."""
    made: list[Batches] = []

    def make(**content: Any) -> Batches:
        made.append(Batches(spark, lake, **content))
        return made[-1]

    yield make
    for each in made:
        each.lease.release()


def test_tasks_that_saw_different_types_agree_on_one_and_every_value_is_kept(batches: Any):
    web = batches()
    intent, jobs = web.run([{"v": 1, "mixed": 1}, {"v": 2}], [{"v": 0.5, "mixed": "x", "never": None}])
    assert (intent.runs, jobs) == (2, 2)
    assert [(row["v"], row["mixed"]) for row in web.rows()] == [(1.0, "1"), (2.0, None), (0.5, '"x"')]
    assert web.types()["v"] == "double"
    assert "never" not in web.types()
    for _ in range(3):
        intent, jobs = web.run([{"v": 3}], [{"v": 4.5, "mixed": [1]}])
        assert (intent.runs, jobs) == (1, 1)
    assert [row["v"] for row in web.rows()][3:] == [3.0, 4.5] * 3
    assert web.staged() == len(web.table().file_uris())


def test_twenty_new_fields_over_twenty_batches_under_load_lose_nothing(batches: Any):
    web, load = batches(), 200
    for number in range(20):
        first = [{"id": at, f"f{number}": at} if at % 2 else {"id": at} for at in range(load)]
        second = [{"id": at, f"f{number - 1}": -at} if number and at % 3 else {"id": at} for at in range(load)]
        intent, jobs = web.run(first, second)
        assert (intent.runs, jobs, intent.counts.routed) == (2, 2, 2 * load)
    rows = web.rows()
    assert [row["id"] for row in rows] == list(range(load)) * 40
    for number in range(20):
        sent = {2 * load * number + at: at for at in range(1, load, 2)}
        sent |= {2 * load * (number + 1) + load + at: -at for at in range(load) if at % 3 and number < 19}
        assert {at: row[f"f{number}"] for at, row in enumerate(rows) if row[f"f{number}"] is not None} == sent
    assert list(web.types()) == ["id", "f0", "_source", *(f"f{at}" for at in range(1, 20))]
    assert web.run([{"id": 99, "f7": 1}])[1] == 1
    assert web.staged() == len(web.table().file_uris())


def test_two_hundred_types_in_one_topic_are_one_job_a_batch(batches: Any):
    web = batches(route={"by": {"field": "kind"}})
    kinds = [f"k{at}" for at in range(200)]
    values = [{"kind": kind, "id": at, f"own_{kind}": at} for at, kind in enumerate(kinds)]
    intent, jobs = web.run(values[:100], values[100:])
    assert (intent.runs, jobs, len(intent.tables)) == (2, 2, 200)  # they are all new: one job to meet, one to write
    for _ in range(2):
        intent, jobs = web.run(values, values[::-1])
        assert (intent.runs, jobs, len(intent.tables)) == (1, 1, 200)
    for at in range(0, 200, 40):
        assert web.rows(f"k{at}") == [{"kind": f"k{at}", "id": at, f"own_k{at}": at}] * 5


def test_many_tables_are_born_in_one_batch_by_two_jobs(batches: Any):
    web = batches(route={"by": {"field": "kind"}})
    kinds = [f"k{at}" for at in range(12)]
    intent, jobs = web.run(
        [{"kind": kind, "id": at, kind: 1} for at, kind in enumerate(kinds)],
        [{"kind": kind, "id": 0.5} for kind in kinds[:6]],
    )
    assert (intent.runs, jobs, len(intent.tables)) == (2, 2, 12)
    for at, kind in enumerate(kinds):
        assert web.table(kind).version() == 0
        assert [row["id"] for row in web.rows(kind)] == ([at, 0.5] if at < 6 else [at])
        assert list(web.types(kind)) == ["kind", "id", kind, "_source"]
    assert web.run([{"kind": "k0", "id": 1}, {"kind": "k11", "id": 2}])[1] == 1


def test_tables_of_an_expression_are_met_together_with_their_columns(batches: Any):
    """The expression needs the row: the run that learns the columns already looks which tables they lead to."""
    web = batches(route={"by": {"sql": "lower(kind)"}})
    intent, jobs = web.run([{"kind": "A", "v": 1}], [{"kind": "B", "v": 1.5, "w": True}])
    assert (intent.runs, jobs) == (2, 2)
    assert (web.rows("a"), web.rows("b")) == (
        [{"kind": "A", "v": 1.0, "w": None}],
        [{"kind": "B", "v": 1.5, "w": True}],
    )
    for value in ({"kind": "c", "v": 2}, {"kind": "a", "v": 3, "x": "x"}, {"kind": "d", "v": 4, "y": 1}):
        intent, jobs = web.run([value], [{"kind": "a", "v": 0}])
        assert (intent.runs, jobs) == (2, 2)
    assert web.rows("d") == [{"kind": "d", "v": 4.0, "w": None, "x": None, "y": 1}]
    assert web.run([{"kind": "a"}, {"kind": "b", "x": "y"}, {"kind": "c"}])[1] == 1


def test_declared_columns_need_no_run_of_their_own(batches: Any):
    columns = [{"name": "kind", "type": "string"}, {"name": "v", "type": "bigint"}]
    web = batches(route={"by": {"sql": "kind"}}, table={"columns": columns})
    intent, jobs = web.run([{"kind": "a", "v": 1}], [{"kind": "b"}])
    assert (intent.runs, jobs, len(intent.tables)) == (2, 2, 2)


DECLARED = {"columns": [{"name": "kind", "type": "string"}, {"name": "v", "type": "bigint"}]}


def test_new_tables_whose_columns_are_declared_are_staged_by_the_run_that_meets_them(batches: Any):
    web = batches(route={"by": {"field": "kind"}}, table=DECLARED)
    intent, jobs = web.run([{"kind": "a", "v": 1}, {"kind": "b", "v": "x"}], [{"kind": "b", "v": 2}, {"kind": "c"}])
    assert (intent.runs, jobs, intent.counts.dead) == (1, 1, 1)
    assert [web.rows(kind) for kind in "abc"] == [
        [{"kind": "a", "v": 1}],
        [{"kind": "b", "v": 2}],
        [{"kind": "c", "v": None}],
    ]
    assert web.run([{"kind": "a", "v": 3}])[0].runs == 1


def test_a_declared_table_with_new_fields_is_staged_once_they_are_known(batches: Any):
    web = batches(route={"by": {"field": "kind"}}, table={**DECLARED, "contract": {"new_field": "evolve"}})
    intent, jobs = web.run([{"kind": "a", "v": 1}], [{"kind": "b", "v": 2, "w": True}])
    assert (intent.runs, jobs) == (2, 2)
    assert (web.rows("a"), web.rows("b")) == ([{"kind": "a", "v": 1}], [{"kind": "b", "v": 2, "w": True}])
    assert web.staged() == 2


def test_a_table_that_is_there_and_unlike_the_declared_one_is_staged_again(batches: Any, lake: Path):
    columns = {"kind": pa.array([], pa.string()), "v": pa.array([], pa.int64()), "more": pa.array([], pa.string())}
    write_deltalake(f"{lake}/a", pa.table(columns))
    web = batches(route={"by": {"field": "kind"}}, table=DECLARED)
    intent, jobs = web.run([{"kind": "a", "v": 1}], [{"kind": "b", "v": 2}])
    assert (intent.runs, jobs) == (2, 2)
    assert web.table("a").to_pyarrow_table().to_pylist() == [{"kind": "a", "v": 1, "more": None}]
    assert web.staged() == 2


def test_declared_tables_beyond_the_limit_are_refused_and_leave_no_file(batches: Any):
    web = batches(route={"by": {"field": "kind"}}, table=DECLARED, limits={"tables": 2})
    intent, _ = web.run([{"kind": "a"}, {"kind": "b"}], [{"kind": "c"}, {"kind": "d"}])
    assert (intent.counts.routed, intent.counts.reasons) == (2, {"too_many_tables": 2})
    assert web.staged() == 2


def test_a_table_that_was_predicted_wrongly_leaves_no_trace(batches: Any):
    """Each task sees numbers of one type only, and so another name than the one they all agree on."""
    web = batches(route={"by": {"sql": "'v' || v"}}, limits={"tables": 2})
    intent, _ = web.run([{"v": 1}], [{"v": 1.5}])
    assert sorted(Path(table.path).name for table in intent.tables) == ["v1.0", "v1.5"]
    assert intent.counts.routed == 2
    assert set(map(str, web.pipeline.tables.schemas)) == {"*", "v1.0", "v1.5"}
    assert not (web.lake / "v1").exists()


def test_nested_fields_grow_in_their_place(batches: Any):
    web = batches()
    web.run([{"s": {"a": 1}, "l": [{"x": 1}]}])
    intent, jobs = web.run([{"s": {"a": 2, "b": {"c": "deep"}}}], [{"l": [{"x": 2, "y": True}, {}]}])
    assert (intent.runs, jobs) == (2, 2)
    assert web.rows() == [
        {"s": {"a": 1, "b": None}, "l": [{"x": 1, "y": None}]},
        {"s": {"a": 2, "b": {"c": "deep"}}, "l": None},
        {"s": None, "l": [{"x": 2, "y": True}, {"x": None, "y": None}]},
    ]


def test_poison_never_costs_a_second_job(batches: Any):
    web = batches()
    web.run([{"id": 0}])
    bad = [
        b"{",
        b"",
        b'{"id": "x"}',
        b'{"id": 1, "id": 2}',
        b"[]",
        b"\xff",
        b'{"a b": 1}',
        b'{"ID": 1}',
        b'{"id": 1.5}',
    ]
    values = [bad[at // 10 % len(bad)] if at % 10 == 0 else {"id": at} for at in range(1000)]
    intent, jobs = web.run(values[:500], values[500:])
    assert (intent.runs, jobs) == (1, 1)
    assert (intent.counts.routed, intent.counts.dead) == (900, 100)
    letters = DeltaTable(web.pipeline.spec.dead_letters_uri).to_pyarrow_table().num_rows
    assert letters == 100


def test_a_first_batch_of_nothing_but_poison_teaches_nothing(batches: Any):
    web = batches(table={"partition_by": ["day"], "contract": {"new_field": "reject"}})
    intent, _ = web.run([b"x"], [b""])
    assert intent.counts.dead == 2
    assert not (web.lake / "web").exists()
    intent, jobs = web.run([{"id": 1, "day": "d"}])
    assert (intent.counts.routed, jobs) == (1, 2)
    assert web.rows() == [{"id": 1, "day": "d"}]


def test_records_that_bring_no_column_are_rows(batches: Any):
    web = batches()
    web.run([{}, {"only": None}], [{}])
    assert web.rows() == [{}, {}, {}]
    web.run([{"id": 1}])
    assert web.rows() == [{"id": None}] * 3 + [{"id": 1}]


def test_a_type_that_an_expression_does_not_take_stops_with_a_name_and_writes_nothing(batches: Any):
    web = batches(transform=[{"set": {"loud": "upper(note)"}}], allow_missing=["note"])
    web.run([{"id": 1}])
    with pytest.raises(ColumnMismatch, match=rf"{web.lake}/web: set loud: 'upper\(note\)'.*BIGINT") as stop:
        web.run([{"id": 2}], [{"id": 3, "note": 4}])
    assert stop.value.exit_code == 1
    assert web.rows() == [{"id": 1, "loud": None}]
    assert web.staged() == 1


def test_the_moment_a_table_has_grown_knows_its_batch(batches: Any):
    web, grown = batches(), list[int]()
    web.run([{"id": 1}])
    with faults.armed(Point.AFTER_SCHEMA_CHANGE, lambda: grown.append(2), batch=2):
        web.run([{"id": 2, "more": 3}])
    assert grown == [2]
