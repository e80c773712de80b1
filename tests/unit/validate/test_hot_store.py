"""Rules of the hot store."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.validate.load import examine_text

LOCAL = "host: localhost, database: d, user: u"


def messages(folder: Path, postgres: str, more: str = "table: {path: ./lake/t}") -> list[str]:
    text = f"pipeline: p\nsource: {{kafka: {{brokers: 'localhost:9', topics: [a]}}}}\n{more}\n"
    _, diagnostics = examine_text(f"{text}hot_store: {{postgres: {{{postgres}}}}}\n", folder)
    return [f"{each.key}: {each.message}" for each in diagnostics]


@pytest.mark.parametrize(
    "postgres",
    [
        LOCAL,
        "host: '::1', database: d, user: u, schema: s, table: t, policy: required, retention: 1d",
        "host: db, database: d, user: u, tls: true",
        "host: db, database: d, user: u, plaintext: true",
        f"{LOCAL}, preset: analytics",
    ],
)
def test_accepted(tmp_path: Path, postgres: str):
    assert messages(tmp_path, postgres) == []


@pytest.mark.parametrize(
    ("postgres", "message"),
    [
        ("host: db, database: d, user: u", "hot_store.postgres.host: an unencrypted connection to a server on another"),
        ("host: db, database: d, user: u, tls: true, plaintext: true", "hot_store.postgres.plaintext: conflicts"),
        ("host: db, database: d, user: u, tls: {ca: x}", "hot_store.postgres.tls.ca: no certificate"),
        (f"{LOCAL}, password: abc", "hot_store.postgres.password: "),
        (f"{LOCAL}, table: {'x' * 64}", "hot_store.postgres.table: "),
        (f"{LOCAL}, table: headrace_positions", "hot_store.postgres.table: 'headrace_positions' is a table of"),
        (f"{LOCAL}, retention_column: at", "hot_store.postgres.retention_column: no effect"),
        (f"{LOCAL}, sslmode: disable", "hot_store.postgres.sslmode: "),
    ],
)
def test_refused(tmp_path: Path, postgres: str, message: str):
    found = messages(tmp_path, postgres)
    assert [each for each in found if each.startswith(message)], found
    assert not [each for each in found if "abc" in each]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "table: {path: ./lake/t, mode: upsert, merge: {keys: [id]}}",
            "table.mode: upsert: a merge rewrites whole files",
        ),
        ("table: {path: ./lake/t, source: false}", "table.source: false: rows have no column _source"),
        ("table: {path: ./lake/t, columns: [{name: ctid, type: long}]}", "PostgreSQL cannot have the column 'ctid'"),
        (
            "table: {path: ./lake/t}\nbranches: [{name: b, table: {path: ./other/t}}]",
            "2 tables of the pipeline would have the name 't'",
        ),
    ],
)
def test_tables_that_cannot_be_followed(tmp_path: Path, table: str, message: str):
    found = messages(tmp_path, LOCAL, table)
    assert [each for each in found if message in each], found


@pytest.mark.parametrize("key", ["table: t", "preset: analytics"])
def test_one_name_for_several_tables(tmp_path: Path, key: str):
    routed = "route: {by: topic}\ntable: {path: './lake/{topic}'}"
    assert "the same table for all tables of the pipeline" in messages(tmp_path, f"{LOCAL}, {key}", routed)[0]
