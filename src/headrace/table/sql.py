"""Run a SELECT over tables with DuckDB, which can read nothing but the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from headrace.delta.scan import Relation
from headrace.engine import duck
from headrace.errors import TableDamaged, TableNotFound, UsageError
from headrace.table.query import DELETED, has_soft_deletes, is_damage
from headrace.table.versions import scan_version

if TYPE_CHECKING:
    from headrace.table.table import Table

_MISTAKES = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.ConversionException)
_FUNCTIONS = frozenset({"unnest", "range", "generate_series"})  # table functions that read no files
_ONE_SELECT = "Write one SELECT statement, with quoted paths as tables: SELECT count(*) FROM 'lake/orders'."


@dataclass(frozen=True)
class SqlResult:
    """Result of a query; batches are read on demand."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def select_tables(query: str, table_at: Callable[[str], Table], names: Mapping[str, str] | None = None) -> SqlResult:
    """Run one SELECT statement. It names tables by quoted paths, or by the keys of `names`, which maps names to paths.

    Reads the newest version of each table, without soft-deleted rows. UsageError for other statements, and for
    functions that read anything but the tables.
    """
    paths = {name.lower(): path for name, path in (names or {}).items()}
    engine = duck.locked_connection(limited=False)
    for number, name in enumerate(_tables(query)):
        _define(engine, f"_table_{number}_", name, table_at(paths.get(name.lower(), name)), name.lower() in paths)
    with _named_errors():
        reader = engine.sql(query).to_arrow_reader()
        return SqlResult(_distinct(reader.schema), _batches(reader, engine))


def _batches(reader: pa.RecordBatchReader, engine: Any) -> Iterator[pa.RecordBatch]:
    schema = _distinct(reader.schema)
    with _named_errors():
        for batch in reader:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    engine.close()


def _distinct(schema: pa.Schema) -> pa.Schema:
    """Number columns of the same name: `SELECT a.id, b.id` returns id and id_1."""
    fields: list[pa.Field] = []
    for item in schema:
        name, number = item.name, 1
        while name in [other.name for other in fields]:
            name, number = f"{item.name}_{number}", number + 1
        fields.append(item.with_name(name))
    return pa.schema(fields)


class _Scan:
    """The rows of a version. Every read opens them again, because a query may name a table twice."""

    def __init__(self, table: Table, version: int) -> None:
        self._store, self._version = table._store, version
        self.relation = self._open()

    def _open(self) -> Relation:
        return scan_version(self._store, self._version)

    def __arrow_c_schema__(self) -> Any:
        schema: Any = self.relation.schema
        return schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        rows: Any = self._open().rows
        return rows.__arrow_c_stream__(requested_schema)


def _define(engine: Any, source: str, name: str, table: Table, has_path: bool) -> None:
    """Create a view with the name that the query uses for a table."""
    try:
        scan = _Scan(table, table.resolve())
    except TableNotFound as error:
        hint = "" if has_path or "/" in name else f" Or specify its path: --table {name}=PATH."
        raise TableNotFound(error.message, hint=f"{error.hint}{hint}") from None
    relation = scan.relation
    engine.register(source, scan if isinstance(relation.rows, pa.RecordBatchReader) else relation.rows)
    where = f"WHERE {duck.quote(DELETED)} IS NOT TRUE" if has_soft_deletes(relation.schema) else ""
    engine.execute(f"CREATE TEMP VIEW {duck.quote(name)} AS SELECT * FROM {source} {where}")  # noqa: S608 (quoted)


def _tables(query: str) -> list[str]:
    """The distinct table names in a query; UsageError unless it is one SELECT over tables only."""
    tree = json.loads(duck.query(f"SELECT json_serialize_sql({duck.literal(query)}) AS tree")["tree"][0].as_py())
    if tree["error"]:
        reason = str(tree["error_message"]).rstrip(".")
        reason = "only SELECT statements are allowed" if reason.startswith("Only SELECT") else reason
        raise UsageError(f"Invalid query: {reason}.", hint=_ONE_SELECT)
    if len(tree["statements"]) != 1:
        raise UsageError(f"The query has {len(tree['statements'])} statements.", hint=_ONE_SELECT)
    tables: dict[str, str] = {}
    with_queries: set[str] = set()  # names defined in WITH clauses
    for node in _nodes(tree["statements"][0]):
        if "cte_map" in node:
            with_queries |= {entry["key"].lower() for entry in node["cte_map"]["map"]}
        if node.get("type") == "BASE_TABLE":
            tables.setdefault(_name(node).lower(), _name(node))
        elif node.get("type") == "TABLE_FUNCTION":
            function = str(node["function"]["function_name"]).lower()
            if function not in _FUNCTIONS:
                raise UsageError(
                    f"The function {function}(…) is not allowed: a query reads tables only.",
                    hint=f"Write the path of a table in quotes. Allowed: {', '.join(sorted(_FUNCTIONS))}.",
                )
    return [name for folded, name in tables.items() if folded not in with_queries]


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(inner)


def _name(node: Mapping[str, Any]) -> str:
    if node["schema_name"] or node["catalog_name"]:
        parts = [node["catalog_name"], node["schema_name"], node["table_name"]]
        raise UsageError(
            f"Invalid table name: {'.'.join(filter(None, parts))}. Tables have no schema or catalog.",
            hint="Write the path of a table in quotes, or name it: --table orders=lake/orders.",
        )
    return str(node["table_name"])


@contextmanager
def _named_errors() -> Iterator[None]:
    """Raise errors of DuckDB and of files as errors of Headrace."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        text = str(error).split("Error: ", 1)[-1].strip()[:1000]
        if isinstance(error, duckdb.OutOfMemoryException):
            raise UsageError(f"Out of memory: {text}", hint="Select fewer rows or columns.") from error
        if isinstance(error, OSError) or (not isinstance(error, _MISTAKES) and is_damage(error)):
            raise TableDamaged(
                f"A data file of a table cannot be read: {text}",
                hint="Run `headrace table repair PATH --dry-run` to list the damaged files.",
            ) from error
        raise UsageError(f"Query failed: {text}") from error
