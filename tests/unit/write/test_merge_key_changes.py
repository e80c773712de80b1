"""Change events whose rows change their keys: whatever the order, the doubles and the batches, the same table.

All of the way but Spark: events are decoded, become changes, and are merged by the text that Spark gets, on DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.delta.schema import RECORD_SCHEMA, SOURCE
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from headrace.spec.types import parse_type
from headrace.write.intent import MergeRules, Scd2Columns
from headrace.write.merge_sql import MergeSql
from headrace.write.scd2_sql import Scd2Sql
from model.events import Event, events
from model.merged import DUCKDB, NOW, DuckWorld
from model.merging import Model
from model.states import history
from services.plans import envelope, plan_of, shaped

NAMES = ("seq", "a", "b")
HISTORY = ("valid_from", "valid_to", "current")
MODES = {
    "upsert": MergeRules(("id",), sequence="seq"),
    "scd2": MergeRules(("id",), sequence="seq", scd2=Scd2Columns(*HISTORY)),
}
KINDS: dict[str, Callable[[int], Any]] = {  # the values that keys are
    "bigint": int,
    "string": "${{{}}}".format,
    "decimal(20,9)": lambda key: Decimal(key).scaleb(-9),
    "date": lambda key: date(1, 1, 1) + timedelta(days=key),
    "timestamp": lambda key: datetime.max.replace(microsecond=key, tzinfo=UTC),
}


class World(DuckWorld):
    """A table in DuckDB and the plan that brings changes to it."""

    def __init__(self, mode: str, kind: str) -> None:
        key, self.kind = pa.field("id", parse_type(kind)), kind
        brought = pa.schema([key, *((name, pa.int64()) for name in NAMES), SOURCE])
        own = zip(HISTORY, (pa.int64(), pa.int64(), pa.bool_()), strict=True) if mode == "scd2" else ()
        table = pa.schema([*brought, *own])
        super().__init__(MODES[mode], table, brought)
        self.plan, self.columns, self.offset = _plan(mode, kind), table.names, 0

    def batch(self, brought: Sequence[Event]) -> None:
        """One batch of records, as they lie in the topic."""
        said = [event.debezium(lambda key: _spelled(KINDS[self.kind](key))) for event in brought]
        records = [envelope(self.offset + at, value) for at, value in enumerate(said)]
        self.offset += len(records)
        applied = self.plan.apply(pa.Table.from_pylist(records, RECORD_SCHEMA))
        assert not len(applied.dead_letters)
        self.stage(applied.tables[RouteId()], "_headrace.op = 'delete'")
        sql = Scd2Sql if self.merging.scd2 else MergeSql
        text = sql(self.merging, self.columns, DUCKDB).statement("t", "changes", "tombstones", NOW)
        self.duck.execute(text)

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """The rows, whose keys are numbers again."""
        keys = {KINDS[self.kind](key): key for key in (1, 2, 3)}
        found = self.duck.execute(f"SELECT {', '.join(('id', *names))} FROM t").fetchall()
        return sorted((keys[row[0]], *row[1:]) for row in found)


def _spelled(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, date):  # or a time
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def _plan(mode: str, kind: str) -> Plan:
    columns = [{"name": "id", "type": kind}, *({"name": name, "type": "bigint"} for name in NAMES)]
    table = {"mode": mode, "merge": {"keys": ["id"], "sequence_by": "seq"}, "columns": columns}
    return shaped(plan_of(table=table, decode={"json": {"envelope": "debezium"}}))


def merged(mode: str, kind: str, batches: Sequence[Sequence[Event]]) -> World:
    world = World(mode, kind)
    for batch in batches:
        world.batch(batch)
    return world


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(events())
def test_a_key_that_changes_takes_its_row_along_in_any_order(kind: str, given_: Any) -> None:
    log, batches = given_
    model = Model(MODES["upsert"]).take(change for event in log for change in event.changes())
    expected = sorted((key, *row) for key, row in model.table().items())
    assert merged("upsert", kind, batches).rows(*NAMES) == expected


@settings(max_examples=25, deadline=None)
@given(events())
def test_a_key_that_changes_ends_its_history_in_any_order(given_: Any) -> None:
    log, batches = given_
    expected = history(change for event in log for change in event.changes())
    found = merged("scd2", "bigint", batches).rows("valid_from", "valid_to", *NAMES)
    assert found == [(*row[:4], *row[4]) for row in expected]


A = Event(1, after=1, values=(1, None))
B = Event(2, before=1, after=2, values=(1, None))
C = Event(3, after=1, values=(3, None))


@pytest.mark.parametrize("order", ["BA", "ABA"])
def test_what_moved_away_does_not_come_back(order: str) -> None:
    assert merged("upsert", "bigint", [[globals()[name]] for name in order]).rows(*NAMES) == [(2, 2, 1, None)]


def test_what_came_after_the_move_stays() -> None:
    assert merged("upsert", "bigint", [[C], [A], [B]]).rows(*NAMES) == [(1, 3, 3, None), (2, 2, 1, None)]
