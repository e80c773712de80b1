"""Tables that merge in DuckDB: the text that Spark gets, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from headrace.spec.types import TIMESTAMP
from headrace.stage.change_schema import staged_schema
from headrace.write.intent import MergeRules
from headrace.write.merge_sql import UNTIL, MergeDialect
from model.merging import Change, columns_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DUCKDB = MergeDialect(lambda name: f'"{name}"', "arg_max_null", "arg_min_null", "TIMESTAMPTZ")


class DuckWorld:
    """A table `t`, its `tombstones`, and the `changes` of the batch at hand."""

    def __init__(self, merging: MergeRules, table: pa.Schema, brought: pa.Schema) -> None:
        self.merging, self.duck = merging, _duck()
        self._staged = staged_schema(brought, merging.keys)
        self._make("t", table)
        self._make("tombstones", self._staged.append(pa.field(UNTIL, TIMESTAMP)))

    def _make(self, name: str, schema: pa.Schema) -> None:
        self.duck.register("empty", schema.empty_table())
        self.duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM empty")

    def bring(self, changes: Sequence[Change], remembered: str) -> None:
        """The changes of a batch, some of which are remembered."""
        self.stage(pa.table(columns_of(changes), schema=self._staged), remembered)

    def stage(self, rows: pa.Table, remembered: str) -> None:
        """The same as files hold them; columns that no record brings are not there."""
        self.duck.register("changes", rows.select(self._staged.names))
        until = f"TIMESTAMPTZ '{(NOW + timedelta(days=7)).isoformat()}'"
        self.duck.execute(f"INSERT INTO tombstones SELECT *, {until} FROM changes WHERE {remembered}")

    def forget(self) -> None:
        """What was remembered counts no more."""
        self.duck.execute(f"UPDATE tombstones SET \"{UNTIL}\" = TIMESTAMPTZ '{NOW.isoformat()}'")


@cache
def _duck() -> Any:
    opened = duckdb.connect(":memory:")
    opened.execute("SET threads = 1; SET TimeZone = 'UTC'")
    return opened
