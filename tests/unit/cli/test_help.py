"""What every command has in common: help with examples that run, a version, completion, colours only for people."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake

from headrace import Table
from headrace.cli import app, main
from headrace.cli.examples import EXAMPLES
from headrace.version import VERSION
from services.in_process_pipeline import Harness

PROGRAM = Path(sys.executable).parent / "headrace"
CONFIGS = Path(__file__).parents[1] / "importers" / "configs"
Run = Callable[..., tuple[int, str, str]]

MORE = "pipeline: more\nsource: {generate: {records: 5}}\ntable: {path: ./lake/more}\n"
# What starts a JVM or a broker, asks one, answers a stop that is not there, or does not end: only parsed.
PARSED = {"submit", "init", "run", "receive", "demo", "kafka", "setup", "resume", "status", "pause", "restart"}
PARSED |= {"top", "console", "takeover"}


def _commands(group: Any, words: str = "") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        yield from _commands(command, f"{words}{word} ") if hasattr(command, "commands") else [(words + word, command)]


COMMANDS = dict(_commands(typer.main.get_command(app)))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the examples speak of: specs, a topic with a bad record, tables, files with records."""
    place = tmp_path_factory.mktemp("examples")
    harness = Harness(place)
    harness.feed([{"id": number, "kind": "alpha"} for number in range(42)])
    harness.feed([b"not JSON"])
    harness.write_spec().rename(place / "web.yaml")
    (place / "shop.yaml").write_text(MORE)
    (place / "otel.yaml").write_text("{pipeline: otel, source: {otlp: {}}, decode: otlp, table: {path: lake/otel}}")
    (place / "connector.toml").write_text((CONFIGS / "danube.toml").read_text())
    (place / "payloads.jsonl").write_text('{"id": 1, "kind": "beta"}\n')
    (place / "orders.jsonl").write_text('{"id": 7, "country": "DE", "amount": 2.5}\n')
    for number in range(2):
        rows = {"id": [number], "country": ["DE"], "amount": [200.5]}
        write_deltalake(place / "lake" / "orders", pa.table(rows), mode="append")
    Table.get_or_create(place / "lake" / "visits", {"id": "bigint!", "at": "timestamp"})
    with pytest.MonkeyPatch.context() as patch:
        harness.serve(patch)
        patch.chdir(place)
        yield place


def test_every_command_has_an_example_and_every_example_a_command():
    assert sorted(EXAMPLES) == sorted(COMMANDS)


@pytest.mark.parametrize("command", EXAMPLES)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_ends_with_the_examples(cli: Run, command: str, option: str):
    code, out, _ = cli(*command.split(), option)
    assert code == 0
    shown = [line.strip() for line in out.partition("Example")[2].splitlines()[1:] if line.strip()]
    assert tuple(shown) == tuple(EXAMPLES[command])


def test_the_program_and_its_groups_have_help(cli: Run):
    for words in ([], ["table"], ["dead-letters"]):
        code, out, _ = cli(*words, "-h")
        assert code == 0
        assert "-h, --help" in out


@pytest.mark.parametrize("group", ["", "table", "dead-letters"])
def test_the_summary_of_every_command_fits_the_terminal(cli: Run, group: str):
    _, out, _ = cli(*group.split(), "-h")
    summaries = out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert summaries
    assert [line for line in summaries if not line.endswith(".") or line.endswith("...")] == []


def test_the_version_is_printed(cli: Run):
    assert cli("--version") == cli("version") == (0, f"{VERSION}\n", "")


def _words(example: str) -> list[str]:
    """An example's words after `headrace`, as a shell gives them to it."""
    program, *words = shlex.split(example)
    words = words[: words.index(">")] if ">" in words else words
    assert program == "headrace"
    return words


@pytest.mark.parametrize(("command", "example"), [(name, each) for name, many in EXAMPLES.items() for each in many])
def test_an_example_does_what_it_shows(cli: Run, folder: Path, command: str, example: str):
    words = _words(example)
    assert words[: len(command.split())] == command.split()
    if command in PARSED:
        COMMANDS[command].make_context(command, words[len(command.split()) :])
        return
    asks = any("--yes" in each.opts for each in COMMANDS[command].params)
    code, out, err = cli(*words, *(["--yes"] if asks else []))
    assert code == 0, out + err
    assert (out + err).strip()


