"""Where the hot store is in each Delta table, and rows that PostgreSQL refused: two tables next to the hot tables.

A position is written in the transaction of the rows before it, so a commit of a Delta table is in PostgreSQL as a
whole and once, whatever fails. The transaction locks the position, so a second process waits and then finds it moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from psycopg import sql

from headrace.errors import HotStoreTableInvalid
from headrace.hot_store.postgres import Connection, execute
from headrace.spec.hot_store import OWN_TABLES, PostgresSpec

_POSITIONS = """
    pipeline text NOT NULL,
    delta_table text NOT NULL,
    table_id text NOT NULL,
    version bigint NOT NULL,
    hot_table text NOT NULL UNIQUE,
    committed_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, delta_table)"""
_REJECTED = """
    pipeline text NOT NULL,
    delta_table text NOT NULL,
    version bigint NOT NULL,
    topic text,
    partition integer,
    "offset" bigint,
    reason text NOT NULL,
    rejected_at timestamptz NOT NULL DEFAULT now()"""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row of a Delta table that PostgreSQL cannot store."""

    version: int
    topic: str | None
    partition: int | None
    offset: int | None
    reason: str = field(kw_only=True)

    @property
    def record(self) -> str:
        """The record of the row, for messages."""
        return f"{self.topic}/{self.partition}, offset {self.offset}"


@dataclass(frozen=True, slots=True)
class TablePosition:
    """The last version of a Delta table that is in the hot table."""

    POSITIONS: ClassVar[str] = OWN_TABLES[0]
    REJECTED: ClassVar[str] = OWN_TABLES[1]

    table_id: str
    version: int

    @classmethod
    def prepare(cls, connection: Connection, spec: PostgresSpec) -> None:
        """Create the tables that do not exist; only the owner of the database can create the schema."""
        with connection.transaction():
            lock(connection)
            query = "SELECT FROM pg_namespace WHERE nspname = {schema}"
            if execute(connection, query, schema=spec.schema_name).fetchone() is None:
                execute(connection, "CREATE SCHEMA {schema}", schema=sql.Identifier(spec.schema_name))
            for name, columns in ((cls.POSITIONS, _POSITIONS), (cls.REJECTED, _REJECTED)):
                if not _exists(connection, spec, name):
                    columns_sql = sql.SQL(columns)
                    execute(
                        connection, "CREATE TABLE {table} ({columns})", table=_table(spec, name), columns=columns_sql
                    )
            execute(
                connection,
                'CREATE INDEX IF NOT EXISTS {index} ON {table} (delta_table, topic, partition, "offset")',
                index=sql.Identifier(f"{cls.REJECTED}_record"),
                table=_table(spec, cls.REJECTED),
            )

    @classmethod
    def locked(cls, connection: Connection, spec: PostgresSpec, pipeline: str, uri: str) -> TablePosition | None:
        """The position of a Delta table, locked until the transaction ends; None if there is none."""
        query = "SELECT table_id, version FROM {table} WHERE pipeline = {pipeline} AND delta_table = {uri} FOR UPDATE"
        table = _table(spec, cls.POSITIONS)
        row = execute(connection, query, table=table, pipeline=pipeline, uri=uri).fetchone()
        return None if row is None else cls(*row)

    def store(
        self, connection: Connection, spec: PostgresSpec, pipeline: str, uri: str, name: str, committed: datetime | None
    ) -> None:
        """Write the position; HotStoreTableInvalid if the hot table belongs to another Delta table."""
        parts = {"table": _table(spec, self.POSITIONS), "pipeline": pipeline, "uri": uri, "name": name}
        owner = """SELECT pipeline, delta_table FROM {table}
            WHERE hot_table = {name} AND (pipeline, delta_table) <> ({pipeline}, {uri})"""
        if other := execute(connection, owner, **parts).fetchone():
            raise HotStoreTableInvalid(
                f"{spec.address}: the table {spec.schema_name}.{name} has the rows of {other[1]} (pipeline "
                f"'{other[0]}'); {uri} needs another one.",
                hint="Set `table` or `schema` of hot_store.postgres. If that pipeline no longer writes the table, drop "
                f"it and delete its row in {self.POSITIONS}.",
                table=uri,
            )
        query = """
            INSERT INTO {table} (pipeline, delta_table, table_id, version, hot_table, committed_at)
            VALUES ({pipeline}, {uri}, {id}, {version}, {name}, {committed})
            ON CONFLICT (pipeline, delta_table) DO UPDATE SET table_id = excluded.table_id,
                version = excluded.version, hot_table = excluded.hot_table, committed_at = excluded.committed_at,
                updated_at = now()"""
        execute(connection, query, **parts, id=self.table_id, version=self.version, committed=committed)

    @classmethod
    def all(cls, connection: Connection, spec: PostgresSpec, pipeline: str) -> dict[str, tuple[TablePosition, str]]:
        """Positions and hot tables of a pipeline by Delta table; none if nothing was ever written."""
        if not _exists(connection, spec, cls.POSITIONS):
            return {}
        query = "SELECT delta_table, hot_table, table_id, version FROM {table} WHERE pipeline = {pipeline}"
        rows = execute(connection, query, table=_table(spec, cls.POSITIONS), pipeline=pipeline)
        return {uri: (cls(table_id, version), name) for uri, name, table_id, version in rows}

    @classmethod
    def count_rejected(cls, connection: Connection, spec: PostgresSpec, pipeline: str) -> dict[str, int]:
        """Rejected rows of a pipeline by Delta table."""
        if not _exists(connection, spec, cls.REJECTED):
            return {}
        query = "SELECT delta_table, count(*) FROM {table} WHERE pipeline = {pipeline} GROUP BY delta_table"
        return dict(execute(connection, query, table=_table(spec, cls.REJECTED), pipeline=pipeline).fetchall())

    @classmethod
    def record_rejected(
        cls, connection: Connection, spec: PostgresSpec, pipeline: str, uri: str, rejected: Sequence[Rejected]
    ) -> None:
        """Record rows that PostgreSQL cannot store; their values are in the Delta table."""
        if not rejected:
            return
        rows = [
            # A topic or a reason cannot contain U+0000 either.
            (pipeline, uri, row.version, row.topic, row.partition, row.offset, row.reason.replace("\0", ""))
            for row in rejected
        ]
        values = sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, row))) for row in rows)
        execute(
            connection,
            'INSERT INTO {table} (pipeline, delta_table, version, topic, partition, "offset", reason) VALUES {values}',
            table=_table(spec, cls.REJECTED),
            values=values,
        )


def _table(spec: PostgresSpec, name: str) -> sql.Identifier:
    return sql.Identifier(spec.schema_name, name)


def _exists(connection: Connection, spec: PostgresSpec, name: str) -> bool:
    query = "SELECT FROM pg_tables WHERE schemaname = {schema} AND tablename = {name}"
    return execute(connection, query, schema=spec.schema_name, name=name).fetchone() is not None


def lock(connection: Connection) -> None:
    """Let one process at a time create and alter tables, until the transaction ends."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('headrace hot store'))")
