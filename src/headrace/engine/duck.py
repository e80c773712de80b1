"""DuckDB as the plan uses it: one thread, bounded memory, no way out of the process."""

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

TooLarge = duckdb.OutOfMemoryException  # for the memory that a thread's DuckDB may take

_local = threading.local()
_free: list[_Duck] = []  # of threads that have ended
_numbers = itertools.count()

_PLANS = 256  # statements a thread keeps planned

# `lock_configuration` comes last: after it nothing in an expression can open a door again.
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

# DuckDB reads a text with an exponent as a decimal wrongly: '999.99e3' AS DECIMAL(6,1) holds seven digits, and
# '20000.0e-2' AS DECIMAL(7,4) is refused. Without its exponent each is read right: 999.99e3 is written as 0999990.0.
# Values of other types pass as they are. The argument is named once, so that nested calls do not multiply it.
PLAIN_DIGITS = "plain_digits"
_PARTS = r"'^\s*([+-]?)([0-9]*)\.?([0-9]*)[eE]([+-]?[0-9]{1,3})\s*$', ['sign', 'whole', 'fraction', 'exponent']"
_MACRO = f"""
CREATE MACRO {PLAIN_DIGITS}(x VARCHAR) AS list_transform([x], lambda v: CASE
    WHEN v IS NULL OR NOT (contains(v, 'e') OR contains(v, 'E')) OR NOT regexp_matches(v, '[0-9._][eE]') THEN v
    ELSE list_transform([regexp_extract(v, {_PARTS})], lambda p: CASE
        WHEN p.exponent = '' OR p.whole || p.fraction = '' THEN v || ' (exponent out of range)'
        ELSE list_transform(
            [{{'digits': p.whole || p.fraction, 'point': length(p.whole) + CAST(p.exponent AS INTEGER)}}],
            lambda n: p.sign || '0' || left(n.digits || repeat('0', n.point - length(n.digits)), greatest(n.point, 0))
                || '.' || repeat('0', -n.point) || substr(n.digits, greatest(n.point, 0) + 1) || '0'
        )[1] END)[1] END)[1],
    (x) AS x
"""


_BOUNDS = ("SET threads = 1", "SET memory_limit = '1GB'")  # beside a Spark task, and others like it


def locked_connection(*, bounded: bool = True) -> Any:
    """A DuckDB that reaches nothing beyond what is registered with it; without `bounded` it may take all cores."""
    made = duckdb.connect(":memory:")
    made.execute(_MACRO)
    for setting in (*(_BOUNDS if bounded else ()), *_SETTINGS):
        made.execute(setting)
    return made


class _Duck:
    """An in-memory DuckDB and the statements it has planned."""

    def __init__(self) -> None:
        self.connection = locked_connection()
        self.plans: OrderedDict[Any, _Plan] = OrderedDict()


class _Loan:
    """A thread's DuckDB, handed on when the thread ends.

    Closed by a thread that ends while Python does, a connection aborts the process.
    """

    def __init__(self, free: list[_Duck]) -> None:
        self._free = free
        try:
            self.duck = free.pop()
        except IndexError:
            self.duck = _Duck()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the main thread's, which may close it
            self._free.append(self.duck)


def _mine() -> _Duck:
    if not hasattr(_local, "loan"):
        _local.loan = _Loan(_free)
    duck: _Duck = _local.loan.duck
    return duck


def connection() -> Any:
    """This thread's own DuckDB, nobody else's while the thread lives."""
    return _mine().connection


def query(sql: str, **tables: Any) -> Any:
    """Run one statement over Arrow tables given by name; answers an Arrow table."""
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
    """An error that quotes a text may cut it within a character, and then comes without its own class."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise duckdb.InvalidInputException("it quotes a text that is cut within a character") from error


class _Source:
    """A table whose content can change under a plan that reads it: DuckDB asks for it anew at each run."""

    def __init__(self, schema: pa.Schema) -> None:
        self.name = f"source_{next(_numbers)}"
        self.table = schema.empty_table()

    def __arrow_c_schema__(self) -> Any:
        return self.table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class _Plan:
    """A statement planned once, for tables of one schema each."""

    def __init__(self, sql: str, schemas: dict[str, pa.Schema]) -> None:
        duck = connection()
        self.name = f"plan_{next(_numbers)}"
        self.sources = {name: _Source(schema) for name, schema in schemas.items()}
        for source in self.sources.values():
            duck.register(source.name, source)
        given = ", ".join(f"{quote(name)} AS (FROM {source.name})" for name, source in self.sources.items())
        duck.execute(f"PREPARE {self.name} AS WITH {given} {sql}")

    def run(self, tables: dict[str, pa.Table]) -> Any:
        """The answer for these tables."""
        for name, table in tables.items():
            self.sources[name].table = table
        try:
            with _named_errors():
                return connection().sql(f"EXECUTE {self.name}").to_arrow_table()
        finally:
            for name, table in tables.items():
                self.sources[name].table = table.schema.empty_table()

    def forget(self) -> None:
        """Let DuckDB drop it."""
        connection().execute(f"DEALLOCATE {self.name}")
        for source in self.sources.values():
            connection().unregister(source.name)


def plan_of_query(sql: str, **tables: pa.Table) -> Any:
    """As `query`, for a SELECT that runs for every batch: planned at its first run only, which costs more than it."""
    plans = _mine().plans
    key = (sql, *((name, table.schema.to_string()) for name, table in tables.items()))
    if key not in plans:
        plans[key] = _Plan(sql, {name: table.schema for name, table in tables.items()})
        if len(plans) > _PLANS:
            plans.popitem(last=False)[1].forget()
    plans.move_to_end(key)
    return plans[key].run(tables)


def quote(name: str) -> str:
    """An identifier, quoted; the only way a name enters SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal, quoted; the only way a text enters SQL."""
    return "'" + text.replace("'", "''") + "'"
