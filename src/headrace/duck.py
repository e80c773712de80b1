"""DuckDB as the plan uses it: one thread, bounded memory, no way out of the process."""

from __future__ import annotations

import threading
from typing import Any

import duckdb

_local = threading.local()

# `lock_configuration` comes last: after it nothing in an expression can open a door again.
_SETTINGS = (
    "SET threads = 1",
    "SET memory_limit = '1GB'",
    "SET temp_directory = ''",
    "SET TimeZone = 'UTC'",
    "SET preserve_insertion_order = true",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def connection() -> Any:
    """This thread's own in-memory DuckDB; made once and kept."""
    if not hasattr(_local, "connection"):
        made = duckdb.connect(":memory:")
        for setting in _SETTINGS:
            made.execute(setting)
        _local.connection = made
    return _local.connection


def query(sql: str, **tables: Any) -> Any:
    """Run one statement over Arrow tables given by name; answers an Arrow table."""
    duck = connection()
    for name, table in tables.items():
        duck.register(name, table)
    try:
        return duck.sql(sql).to_arrow_table()
    finally:
        for name in tables:
            duck.unregister(name)


def quote(name: str) -> str:
    """An identifier, quoted; the only way a name enters SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal, quoted; the only way a text enters SQL."""
    return "'" + text.replace("'", "''") + "'"
