"""The table of the analytics platform: its columns, indexes and summary view, as its `init.sql` defines them."""

from __future__ import annotations

from psycopg import sql

from headrace.hot_store.postgres import Connection, execute

SUMMARY = "analytics_summary"
DEFAULT_TABLE = "analytics_events"
_COLUMNS = """
    id bigserial,
    "timestamp" timestamptz NOT NULL,
    channel varchar(50) NOT NULL,
    platform varchar(100),
    event_type varchar(100) NOT NULL,
    event_category varchar(100),
    resource_id varchar(500),
    resource_title varchar(200),
    interaction_target varchar(200),
    interaction_value numeric,
    interaction_text text,
    session_id varchar(100) NOT NULL,
    user_id varchar(100),
    device_id varchar(100),
    user_agent text,
    client_version varchar(50),
    metadata jsonb,
    created_at timestamptz DEFAULT now(),
    PRIMARY KEY (id, "timestamp")"""
_INDEXED = ("channel", "event_type", "event_category", "resource_id", "session_id", "user_id")
_SUMMARY = """
    SELECT date_trunc('minute', "timestamp") AS minute, channel, event_type, event_category, resource_id,
        count(*) AS event_count,
        count(DISTINCT session_id) AS unique_sessions,
        count(DISTINCT user_id) AS unique_users,
        avg(interaction_value) AS avg_interaction_value
    FROM {table} GROUP BY 1, 2, 3, 4, 5"""


def create_table(connection: Connection, schema: str, name: str) -> None:
    """Create the table with its indexes and the summary view."""
    table, view = sql.Identifier(schema, name), sql.Identifier(schema, SUMMARY)
    execute(connection, "CREATE TABLE {table} (" + _COLUMNS + ")", table=table)
    for column in _INDEXED:
        execute(connection, "CREATE INDEX ON {table} ({column})", table=table, column=sql.Identifier(column))
    execute(connection, 'CREATE INDEX ON {table} ("timestamp" DESC)', table=table)
    execute(connection, "CREATE INDEX ON {table} USING gin (metadata)", table=table)
    execute(connection, "CREATE MATERIALIZED VIEW {view} AS " + _SUMMARY, view=view, table=table)
    unique = "CREATE UNIQUE INDEX ON {view} (minute, channel, event_type, event_category, resource_id)"
    execute(connection, unique, view=view)  # without it, a refresh would lock readers out


def refresh_summary(connection: Connection, schema: str) -> None:
    """Refresh the summary view; readers see the old rows meanwhile."""
    execute(connection, "REFRESH MATERIALIZED VIEW CONCURRENTLY {view}", view=sql.Identifier(schema, SUMMARY))
