"""A table of the hot store: its columns, and rows that enter it through a staging table.

All statements of a step run in one transaction of the caller, which also moves the position (`positions.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.delta.schema import SOURCE
from headrace.errors import HotStoreTableInvalid, HotStoreValueRejected
from headrace.hot_store import analytics
from headrace.hot_store.columns import (
    HotColumn,
    data_fields,
    hot_column,
    hot_type,
    must_widen,
    unstorable_values,
)
from headrace.hot_store.copy_rows import HEADER, TRAILER, copy_parts
from headrace.hot_store.positions import Rejected, TablePosition, lock
from headrace.hot_store.postgres import Connection, composed, execute, is_row_error
from headrace.spec.hot_store import MAX_NAME, RESERVED_COLUMNS, SOURCE_COLUMNS, PostgresSpec
from headrace.spec.types import TIMESTAMP, type_name

_STAGED_COLUMNS = [
    HotColumn("n", pa.int64(), "bigint", "bigint"),  # number of the row in the transaction
    HotColumn("version", pa.int64(), "bigint", "bigint"),  # of the Delta table
    HotColumn("topic", pa.string(), "text", "text"),
    HotColumn("partition", pa.int32(), "integer", "integer"),
    HotColumn("offset", pa.int64(), "bigint", "bigint"),
    HotColumn("timestamp", TIMESTAMP, "timestamp with time zone", "timestamp with time zone"),
]
_SOURCE_TYPES = dict(
    zip(SOURCE_COLUMNS, ("text", "integer", "bigint", "integer", "timestamp with time zone"), strict=True)
)
_KEY = sql.SQL("(_source_topic, _source_partition, _source_offset, _source_row)")
_INSERT = """
    INSERT INTO {table} ({names}_source_topic, _source_partition, _source_offset, _source_timestamp, _source_row)
    SELECT {values}topic, partition, "offset", "timestamp", row
    FROM (SELECT s.*, {following}row_number() OVER (PARTITION BY version, topic, partition, "offset" ORDER BY n) - 1
                 AS row FROM {staged} s) numbered
    WHERE n >= {low} AND n < {high} ON CONFLICT {key} DO NOTHING"""
_AFTER_ROWS = """COALESCE((SELECT max(_source_row) + 1 FROM {table} t WHERE
    (t._source_topic, t._source_partition, t._source_offset) = (s.topic, s.partition, s."offset")), 0) + """
_REMOVED = _STAGED_COLUMNS[2:5]
_REMOVED_TABLE = sql.Identifier("pg_temp", "headrace_removed")


@dataclass(frozen=True, slots=True)
class InsertedRows:
    """Rows of a transaction."""

    rows: int
    rejected: int
    conflicts: int  # rows whose position the table had already


@dataclass(frozen=True, slots=True)
class _ActualColumn:
    name: str
    type: str
    required: bool  # NOT NULL without a default
    generated: bool


class HotTable:
    """A table, on one connection."""

    def __init__(self, connection: Connection, spec: PostgresSpec, name: str, pipeline: str, delta_table: str) -> None:
        self._connection, self._spec = connection, spec
        self.name, self._pipeline, self._delta_table = name, pipeline, delta_table
        self._table = sql.Identifier(spec.schema_name, name)
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        self._staging = f"headrace_staged_{digest}"
        self._staged = sql.Identifier("pg_temp", self._staging)
        self._index = f"headrace_key_{digest}"
        self._retention_index = f"headrace_retention_{digest}"
        self._schema: pa.Schema | None = None  # of the Delta table, for which the columns were prepared
        self._columns: list[HotColumn] = []
        self._next, self._staged_rows = 0, 0
        self._rejected: list[Rejected] = []

    # ---- columns ----

    def exists(self) -> bool:
        """Whether the table exists."""
        return bool(self._actual_columns())

    def is_empty(self) -> bool:
        """Whether the table has no rows."""
        row = self._execute("SELECT NOT EXISTS (SELECT FROM {table})").fetchone()
        return bool(row and row[0])

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns that it lacks; HotStoreTableInvalid if it cannot hold the rows."""
        if schema == self._schema:
            return
        lock(self._connection)
        self._check_names(schema)
        if not (actual := self._actual_columns()):
            self._create(schema)
            actual = self._actual_columns()
        self._add_columns(schema, actual)
        self._columns = self._matching_columns(schema, self._actual_columns())
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), _type(kind))
            for name, kind in [
                *((column.name, column.staged) for column in _STAGED_COLUMNS),
                *((f"c{at}", column.staged) for at, column in enumerate(self._columns)),
            ]
        )
        self._execute("DROP TABLE IF EXISTS {staged}", staged=self._staged)
        self._execute(
            "CREATE TEMPORARY TABLE {staging} ({columns}) ON COMMIT DELETE ROWS",
            staging=sql.Identifier(self._staging),
            columns=columns,
        )
        self._schema = schema

    def check(self, schema: pa.Schema) -> None:
        """HotStoreTableInvalid if the table exists and cannot hold the rows; changes nothing."""
        self._check_names(schema)
        if actual := self._actual_columns():
            self._matching_columns(schema, actual)

    def forget(self) -> None:
        """Prepare the columns again at the next step: a rollback has undone the preparation."""
        self._schema = None

    def _check_names(self, schema: pa.Schema) -> None:
        names = [item.name for item in data_fields(schema)]
        for name in names:
            if len(name.encode()) > MAX_NAME:
                raise self._invalid(f"the column name '{name}' is longer than {MAX_NAME} bytes")
            if name in RESERVED_COLUMNS or "\0" in name:
                raise self._invalid(f"PostgreSQL or Headrace reserves the column name '{name}'")
        if SOURCE.name not in schema.names:
            raise self._invalid(f"the Delta table has no column '{SOURCE.name}', which identifies its rows")

    def _invalid(self, reason: str) -> HotStoreTableInvalid:
        return HotStoreTableInvalid(
            f"{self._spec.address}, table {self._spec.schema_name}.{self.name}: {reason}.",
            hint="Change the table of the hot store, or rename the column in the Delta table; the next attempt "
            "continues at the same position.",
            table=self._delta_table,
        )

    def _actual_columns(self) -> list[_ActualColumn]:
        query = """
            SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '',
                   attgenerated <> '' OR attidentity = 'a'
            FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace s ON s.oid = relnamespace
            WHERE nspname = {schema} AND relname = {name} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
        rows = self._execute(query, schema=self._spec.schema_name, name=self.name)
        return [_ActualColumn(*row) for row in rows]

    def _create(self, schema: pa.Schema) -> None:
        if self._spec.preset == "analytics":
            analytics.create_table(self._connection, self._spec.schema_name, self.name)
            return
        columns = [(item.name, hot_type(item.type)) for item in data_fields(schema)]
        columns += _SOURCE_TYPES.items()
        definition = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), _type(kind)) for name, kind in columns
        )
        self._execute("CREATE TABLE {table} ({columns})", columns=definition)

    def _add_columns(self, schema: pa.Schema, actual: Sequence[_ActualColumn]) -> None:
        types = {column.name: column.type for column in actual}
        wanted = {item.name: hot_type(item.type) for item in data_fields(schema)} | _SOURCE_TYPES
        for name, kind in wanted.items():
            column = {"column": sql.Identifier(name), "kind": _type(kind)}
            if name not in types:
                self._execute("ALTER TABLE {table} ADD COLUMN {column} {kind}", **column)
            elif must_widen(types[name], kind):
                self._execute("ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind}", **column)
        index = sql.Identifier(self._index)
        self._execute("CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} {key}", index=index, key=_KEY)
        if self._spec.retention is not None:
            if (column_name := self._spec.retention_column) not in wanted | types:
                raise self._invalid(f"it has no column '{column_name}' (retention_column)")
            self._execute(
                "CREATE INDEX IF NOT EXISTS {index} ON {table} USING brin ({column})",
                index=sql.Identifier(self._retention_index),
                column=sql.Identifier(column_name),
            )

    def _matching_columns(self, schema: pa.Schema, actual: Sequence[_ActualColumn]) -> list[HotColumn]:
        """The columns as they are, or as `_add_columns` makes them."""
        by_name = {column.name: column for column in actual}
        columns = []
        for item in data_fields(schema):
            now, wanted = by_name.get(item.name), hot_type(item.type)
            kind = wanted if now is None or must_widen(now.type, wanted) else now.type
            column = hot_column(item, kind)
            if column is None or (now is not None and now.generated):
                raise self._invalid(
                    f"the column '{item.name}' of type {kind} cannot hold all values of {type_name(item.type)}; "
                    f"{wanted} can"
                )
            columns.append(column)
        filled = {*schema.names, *_SOURCE_TYPES}
        if missing := [column.name for column in actual if column.required and column.name not in filled]:
            raise self._invalid(f"the column '{missing[0]}' is NOT NULL, and the Delta table does not have it")
        return columns

    # ---- rows ----

    def stage(self, version: int, rows: pa.Table) -> None:
        """Copy rows of a version into the staging table, without those that PostgreSQL cannot store."""
        source = rows[SOURCE.name].combine_chunks()
        position = [pc.struct_field(source, name) for name in ("topic", "partition", "offset", "timestamp")]
        versions = pa.repeat(pa.scalar(version, pa.int64()), len(rows))
        numbers = pa.array(range(self._next, self._next + len(rows)), pa.int64())
        values = [rows[column.name] for column in self._columns]
        columns = [*_STAGED_COLUMNS, *self._columns]
        names = [str(at) for at in range(len(columns))]
        staged = self._without_unstorable(pa.table([numbers, versions, *position, *values], names), columns)
        self._next += len(rows)
        self._staged_rows += len(rows)
        self._copy(self._staged, columns, staged)

    def _copy(self, table: sql.Identifier, columns: Sequence[HotColumn], rows: pa.Table) -> None:
        query = composed("COPY {table} FROM STDIN (FORMAT binary)", table=table)
        with self._connection.cursor() as cursor, cursor.copy(query) as copy:
            copy.write(HEADER)
            for part in copy_parts(columns, rows):
                copy.write(memoryview(part))
            copy.write(TRAILER)

    def _without_unstorable(self, rows: pa.Table, columns: Sequence[HotColumn]) -> pa.Table:
        for at, column in enumerate(columns):
            for reason, mask in unstorable_values(column, rows[at]):
                if not pc.any(mask).as_py():
                    continue
                mask = pc.fill_null(mask, False)
                for row in rows.filter(mask).select(range(1, 5)).to_pylist():
                    self._reject(Rejected(*row.values(), reason=f"column {column.name}: {reason}"))
                rows = rows.filter(pc.invert(mask))
        return rows

    def _reject(self, rejected: Rejected) -> None:
        if self._spec.policy == "required":
            raise HotStoreValueRejected(
                f"{self._delta_table}, version {rejected.version}: PostgreSQL cannot store the row of "
                f"{rejected.record}: {rejected.reason}.",
                hint="Change the column of the hot table, or delete the row (`headrace table delete`), or set "
                "`policy: best_effort`, which records such rows in headrace_rejected.",
                table=self._delta_table,
            )
        self._rejected.append(rejected)

    def insert(self, *, load: bool = False) -> InsertedRows:
        """Insert the staged rows. `load`: into a table that had no rows of the records before the transaction."""
        rows = self._insert_range(self._insert_parts(load), 0, self._next)
        TablePosition.record_rejected(self._connection, self._spec, self._pipeline, self._delta_table, self._rejected)
        result = InsertedRows(rows, len(self._rejected), self._staged_rows - rows - len(self._rejected))
        self._staged_rows, self._rejected = 0, []
        return result

    def begin(self) -> None:
        """Begin a transaction: nothing is staged."""
        self._next, self._staged_rows, self._rejected = 0, 0, []

    def _insert_parts(self, load: bool) -> dict[str, sql.Composable]:
        """Rows of one record are numbered by their order in the version; while a table is loaded, in the table."""
        names = [sql.Identifier(column.name) for column in self._columns]
        values = [_assigned(column, sql.Identifier(f"c{at}")) for at, column in enumerate(self._columns)]
        parts = {"names": _listed(names), "values": _listed(values), "staged": self._staged, "key": _KEY}
        parts["following"] = sql.SQL(_AFTER_ROWS if load else "").format(table=self._table)
        return parts

    def _insert_range(self, parts: Mapping[str, sql.Composable], low: int, high: int) -> int:
        """Insert a range of staged rows; where PostgreSQL refuses a value, halves of it down to the single row."""
        try:
            with self._connection.transaction():
                return max(0, self._execute(_INSERT, **parts, low=low, high=high).rowcount)
        except psycopg.Error as error:
            if not is_row_error(error):
                raise
            reason = error.diag.message_primary or str(error)
        if high - low > 1:
            middle = (low + high) // 2
            return self._insert_range(parts, low, middle) + self._insert_range(parts, middle, high)
        record = 'SELECT version, topic, partition, "offset" FROM {staged} WHERE n = {low}'
        for row in self._execute(record, staged=self._staged, low=low):
            self._reject(Rejected(*row, reason=reason[:300]))
        return 0

    def clear_staged(self) -> None:
        """Empty the staging table within a transaction."""
        self._execute("TRUNCATE {staged}", staged=self._staged)

    def remove(self, chunks: Iterable[pa.Table]) -> int | None:
        """Delete the rows of records, given one position for each row that was removed from the Delta table.

        None if that is not exact: a row has no position, or a record has other rows that the Delta table still has.
        """
        self._execute("CREATE TEMPORARY TABLE headrace_removed (t text, p integer, o bigint) ON COMMIT DROP")
        for rows in chunks:
            source = rows[SOURCE.name].combine_chunks()
            positions = [pc.struct_field(source, name) for name in ("topic", "partition", "offset")]
            if any(values.null_count for values in positions):
                return None
            self._copy(_REMOVED_TABLE, _REMOVED, pa.table(positions, list("tpo")))
        self._execute("ANALYZE {removed}", removed=_REMOVED_TABLE)
        others = """
            SELECT FROM (SELECT t, p, o, count(*) AS rows FROM {removed} GROUP BY t, p, o) r WHERE r.rows <
              (SELECT count(*) FROM {table} WHERE {record}) + (SELECT count(*) FROM {rejected} WHERE {rejected_record})
            LIMIT 1"""
        parts = {
            "removed": _REMOVED_TABLE,
            "rejected": self._rejected_table,
            "record": sql.SQL("(_source_topic, _source_partition, _source_offset) = (r.t, r.p, r.o)"),
            "rejected_record": composed(
                'delta_table = {uri} AND (topic, partition, "offset") = (r.t, r.p, r.o)', uri=self._delta_table
            ),
        }
        if self._execute(others, **parts).fetchone() is not None:
            return None
        self._execute("DELETE FROM {rejected} USING {removed} r WHERE {rejected_record}", **parts)
        return self._execute("DELETE FROM {table} USING {removed} r WHERE {record}", **parts).rowcount

    def clear(self) -> int:
        """Delete all rows; readers see the old ones until the transaction ends."""
        parts = {"rejected": self._rejected_table, "uri": self._delta_table}
        self._execute("DELETE FROM {rejected} WHERE delta_table = {uri}", **parts)
        return self._execute("DELETE FROM {table}").rowcount

    def delete_before(self, cutoff: Any, limit: int) -> int:
        """Delete up to `limit` rows whose `retention_column` is before a time."""
        return self._execute(
            "DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE {column} < {cutoff} LIMIT {n}))",
            column=sql.Identifier(self._spec.retention_column),
            cutoff=cutoff,
            n=limit,
        ).rowcount

    @property
    def _rejected_table(self) -> sql.Identifier:
        return sql.Identifier(self._spec.schema_name, TablePosition.REJECTED)

    def _execute(self, text: str, **parts: object) -> psycopg.Cursor[tuple[Any, ...]]:
        return execute(self._connection, text, table=self._table, **parts)


def _assigned(column: HotColumn, value: sql.Identifier) -> sql.Composable:
    """A staged value for a column of another type. Text is assigned, as a cast to varchar(n) would cut it."""
    if column.staged == column.type or column.type.startswith(("text", "character varying")):
        return value
    return sql.SQL("CAST({} AS {})").format(value, _type(column.type))


def _type(name: str) -> sql.SQL:
    """A type: of `columns.py`, or of the catalog and found among those."""
    return sql.SQL(name)


def _listed(parts: Sequence[sql.Composable]) -> sql.Composable:
    """Parts with a comma after each."""
    return sql.SQL("").join([sql.SQL("{}, ").format(part) for part in parts])
