"""SQL over tables: one SELECT of DuckDB's, with tables in place of files, and nothing else within reach."""

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
from headrace.table.query import DELETED, is_damage
from headrace.table.version_scan import rows_at

if TYPE_CHECKING:
    from headrace.table.table import Table

_MISTAKES = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.ConversionException)
_FUNCTIONS = frozenset({"unnest", "range", "generate_series"})  # that make rows, and read nothing
_ONE_SELECT = "Write one SELECT; paths of tables stand in quotes: SELECT count(*) FROM 'lake/orders'."


@dataclass(frozen=True)
class SqlResult:
    """The rows of a query, read while they are taken."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def select_tables(query: str, table_at: Callable[[str], Table], names: Mapping[str, str] | None = None) -> SqlResult:
    """The rows of one SELECT statement; it reads tables by their path in quotes, or by the `names` given to paths.

    A table is read as it is now, without rows that were softly deleted. UsageError for any other statement, and for
    functions that reach beyond the tables.
    """
    paths = {name.lower(): path for name, path in (names or {}).items()}
    engine = duck.locked_connection(bounded=False)
    for at, name in enumerate(_tables(query)):
        _define(engine, f"_table_{at}_", name, table_at(paths.get(name.lower(), name)), name.lower() in paths)
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
    """Columns of one name get a number, as `SELECT a.id, b.id` makes them."""
    fields: list[pa.Field] = []
    for item in schema:
        name, number = item.name, 1
        while name in [other.name for other in fields]:
            name, number = f"{item.name}_{number}", number + 1
        fields.append(item.with_name(name))
    return pa.schema(fields)


class _Scan:
    """The rows of a version, opened anew by everyone who reads them: a query may name a table twice."""

    def __init__(self, table: Table, version: int) -> None:
        self._store, self._version = table._store, version
        self.relation = self._open()

    def _open(self) -> Relation:
        return rows_at(self._store, self._version)

    def __arrow_c_schema__(self) -> Any:
        schema: Any = self.relation.schema
        return schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        rows: Any = self._open().rows
        return rows.__arrow_c_stream__(requested_schema)


def _define(engine: Any, own: str, name: str, table: Table, named: bool) -> None:
    """Let a name of the query be the rows of a table."""
    try:
        scan = _Scan(table, table.resolve())
    except TableNotFound as error:
        hint = "" if named or "/" in name else f" Or give its path: --table {name}=PATH."
        raise TableNotFound(error.message, hint=f"{error.hint}{hint}") from None
    relation = scan.relation
    engine.register(own, scan if isinstance(relation.rows, pa.RecordBatchReader) else relation.rows)
    soft = DELETED in relation.schema.names and pa.types.is_boolean(relation.schema.field(DELETED).type)
    kept = f"WHERE {duck.quote(DELETED)} IS NOT TRUE" if soft else ""
    engine.execute(f"CREATE TEMP VIEW {duck.quote(name)} AS SELECT * FROM {own} {kept}")  # noqa: S608 (both quoted)


def _tables(query: str) -> list[str]:
    """The tables that a query names, each once; UsageError where it is not one SELECT over tables alone."""
    tree = json.loads(duck.query(f"SELECT json_serialize_sql({duck.literal(query)}) AS tree")["tree"][0].as_py())
    if tree["error"]:
        said = str(tree["error_message"])
        said = "only SELECT statements run here" if said.startswith("Only SELECT") else said.rstrip(".")
        raise UsageError(f"The query is not one SELECT: {said}.", hint=_ONE_SELECT)
    if len(tree["statements"]) != 1:
        raise UsageError(f"The query has {len(tree['statements'])} statements.", hint=_ONE_SELECT)
    found: dict[str, str] = {}
    own: set[str] = set()
    for node in _nodes(tree["statements"][0]):
        if "cte_map" in node:
            own |= {entry["key"].lower() for entry in node["cte_map"]["map"]}
        if node.get("type") == "BASE_TABLE":
            found.setdefault(_name(node).lower(), _name(node))
        elif node.get("type") == "TABLE_FUNCTION" and (name := _function(node)) not in _FUNCTIONS:
            raise UsageError(
                f"The query calls {name}(…), which reads something else than tables.",
                hint=f"Tables are named by their path in quotes; {', '.join(sorted(_FUNCTIONS))} may be called.",
            )
    return [name for folded, name in found.items() if folded not in own]


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(inner)


def _name(node: Mapping[str, Any]) -> str:
    if node["schema_name"] or node["catalog_name"]:
        parts = [node["catalog_name"], node["schema_name"], node["table_name"]]
        raise UsageError(
            f"The query names {'.'.join(filter(None, parts))}, and tables are in no schema.",
            hint="Write a table's path in quotes, or give it a name: --table orders=lake/orders.",
        )
    return str(node["table_name"])


def _function(node: Mapping[str, Any]) -> str:
    return str(node["function"]["function_name"]).lower()


@contextmanager
def _named_errors() -> Iterator[None]:
    """Errors of DuckDB and of files under our names."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        said = str(error).split("Error: ", 1)[-1].strip()[:1000]
        if isinstance(error, duckdb.OutOfMemoryException):
            raise UsageError(f"The query needs more memory than there is: {said}", hint="Ask for less.") from error
        if isinstance(error, OSError) or (not isinstance(error, _MISTAKES) and is_damage(error)):
            raise TableDamaged(
                f"A file that a table's log names cannot be read: {said}",
                hint="`headrace table repair PATH --dry-run` tells which.",
            ) from error
        raise UsageError(f"The query failed: {said}") from error
