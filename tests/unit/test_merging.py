"""The SQL of a merge against the model: whatever the order, the doubles and the batches, the same table.

The same text that Spark runs, on DuckDB: engines spell names and times differently, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch import Merging
from headrace.commit.merging import UNTIL, Dialect, MergeSql, Truncates
from headrace.tables.changes import staged
from headrace.tables.schema import SOURCE, TIMESTAMP
from model.merging import Change, Model, columns_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("a", pa.int64()),
        pa.field("b", pa.int64()),
        SOURCE,
    ]
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DUCKDB = Dialect(lambda name: f'"{name}"', "arg_max_null", "arg_min_null", "TIMESTAMPTZ")
KEYED = Merging(("id",))
BY_SEQUENCE = Merging(("id",), sequence="seq")
PARTIAL = (
    Merging(("id",), partial=True, ignore_nulls=True),
    Merging(("id",), partial=True, columns=("a",)),
    Merging(("id",), partial=True, columns=("b",), ignore_nulls=True),
)


class World:
    """A table and its tombstones in DuckDB, merged into by the text that Spark gets."""

    def __init__(self, merging: Merging) -> None:
        self.merging = merging
        self.duck = _duck()
        self._make("t", SCHEMA)
        self._make("tombstones", staged(SCHEMA, merging.keys).append(pa.field(UNTIL, TIMESTAMP)))

    def _make(self, name: str, schema: pa.Schema) -> None:
        self.duck.register("empty", schema.empty_table())
        self.duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM empty")

    def batch(self, changes: Sequence[Change]) -> None:
        """One batch: tombstones first, then the merge."""
        rows = pa.table(columns_of(changes), schema=staged(SCHEMA, self.merging.keys))
        self.duck.register("changes", rows)
        until = f"TIMESTAMPTZ '{(NOW + timedelta(days=7)).isoformat()}'"
        self.duck.execute(f"INSERT INTO tombstones SELECT *, {until} FROM changes WHERE _headrace.op = 'delete'")
        sql = MergeSql(self.merging, SCHEMA.names, DUCKDB, _truncates(changes))
        self.duck.execute(sql.statement("t", "changes", "tombstones", NOW))

    def table(self) -> dict[int, tuple[int | None, ...]]:
        """Key to sequence and values; no key may be there twice."""
        rows = self.duck.execute("SELECT id, seq, a, b FROM t").fetchall()
        assert len({row[0] for row in rows}) == len(rows)
        return {row[0]: row[1:] for row in rows}


@cache
def _duck() -> Any:
    opened = duckdb.connect(":memory:")
    opened.execute("SET threads = 1; SET TimeZone = 'UTC'")
    return opened


def _truncates(changes: Sequence[Change]) -> Truncates:
    last: dict[int, tuple[int, datetime]] = {}
    for each in (each for each in changes if each.op == "truncate"):
        last[each.partition] = (each.offset, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=each.at))
    return last


def merged(merging: Merging, batches: Sequence[Sequence[Change]]) -> dict[int, tuple[int | None, ...]]:
    world = World(merging)
    for batch in batches:
        if batch:
            world.batch(batch)
    return world.table()


# ---- logs ----

VALUES = st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))


@st.composite
def cut(draw: st.DrawFn, changes: Sequence[Change]) -> list[list[Change]]:
    """The changes in batches, in their order."""
    edges = draw(st.sets(st.integers(1, max(1, len(changes) - 1)), max_size=4))
    bounds = [0, *sorted(edge for edge in edges if edge < len(changes)), len(changes)]
    return [list(changes[low:high]) for low, high in pairwise(bounds)]


@st.composite
def logs(draw: st.DrawFn, ops: Sequence[str], sequences: bool, silent: bool = False) -> list[Change]:
    """A topic as it was written: each record's place is where it lies; sequences are distinct for each key."""
    made: list[Change] = []
    offsets = [0, 0]
    for number in range(draw(st.integers(1, 12))):
        op, partition = draw(st.sampled_from(ops)), draw(st.integers(0, 1 if not silent else 0))
        key = None if op == "truncate" else draw(st.integers(1, 3))
        mute = op == "truncate" or not sequences or (silent and op == "delete" and draw(st.booleans()))
        offset, offsets[partition] = offsets[partition], offsets[partition] + 1
        values = draw(VALUES) if op == "put" else (None, None)
        sequence = None if mute else draw(st.integers(0, 5)) * 100 + number
        made.append(Change(op, key, sequence, values, partition, offset, number))
    return made


@st.composite
def shuffled(draw: st.DrawFn, sequences: bool) -> tuple[list[Change], list[list[Change]]]:
    """A log, and the same with some records twice, in any order, in any batches."""
    log = draw(logs(("put", "put", "delete"), sequences))
    doubles = draw(st.lists(st.sampled_from(log), max_size=4))
    if sequences:  # a producer's own doubles lie further on in the topic
        doubles = [Change(**{**vars(each), "offset": 100 + at}) for at, each in enumerate(doubles)]
    return log, draw(cut(draw(st.permutations([*log, *doubles]))))


@settings(max_examples=60, deadline=None)
@given(shuffled(sequences=True))
def test_any_order_doubles_and_batches_end_in_the_table_of_the_log_in_order(given_: Any) -> None:
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
def test_null_values_and_truncates_end_what_lies_before_them(merging: Merging, data: st.DataObject) -> None:
    ops = ("put", "put", "put", "delete", "truncate")
    log = data.draw(logs(ops, merging.sequence is not None, silent=True))
    assert merged(merging, data.draw(cut(log))) == Model(merging).take(log).table()


@pytest.mark.parametrize("merging", PARTIAL, ids=["ignore nulls", "columns", "both"])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_partial_changes_leave_what_they_do_not_bring(merging: Merging, data: st.DataObject) -> None:
    ops = ("put", "put", "put", "delete", "truncate")
    log = _one_place_for_each_key(data.draw(logs(ops, False)))
    assert merged(merging, data.draw(cut(log))) == Model(merging).take(log).table()


def _one_place_for_each_key(log: Sequence[Change]) -> list[Change]:
    """As Kafka has it: all records of a key lie in one partition."""
    return [Change(**{**vars(each), "partition": (each.key or 0) % 2, "offset": at}) for at, each in enumerate(log)]


def test_a_delete_is_forgotten_in_time() -> None:
    world = World(BY_SEQUENCE)
    world.batch([Change("delete", 1, 10)])
    world.duck.execute(f"UPDATE tombstones SET \"{UNTIL}\" = TIMESTAMPTZ '{NOW.isoformat()}'")
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
