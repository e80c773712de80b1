"""Rows of a table: what is wanted is said step by step, and read when it is taken.

Expressions are those of a spec: parsed, held against the allow-list and written anew, so that they reach only the
rows. DuckDB hands what it can of them down to the files, most of which partition values and statistics then leave out.
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
from headrace.delta.scan import Relation
from headrace.delta.snapshot import active_files
from headrace.engine import duck
from headrace.errors import HeadraceError, SetupError, TableDamaged, UsageError, VersionNotFound
from headrace.storage.store import Store
from headrace.table.partition_name import inhabited
from headrace.table.version_scan import rows_at
from headrace.table.versions import Moment, open_version, resolve_version
from headrace.transform.sql.expression import ROW, bind_parameters, check_sql, columns_in
from headrace.transform.sql.parser import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETED = "_deleted"
_ROWS, _NOW = "_rows_", "_now_"
_ORDER = re.compile(r"(.+?)(?:\s+(asc|desc))?", re.IGNORECASE | re.DOTALL)
_GONE = re.compile(r"no such file|not found|nosuchkey|is gone: vacuumed", re.I)
_DAMAGE = re.compile(rf"{_GONE.pattern}|magic bytes|parquet file size|deserialize|unexpected end", re.I)


@dataclass(frozen=True, slots=True)
class RowStream(Relation):
    """Rows that Python produces while DuckDB reads them.

    DuckDB reports an exception of the producer as the text of an error of its own, so the exception is stored here.
    """

    errors: list[HeadraceError] = field(default_factory=list)

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> RowStream:
        """A stream of these batches, which are produced on demand."""
        errors: list[HeadraceError] = []

        def produce() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except HeadraceError as error:
                errors.append(error)
                raise

        return cls(schema, pa.RecordBatchReader.from_batches(schema, produce()), errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery(ABC):
    """A question about rows of a table; every step answers a new one and changes nothing."""

    store: Store
    predicates: tuple[str, ...] = ()
    columns: tuple[tuple[str, str | None], ...] = ()  # (name, its expression; None: the column itself)
    order: tuple[str, ...] = ()
    most: int | None = None
    watch: Callable[[str], AbstractContextManager[None]] = field(default=lambda _: nullcontext(), repr=False)

    def where(self, predicate: str) -> Self:
        """Only rows for which this SQL expression is true; several must all be."""
        return replace(self, predicates=(*self.predicates, predicate))

    def select(self, *names: str, **expressions: str) -> Self:
        """Only these columns, in this order, then named expressions; without it all columns."""
        return replace(self, columns=(*self.columns, *((name, None) for name in names), *expressions.items()))

    def order_by(self, *columns: str) -> Self:
        """In the order of these columns; `name desc` for the largest first. NULL comes last."""
        return replace(self, order=(*self.order, *columns))

    def limit(self, rows: int) -> Self:
        """At most so many rows."""
        if rows < 0:
            raise UsageError(f"A limit of {rows} rows cannot be.")
        return replace(self, most=rows)

    def arrow(self) -> pa.Table:
        """All rows as one Arrow table."""
        with self.watch("query"), self._open() as relation:
            rows = duck.query(_sql(self, relation.schema), **{_ROWS: relation.rows})
            return rows.cast(_schema(self, relation.schema, rows.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows as Arrow batches, few in memory at once; what is sorted is held as a whole."""
        with self._open() as relation:
            cursor = duck.connection().cursor()  # of its own: other questions may be asked between two batches
            cursor.register(_ROWS, relation.rows)
            reader = cursor.sql(_sql(self, relation.schema)).to_arrow_reader()
            schema = _schema(self, relation.schema, reader.schema)
            for batch in reader:
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

    def records(self) -> list[dict[str, Any]]:
        """All rows as dictionaries."""
        return list(self.arrow().to_pylist(maps_as_pydicts="strict"))

    def pandas(self) -> Any:
        """All rows as a pandas DataFrame."""
        try:
            return self.arrow().to_pandas()
        except ModuleNotFoundError:
            raise SetupError("pandas is not installed.", hint="Install it, or take the rows as Arrow.") from None

    def spark(self, session: SparkSession) -> DataFrame:
        """All rows as a DataFrame of a Spark session; they are read here and handed to it."""
        return session.createDataFrame(self.arrow())

    def count(self) -> int:
        """How many rows there are."""
        with self.watch("query"), self._open() as relation:
            sql = f"SELECT count(*) AS rows FROM ({_sql(self, relation.schema)})"  # noqa: S608 written anew below
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
            raise _named(self.store, error, cause) from error

    @abstractmethod
    def relation(self) -> Relation:
        """The rows to query."""

    def own(self, schema: pa.Schema) -> Iterable[str]:
        """Our own conditions on the rows, as SQL; none by default."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(RowQuery):
    """Rows of one version of a table; those that were softly deleted are left out."""

    version: int | None = None
    timestamp: Moment | None = None
    partition: str | None = None
    deleted: bool = False

    def at(self, version: int | None = None, timestamp: Moment | None = None) -> Self:
        """The rows of an older version: by its number, or the newest one committed by a moment."""
        if version is not None and timestamp is not None:
            raise UsageError("A version and a timestamp are both given.", hint="Give one of them.")
        return replace(self, version=version, timestamp=timestamp)

    def within(self, partition: str | None) -> Self:
        """Only rows of a partition, written as `a=x/b=y`; of all without one."""
        return replace(self, partition=partition)

    def with_deleted(self) -> Self:
        """Also rows that were softly deleted: their column `_deleted` is true."""
        return replace(self, deleted=True)

    def relation(self) -> Relation:
        """The rows of the version that is meant."""
        asked = frozenset().union(*map(columns_in, self.predicates))
        return rows_at(self.store, resolve_version(self.store, self.version, self.timestamp), asked)

    def own(self, schema: pa.Schema) -> Iterator[str]:
        """Softly deleted rows are left out, unless they are asked for, and so are other partitions."""
        if DELETED in schema.names and pa.types.is_boolean(schema.field(DELETED).type) and not self.deleted:
            yield f"{ROW}.{duck.quote(DELETED)} IS NOT TRUE"
        if self.partition is not None:
            version = resolve_version(self.store, self.version, self.timestamp)
            by = tuple(open_version(self.store, version).metadata().partition_columns)
            for name, value in inhabited(self.store, version, schema, by, self.partition):
                yield f"{ROW}.{duck.quote(name)} {'IS NULL' if value is None else f'= {duck.literal(value)}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsInMemory(RowQuery):
    """Rows that are at hand already."""

    given: Relation

    def relation(self) -> Relation:
        """Just those."""
        return self.given


def _sql(rows: RowQuery, schema: pa.Schema) -> str:
    """The whole question, with every name and expression written anew."""
    names = {name.lower(): name for name in schema.names}
    where = [f"({_bound(text, names)})" for text in rows.predicates]
    where += rows.own(schema)
    chosen = ", ".join(
        f"{_expression(name, text, names)} AS {duck.quote(name)}" for name, text in _columns(rows, schema)
    )
    now = datetime.now(UTC).isoformat(sep=" ")
    clauses = [
        f"SELECT {chosen} FROM (SELECT *, TIMESTAMPTZ '{now}' AS {_NOW} FROM {_ROWS}) AS {ROW}",  # noqa: S608
        f"WHERE {' AND '.join(where)}" if where else "",
        f"ORDER BY {', '.join(_ordered(each, names) for each in rows.order)}" if rows.order else "",
        f"LIMIT {rows.most}" if rows.most is not None else "",
    ]
    return " ".join(filter(None, clauses))


def _columns(rows: RowQuery, schema: pa.Schema) -> tuple[tuple[str, str | None], ...]:
    chosen = rows.columns or tuple((name, None) for name in schema.names)
    names = [name.lower() for name, _ in chosen]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"The column '{twice[0]}' is selected twice.", hint="Give one of them another name.")
    return chosen


def _expression(name: str, text: str | None, names: dict[str, str]) -> str:
    return _column(name, names) if text is None else f"({_bound(text, names)})"


def _column(name: str, names: dict[str, str]) -> str:
    if name.lower() not in names:
        raise Refused(*check_sql(duck.quote(name), names.values()) or [f"there is no column '{name}'"])
    return f"{ROW}.{duck.quote(names[name.lower()])}"


def _bound(text: str, names: dict[str, str]) -> str:
    if found := check_sql(text, names.values()):
        raise Refused(f"{text}: {found[0]}", hint="See docs/reference/expressions.md for the allowed syntax.")

    def bind(name: str) -> str:
        if name.lower() not in names:
            raise Refused(f"{text}: there is no column '{name}'")
        return names[name.lower()]

    return bind_parameters(text, bind, _NOW)


def _ordered(text: str, names: dict[str, str]) -> str:
    if text.lower() in names:  # a column may be called "x desc"
        return f"{_column(text, names)} ASC NULLS LAST"
    found = _ORDER.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"'{text}' is no order.", hint="Give a column, or `name desc`.")
    return f"{_column(found[1], names)} {(found[2] or 'asc').upper()} NULLS LAST"


def _schema(rows: RowQuery, schema: pa.Schema, made: pa.Schema) -> pa.Schema:
    """The table's own types for its columns, DuckDB's for expressions."""
    names = {name.lower(): name for name in schema.names}
    fields = []
    for at, (name, text) in enumerate(_columns(rows, schema)):
        own = schema.field(names[name.lower()]) if text is None else made.field(at)
        fields.append(own.with_name(name))
    return pa.schema(fields)


def _named(store: Store, error: Exception, cause: HeadraceError | None) -> HeadraceError:
    """The error of Headrace for an error of DuckDB or Arrow; `cause` is the error of the stream that was read."""
    text = (str(error).splitlines() or [""])[0].split("Error: ", 1)[-1][:300]
    if _GONE.search(str(error)) and _superseded(store, str(error)):
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
    """Whether an engine's error is about a file that is missing or broken."""
    return _DAMAGE.search(str(error)) is not None


def _superseded(store: Store, said: str) -> bool:
    """Whether a failure is about a file that the newest version does not need."""
    last = newest_version(store)
    return last is not None and not any(file.path in said for file in active_files(store, last).values())
