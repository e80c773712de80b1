"""The SQL of a merge against the model: whatever the order, the doubles and the batches, the same table.

The same text that Spark runs, on DuckDB: engines spell names and times differently, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.schema import SOURCE
from headrace.write.intent import MergeRules
from headrace.write.merge_sql import MergeSql, Truncates, later
from model.logs import cut, logs, shuffled
from model.merged import DUCKDB, NOW, DuckWorld
from model.merging import Change, Model, ended

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("a", pa.int64()),
        pa.field("b", pa.int64()),
        SOURCE,
    ]
)
KEYED = MergeRules(("id",))
BY_SEQUENCE = MergeRules(("id",), sequence="seq")
PARTIAL = (
    MergeRules(("id",), partial=True, ignore_nulls=True),
    MergeRules(("id",), partial=True, columns=("a",)),
    MergeRules(("id",), partial=True, columns=("b",), ignore_nulls=True),
)


class World(DuckWorld):
    """A table and its tombstones in DuckDB, merged into by the text that Spark gets."""

    def __init__(self, merging: MergeRules) -> None:
        super().__init__(merging, SCHEMA, SCHEMA)
        self.past: Truncates = {}

    def batch(self, changes: Sequence[Change]) -> None:
        """One batch: tombstones first, then the merge."""
        self.bring(changes, "_headrace.op = 'delete'")
        deletes = any(each.op == "delete" for each in changes)
        keys = [each.key for each in changes if each.op != "truncate"]
        distinct = len({*keys}) == len(keys)
        sql = MergeSql(self.merging, SCHEMA.names, DUCKDB, _truncates(changes), deletes, distinct, self.past)
        self.duck.execute(sql.statement("t", "changes", "tombstones", NOW))
        self.past = later(self.past, _truncates(changes))

    def table(self) -> dict[int, tuple[int | None, ...]]:
        """Key to sequence and values; no key may be there twice."""
        rows = self.duck.execute("SELECT id, seq, a, b FROM t").fetchall()
        assert len({row[0] for row in rows}) == len(rows)
        return {row[0]: row[1:] for row in rows}


def _truncates(changes: Sequence[Change]) -> Truncates:
    last: dict[tuple[str, int], tuple[int, datetime]] = {}
    for each in (each for each in changes if each.op == "truncate"):
        last[each.topic, each.partition] = (
            each.offset,
            datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=each.at),
        )
    return last


def merged(merging: MergeRules, batches: Sequence[Sequence[Change]]) -> dict[int, tuple[int | None, ...]]:
    world = World(merging)
    for batch in batches:
        if batch:
            world.batch(batch)
    return world.table()


@settings(max_examples=60, deadline=None)
@given(shuffled(sequences=True))
def test_any_order_duplicates_and_batches_end_in_the_table_of_the_log_in_order(given_: Any) -> None:
    log, batches = given_
    in_order = sorted(log, key=lambda each: each.sequence)
    assert merged(BY_SEQUENCE, batches) == Model(BY_SEQUENCE).take(in_order).table()


@settings(max_examples=60, deadline=None)
@given(shuffled(sequences=False))
def test_without_a_sequence_the_order_is_the_place_in_the_topic(given_: Any) -> None:
    log, batches = given_
    in_order = sorted(log, key=lambda each: each.place)
    assert merged(KEYED, batches) == Model(KEYED).take(in_order).table()


@pytest.mark.parametrize("merging", [BY_SEQUENCE, KEYED], ids=["sequence", "place"])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_null_values_and_truncates_end_what_lies_before_them(merging: MergeRules, data: st.DataObject) -> None:
    ops = ("put", "put", "put", "delete", "truncate")
    log = data.draw(logs(ops, merging.sequence is not None, silent=True))
    assert merged(merging, data.draw(cut(log))) == Model(merging).take(log).table()


@pytest.mark.parametrize("merging", [BY_SEQUENCE, KEYED], ids=["sequence", "place"])
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_null_values_end_what_lies_before_them_in_their_partition_however_far_it_is_behind(
    merging: MergeRules, data: st.DataObject
) -> None:
    log = data.draw(logs(("put", "put", "delete"), merging.sequence is not None, silent=True))
    log = _one_place_for_each_key(log)
    behind = data.draw(st.integers(0, 1))
    late = sorted(log, key=lambda each: (each.partition == behind, each.offset))
    assert merged(merging, data.draw(cut(late))) == Model(merging).take(log).table()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_what_a_truncate_has_ended_does_not_come_back_however_far_a_partition_is_behind(data: st.DataObject) -> None:
    log = _one_place_for_each_key(data.draw(logs(("put", "put", "delete", "truncate"), False)))
    behind = data.draw(st.integers(0, 1))
    late = sorted(log, key=lambda each: (each.partition == behind, each.offset))
    ends = [each for each in log if each.op == "truncate"]
    stay = [each for each in log if each.op != "truncate" and not any(ended(each, end) for end in ends)]
    assert merged(KEYED, data.draw(cut(late))) == Model(KEYED).take(stay).table()


def test_a_truncate_goes_by_time_in_other_topics_whatever_their_partitions() -> None:
    world = World(KEYED)
    told = {"topic": "b", "values": (1, 1)}
    early, late = Change("put", 1, at=10, offset=100, **told), Change("put", 2, at=90, offset=3, **told)
    own = [Change("put", 3, values=(1, 1), offset=4, at=95), Change("put", 4, values=(1, 1), offset=6, at=5)]
    world.batch([early, late, *own])
    world.batch([Change("truncate", offset=5, at=50)])
    assert world.table().keys() == {2, 4}
    world.batch([Change("put", 5, at=20, offset=200, **told), Change("put", 6, at=60, offset=0, **told)])
    assert world.table().keys() == {2, 4, 6}, "what was before it comes late"


@pytest.mark.parametrize("merging", PARTIAL, ids=["ignore nulls", "columns", "both"])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_partial_changes_leave_what_they_do_not_bring(merging: MergeRules, data: st.DataObject) -> None:
    ops = ("put", "put", "put", "delete", "truncate")
    log = _one_place_for_each_key(data.draw(logs(ops, False)))
    assert merged(merging, data.draw(cut(log))) == Model(merging).take(log).table()


def _one_place_for_each_key(log: Sequence[Change]) -> list[Change]:
    """As Kafka has it: all records of a key lie in one partition."""
    return [Change(**{**vars(each), "partition": (each.key or 0) % 2, "offset": at}) for at, each in enumerate(log)]


def test_a_delete_is_forgotten_in_time() -> None:
    world = World(BY_SEQUENCE)
    world.batch([Change("delete", 1, 10)])
    world.forget()
    world.batch([Change("put", 1, 5, (1, 1), offset=1)])
    assert world.table() == {1: (5, 1, 1)}


def test_rows_whose_origin_nobody_knows_are_older_than_any_change() -> None:
    for merging in (KEYED, BY_SEQUENCE):
        world = World(merging)
        world.duck.execute("INSERT INTO t (id, a) VALUES (1, 7), (2, 7), (3, 7)")
        world.batch([Change("put", 1, 0, (1, 1)), Change("delete", 2, 0, offset=1)])
        assert world.table() == {1: (0, 1, 1), 3: (None, 7, None)}


def test_a_table_without_the_place_of_its_rows_takes_the_later_of_equals() -> None:
    columns = ["id", "seq", "a", "b"]
    text = MergeSql(BY_SEQUENCE, columns, DUCKDB).statement("t", "changes", None, NOW)
    assert "_source" not in text


def test_a_row_of_keys_alone_is_written_as_it_was() -> None:
    statement = MergeSql(MergeRules(("id", "day")), ["id", "day"], DUCKDB).statement("t", "changes", None, NOW)
    assert 'UPDATE SET "id" = s."id", "day" = s."day"' in statement
