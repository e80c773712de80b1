"""Merge, delete and update rows of tables that only Spark may write, with Delta Lake on Spark."""

# ruff: noqa: S608 - names are quoted, and conditions are checked against the allow-list
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.log import newest_version
from headrace.delta.snapshot import TableState
from headrace.engine import duck
from headrace.errors import CommitConflict, SchemaMismatch, TableError, TableFeature, UsageError
from headrace.spec.types import type_name
from headrace.storage.store import Store
from headrace.table.delete_update import Condition, check_values
from headrace.table.ownership import existing_table, retry_conflicts
from headrace.table.query import EXPRESSIONS_HINT, Query
from headrace.table.records import partition_of, scalars
from headrace.table.upsert import UpsertChanges, UpsertRequest
from headrace.transform.sql.expression import check_sql
from headrace.transform.sql.parser import ExpressionNotAllowed
from headrace.write.merge_sql import KeyBounds, MergeSql, quote_identifier
from headrace.write.row_edit import EditResult
from headrace.write.spark_append import ddl, spark_cause
from headrace.write.spark_merge import partition_literals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",  # quoted names as in expressions of a spec: "a name"
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",  # "${x}" in a value stays as it is
}
_VIOLATIONS = ("CONSTRAINT", "DELTA_NOT_NULL", "INVARIANT", "CAST_INVALID", "CAST_OVERFLOW", "INCOMPATIBLE_DATA")


class SparkRows:
    """Changes rows and columns of a table with Spark.

    `table_id` is the table that the operation is for; default: the table at the start of the operation.
    """

    def __init__(self, store: Store, session: SparkSession | None, table_id: str | None = None) -> None:
        self._store, self._given_session, self._table_id = store, session, table_id

    @property
    def _target(self) -> str:
        return f"delta.{quote_identifier(self._store.spark_uri)}"

    def upsert(self, request: UpsertRequest) -> EditResult:
        """Run one MERGE, the same as that of a pipeline."""

        def merge(spark: SparkSession, state: TableState) -> EditResult:
            changes = UpsertChanges.of(request, state)
            if not len(changes.rows):
                return EditResult(state.version)
            spark.createDataFrame(changes.with_positions()).createOrReplaceTempView("changes")
            placed = partition_literals(changes.rows.select([n for n in state.partition_by if n in request.key]))
            sql = MergeSql(request.rules, state.schema.names, deletes=False, partitions=placed)
            bounds = [*_key_bounds(changes.rows, request.key), *self._partition_bounds(changes.partition, state)]
            row = spark.sql(sql.statement(self._target, "changes", None, datetime.now(UTC), bounds)).collect()[0]
            return EditResult(newest_version(self._store) or 0, row["num_inserted_rows"], row["num_updated_rows"])

        return self._retry(merge)

    def change(self, condition: Condition) -> EditResult:
        """Run one DELETE or UPDATE."""

        def run(spark: SparkSession, state: TableState) -> EditResult:
            check_values(condition.values or {}, state.schema)
            where, expected = self._where(condition, state), self._count(condition)
            count = int(spark.sql(f"SELECT count(*) FROM {self._target} WHERE {where}").collect()[0][0])
            if expected not in (None, count):
                raise UsageError(
                    f"{self._store.uri}: the condition is ambiguous: Spark, which must change the table, finds {count} "
                    f"rows, and a query finds {expected}.",
                    hint="Use standard SQL: comparisons, and, or, not, in, between, is null.",
                )
            if not count:
                return EditResult(state.version)
            if condition.values is None:
                spark.sql(f"DELETE FROM {self._target} WHERE {where}").collect()
                return EditResult(newest_version(self._store) or 0, deleted=count)
            values = ", ".join(self._assignments(condition.values, state))
            spark.sql(f"UPDATE {self._target} SET {values} WHERE {where}").collect()
            return EditResult(newest_version(self._store) or 0, updated=count)

        return self._retry(run)

    def alter(self, *clauses: str) -> None:
        """Run ALTER TABLE with each of these clauses."""

        def run(spark: SparkSession, state: TableState) -> None:
            for clause in clauses:
                spark.sql(f"ALTER TABLE {self._target} {clause}")

        self._retry(run)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns at the end."""
        self.alter(f"ADD COLUMNS ({ddl(columns)})")

    # ---- SQL ----

    def _count(self, condition: Condition) -> int | None:
        """Count the matching rows without Spark; None if only Spark can read the table."""
        query = Query(store=self._store, predicates=condition.predicates)
        with suppress(TableFeature):
            return query.within(condition.partition).with_deleted().count()
        return None

    def _where(self, condition: Condition, state: TableState) -> str:
        for text in condition.predicates:
            _check_expression(text, state.schema)
        partition = partition_of(condition.partition, state.schema, state.partition_by)
        inside = [equals_condition(state.schema.field(name), value) for name, value in partition]
        # Spark parses `t WHERE (name)` as a table with the alias WHERE and one column; so `true` precedes the bracket.
        return " AND ".join(("true", *(f"({_escaped(text)})" for text in condition.predicates), *inside))

    def _partition_bounds(self, partition: Sequence[tuple[str, str | None]], state: TableState) -> KeyBounds:
        if unbound := [name for name, value in partition if value is None]:
            raise UsageError(
                f"{self._store.uri}: Spark, which must change the table, cannot merge into a partition of NULL "
                f"({unbound[0]}).",
                hint="Omit `partition`.",
            )
        values = [(name, spark_literal(value, state.schema.field(name))) for name, value in partition]
        return [(name, value, value) for name, value in values]

    def _assignments(self, values: Mapping[str, Any], state: TableState) -> Iterator[str]:
        literals = scalars({name: value for name, value in values.items() if not isinstance(value, str)}, state.schema)
        for name, value in values.items():
            if isinstance(value, str):
                _check_expression(value, state.schema)
                yield f"{quote_identifier(name)} = ({_escaped(value)})"
            else:
                yield f"{quote_identifier(name)} = {spark_literal(literals[name].as_py(), state.schema.field(name))}"

    # ---- Spark ----

    def _retry(self, work: Callable[[SparkSession, TableState], T]) -> T:
        """Run work in a session, and again after each conflict with another writer."""
        table_id = self._table_id or existing_table(self._store).table_id
        with self._session() as spark:
            return retry_conflicts(self._store, table_id, lambda state: self._attempt(lambda: work(spark, state)))

    def _attempt(self, work: Callable[[], T]) -> T:
        """Run work once; errors of Spark are raised as errors of Headrace."""
        try:
            return work()
        except Exception as error:
            condition = getattr(error, "getCondition", lambda: None)()
            if condition is None and not type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise
            raise _headrace_error(self._store, str(condition), str(error)) from error

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """A session of its own, in the JVM of the given session or in a new one."""
        from headrace.runtime import jars, session

        if self._given_session is not None:
            yield self._configured(self._given_session)
            return
        extra = [] if self._store.local else jars.ensure(self._store.access.jars)
        root = session.start("headrace table", extra_jars=extra)
        try:
            yield self._configured(root)
        finally:
            session.stop_session(root)

    def _configured(self, spark: SparkSession) -> SparkSession:
        self._store.configure_spark(spark)
        session = spark.newSession()
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        return session


def _check_expression(text: str, schema: pa.Schema) -> None:
    if problems := check_sql(text, schema.names):
        raise ExpressionNotAllowed(f"{text}: {problems[0]}", hint=EXPRESSIONS_HINT)


def spark_string(text: str) -> str:
    """A string literal of Spark's SQL."""
    return _escaped(duck.literal(text))


