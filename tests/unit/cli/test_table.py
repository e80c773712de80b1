"""`headrace table`: what it prints, where, and how it exits; no JVM is ever started."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace import Table
from headrace.cli import main
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from services.in_process_pipeline import Harness

Run = Callable[..., tuple[int, str, str]]
NASTY = "\x1b[2J[red]"


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Two batches of a pipeline in one table."""
    harness = Harness(tmp_path)
    for number in range(2):
        harness.feed([{"id": number, "kind": "alpha", "note": NASTY}, {"id": number + 10, "kind": "alpha"}])
    harness.write_spec()
    return harness


@pytest.fixture
def cli(harness: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`headrace table …`: exit code, stdout, stderr."""
    monkeypatch.chdir(harness.folder)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "table", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_nothing_is_cut_in_a_pipe(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    entries = Table(harness.folder / "lake" / "alpha").history()
    header, *rows = cli("history", "lake/alpha")[1].splitlines()
    assert header.split()[-2:] == ["by", "batch"]
    for entry, line in zip(entries, rows, strict=True):
        assert entry.timestamp is not None
        for text in (entry.timestamp.isoformat(timespec="milliseconds"), entry.operation, str(entry.user), "shop "):
            assert text in line
    Table(harness.folder / "lake" / "alpha").optimize()
    assert cli("metrics", "lake/alpha")[1].split()[:5] == ["operation", "count", "last", "mean", "longest"]


def test_list_info_stats_and_history(cli: Run, harness: Harness) -> None:
    path = str(harness.folder / "lake" / "alpha")
    assert cli("list", "lake") == (0, f"{path}\n", "")
    assert lines(cli("list", "lake", "--json")[1]) == [
        {"event": "table", "path": path},
        {"event": "summary", "tables": 1},
    ]
    code, out, _ = cli("info", "lake/alpha")
    assert code == 0
    assert "direct" in out
    assert "shop=2" in out
    (said,) = lines(cli("info", "lake/alpha", "--json")[1])
    assert (said["event"], said["operation"], said["table"]) == ("summary", "info", path)
    assert (said["version"], said["pipelines"]) == (1, {"shop": 2})
    assert {"name": "id", "type": "long", "nullable": True, "comment": None} in said["columns"]
    (size,) = lines(cli("stats", "lake/alpha", "--json")[1])
    assert (size["event"], size["operation"], size["table"]) == ("summary", "stats", path)
    assert (size["rows"], size["files"], size["small_share"]) == (4, 2, 1.0)
    assert "rows" in cli("stats", "lake/alpha")[1]
    newest, oldest, summary = lines(cli("history", "lake/alpha", "--json")[1])
    assert summary == {"event": "summary", "versions": 2}
    assert (newest["event"], newest["version"], newest["rows_after"], newest["headrace"]["batch"]) == (
        "version",
        1,
        4,
        2,
    )
    assert oldest["rows_after"] == 2
    assert "STREAMING UPDATE" in cli("history", "lake/alpha", "--limit", 1)[1]
    assert "CREATE TABLE" not in cli("history", "lake/alpha", "--limit", 1)[1]


def test_times_that_are_printed_are_times_that_are_taken(cli: Run, harness: Harness) -> None:
    Table(harness.folder / "lake" / "alpha").bulk_insert([{"id": 99}])
    newest, *older, _ = lines(cli("history", "lake/alpha", "--json")[1])
    for said, rows in ((older[0]["timestamp"], 4), (older[1]["timestamp"], 2), (newest["timestamp"], 5)):
        answer = cli("query", "lake/alpha", "--timestamp", said, "--limit", 0, "--json")
        assert lines(answer[1])[-1] == {"event": "summary", "rows": rows}
    seen = cli("history", "lake/alpha")[1].splitlines()[2].split()[1]
    assert lines(cli("query", "lake/alpha", "--timestamp", seen, "--json")[1])[-1]["rows"] == 4


def test_query_shows_rows_and_no_terminal_obeys_them(cli: Run) -> None:
    code, out, _ = cli(
        "query", "lake/alpha", "--where", "id < 10", "--select", "id", "--select", "note", "--order-by", "id desc"
    )
    assert code == 0
    assert "\x1b" not in out
    assert "[red]" in out
    assert out.splitlines()[1].split()[0] == "1"
    *rows, summary = lines(
        cli("query", "lake/alpha", "--select", "twice=id * 2", "--order-by", "id", "--limit", 2, "--json")[1]
    )
    assert [row["row"] for row in rows] == [{"twice": 0}, {"twice": 2}]
    assert summary == {"event": "summary", "rows": 2}
    assert lines(cli("query", "lake/alpha", "--version", 0, "--limit", 0, "--json")[1])[-1]["rows"] == 2
    code, _, err = cli("query", "lake/alpha", "--version", 0, "--timestamp", "2026-01-01T00:00:00Z")
    assert (code, "mutually exclusive" in err) == (2, True)
    code, _, err = cli("query", "lake/alpha", "--where", "nobody = 1")
    assert (code, "ExpressionNotAllowed" in err) == (2, True)
    code, _, err = cli("query", "lake/nothing")
    assert (code, "TableNotFound" in err) == (1, True)
    code, _, err = cli("query", "lake/alpha", "--version", 7)
    assert (code, "VersionNotFound" in err) == (1, True)


def test_changes(cli: Run) -> None:
    *rows, summary = lines(cli("changes", "lake/alpha", "--from", 1, "--json")[1])
    assert summary["rows"] == 2
    assert {(row["row"]["_change_type"], row["row"]["_commit_version"]) for row in rows} == {("insert", 1)}
    assert (
        lines(cli("changes", "lake/alpha", "--from", "2001-01-01T00:00:00Z", "--to", 0, "--json")[1])[-1]["rows"] == 2
    )


def test_create_and_alter(cli: Run) -> None:
    code, out, _ = cli(
        "create",
        "lake/new",
        "--column",
        "id bigint!",
        "--column",
        "day date",
        "--partition-by",
        "day",
        "--property",
        "owner=ann",
    )
    assert (code, out.endswith("create: version 0, columns 2\n")) == (0, True)
    assert cli("create", "lake/new", "--column", "id bigint!", "--column", "day date", "--partition-by", "day")[0] == 0
    code, _, err = cli("create", "lake/new", "--column", "id string")
    assert (code, "SchemaMismatch" in err) == (1, True)
    assert cli("create", "lake/other", "--column", "id")[0] == 2
    (said,) = lines(
        cli("set-properties", "lake/new", "--set", "owner=bob", "--set", "delta.appendOnly=false", "--json")[1]
    )
    assert (said["operation"], said["properties"]["owner"]) == ("set-properties", "bob")
    assert "owner" not in lines(cli("set-properties", "lake/new", "--unset", "owner", "--json")[1])[0]["properties"]
    assert cli("set-properties", "lake/new")[0] == 2
    assert cli("set-properties", "lake/new", "--set", "owner")[0] == 2
    (said,) = lines(cli("update-schema", "lake/new", "--add", "note string", "--comment", "id=the order", "--json")[1])
    assert (said["columns"], said["version"]) == (3, 3)
    code, _, err = cli("update-schema", "lake/new", "--rename", "note=text")
    assert (code, "FeatureRequired" in err, "columnMapping" in err) == (1, True, True)
    assert "id long NOT NULL: the order" in cli("info", "lake/new")[1]


def test_all_columns_out_of_a_file(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    (harness.folder / "all.json").write_text('{"id": "bigint!", "s": "struct<a: int>"}')
    assert cli("create", "lake/new", "--schema", "all.json")[0] == 0
    columns = lines(cli("info", "lake/new", "--json")[1])[0]["columns"]
    columns[1] |= {"type": "struct<a: int, b: array<double>>", "comment": "inner"}
    (harness.folder / "all.json").write_text(json.dumps([*columns, {"name": "n", "type": "date"}]))
    assert cli("update-schema", "lake/new", "--schema", "all.json")[0] == 0
    about = Table("lake/new").schema()
    assert [about.names, [each.name for each in about.field("s").type]] == [["id", "s", "n"], ["a", "b"]]
    assert (about.field("id").nullable, about.field("s").metadata) == (False, {b"comment": b"inner"})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "bigint!"}')))
    code, _, err = cli("update-schema", "lake/new", "--schema", "-")
    assert (code, "FeatureRequired" in err, "drop column s" in err) == (1, True, True)
    for text in ("{", "5", "[5]", '[{"name": "x"}]', '{"x": 5}', '{"x": "nothing"}'):
        (harness.folder / "bad.json").write_text(text)
        assert cli("create", "lake/other", "--schema", "bad.json")[0] == 2
    for command in ("create", "update-schema"):
        assert cli(command, "lake/new")[0] == 2
    assert cli("create", "lake/new", "--schema", "all.json", "--column", "id bigint")[0] == 2
    assert cli("update-schema", "lake/new", "--schema", "all.json", "--drop", "n")[0] == 2
    assert cli("create", "lake/other", "--column", "id bigint", "--column", "id string")[0] == 2
    assert not (harness.folder / "lake" / "other").exists()


def test_latencies(cli: Run, harness: Harness) -> None:
    path = harness.folder / "lake" / "alpha"
    told = {"operation": "WRITE", "operationMetrics": {"executionTimeMs": "1500"}, "timestamp": 1}
    (path / "_delta_log" / f"{2:020}.json").write_text(json.dumps({"commitInfo": told}) + "\n")
    *took, summary = lines(cli("metrics", "lake/alpha", "--json")[1])
    written = {"event": "operation", "operation": "WRITE", "count": 1, "last": 1.5, "mean": 1.5, "longest": 1.5}
    assert written in took
    assert summary == {"event": "summary", "operations": len(took)}
    assert "WRITE" in cli("metrics", "lake/alpha")[1]
    assert cli("delete", "lake/alpha", "--where", "id = 0", "--yes")[0] == 0
    assert "DELETE" in cli("metrics", "lake/alpha")[1]
    assert cli("metrics", "lake/nothing")[0] == 1


def test_rows_are_changed(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        cli("create", "lake/new", "--column", "id bigint", "--column", "x double", "--column", "n decimal(9,1)")[0] == 0
    )
    (harness.folder / "new.jsonl").write_text('{"id": 1, "x": 0.1, "n": 0.1}\n\n{"id": 2, "x": 2}\n')
    (said,) = lines(cli("insert", "lake/new", "new.jsonl", "--json")[1])
    assert (said["operation"], said["rows"], said["version"]) == ("insert", 2, 1)
    (harness.folder / "more.jsonl").write_text('{"id": 2, "x": 5}\n{"id": 3, "x": 7}\n')
    code, out, _ = cli("upsert", "lake/new", "more.jsonl", "--key", "id", "--yes")
    assert code == 0
    assert "2 records by id, at version 1" in out
    assert "inserted 1, updated 1" in out
    (said,) = lines(cli("update", "lake/new", "--where", "id = 3", "--set", "x=x + 1", "--yes", "--json")[1])
    assert (said["operation"], said["rows"]) == ("update", 1)
    code, out, _ = cli("delete", "lake/new", "--where", "id = 1", "--soft", "--yes")
    assert (code, "1 row to soft-delete" in out) == (0, True)
    assert cli("delete", "lake/new", "--where", "id = 2", "--json")[0] == 2, "nobody can be asked"
    monkeypatch.setattr("typer.confirm", lambda _: False)
    code, out, _ = cli("delete", "lake/new", "--where", "id = 2")
    assert (code, "1 row to delete" in out) == (0, True)
    assert Table("lake/new").query().select("id", "x").order_by("id").records() == [
        {"id": 2, "x": 5.0},
        {"id": 3, "x": 8.0},
    ]
    pq.write_table(pa.table({"id": [3]}), harness.folder / "one.parquet")
    assert cli("upsert", "lake/new", "one.parquet", "--key", "id", "--yes")[0] == 0
    for text in ("5", "{", '{"id": "x"}', '{"other": 1}'):
        (harness.folder / "bad.jsonl").write_text(text)
        assert cli("upsert", "lake/new", "bad.jsonl", "--key", "id", "--yes")[0] in (1, 2)
    assert cli("insert", "lake/new", "nothing.jsonl")[0] == 2


@pytest.mark.parametrize(("command", "more"), [("insert", ()), ("upsert", ("--key", "id", "--yes"))])
def test_records_make_a_table(cli: Run, harness: Harness, command: str, more: tuple[str, ...]) -> None:
    (harness.folder / "new.jsonl").write_text(
        '{"id": 1, "x": 0.5, "s": {"a": 1.5}, "day": "mon"}\n{"id": 2, "none": null}'
    )
    run = command, "lake/new", "new.jsonl", *more
    assert cli(*run)[0] == 1, "there is no table"
    assert cli(*run, "--partition-by", "day")[0] == 2
    code, out, _ = cli(*run, "--create", "--partition-by", "day", "--property", "owner=ann")
    assert (code, "into a new table" in out) == (0, command == "upsert")
    about = Table("lake/new").metadata()
    assert (about.partition_by, about.properties["owner"], about.version) == (("day",), "ann", 1)
    assert [str(each) for each in about.schema.types] == ["int64", "double", "struct<a: double>", "string"]
    (harness.folder / "new.jsonl").write_text('{"id": 1, "s": {"a": 2.5}}\n{"id": 2}')
    assert cli(*run, "--create")[0] == 0, "it is there now"
    assert Table("lake/new").query().count() == (4 if command == "insert" else 2)
    pq.write_table(pa.table({"id": [3]}), harness.folder / "one.parquet")
    assert cli(command, "lake/other", "one.parquet", *more, "--create")[0] == 0


def test_options_of_changes(cli: Run, harness: Harness) -> None:
    columns = ("--column", "id bigint", "--column", "p string", "--column", "n int", "--partition-by", "p")
    assert cli("create", "lake/new", *columns)[0] == 0

    def put(command: str, *records: dict[str, Any], more: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        (harness.folder / "some.jsonl").write_text("\n".join(map(json.dumps, records)))
        code, out, _ = cli(command, "lake/new", "some.jsonl", *more, "--json")
        return code, lines(out)[-1] if out else {}

    assert put("insert", {"id": 1, "n": 5}, {"id": 2, "n": 5}, more=("--partition", "p=a"))[1]["rows"] == 2
    by_key = ("--key", "id", "--yes")
    code, said = put(
        "upsert", {"id": 1, "p": "a", "n": 4}, {"id": 2, "p": "a", "n": 6}, more=(*by_key, "--sequence-by", "n")
    )
    assert (code, said["updated"], said["inserted"]) == (0, 1, 0), "an older one loses"
    twice = {"id": 3, "p": "b", "n": 1}, {"id": 3, "p": "b", "n": 2}
    assert put("upsert", *twice, more=(*by_key, "--no-deduplicate"))[0] == 2
    assert put("upsert", *twice, more=(*by_key, "--deduplicate"))[1]["inserted"] == 1
    assert put("upsert", {"id": 3, "n": 3}, more=(*by_key, "--partition", "p=b"))[1]["updated"] == 1
    found = Table("lake/new").query().select("id", "n").order_by("id").records()
    assert [each["n"] for each in found] == [5, 6, 3]
    changed = ("--where", "true", "--partition", "p=b", "--yes", "--json")
    assert lines(cli("update", "lake/new", "--set", "n=9", *changed)[1])[0]["rows"] == 1
    assert lines(cli("delete", "lake/new", "--soft", *changed)[1])[0]["rows"] == 1
    assert cli("delete", "lake/new", "--where", "true", "--partition", "p=c", "--yes")[0] == 1
    for more, ids in (((), [1, 2]), (("--deleted",), [1, 2, 3])):
        *rows, _ = lines(cli("query", "lake/new", "--select", "id", "--order-by", "id", *more, "--json")[1])
        assert [each["row"]["id"] for each in rows] == ids
    code, out, _ = cli("delete", "lake/new", "--where", "id > 1", "--soft", "--yes")
    assert "1 row to soft-delete" in out, "those that are hidden already are not hidden again"


def test_files_in_an_order(cli: Run, harness: Harness) -> None:
    table = Table.get_or_create(harness.folder / "lake" / "new", {"id": "bigint", "n": "bigint", "p": "string"}, ["p"])
    for part in "ab":
        for start in (0, 50):
            table.bulk_insert([{"id": n, "n": -n, "p": part} for n in range(start, start + 50)])
    (said,) = lines(cli("optimize", "lake/new", "--where", "p = 'a'", "--json")[1])
    assert (said["files_removed"], said["files_added"], said["partitions"]) == (2, 1, 1)
    (said,) = lines(cli("optimize", "lake/new", "--z-order", "id", "--z-order", "n", "--json")[1])
    assert (said["files_removed"], said["files_added"], said["z_order"]) == (3, 2, ["id", "n"])
    assert cli("optimize", "lake/new", "--where", "id = 1")[0] == 2, "of partitions alone"
    assert cli("optimize", "lake/new", "--z-order", "nobody")[0] != 0


def test_maintenance_commands(cli: Run, harness: Harness) -> None:
    (said,) = lines(cli("optimize", "lake/alpha", "--target-size", "64MB", "--json")[1])
    assert (said["files_removed"], said["files_added"]) == (2, 1)
    for option in ("--target-size", "--min-file-size", "--max-file-size"):
        code, _, err = cli("optimize", "lake/alpha", option, "large")
        assert (code, f"{option}: invalid size: 'large'" in err) == (2, True)
    assert cli("optimize", "lake/alpha", "--min-file-size", "1MB", "--max-file-size", "1GB")[0] == 0
    assert "version 2" in cli("checkpoint", "lake/alpha")[1]
    code, out, _ = cli("vacuum", "lake/alpha", "--dry-run")
    assert (code, "0 files (0 bytes) to delete" in out) == (0, True)
    code, _, err = cli("vacuum", "lake/alpha", "--retain", "1h", "--yes")
    assert (code, "168 h" in err) == (2, True)
    assert cli("vacuum", "lake/alpha", "--retain", "0s", "--force", "--json")[0] == 2  # nobody can be asked
    (said,) = lines(cli("vacuum", "lake/alpha", "--retain", "0s", "--force", "--yes", "--json")[1])
    assert (said["deleted"], said["files"], len(said["paths"])) == (True, 2, 2)
    assert Table(harness.folder / "lake" / "alpha").query().count() == 4


def test_destructive_commands_ask_first(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("typer.confirm", no)
    path = harness.folder / "lake" / "alpha"
    next(path.rglob("*.parquet")).unlink()
    for command in (("drop",), ("restore", "--version", "0"), ("repair",)):
        code, out, _ = cli(command[0], "lake/alpha", *command[1:])
        assert (code, str(path) in out or "missing" in out) == (0, True)
    assert len(asked) == 3
    assert Table(path).resolve() == 1


def test_what_cannot_be_taken_back_is_asked_about(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", asked.append)
    shorter = "delta.logRetentionDuration=interval 1 day"
    code, out, _ = cli("set-properties", "lake/alpha", "--set", shorter)
    assert (code, "delta.logRetentionDuration: not set → interval 1 day" in out, len(asked)) == (0, True, 1)
    assert cli("set-properties", "lake/alpha", "--set", shorter, "--json")[0] == 2, "nobody can be asked"
    assert cli("set-properties", "lake/alpha", "--set", "delta.logRetentionDuration=soon")[0] == 2, "nothing to ask"
    assert Table("lake/alpha").resolve() == 1
    assert cli("set-properties", "lake/alpha", "--set", shorter, "--yes")[0] == 0
    assert cli("set-properties", "lake/alpha", "--set", "team=ann")[0] == 0, "that can be set back"
    path = harness.folder / "lake" / "theirs"
    Table.get_or_create(path, {"id": "bigint", "v": "int", "s": "string"})
    info = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}}
    (path / "_delta_log" / f"{1:020}.json").write_text(json.dumps(info) + "\n")
    code, out, _ = cli("set-properties", "lake/theirs", "--set", "delta.enableTypeWidening=true")
    assert (code, "delta.enableTypeWidening: not set → true" in out) == (0, True)
    code, _, err = cli("set-properties", "lake/alpha", "--set", "delta.enableTypeWidening=true")
    assert (code, "FeatureRequired" in err) == (1, True), "what is refused anyway is not asked about"
    changes = ("--drop", "s"), ("--rename", "s=t"), ("--widen", "v bigint"), ("--schema", "less.json")
    (harness.folder / "less.json").write_text('{"id": "bigint", "s": "string"}')
    for change, words in zip(changes, ("drop s", "rename s to t", "widen v to bigint", "drop v"), strict=True):
        code, out, _ = cli("update-schema", "lake/theirs", *change)
        assert (code, words in out) == (0, True)
        assert cli("update-schema", "lake/theirs", *change, "--json")[0] == 2, "nobody can be asked"
    assert len(asked) == 6
    assert Table(path).resolve() == 1


def test_a_feature_is_enabled_after_it_is_told_who_can_use_the_table(
    cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", asked.append)
    code, out, _ = cli("enable-feature", "lake/alpha", "columnMapping")
    assert (code, asked) == (0, ["Enable columnMapping? This cannot be undone."])
    rows = {client: rest for client, *rest in (re.split("  +", line.strip()) for line in out.splitlines())}
    assert rows["client"] == ["reads", "reads afterwards", "writes", "writes afterwards"]
    assert rows["Headrace pipelines"][2:] == ["direct commits", "appends by Spark, about a second per batch"]
    assert rows["delta-rs"] == ["yes", "QueryBuilder only", "yes", "no"]
    assert "pipelines of the table: shop" in out
    assert cli("enable-feature", "lake/alpha", "columnMapping", "--json")[0] == 2, "nobody can be asked"
    assert cli("enable-feature", "lake/alpha", "deletionVectors", "--yes")[0] == 2
    with Lease.take(Store(harness.spec.state_uri)):
        code, _, err = cli("enable-feature", "lake/alpha", "columnMapping")
        assert (code, "is running" in err, len(asked)) == (3, True, 1), "what is refused anyway is not asked about"
    path = harness.folder / "lake" / "alpha"
    assert Table(path).resolve() == 1
    (said,) = lines(cli("enable-feature", "lake/alpha", "columnMapping", "--yes", "--json")[1])
    assert (said["version"], said["enabled"], said["pipelines"]) == (2, True, ["shop"])
    assert {"client": "Polars", "read": "no", "write": "no"} in said["after"]
    code, out, _ = cli("enable-feature", "lake/alpha", "columnMapping")
    assert (code, "is enabled; current version 2" in out, len(asked)) == (0, True, 1)


def test_repair_restore_and_drop(cli: Run, harness: Harness) -> None:
    path = harness.folder / "lake" / "alpha"
    assert "no problems found" in cli("repair", "lake/alpha")[1]
    newest = Table(path).history(1)[0]
    assert newest.version == 1
    first, second = sorted(path.glob("*.parquet"), key=lambda each: each.stat().st_mtime_ns)
    second.unlink()
    code, out, _ = cli("repair", "lake/alpha", "--dry-run")
    assert (code, "orders/0: offsets 2 to 3" in out) == (0, True)
    (said,) = lines(cli("repair", "lake/alpha", "--yes", "--json")[1])
    assert (said["version"], said["rows"], said["lost"][0]["batch"]) == (2, 2, 2)
    first.write_bytes(first.read_bytes()[:-9])
    code, out, _ = cli("repair", "lake/alpha")
    assert (code, "1 unreadable file:" in out) == (1, True)
    code, out, _ = cli("restore", "lake/alpha", "--version", 0, "--yes")
    assert (code, "--table-restored=refill" in out) == (0, True)
    then = lines(cli("history", "lake/alpha", "--json")[1])[3]["timestamp"]
    (said,) = lines(cli("restore", "lake/alpha", "--timestamp", then, "--yes", "--json")[1])
    assert said["to"] == 0
    assert cli("restore", "lake/alpha", "--yes")[0] == 2
    assert lines(cli("drop", "lake/alpha", "--yes", "--json")[1])[0]["operation"] == "drop"
    assert cli("info", "lake/alpha")[0] == 1


def test_a_running_pipeline_is_exit_3(cli: Run, harness: Harness) -> None:
    with Lease.take(Store(harness.spec.state_uri)):
        alone = (
            ("restore", "--version", "0"),
            ("vacuum", "--retain", "0s", "--force"),
            ("delete", "--where", "id = 1"),
        )
        for command in (("drop",), *alone):
            Table(harness.folder / "lake" / "alpha").optimize()
            code, _, err = cli(command[0], "lake/alpha", *command[1:], "--yes")
            assert (code, "LeaseHeld" in err, "'shop'" in err) == (3, True, True)
        assert cli("optimize", "lake/alpha")[0] == 0


def test_a_spec_names_the_state_folder(cli: Run, harness: Harness) -> None:
    harness.options["state"] = str(harness.folder / "far")
    (harness.folder / "lake" / "_headrace" / "shop").rename(harness.folder / "far")
    harness.write_spec()
    code, _, err = cli("restore", "lake/alpha", "--version", 0, "--yes")
    assert (code, "--spec" in err) == (2, True)
    assert cli("restore", "lake/alpha", "--version", 0, "--yes", "--spec", "shop.yaml")[0] == 0


READING = [
    ["info", "lake/alpha"],
    ["stats", "lake/alpha"],
    ["history", "lake/alpha"],
    ["metrics", "lake/alpha"],
    ["query", "lake/alpha", "--where", "id > 0"],
    ["changes", "lake/alpha", "--from", "0"],
    ["vacuum", "lake/alpha", "--retain", "0s", "--force", "--yes"],
    ["checkpoint", "lake/alpha"],
    ["optimize", "lake/alpha"],
    ["repair", "lake/alpha", "--yes"],
    ["restore", "lake/alpha", "--version", "0", "--yes"],
    ["delete", "lake/alpha", "--where", "id = 0", "--yes"],
    ["update", "lake/alpha", "--where", "id = 10", "--set", "id=11", "--yes"],
    ["list", "lake"],
]


def test_no_java_is_started_and_no_spark_imported(harness: Harness) -> None:
    code = (
        "import json, subprocess, sys, psutil\n"
        "def look():\n"
        "    assert not [n for n in sys.modules if n.partition('.')[0] in ('pyspark', 'py4j')], 'spark'\n"
        "    assert not psutil.Process().children(recursive=True), 'a child'\n"
        "    sys.stderr.write('clean')\n"
        "subprocess.Popen = None\n"
        "from headrace.cli import main\n"
        f"for command in json.loads({json.dumps(json.dumps(READING))}):\n"
        "    sys.argv = ['headrace', 'table', *command]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code, (command, ended.code)\n"
        "look()\n"
    )
    sources = {**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parents[1])}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=harness.folder, env=sources, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "clean")
