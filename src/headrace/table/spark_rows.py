"""What only Spark may do to a table: its rows merged, deleted and updated by Spark's own Delta."""

# ruff: noqa: S608 - names are quoted, and conditions are held against the allow-list before
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
from headrace.errors import Conflict, SchemaMismatch, TableError, TableFeature, UsageError
from headrace.spec.types import type_name
from headrace.storage.store import Store
from headrace.table.delete_update import Condition, check_values
from headrace.table.ownership import amid_others, existing_table
from headrace.table.query import Query
from headrace.table.records import partition_of, scalars
from headrace.table.upsert import UpsertChanges, UpsertRequest
from headrace.transform.sql.expression import check_sql
from headrace.transform.sql.parser import Refused
from headrace.write.key_bounds import partition_literals
from headrace.write.merge_sql import Bounds, MergeSql
from headrace.write.row_edit import EditResult
from headrace.write.spark_append import ddl, gist, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

# Names are spelled as in our own expressions: "a name".
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",  # "${x}" in a value is just that
}
_REFUSALS = ("CONSTRAINT", "DELTA_NOT_NULL", "INVARIANT", "CAST_INVALID", "CAST_OVERFLOW", "INCOMPATIBLE_DATA")


class SparkRows:
    """The rows of a table that Spark writes."""

    def __init__(self, store: Store, given: SparkSession | None) -> None:
        self._store, self._given = store, given

    @property
    def _target(self) -> str:
        return f"delta.{quote_identifier(self._store.spark_uri)}"

    def upsert(self, wanted: UpsertRequest) -> EditResult:
        """One MERGE, the same as a pipeline's."""

        def merge(spark: SparkSession) -> EditResult:
            state = existing_table(self._store)
            changes = UpsertChanges.of(wanted, state)
            if not len(changes.rows):
                return EditResult(state.version)
            spark.createDataFrame(changes.with_notes()).createOrReplaceTempView("changes")
            placed = partition_literals(changes.rows.select([n for n in state.partition_by if n in wanted.key]))
            sql = MergeSql(wanted.merging, state.schema.names, deletes=False, placed=placed)
            bounds = [*_bounds(changes.rows, wanted.key), *self._within(changes.partition, state)]
            row = spark.sql(sql.statement(self._target, "changes", None, datetime.now(UTC), bounds)).collect()[0]
            return EditResult(newest_version(self._store) or 0, row["num_inserted_rows"], row["num_updated_rows"])

        return self._do(merge)

    def change(self, wanted: Condition) -> EditResult:
        """One DELETE or UPDATE."""

        def run(spark: SparkSession) -> EditResult:
            state = existing_table(self._store)
            check_values(wanted.values or {}, state.schema)
            where, meant = self._where(wanted, state), self._meant(wanted)
            seen = int(spark.sql(f"SELECT count(*) FROM {self._target} WHERE {where}").collect()[0][0])
            if meant not in (None, seen):
                raise UsageError(
                    f"{self._store.uri}: Spark, which must change the table, finds {seen} rows by this condition, "
                    f"and a query finds {meant}: it does not mean the same to both.",
                    hint="Write it in plain SQL: comparisons, and, or, not, in, between, is null.",
                )
            if not seen:
                return EditResult(state.version)
            if wanted.values is None:
                spark.sql(f"DELETE FROM {self._target} WHERE {where}").collect()
                return EditResult(newest_version(self._store) or 0, deleted=seen)
            values = ", ".join(self._assigned(wanted.values, state))
            spark.sql(f"UPDATE {self._target} SET {values} WHERE {where}").collect()
            return EditResult(newest_version(self._store) or 0, updated=seen)

        return self._do(run)

    def alter(self, *changes: str) -> None:
        """ALTER TABLE, one change after the other."""

        def run(spark: SparkSession) -> None:
            for change in changes:
                spark.sql(f"ALTER TABLE {self._target} {change}")

        self._do(run)

    def add_columns(self, columns: pa.Schema) -> None:
        """New columns, at the end."""
        self.alter(f"ADD COLUMNS ({ddl(columns)})")

    # ---- how Spark is told ----

    def _meant(self, wanted: Condition) -> int | None:
        """How many rows our own reading of the table finds; None where only Spark can read it."""
        asked = Query(store=self._store, predicates=wanted.predicates).within(wanted.partition).with_deleted()
        with suppress(TableFeature):
            return asked.count()
        return None

    def _where(self, wanted: Condition, state: TableState) -> str:
        for text in wanted.predicates:
            if problems := check_sql(text, state.schema.names):
                raise Refused(
                    f"{text}: {problems[0]}", hint="See docs/reference/expressions.md for the allowed syntax."
                )
        partition = partition_of(wanted.partition, state.schema, state.partition_by)
        inside = [is_equal(state.schema.field(name), value) for name, value in partition]
        # Spark takes `t WHERE (name)` for a table with the alias WHERE and one column; so no bracket comes first.
        return " AND ".join(("true", *(f"({_escaped(text)})" for text in wanted.predicates), *inside))

    def _within(self, partition: Sequence[tuple[str, str | None]], state: TableState) -> Bounds:
        """A partition as bounds that are equal."""
        if unbound := [name for name, value in partition if value is None]:
            raise UsageError(
                f"{self._store.uri}: Spark, which alone writes it, merges into no partition of NULL ({unbound[0]}).",
                hint="Leave `partition` out.",
            )
        spelled = [(name, spark_literal(value, state.schema.field(name))) for name, value in partition]
        return [(name, value, value) for name, value in spelled]

    def _assigned(self, values: Mapping[str, Any], state: TableState) -> Iterator[str]:
        given = scalars({name: value for name, value in values.items() if not isinstance(value, str)}, state.schema)
        for name, value in values.items():
            if isinstance(value, str):
                if problems := check_sql(value, state.schema.names):
                    raise Refused(f"{value}: {problems[0]}")
                yield f"{quote_identifier(name)} = ({_escaped(value)})"
            else:
                yield f"{quote_identifier(name)} = {spark_literal(given[name].as_py(), state.schema.field(name))}"

    # ---- Spark ----

    def _do(self, work: Callable[[SparkSession], T]) -> T:
        """Work in a session, done again each time that others came first."""
        with self._session() as spark:
            return amid_others(self._store, lambda: self._attempt(work, spark))

    def _once(self, work: Callable[[SparkSession], T]) -> T:
        """Work in a session; Conflict where others came first."""
        with self._session() as spark:
            return self._attempt(work, spark)

    def _attempt(self, work: Callable[[SparkSession], T], spark: SparkSession) -> T:
        with _errors(self._store):
            return work(spark)

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """A session of our own, in the JVM that there is, or in one for this."""
        from headrace.runtime import jars, session

        if self._given is not None:
            yield self._of(self._given)
            return
        conf = {} if self._store.local else self._store.profile.hadoop_conf()
        opened = session.start("headrace table", extra_jars=[] if self._store.local else jars.ensure("s3"), conf=conf)
        try:
            yield self._of(opened)
        finally:
            session.stop_session(opened)

    def _of(self, spark: SparkSession) -> SparkSession:
        own = spark.newSession()
        conf = {} if self._store.local else self._store.profile.hadoop_conf()
        for name, value in {**_SETTINGS, **conf}.items():
            own.conf.set(name.removeprefix("spark.hadoop."), value)
        return own