def _escaped(sql: str) -> str:
    """SQL of a spec as Spark's SQL: a backslash in a string is an escape only in Spark."""
    return sql.replace("\\", "\\\\")


def _key_bounds(rows: pa.Table, key: Sequence[str]) -> KeyBounds:
    """Smallest and largest value of each key column."""
    ranges = ((rows.schema.field(name), pc.min_max(rows[name]).as_py()) for name in key)
    return [(item.name, spark_literal(span["min"], item), spark_literal(span["max"], item)) for item, span in ranges]


def spark_literal(value: Any, item: pa.Field) -> str:
    """A literal of Spark's SQL in the type of a column."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if pa.types.is_nested(item.type):
        raise UsageError(
            f"Cannot pass a value for {item.name}, which is {type_name(item.type)}, to Spark.",
            hint="Use an SQL expression.",
        )
    return f"CAST({spark_string(str(value))} AS {type_name(item.type)})"


def equals_condition(item: pa.Field, value: Any) -> str:
    """A condition of Spark's SQL: the column has this value, or is NULL."""
    return f"{quote_identifier(item.name)} {'IS NULL' if value is None else f'= {spark_literal(value, item)}'}"


def _headrace_error(store: Store, condition: str, text: str) -> Exception:
    message = f"{store.uri}: {spark_cause(text)}"
    if "DELTA_CONCURRENT" in text or "Concurrent" in condition:
        return CommitConflict(message)
    if any(word in text for word in _VIOLATIONS):
        return SchemaMismatch(message, expected="rows that satisfy the constraints of the table", actual="other rows")
    if "PARSE" in condition or "UNRESOLVED" in condition or "DATATYPE" in condition:
        return UsageError(message)
    return TableError(message)
