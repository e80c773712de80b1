"""Query the rows of a table with DuckDB; rows are read when the result is fetched.

Expressions are those of a spec: they are parsed, checked against the allow-list and generated again, so they reach
nothing but the rows. DuckDB pushes filters down to the files, most of which are skipped by partition values and
statistics.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import duckdb
import pyarrow as pa

from headrace.delta.log import newest_version
from headrace.delta.rows import MISSING
from headrace.delta.scan import Relation, RowStream
from headrace.delta.snapshot import active_files
from headrace.engine import duck
from headrace.errors import HeadraceError, SetupError, TableDamaged, UsageError, VersionNotFound
from headrace.storage.store import Store
from headrace.table.versions import Moment, existing_partition, open_version, resolve_version, scan_version
from headrace.transform.sql.expression import ROW, bind_parameters, check_sql, columns_in
from headrace.transform.sql.parser import ExpressionNotAllowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETED = "_deleted"
EXPRESSIONS_HINT = "See docs/reference/expressions.md for the allowed syntax."
_ROWS, _NOW = "_rows_", "_now_"
_ORDER = re.compile(r"(.+?)(?:\s+(asc|desc))?", re.IGNORECASE | re.DOTALL)
_MISSING = re.compile(rf"no such file|not found|nosuchkey|{MISSING}", re.I)
_DAMAGE = re.compile(rf"{_MISSING.pattern}|magic bytes|parquet file size|deserialize|unexpected end", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery(ABC):
    """A query; immutable: every method that refines it returns a new one."""

    store: Store
    predicates: tuple[str, ...] = ()
    columns: tuple[tuple[str, str | None], ...] = ()  # name and expression; None: the column of this name
    order: tuple[str, ...] = ()
    row_limit: int | None = None
    watch: Callable[[str], AbstractContextManager[None]] = field(default=lambda _: nullcontext(), repr=False)

    def where(self, predicate: str) -> Self:
        """Keep rows that match an SQL condition; several conditions are combined with AND."""
        return replace(self, predicates=(*self.predicates, predicate))

    def select(self, *names: str, **expressions: str) -> Self:
        """Select columns, then named expressions; default: all columns."""
        return replace(self, columns=(*self.columns, *((name, None) for name in names), *expressions.items()))

    def order_by(self, *columns: str) -> Self:
        """Sort by columns; `name desc` sorts in descending order. NULL is last."""
        return replace(self, order=(*self.order, *columns))

    def limit(self, rows: int) -> Self:
        """Return at most this number of rows."""
        if rows < 0:
            raise UsageError(f"Invalid limit: {rows}.", hint="Specify a number of rows from 0.")
        return replace(self, row_limit=rows)

    def arrow(self) -> pa.Table:
        """Fetch all rows as an Arrow table."""
        with self.watch("query"), self._open() as relation:
            rows = duck.query(_sql(self, relation.schema), **{_ROWS: relation.rows})
            return rows.cast(_result_schema(self, relation.schema, rows.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Fetch rows as Arrow batches, with few in memory at once; a sorted result is in memory as a whole."""
        with self._open() as relation:
            cursor = duck.connection().cursor()  # its own, because other queries may run between two batches
            cursor.register(_ROWS, relation.rows)
            reader = cursor.sql(_sql(self, relation.schema)).to_arrow_reader()
            schema = _result_schema(self, relation.schema, reader.schema)
            for batch in reader:
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

    def records(self) -> list[dict[str, Any]]:
        """Fetch all rows as dictionaries."""
        return list(self.arrow().to_pylist(maps_as_pydicts="strict"))

    def pandas(self) -> Any:
        """Fetch all rows as a pandas DataFrame."""
        try:
            return self.arrow().to_pandas()
        except ModuleNotFoundError:
            raise SetupError("pandas is not installed.", hint="Install pandas, or use `arrow()`.") from None

    def spark(self, session: SparkSession) -> DataFrame:
        """Fetch all rows in this process and create a DataFrame of a Spark session from them."""
        return session.createDataFrame(self.arrow())

    def count(self) -> int:
        """Count the rows."""
        with self.watch("query"), self._open() as relation:
            sql = f"SELECT count(*) AS rows FROM ({_sql(self, relation.schema)})"  # noqa: S608 generated by _sql
            return int(duck.query(sql, **{_ROWS: relation.rows})["rows"][0].as_py())

    @contextmanager
    def _open(self) -> Iterator[Relation]:
        """Open the rows for one read; errors of DuckDB and of Arrow are raised as errors of Headrace."""
        relation = None
        try:
            relation = self.relation()
            yield relation
        except (duckdb.Error, OSError) as error:
            cause = next(iter(relation.errors), None) if isinstance(relation, RowStream) else None
            raise _headrace_error(self.store, error, cause) from error

    @abstractmethod
    def relation(self) -> Relation:
        """The rows to query."""

    def own_conditions(self, schema: pa.Schema) -> Iterable[str]:
        """Further conditions in SQL of DuckDB; none by default."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(RowQuery):
    """A query on one version of a table; without soft-deleted rows unless `with_deleted` is called."""

    version: int | None = None
    timestamp: Moment | None = None
    partition: str | None = None
    deleted: bool = False

    def at(self, version: int | None = None, timestamp: Moment | None = None) -> Self:
        """Query an older version: by number, or the newest one committed at or before a timestamp."""
        if version is not None and timestamp is not None:
            raise UsageError("A version and a timestamp are mutually exclusive.", hint="Specify one of them.")
        return replace(self, version=version, timestamp=timestamp)

    def within(self, partition: str | None) -> Self:
        """Query one partition, as `a=x/b=y`; None: all partitions."""
        return replace(self, partition=partition)

    def with_deleted(self) -> Self:
        """Include soft-deleted rows: their column `_deleted` is true."""
        return replace(self, deleted=True)

    def relation(self) -> Relation:
        """The rows of the version."""
        filtered = frozenset().union(*map(columns_in, self.predicates))
        return scan_version(self.store, resolve_version(self.store, self.version, self.timestamp), filtered)

    def own_conditions(self, schema: pa.Schema) -> Iterator[str]:
        """Exclude soft-deleted rows and other partitions."""
        if has_soft_deletes(schema) and not self.deleted:
            yield f"{ROW}.{duck.quote(DELETED)} IS NOT TRUE"
        if self.partition is not None:
            version = resolve_version(self.store, self.version, self.timestamp)
            by = tuple(open_version(self.store, version).metadata().partition_columns)
            for name, value in existing_partition(self.store, version, schema, by, self.partition):
                yield f"{ROW}.{duck.quote(name)} {'IS NULL' if value is None else f'= {duck.literal(value)}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsInMemory(RowQuery):
    """A query on rows in memory."""

    rows: Relation

    def relation(self) -> Relation:
        """The rows in memory."""
        return self.rows


def has_soft_deletes(schema: pa.Schema) -> bool:
    """Whether a table has a column for soft deletes."""
    return DELETED in schema.names and bool(pa.types.is_boolean(schema.field(DELETED).type))


def _sql(query: RowQuery, schema: pa.Schema) -> str:
    """Generate the SELECT. No text of the user is copied: every name and expression is generated again."""
    names = {name.lower(): name for name in schema.names}
    where = [f"({_bound(text, names)})" for text in query.predicates]
    where += query.own_conditions(schema)
    columns = ", ".join(
        f"{_column(name, names) if text is None else f'({_bound(text, names)})'} AS {duck.quote(name)}"
        for name, text in _columns(query, schema)
    )
    now = datetime.now(UTC).isoformat(sep=" ")
    clauses = [
        f"SELECT {columns} FROM (SELECT *, TIMESTAMPTZ '{now}' AS {_NOW} FROM {_ROWS}) AS {ROW}",  # noqa: S608
        f"WHERE {' AND '.join(where)}" if where else "",
        f"ORDER BY {', '.join(_ordering(text, names) for text in query.order)}" if query.order else "",
        f"LIMIT {query.row_limit}" if query.row_limit is not None else "",
    ]
    return " ".join(filter(None, clauses))


def _columns(query: RowQuery, schema: pa.Schema) -> tuple[tuple[str, str | None], ...]:
    columns = query.columns or tuple((name, None) for name in schema.names)
    names = [name.lower() for name, _ in columns]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"Duplicate column in select: '{duplicates[0]}'.", hint="Rename one of them.")
    return columns


def _column(name: str, names: dict[str, str]) -> str:
    if name.lower() not in names:
        raise ExpressionNotAllowed(*check_sql(duck.quote(name), names.values()) or [f"unknown column '{name}'"])
    return f"{ROW}.{duck.quote(names[name.lower()])}"


def _bound(text: str, names: dict[str, str]) -> str:
    """Generate an expression from its text, with names as columns of the rows."""
    if problems := check_sql(text, names.values()):
        raise ExpressionNotAllowed(f"{text}: {problems[0]}", hint=EXPRESSIONS_HINT)

    def bind(name: str) -> str:
        if name.lower() not in names:
            raise ExpressionNotAllowed(f"{text}: unknown column '{name}'")
        return names[name.lower()]

    return bind_parameters(text, bind, _NOW)


def _ordering(text: str, names: dict[str, str]) -> str:
    if text.lower() in names:  # first, because a column may be named "x desc"
        return f"{_column(text, names)} ASC NULLS LAST"
    match = _ORDER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"Invalid sort order: '{text}'.", hint="Specify a column, or `name desc`.")
    return f"{_column(match[1], names)} {(match[2] or 'asc').upper()} NULLS LAST"


def _result_schema(query: RowQuery, schema: pa.Schema, result: pa.Schema) -> pa.Schema:
    """Types of the table for its columns, types of DuckDB for expressions."""
    names = {name.lower(): name for name in schema.names}
    fields = []
    for position, (name, text) in enumerate(_columns(query, schema)):
        item = schema.field(names[name.lower()]) if text is None else result.field(position)
        fields.append(item.with_name(name))
    return pa.schema(fields)


def _headrace_error(store: Store, error: Exception, cause: HeadraceError | None) -> HeadraceError:
    """The error of Headrace for an error of DuckDB or Arrow; `cause` is the error of the stream that was read."""
    text = (str(error).splitlines() or [""])[0].split("Error: ", 1)[-1][:300]
    if _MISSING.search(str(error)) and not _names_active_file(store, str(error)):
        return VersionNotFound(
            f"{store.uri}: data files of this version are missing, most likely deleted by a vacuum: {text}",
            hint="Query a newer version.",
        )
    if cause is not None:
        return cause
    if isinstance(error, OSError) or is_damage(error):
        return TableDamaged(
            f"{store.uri}: a data file of the table cannot be read: {text}",
            hint="Run `headrace table repair PATH --dry-run` to list the damaged files.",
        )
    return UsageError(f"{store.uri}: query failed: {text}")


def is_damage(error: Exception) -> bool:
    """Whether an error of DuckDB or Arrow is about a missing or corrupt file."""
    return _DAMAGE.search(str(error)) is not None


def _names_active_file(store: Store, message: str) -> bool:
    """Whether a message names a file of the newest version, or there is no table."""
    last = newest_version(store)
    return last is None or any(file.path in message for file in active_files(store, last).values())