def spark_sql_of(text: str) -> str:
    """A text as Spark's SQL."""
    return _escaped(duck.literal(text))


def _escaped(sql: str) -> str:
    """What we and DuckDB write, for Spark: a backslash in a text is just that."""
    return sql.replace("\\", "\\\\")


def _bounds(rows: pa.Table, key: Sequence[str]) -> Bounds:
    """Between which keys the records are."""
    hulls = ((rows.schema.field(name), pc.min_max(rows[name]).as_py()) for name in key)
    return [(item.name, spark_literal(hull["min"], item), spark_literal(hull["max"], item)) for item, hull in hulls]


def spark_literal(value: Any, item: pa.Field) -> str:
    """A value as Spark's SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if pa.types.is_nested(item.type):
        raise UsageError(f"{item.name} is {type_name(item.type)}: give it as an expression.")
    return f"CAST({spark_sql_of(str(value))} AS {type_name(item.type)})"


def is_equal(item: pa.Field, value: Any) -> str:
    """A condition of Spark's SQL: a column has this value, or none."""
    return f"{quote_identifier(item.name)} {'IS NULL' if value is None else f'= {spark_literal(value, item)}'}"


@contextmanager
def _errors(store: Store) -> Iterator[None]:
    """Spark's failures under our names."""
    try:
        yield
    except Exception as error:
        condition = getattr(error, "getCondition", lambda: None)()
        if condition is None and not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise _named_error(store, str(condition), str(error)) from error


def _named_error(store: Store, condition: str, text: str) -> Exception:
    said = f"{store.uri}: {gist(text)}"
    if "DELTA_CONCURRENT" in text or "Concurrent" in condition:
        return Conflict(said)
    if any(word in text for word in _REFUSALS):
        return SchemaMismatch(said, expected="rows that the table allows", actual="others")
    if "PARSE" in condition or "UNRESOLVED" in condition or "DATATYPE" in condition:
        return UsageError(said)
    return TableError(said)
