"""Connections to PostgreSQL, and its errors as errors of Headrace."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    HeadraceError,
    HotStoreTableInvalid,
    HotStoreUnreachable,
    PermissionDenied,
    first_line,
)
from headrace.spec.hot_store import PostgresSpec

Connection = psycopg.Connection[tuple[Any, ...]]

_TIMEOUT = 10  # seconds; to connect, and to wait for an answer of the network
_LOCK_TIMEOUT = "20s"
_ROW_ERRORS = ("22", "23", "54")  # classes: data exception, integrity constraint violation, program limit exceeded
_RETRIED = ("08", "40", "53", "55", "57", "58", "XX")
_READ_ONLY = "25006"  # during a failover
_NOT_AUTHENTICATED = re.compile(
    r'authentication failed|no pg_hba\.conf entry|role ".*" does not exist|no password supplied'
)
_NOT_SERVED = re.compile(
    r"does not support SSL|certificate verify failed|server certificate|root certificate|SSL error: certificate"
    r'|database ".*" does not exist|could not translate host name|is not permitted to log in'
    r"|authentication method requirement"
)


def connect(spec: PostgresSpec, name: str) -> Connection:
    """Connect; `name` is shown in `pg_stat_activity`."""
    with named_errors(spec), tempfile.TemporaryDirectory(prefix="headrace-tls-") as folder:
        connection: Connection = psycopg.connect(
            host=spec.host,
            port=spec.port,
            dbname=spec.database,
            user=spec.user,
            # Without a value, libpq takes a password from PGPASSWORD or ~/.pgpass.
            password=spec.password.reveal() if spec.password else "",
            passfile=os.devnull,
            application_name=f"headrace {name}",
            connect_timeout=_TIMEOUT,
            keepalives_idle=_TIMEOUT,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=3000 * _TIMEOUT,
            gssencmode="disable",
            autocommit=True,
            prepare_threshold=None,  # statements prepared by name do not survive a connection pooler
            **_tls(spec, Path(folder)),
        )
    with named_errors(spec):
        # Names without a schema are those of PostgreSQL itself and of temporary tables, never a user's.
        settings = f"SET search_path = pg_catalog, pg_temp; SET TimeZone = 'UTC'; SET lock_timeout = '{_LOCK_TIMEOUT}'"
        connection.execute(f"{settings}; SET client_min_messages = error".encode())
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            connection.close()
            raise EndpointInvalid(
                f"{spec.address}: the database has the encoding {encoding}, which cannot store every text.",
                hint="Create the database with ENCODING 'UTF8'.",
            )
    return connection


def _tls(spec: PostgresSpec, folder: Path) -> dict[str, Any]:
    """Settings of libpq, which reads certificates from files while it connects, and never from the home directory."""
    files = {name: folder / name for name in ("ca", "certificate", "key")}
    own = {"sslcert": str(files["certificate"]), "sslkey": str(files["key"])}
    if spec.tls is None:
        return {"sslmode": "disable", "require_auth": "!password"}  # no password in plain text
    contents = {"ca": spec.tls.ca, "certificate": spec.tls.certificate}
    contents["key"] = spec.tls.key.reveal() if spec.tls.key else None
    for name, content in contents.items():
        if content is not None:
            files[name].touch(0o600)
            files[name].write_text(content)
    password = {"sslpassword": spec.tls.key_password.reveal()} if spec.tls.key_password else {}
    ca = "system" if spec.tls.ca is None else str(files["ca"])
    return {"sslmode": "verify-full", "sslrootcert": ca, **own, **password}


@contextmanager
def named_errors(spec: PostgresSpec) -> Iterator[None]:
    """Raise errors of psycopg as errors of Headrace."""
    try:
        yield
    except psycopg.Error as error:
        raise named_error(spec, error) from error


def is_row_error(error: psycopg.Error) -> bool:
    """Whether a value of a row is the cause."""
    return (error.sqlstate or "")[:2] in _ROW_ERRORS


def named_error(spec: PostgresSpec, error: psycopg.Error) -> HeadraceError:
    """An error of psycopg as an error of Headrace."""
    state, text = error.sqlstate or "", first_line(error)
    message = f"{spec.address}: {text}"
    if state.startswith("28") or (not state and _NOT_AUTHENTICATED.search(text)):
        return AuthenticationFailed(message, hint="Check `user` and `password` of hot_store.postgres, and pg_hba.conf.")
    if state == "3D000" or (not state and _NOT_SERVED.search(text)):
        return EndpointInvalid(message, hint="Check `host`, `database` and `tls` of hot_store.postgres.")
    if state == "42501":
        return PermissionDenied(message, hint=missing_privileges(spec))
    if not state or state.startswith(_RETRIED) or state == _READ_ONLY:
        return HotStoreUnreachable(message)
    return HotStoreTableInvalid(
        message, hint="Undo the change of the table, or drop it: Headrace creates it again and loads it from Delta."
    )


def missing_privileges(spec: PostgresSpec) -> str:
    """What a role needs, as statements for the owner of the database."""
    names = (sql.Identifier(name).as_string() for name in (spec.schema_name, spec.user, spec.database))
    schema, role, database = names
    return (
        f"As the owner of the database: CREATE SCHEMA {schema} AUTHORIZATION {role}; "
        f"GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {role};"
    )


def execute(connection: Connection, text: str, **parts: object) -> psycopg.Cursor[tuple[Any, ...]]:
    """Run a statement with quoted names (`sql.Identifier`), other parts of SQL, and values in the place of `{…}`.

    Values are literals, not parameters: with parameters, a `%` in a name would be taken for one.
    """
    return connection.execute(composed(text, **parts))


def composed(text: str, **parts: object) -> sql.Composed:
    """A statement as `execute` runs it."""
    composables = {
        name: part if isinstance(part, sql.Composable) else sql.Literal(part) for name, part in parts.items()
    }
    return sql.SQL(text).format(**composables)
