"""Hot store: a database to which the rows of the Delta tables are also written."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from headrace.spec.base import Shorthand, SpecModel
from headrace.spec.secrets import Secret
from headrace.spec.security import TlsSpec
from headrace.spec.units import Duration, Flag, Integer
from headrace.spec.uris import is_loopback

MAX_NAME = 63  # bytes of an identifier in PostgreSQL, which cuts longer ones
OWN_TABLES = ("headrace_positions", "headrace_rejected")
SOURCE_COLUMNS = ("_source_topic", "_source_partition", "_source_offset", "_source_row", "_source_timestamp")
RESERVED_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid", *SOURCE_COLUMNS})


def _identifier(text: str) -> str:
    if not 0 < len(text.encode()) <= MAX_NAME or "\0" in text:
        raise ValueError(f"a name of 1 to {MAX_NAME} bytes")
    return text


def _tls(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class PostgresSpec(SpecModel):
    """PostgreSQL hot store: the rows of the Delta tables, written after each commit."""

    host: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._:-]+$", description="Host name or address.")
    port: Integer = Field(default=5432, ge=1, le=65535, description="Port.")
    database: Annotated[str, AfterValidator(_identifier)] = Field(description="Name of the database.")
    user: Annotated[str, AfterValidator(_identifier)] = Field(description="Role to connect as.")
    password: Secret | None = Field(default=None, description="Password, as a reference.")
    tls: Annotated[TlsSpec | None, BeforeValidator(_tls), Shorthand(type="boolean")] = Field(
        default=None, description="`true` (system trust store) or a mapping. Default: no encryption."
    )
    plaintext: Flag = Field(default=False, description="Allow an unencrypted connection to a server on another host.")
    schema_name: Annotated[str, AfterValidator(_identifier)] = Field(
        default="headrace", alias="schema", description="Schema of the tables; the role must own it."
    )
    table: Annotated[str, AfterValidator(_identifier)] | None = Field(
        default=None,
        description="Name of the table, for a pipeline with one table. Default: the path of the Delta table below the "
        "directory of the tables, with `_` for `/`.",
    )
    policy: Literal["best_effort", "required"] = Field(
        default="best_effort",
        description="`best_effort`: batches continue while PostgreSQL is unavailable, and it catches up later. "
        "`required`: a batch starts when PostgreSQL has all earlier ones, and a value that it cannot store stops the "
        "pipeline.",
    )
    retention: Duration | None = Field(
        default=None,
        ge=timedelta(minutes=1),
        description="Rows whose `retention_column` is older are deleted from PostgreSQL. Default: rows are kept.",
    )
    retention_column: str = Field(
        default="_source_timestamp",
        min_length=1,
        description="Timestamp or date column for `retention`; rows with NULL are kept. Default: the record timestamp.",
    )
    preset: Literal["analytics"] | None = Field(
        default=None,
        description="`analytics`: table, indexes and summary view of the analytics platform. Default: a table with "
        "the columns of the Delta table.",
    )

    @property
    def stays_here(self) -> bool:
        """Whether the server is on a loopback address."""
        return is_loopback(self.host)

    @property
    def address(self) -> str:
        """Address and database, for messages."""
        return f"{self.host}:{self.port}/{self.database}"


class HotStoreSpec(SpecModel):
    """Hot store: a database to which the rows of the Delta tables are also written."""

    postgres: PostgresSpec = Field(description="PostgreSQL.")


def fixed_table_name(base: str, uri: str) -> str:
    """The hot table of a Delta table below the directory `base`."""
    return uri.removeprefix(base).strip("/").replace("/", "_")
