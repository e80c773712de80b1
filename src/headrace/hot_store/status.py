"""The hot store from outside of a run: positions and lag for `headrace status`, and the online check."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from psycopg import sql

from headrace.delta.log import newest_version, read_commit
from headrace.delta.snapshot import load_state
from headrace.errors import HeadraceError, PermissionDenied
from headrace.hot_store.hot_store import hot_table_name
from headrace.hot_store.hot_table import HotTable
from headrace.hot_store.positions import TablePosition
from headrace.hot_store.postgres import Connection, connect, execute, missing_privileges, named_errors
from headrace.spec import Spec
from headrace.spec.hot_store import PostgresSpec
from headrace.storage.store import Profile, Store


def hot_store_status(spec: Spec, tables: list[str]) -> dict[str, Any] | None:
    """Position and lag of each table; None if the pipeline has no hot store. Unknown values are None."""
    if spec.hot_store is None:
        return None
    postgres = spec.hot_store.postgres
    names = {uri: name for uri in tables if (name := hot_table_name(spec, uri)) is not None}
    try:
        with closing(connect(postgres, f"{spec.pipeline} status")) as connection, named_errors(postgres):
            positions = TablePosition.all(connection, postgres, spec.pipeline)
            rejected = TablePosition.count_rejected(connection, postgres, spec.pipeline)
    except HeadraceError as error:
        return {"address": postgres.address, "error": f"{error.name}: {error.message}", "tables": None}
    profile = Profile(**spec.storage_profile())
    return {
        "address": postgres.address,
        "error": None,
        "tables": [
            {
                "table": uri,
                "hot_table": f"{postgres.schema_name}.{name}",
                **_lag(Store(uri, profile), positions[uri][0].version if uri in positions else None),
                "rejected": rejected.get(uri, 0),
            }
            for uri, name in sorted(names.items())
        ],
    }


def _lag(store: Store, version: int | None) -> dict[str, Any]:
    """Commits that PostgreSQL does not have, and how long it waits for the first of them."""
    newest = newest_version(store)
    if version is None or newest is None:
        return {"version": version, "newest": newest, "lag_commits": None, "lag_seconds": None}
    seconds: float | None = 0.0
    if newest > version:
        commit = read_commit(store, version + 1)
        seconds = None if commit is None else round(max(0.0, time.time() - commit.timestamp / 1000), 1)
    return {"version": version, "newest": newest, "lag_commits": max(0, newest - version), "lag_seconds": seconds}


def check_online(spec: Spec, tables: list[str]) -> None:
    """Connect, and check privileges and existing hot tables; raises the error that a run would stop with."""
    if spec.hot_store is None:
        return
    postgres = spec.hot_store.postgres
    with closing(connect(postgres, f"{spec.pipeline} check")) as connection, named_errors(postgres):
        _check_privileges(connection, postgres)
        profile = Profile(**spec.storage_profile())
        for uri in tables:
            name, state = hot_table_name(spec, uri), load_state(Store(uri, profile))
            if name is not None and state is not None:
                HotTable(connection, postgres, name, spec.pipeline, uri).check(state.schema)


def _check_privileges(connection: Connection, spec: PostgresSpec) -> None:
    """PermissionDenied if the role may not create tables in the schema, or temporary tables."""
    query = """
        SELECT has_database_privilege(current_database(), 'TEMPORARY'),
            CASE WHEN to_regnamespace({quoted}) IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege({schema}, 'CREATE') AND has_schema_privilege({schema}, 'USAGE') END"""
    quoted = sql.Identifier(spec.schema_name).as_string()
    row = execute(connection, query, quoted=quoted, schema=spec.schema_name).fetchone()
    if row is None or not all(row):
        raise PermissionDenied(
            f"{spec.address}: the role {spec.user} may not create tables in the schema {spec.schema_name}, or no "
            "temporary tables.",
            hint=missing_privileges(spec),
        )
