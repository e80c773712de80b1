"""Embedded DuckDB: one connection per thread, limited memory, no access to files or the network."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

TooLarge = duckdb.OutOfMemoryException  # a query needs more memory than the limit

_local = threading.local()
_free: list[_Duck] = []  # connections of threads that have ended
_numbers = itertools.count()

_PLANS = 256  # prepared statements per connection

# `lock_configuration` comes last: after it, no expression can change a setting.
_SETTINGS = (
    "SET temp_directory = ''",
    "SET TimeZone = 'UTC'",
    "SET preserve_insertion_order = true",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)

# DuckDB casts a text with an exponent to a decimal incorrectly: '999.99e3' AS DECIMAL(6,1) has seven digits, and
# '20000.0e-2' AS DECIMAL(7,4) fails. It also casts a double incorrectly: 1e22 AS DECIMAL(38,10) has digits after the
# point. This macro writes a text, or the shortest text of a number, without its exponent: 999.99e3 becomes 0999990.0.
# The argument occurs once in each macro, so that nested calls do not multiply it. `abs` is never evaluated: it makes a
# value that is not a number an error when the expression is compiled, as the cast itself would.
PLAIN_DIGITS = "plain_digits"
_PARTS = r"'^\s*([+-]?)([0-9]*)\.?([0-9]*)[eE]([+-]?[0-9]{1,3})\s*$', ['sign', 'whole', 'fraction', 'exponent']"
_MACRO = f"""
CREATE MACRO {PLAIN_DIGITS}_of_text(x) AS list_transform([x], lambda v: CASE
    WHEN v IS NULL OR NOT (contains(v, 'e') OR contains(v, 'E')) OR NOT regexp_matches(v, '[0-9._][eE]') THEN v
    ELSE list_transform([regexp_extract(v, {_PARTS})], lambda p: CASE
        WHEN p.exponent = '' OR p.whole || p.fraction = '' THEN v || ' (exponent out of range)'
        ELSE list_transform(
            [{{'digits': p.whole || p.fraction, 'point': length(p.whole) + CAST(p.exponent AS INTEGER)}}],
            lambda n: p.sign || '0' || left(n.digits || repeat('0', n.point - length(n.digits)), greatest(n.point, 0))
                || '.' || repeat('0', -n.point) || substr(n.digits, greatest(n.point, 0) + 1) || '0'
        )[1] END)[1] END)[1];
CREATE MACRO {PLAIN_DIGITS}(x VARCHAR) AS {PLAIN_DIGITS}_of_text(x),
    (x BOOLEAN) AS x,
    (x) AS list_transform([x], lambda v: CASE WHEN false THEN CAST(abs(v) AS VARCHAR)
                                              ELSE {PLAIN_DIGITS}_of_text(CAST(v AS VARCHAR)) END)[1];
"""


_LIMITS = ("SET threads = 1", "SET memory_limit = '1GB'")  # other Spark tasks run in parallel


def locked_connection(*, limited: bool = True) -> Any:
    """A DuckDB connection that can read only registered tables; without `limited` it may use all cores."""
    connection = duckdb.connect(":memory:")
    connection.execute(_MACRO)
    for setting in (*(_LIMITS if limited else ()), *_SETTINGS):
        connection.execute(setting)
    return connection


class _Duck:
    """A connection and its prepared statements."""

    def __init__(self) -> None:
        self.connection = locked_connection()
        self.plans: OrderedDict[Any, _Plan] = OrderedDict()


class _Loan:
    """The connection of a thread; another thread reuses it when the thread ends.

    It is not closed there: closing a connection while the interpreter ends aborts the process.
    """

    def __init__(self, free: list[_Duck]) -> None:
        self._free = free
        try:
            self.duck = free.pop()
        except IndexError:
            self.duck = _Duck()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # in the main thread, the connection may be closed
            self._free.append(self.duck)


def _mine() -> _Duck:
    if not hasattr(_local, "loan"):
        _local.loan = _Loan(_free)
    duck: _Duck = _local.loan.duck
    return duck


def connection() -> Any:
    """The connection of this thread."""
    return _mine().connection


def query(sql: str, **tables: Any) -> Any:
    """Run a query over Arrow tables, by name; returns an Arrow table."""
    duck = connection()
    for name, table in tables.items():
        duck.register(name, table)
    try:
        with _named_errors():
            return duck.sql(sql).to_arrow_table()
    finally:
        for name in tables:
            duck.unregister(name)


@contextmanager
def _named_errors() -> Iterator[None]:
    """Raise a DuckDB error where its message cannot be decoded, because it cuts a quoted text within a character."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise duckdb.InvalidInputException("the message quotes a text that is cut within a character") from error


class _Source:
    """A table of a prepared statement: DuckDB reads its current content at each run."""

    def __init__(self, schema: pa.Schema) -> None:
        self.name = f"source_{next(_numbers)}"
        self.table = schema.empty_table()

    def __arrow_c_schema__(self) -> Any:
        return self.table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class _Plan:
    """A prepared statement, for tables of one schema each."""

    def __init__(self, sql: str, schemas: dict[str, pa.Schema]) -> None:
        duck = connection()
        self.name = f"plan_{next(_numbers)}"
        self.sources = {name: _Source(schema) for name, schema in schemas.items()}
        for source in self.sources.values():
            duck.register(source.name, source)
        tables = ", ".join(f"{quote(name)} AS (FROM {source.name})" for name, source in self.sources.items())
        duck.execute(f"PREPARE {self.name} AS WITH {tables} {sql}")

    def run(self, tables: dict[str, pa.Table]) -> Any:
        """Run the statement over these tables."""
        for name, table in tables.items():
            self.sources[name].table = table
        try:
            with _named_errors():
                return connection().sql(f"EXECUTE {self.name}").to_arrow_table()
        finally:
            for name, table in tables.items():
                self.sources[name].table = table.schema.empty_table()

    def close(self) -> None:
        """Deallocate the statement."""
        connection().execute(f"DEALLOCATE {self.name}")
        for source in self.sources.values():
            connection().unregister(source.name)


def plan_of_query(sql: str, **tables: pa.Table) -> Any:
    """As `query`, with a prepared statement: for a SELECT of every batch, planning takes longer than running."""
    plans = _mine().plans
    key = (sql, *((name, table.schema.to_string()) for name, table in tables.items()))
    if key not in plans:
        plans[key] = _Plan(sql, {name: table.schema for name, table in tables.items()})
        if len(plans) > _PLANS:
            plans.popitem(last=False)[1].close()
    plans.move_to_end(key)
    return plans[key].run(tables)


def quote(name: str) -> str:
    """Quote an identifier. Names enter SQL only through this function."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string literal. Texts enter SQL only through this function."""
    return "'" + text.replace("'", "''") + "'"
