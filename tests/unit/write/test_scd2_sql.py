"""The SQL of a history against the model: whatever the order, the doubles and the batches, the same rows.

The same text that Spark runs, on DuckDB.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.delta.schema import SOURCE
from headrace.write.intent import MergeRules, Scd2Columns
from headrace.write.scd2_sql import Scd2Sql
from model.logs import shuffled
from model.merged import DUCKDB, NOW, DuckWorld
from model.merging import Change
from model.states import Row, history, whole

BROUGHT = pa.schema([*((name, pa.int64()) for name in ("id", "seq", "a", "b")), SOURCE])
KEPT = ("valid_from", "valid_to", "current")
SCHEMA = pa.schema([*BROUGHT, ("valid_from", pa.int64()), ("valid_to", pa.int64()), ("current", pa.bool_())])
EVERY = MergeRules(("id",), sequence="seq", tombstone_retention=60, scd2=Scd2Columns(*KEPT))
TRACKED = replace(EVERY, scd2=Scd2Columns(*KEPT, track=("a",)))
TRACK = {EVERY: (), TRACKED: (0,)}


class World(DuckWorld):
    """A table and what it remembers in DuckDB, merged into by the text that Spark gets."""

    def __init__(self, merging: MergeRules) -> None:
        super().__init__(merging, SCHEMA, BROUGHT)

    def batch(self, changes: Sequence[Change]) -> None:
        """One batch: what is remembered first, then the merge."""
        self.bring(changes, "true" if TRACK[self.merging] else "_headrace.op = 'delete'")
        sql = Scd2Sql(self.merging, SCHEMA.names, DUCKDB)
        self.duck.execute(sql.statement("t", "changes", "tombstones", NOW))

    def rows(self) -> list[Row]:
        """As the model tells them."""
        found = self.duck.execute("SELECT id, valid_from, valid_to, seq, a, b, current FROM t").fetchall()
        assert all(row[6] == (row[2] is None) for row in found)
        rows = sorted((*row[:4], row[4:6]) for row in found)
        assert whole(rows)
        return rows


def merged(merging: MergeRules, batches: Sequence[Sequence[Change]]) -> list[Row]:
    world = World(merging)
    for batch in batches:
        if batch:
            world.batch(batch)
    return world.rows()


@pytest.mark.parametrize("merging", [EVERY, TRACKED], ids=["every change", "tracked"])
@settings(max_examples=35, deadline=None)
@given(shuffled(sequences=True))
def test_any_order_duplicates_and_batches_end_in_the_history_of_the_log_in_order(
    merging: MergeRules, given_: Any
) -> None:
    log, batches = given_
    assert merged(merging, batches) == history(log, TRACK[merging])


def puts(*said: tuple[int, int], key: int = 1, start: int = 0) -> list[Change]:
    """Sequences and values of `a`; `b` is the sequence again."""
    return [
        Change("put", key, sequence, (value, sequence), offset=start + at) for at, (sequence, value) in enumerate(said)
    ]


def test_a_late_change_slots_in():
    world = World(EVERY)
    world.batch(puts((10, 1), (30, 3)))
    world.batch(puts((20, 2), start=2))
    assert world.rows() == [(1, 10, 20, 10, (1, 10)), (1, 20, 30, 20, (2, 20)), (1, 30, None, 30, (3, 30))]


def test_a_delete_ends_the_row_that_was_then_and_no_later_one():
    world = World(EVERY)
    world.batch(puts((10, 1), (30, 3)))
    world.batch([Change("delete", 1, 20, offset=2)])
    assert world.rows() == [(1, 10, 20, 10, (1, 10)), (1, 30, None, 30, (3, 30))]
    world.forget()
    world.batch(puts((15, 9), (40, 4), start=3))
    assert [row[1:3] for row in world.rows()] == [(10, 15), (15, 20), (30, 40), (40, None)]


def test_a_delete_that_comes_before_what_it_ends_is_stored():
    world = World(EVERY)
    world.batch([Change("delete", 1, 20)])
    assert world.rows() == []
    world.batch(puts((10, 1), start=1))
    assert world.rows() == [(1, 10, 20, 10, (1, 10))]


def test_of_equal_sequences_the_later_place_counts_and_a_delete_may_be_it():
    world = World(EVERY)
    world.batch(puts((10, 1)))
    world.batch(puts((10, 2), start=5))
    world.batch(puts((10, 3), start=2))
    assert world.rows() == [(1, 10, None, 10, (2, 10))]
    world.batch([Change("delete", 1, 10, offset=9)])
    assert world.rows() == []


def test_what_is_not_tracked_is_overwritten_until_something_divides_the_row():
    world = World(TRACKED)
    world.batch(puts((10, 1), (20, 1), (30, 1)))
    assert world.rows() == [(1, 10, None, 30, (1, 30))]
    world.batch(puts((25, 7), start=3))
    assert world.rows() == [(1, 10, 25, 20, (1, 20)), (1, 25, 30, 25, (7, 25)), (1, 30, None, 30, (1, 30))]
    world.batch(puts((25, 1), start=9))
    assert world.rows() == [(1, 10, None, 30, (1, 30))]


def test_what_is_forgotten_is_told_by_the_rows_as_well_as_they_can():
    world = World(TRACKED)
    world.batch(puts((10, 1), (20, 1), (30, 1)))
    world.forget()
    world.batch(puts((25, 7), start=3))
    assert [(row[1:3], row[4][0]) for row in world.rows()] == [((10, 25), 1), ((25, 30), 7), ((30, None), 1)]


def test_rows_of_other_keys_and_rows_that_stay_are_left_alone():
    world = World(EVERY)
    world.batch([*puts((10, 1), (20, 2)), *puts((10, 1), key=2, start=5)])
    world.duck.execute("UPDATE t SET b = 99")
    world.batch(puts((30, 3), start=9))
    assert [row[4][1] for row in world.rows()] == [99, 99, 30, 99]


def test_an_intent_keeps_what_was_decided_of_the_history():
    for merging in (EVERY, TRACKED):
        assert MergeRules.of(json.loads(json.dumps(asdict(merging)))) == merging
