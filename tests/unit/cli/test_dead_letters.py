"""`headrace dead-letters`: what it prints, where, and how it exits; no JVM is ever started."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import dead_letters, main
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from services.clocks import DAY, clock
from services.in_process_pipeline import Harness, no_spark
from services.plans import spec_of

STRICT = [{"match": "^alpha$", "columns": [{"name": "id", "type": "bigint"}, {"name": "kind", "type": "string"}]}]
NASTY = b'{"=cmd()\x1b[2J<script>": "\r\n[red]{\\"level\\":\\"INFO\\"}'
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Two misfits, one that would command a terminal, one without a route."""
    harness = Harness(tmp_path, {"tables": STRICT})
    harness.feed(
        [{"id": "x1", "kind": "alpha"}, {"id": 2, "kind": "beta"}, {"id": "x2", "kind": "alpha"}, NASTY, {"id": 5}]
    )
    harness.write_spec()
    return harness


@pytest.fixture
def cli(harness: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`headrace dead-letters COMMAND shop.yaml …`: exit code, stdout, stderr."""
    monkeypatch.chdir(harness.folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("headrace.pipeline.spark_session.SharedSession.get", no_spark)

    def run(command: str, *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "dead-letters", command, "shop.yaml", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_list_groups_and_counts(cli: Run, harness: Harness):
    code, out, _ = cli("list")
    assert code == 0
    assert out.startswith("shop: 4 dead letters\n         2  type · decode · ")
    assert "orders/0/4: the field 'kind' is missing" in out
    *groups, summary = lines(cli("list", "--json", "--reason", "type", "--reason", "unrouted", "--since", "1h")[1])
    assert [(each["event"], each["reason"], each["count"]) for each in groups] == [
        ("dead_letters", "type", 2),
        ("dead_letters", "unrouted", 1),
    ]
    assert summary == {"event": "summary", "pipeline": "shop", "dead_letters": 3, "groups": 2}
    assert lines(cli("list", "--json", "--table", "alpha")[1])[-1]["dead_letters"] == 2
    assert lines(cli("list", "--json", "--table", f"{harness.folder}/lake/alpha")[1])[-1]["dead_letters"] == 2
    assert cli("list", "--since", "2100-01-01T00:00:00Z")[1] == "shop: no dead letters\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reason", "bad"], "Unknown reason: 'bad'"),
        (["--since", "yesterday"], "invalid time: 'yesterday'"),
    ],
)
def test_list_refuses_what_cannot_be(cli: Run, arguments: list[str], said: str):
    code, _, err = cli("list", *arguments)
    assert (code, said in err) == (2, True)


def test_show_gives_bytes_as_text_and_hex_and_obeys_none_of_them(cli: Run):
    code, out, _ = cli("show", "orders/0/3")
    assert code == 0
    assert "\x1b" not in out
    assert "\r" not in out
    assert "reason    malformed: the value is not well-formed in its format" in out
    assert "\\x1b[2J" in out
    assert '00000000  7b 22 3d 63 6d 64 28 29 1b 5b 32 4a 3c 73 63 72  {"=cmd().[2J<scr' in out
    assert "header trace: 2 bytes" in out
    [shown] = lines(cli("show", "orders/0@3", "--json")[1])
    assert bytes.fromhex(shown["value"]["hex"]) == NASTY
    assert shown["headers"][0]["value"] == {"text": None, "hex": "ff33"}
    assert shown["outcomes"] == []
    assert "the first 4" in cli("show", "orders/0/3", "--bytes", "4")[1]


def test_show_has_the_columns_that_dead_letters_were_given(cli: Run, harness: Harness):
    [shown] = lines(cli("show", "orders/0/3", "--json")[1])
    assert shown["columns"] == {}
    made = {"twice": '"offset" * 2', "raw": "value", "absent": "CAST(NULL AS VARCHAR)"}
    harness.options["dead_letters"] = {"transform": [{"set": made}]}
    harness.write_spec()
    harness.feed([NASTY])
    [shown] = lines(cli("show", "orders/0/5", "--json")[1])
    assert (shown["columns"]["twice"], shown["columns"]["absent"]) == (10, None)
    out = cli("show", "orders/0/5")[1]
    assert "  column twice: 10\n" in out
    assert "  column absent: null\n" in out
    assert "\x1b" not in out
    [old] = lines(cli("show", "orders/0/3", "--json")[1])
    assert set(old["columns"].values()) == {None}


def test_show_says_where_a_dead_letter_went(cli: Run, harness: Harness):
    harness.options["tables"] = []
    harness.write_spec()
    code, out, _ = cli("replay", "--reason", "type")
    assert code == 0
    table = f"{harness.folder}/lake/alpha"
    assert out.splitlines() == [
        f"shop: {table}: columns inferred from records: id string, kind string",
        f"shop: replay 1: 2 dead letters = replayed 2 + still dead 0 + filtered 0; 2 rows into {table}",
    ]
    assert f"UTC: replayed into {harness.folder}/lake/alpha" in cli("show", "orders/0/0/alpha")[1]
    cli("replay")
    assert "UTC: still dead: malformed: " in cli("show", "orders/0/3")[1]


@pytest.mark.parametrize("place", ["orders/0/1", "orders/0/99", "nobody/0/0", "orders/0", "0", "orders/0/0/beta"])
def test_show_of_no_dead_letter_is_refused(cli: Run, place: str):
    assert cli("show", place)[0] == 2


def test_try_writes_nothing_and_takes_changes(cli: Run, harness: Harness):
    before = sorted(path for path in harness.folder.rglob("*") if path.is_file())
    code, out, _ = cli("dry-run")
    assert code == 0
    assert out.endswith("processed 4 = rows 0 + still dead 4 + filtered 0; nothing was written\n")
    *tried, summary = lines(
        cli(
            "dry-run",
            "--json",
            "--sample",
            3,
            "--set",
            "tables.0.columns.0.type=string",
            "--set",
            "route.unrouted=skip",
        )[1]
    )
    assert len(tried) == 3
    assert summary == {
        "event": "summary",
        "pipeline": "shop",
        "dead_letters": 3,
        "replayed": 1,
        "still_dead": 1,
        "filtered": 1,
    }
    [[row]] = [each["rows"] for each in tried if each["rows"]]
    assert row["row"]["id"] in ("x1", "x2")
    assert cli("dry-run", "--set", "limits.deph=3")[0] == 2
    assert sorted(path for path in harness.folder.rglob("*") if path.is_file()) == before


def test_replay_counts_by_outcome(cli: Run, harness: Harness):
    harness.options["tables"] = []
    harness.write_spec()
    columns, event, summary = lines(cli("replay", "--json")[1])
    assert (columns["event"], columns["columns"]) == ("columns", {"id": "string", "kind": "string"})
    assert (event["event"], event["replay"], event["dead_letters"]) == ("replay", 1, 4)
    assert summary["event"] == "summary"
    assert (summary["replays"], summary["replayed"], summary["still_dead"]) == (1, 2, 2)
    assert summary["reasons"] == {"malformed": 1, "unrouted": 1}
    assert cli("replay", "--reason", "type")[1] == "shop: no dead letters to replay\n"


def test_replay_while_the_pipeline_runs_exits_with_3(cli: Run, harness: Harness):
    with Pipeline(harness.spec, no_spark, recovery=StartupRecovery()).take_lease():
        code, _, err = cli("replay")
    assert (code, "LeaseHeld" in err) == (3, True)


def test_purge_shows_asks_and_deletes(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch):
    assert cli("purge", "--older-than", "30d")[1].startswith("shop: no dead letters before ")
    monkeypatch.setattr("typer.confirm", lambda text: False)
    today = datetime.now(UTC).date()
    with clock(40 * DAY):
        assert cli("purge", "--older-than", "30d")[1].startswith("shop: no dead letters before "), (
            "only the clock says so"
        )
        harness.feed([{"id": 9, "kind": "alpha"}])
    with clock(41 * DAY):
        assert cli("purge", "--older-than", "30d")[1].startswith(f"shop: 4 dead letters of {today} to {today} (")
        assert len(harness.dead()) == 4
        assert cli("purge", "--older-than", "30d", "--json")[0] == 2
        code, out, _ = cli("purge", "--older-than", "30d", "--yes", "--json")
    assert (code, lines(out)[-1]["purged"], lines(out)[-1]["dead_letters"]) == (0, True, 4)
    assert harness.dead() == []
    assert cli("list")[1] == "shop: no dead letters\n"


@pytest.mark.parametrize("age", ["1h", "soon", "0d"])
def test_purge_needs_an_age(cli: Run, age: str):
    assert cli("purge", "--older-than", age, "--yes")[0] == 2
    code, _, err = cli("purge", "--yes")
    assert (code, "dead_letters.retention" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("alpha", "/lake/alpha"),
        ("eu/alpha", "/eu/alpha"),
        ("eu/", "/eu/{route}"),
        ("eu", "/eu/{route}"),
        ("eu/alpha/beta", "eu/alpha/beta"),
        ("/lake/alpha", "/lake/alpha"),
        ("us/alpha", "us/alpha"),
        ("s3://lake/alpha", "s3://lake/alpha"),
    ],
)
def test_a_table_is_named_by_its_route_its_branch_and_route_or_its_uri(text: str, uri: str) -> None:
    route = {"by": {"field": "kind"}}
    branch = {"name": "eu", "route": route, "table": {"path": "/eu/{route}"}}
    assert dead_letters._table(spec_of(route=route, branches=[branch]), text) == uri