# ---- completion ----


def _completed(words: str) -> list[str]:
    """What bash is told to offer after some words."""
    given = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_HEADRACE_COMPLETE": "complete_bash"}
    done = subprocess.run([PROGRAM], env={**os.environ, **given}, capture_output=True, text=True)
    return done.stdout.split()


def test_the_shell_completes_commands_and_options():
    assert _completed("headrace ru") == ["run"]
    assert {"sql", "stats", "set-properties"} <= set(_completed("headrace table s"))
    assert "--online" in _completed("headrace check --o")


# ---- colours ----


def _on_a_terminal(*arguments: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    env = {**clean, "TERM": "xterm-256color", "COLUMNS": "60", **environment}
    with subprocess.Popen([PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as child:
        os.close(theirs)
        written = b""
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:  # the other side is closed
            pass
        child.wait()
    os.close(ours)
    return written.decode()


def test_colours_are_for_terminals_and_not_with_no_color():
    command = ["check", "absent.yaml"]
    plain = _on_a_terminal(*command, NO_COLOR="1")
    assert "error: absent.yaml:1:1" in plain
    assert "\x1b" not in plain
    assert "\x1b[1;31merror: \x1b[0mabsent.yaml" in _on_a_terminal(*command)
    piped = subprocess.run([PROGRAM, *command], capture_output=True, text=True, env={**os.environ, "TERM": "xterm"})
    assert "error: absent.yaml:1:1" in piped.stdout
    assert "\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize(("words", "text"), [("check absent.yaml", "absent.yaml:1:1"), ("table query {}/narrow", "id")])
def test_each_command_colours_for_terminals_only(tmp_path: Path, words: str, text: str):
    write_deltalake(tmp_path / "narrow", pa.table({"id": [1, 2]}))
    command = words.format(tmp_path).split()
    plain, shown = _on_a_terminal(*command, NO_COLOR="1"), _on_a_terminal(*command)
    assert text in plain
    assert "\x1b" not in plain
    assert "\x1b[" in shown
    piped = subprocess.run([PROGRAM, *command], capture_output=True, text=True, env={**os.environ, "TERM": "xterm"})
    assert text in piped.stdout + piped.stderr
    assert "\x1b" not in piped.stdout + piped.stderr


# ---- wide rows ----


def test_rows_too_wide_for_the_terminal_stand_one_column_a_line(tmp_path: Path):
    wide = {f"column_{number}": [f"value {number}", "x" * 50] for number in range(8)}
    write_deltalake(tmp_path / "wide", pa.table(wide))
    write_deltalake(tmp_path / "narrow", pa.table({"id": [1, 2]}))
    shown = _on_a_terminal("table", "query", str(tmp_path / "wide"), NO_COLOR="1").splitlines()
    assert shown[0] == "── row 1 ──"
    assert "column_3  value 3" in shown
    assert f"column_7  {'x' * 50}" in shown
    forced = _on_a_terminal("table", "sql", f"FROM '{tmp_path / 'narrow'}'", "--vertical", NO_COLOR="1")
    assert forced.splitlines()[:2] == ["── row 1 ──", "id  1"]


def test_a_pipe_gets_a_line_a_row_however_wide_and_whole(cli: Run, tmp_path: Path):
    wide = {f"column_{number}": ["x" * 50, None] for number in range(8)}
    write_deltalake(tmp_path / "wide", pa.table(wide))
    _, out, _ = cli("table", "query", str(tmp_path / "wide"))
    assert [line.count("x" * 50) for line in out.splitlines()] == [0, 8, 0, 0]
    _, out, _ = cli("table", "sql", f"SELECT column_1, 5 AS n FROM '{tmp_path / 'wide'}'", "--limit", "1")
    assert out.splitlines()[-1] == "1 row; more rows with --limit 0"
