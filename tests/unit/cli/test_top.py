"""`headrace top`: in a terminal, in a pipe and for an HTTP endpoint; the pipelines are those of this process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from headrace.cli.pipeline_table import table_lines
from headrace.serve.access import Access, ListenOptions, tokens_from
from headrace.serve.endpoint import Endpoint
from headrace.serve.live_pipelines import LivePipeline, LivePipelines
from headrace.serve.monitor import Monitor
from services.command_line import Run, command_line
from services.live import LiveProcess, live_process
from services.monitored import batch, progress, shop_spec, stopped
from services.pipelines import HEADRACE, environment
from services.terminal import Terminal, terminal
from services.wait import eventually

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
TOKEN = "viewer-token-of-32-characters-aa"


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return command_line(monkeypatch, capsys)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LiveProcess]:
    """Two pipelines: `shop` is running, `web` starts."""
    with live_process() as process:
        process.add(tmp_path, "shop", "web")
        process.monitor(progress(lag=1_200_000, seconds=41.0))
        process.monitor(batch(1234, read=100, dead=84))
        yield process


def live(name: str = "shop", **more: Any) -> LivePipeline:
    fields: dict[str, Any] = {"pipeline": name, "process": 4711, "state": "running", "healthy": True, "reason": None}
    fields |= {"lag": 1_200_000, "lag_seconds": 41.2, "records_per_second": 92_345.6, "rates": [0, 10.0, None, 80]}
    fields |= {"batch": 12_345, "last_commit": (NOW - timedelta(seconds=3)).isoformat(), "dead": 84, "tables": 4}
    return LivePipeline(**{**fields, "memory_bytes": 1_300_000_000, **more})


def text_of(*pipelines: LivePipeline, width: int = 80) -> list[str]:
    return [line.plain.rstrip() for line in table_lines(LivePipelines(pipelines), width, NOW)]


# ---- the table ----


def test_a_pipeline_fits_80_columns() -> None:
    _, titles, row = text_of(live("a-pipeline-with-a-long-name", state="restarting"))
    assert titles == "pipeline        state           lag rec/s  trend batch commit dead tables memory"
    assert row == "a-pipeline-wit… restarting 1.2M 41s   92k   ▁▂ █ 12345     3s   84      4   1.2G"
    assert max(map(cell_len, (titles, row))) <= 80
    assert "a-pipeline-with-a-long-name " in text_of(live("a-pipeline-with-a-long-name"), width=100)[2]


def test_what_is_unknown_is_not_0() -> None:
    nothing = dict.fromkeys(("lag", "lag_seconds", "records_per_second", "batch", "last_commit", "dead", "tables"))
    _, _, row = text_of(live(state="starting", rates=[], memory_bytes=None, **nothing))
    assert row.split() == ["shop", "starting", "unknown", *"––––––"]
    assert " 0 " in text_of(live(lag=0, lag_seconds=0.0))[2]


def test_problems_are_first_and_say_why() -> None:
    reason = "waits for the next attempt: BrokerUnreachable: localhost:9092 does not respond\x1b[31m. " * 4
    lines = text_of(live("a"), live("b", state="retrying", healthy=False, reason=reason))
    assert lines[0].endswith("  2 pipelines, 1 unhealthy")
    assert [line.split()[0] for line in lines[2:4]] == ["b", "waits"]
    assert [line[:2] for line in lines[3:6]] == ["  "] * 3
    assert lines[5].endswith(" …")
    assert lines[6].startswith("a ")
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in "".join(text_of(live(reason=reason), width=1_000))


@pytest.mark.parametrize("width", [20, 40, 60, 79])
def test_a_narrow_terminal_has_fewer_columns(width: int) -> None:
    lines = text_of(live(), width=width)
    assert max(map(cell_len, lines)) <= width
    assert lines[1].startswith("pipeline")
    assert "state" in lines[1] or width == 20


def test_numbers_are_short() -> None:
    def cells(**more: Any) -> list[str]:
        return text_of(live(**more))[2].split()

    assert cells(dead=999)[-3] == "999"
    assert cells(dead=1_000)[-3] == "1.0k"
    assert cells(dead=9_960)[-3] == "10k"
    assert cells(dead=999_600)[-3] == "1.0M"
    assert cells(memory_bytes=5 * 1024**2)[-1] == "5.0M"
    ages = {seconds: cells(lag_seconds=seconds)[3] for seconds in (0.4, 59.9, 60.0, 3_600.0, 200_000.0)}
    assert list(ages.values()) == ["0s", "59s", "1m", "1h", "2d"]


# ---- in a pipe ----


def test_once_prints_a_table(cli: Run, process: LiveProcess) -> None:
    code, out, err = cli("top", "--once")
    assert (code, err) == (0, "")
    summary, titles, shop, web = out.splitlines()[:4]
    assert summary.endswith("2 pipelines")
    assert titles.split()[:3] == ["pipeline", "state", "lag"]
    assert shop.split()[:4] == ["shop", "running", "1.2M", "41s"]
    assert web.split()[:3] == ["web", "starting", "unknown"]
    assert "\x1b" not in out


def test_json_lines(cli: Run, process: LiveProcess) -> None:
    code, out, _ = cli("top", "--once", "--json")
    shop, web = map(json.loads, out.splitlines())
    assert code == 0
    assert (shop["event"], shop["pipeline"], shop["process"]) == ("pipeline", "shop", os.getpid())
    assert (shop["lag"], shop["lag_seconds"], shop["batch"], shop["dead"]) == (1_200_000, 41.0, 1234, 84)
    assert (web["lag"], web["lag_seconds"], web["batch"]) == (None, None, None)


def test_without_processes_there_is_an_empty_table(cli: Run) -> None:
    code, out, _ = cli("top", "--once")
    assert code == 0
    assert out.strip().endswith("  0 pipelines")


def test_a_pipe_gets_a_table_at_each_update_until_its_reader_ends(process: LiveProcess) -> None:
    command = [HEADRACE, "top", "--every", "0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), text=True, **pipes) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        shown = [child.stdout.readline() for _ in range(5)]
        assert shown[4] == "\n"
        process.monitor(batch(1235))
        assert any("1235" in line for line in iter(child.stdout.readline, ""))
        child.stdout.close()  # as `head` does
        assert child.wait(60) == 0
        assert child.stderr.read() == ""


# ---- on a terminal ----


def _words(view: Terminal, line: int) -> list[str]:
    return [*view.screen(), *[""] * 10][line].split()


def test_the_screen_follows_and_q_ends_it(process: LiveProcess) -> None:
    with terminal(["top", "--every", "0.2"], {"COLUMNS": "80", "LINES": "24"}) as view:
        eventually(lambda: _words(view, 3)[:2] == ["shop", "running"], 60, lambda: str(view.screen()))
        process.monitor(stopped())
        eventually(lambda: _words(view, 5)[:1] == ["web"], 60, lambda: str(view.screen()))
        summary, empty, titles, shop, reason, web = view.screen()[:6]
        assert (summary[10:], empty) == ("2 pipelines, 1 unhealthy  q quits", "")
        assert titles.split()[:2] == ["pipeline", "state"]
        assert shop.split()[:3] == ["shop", "failed", "unknown"]
        assert reason == "  failed: SourceGap: Offsets are gone."
        assert web.split()[:3] == ["web", "starting", "unknown"]
        assert max(map(cell_len, view.screen())) <= 80
        assert "\x1b[2J" not in view.written  # a cleared screen would flicker
        view.press("q")
        assert view.wait(60) == 0
    assert view.written.endswith("\x1b[?25h\x1b[?1049l")  # the cursor, and the screen before
    assert view.written.index("\x1b[?1049h") < view.written.index("\x1b[?1049l")


def test_a_screen_without_room_says_how_much_is_missing(process: LiveProcess, tmp_path: Path) -> None:
    process.add(tmp_path, *(f"more-{number}" for number in range(8)))
    with terminal(["top"], {"COLUMNS": "80", "LINES": "10", "NO_COLOR": "1"}) as view:
        view.until("… 4 more lines")
        assert len(view.screen()) == 10
        view.interrupt()
        assert view.wait(60) == 0
    assert "\x1b[3" not in view.written  # no colour


# ---- an endpoint ----


@pytest.fixture
def endpoint() -> Iterator[tuple[str, Monitor]]:
    monitor = Monitor([shop_spec()])
    options = ListenOptions("127.0.0.1:0")
    server = Endpoint(monitor, options, access=Access(options, tokens_from({"HEADRACE_VIEWER_TOKEN": TOKEN})))
    url = server.start()
    try:
        yield url, monitor
    finally:
        server.stop()


def test_an_endpoint(cli: Run, endpoint: tuple[str, Monitor], monkeypatch: pytest.MonkeyPatch) -> None:
    url, monitor = endpoint
    monkeypatch.setenv("HEADRACE_VIEWER_TOKEN", TOKEN)
    monitor(progress(lag=5))
    monitor(batch(7, dead=2))
    code, out, _ = cli("top", "--url", f"{url}/", "--once", "--json")
    (shop,) = map(json.loads, out.splitlines())
    assert (code, shop["process"], shop["state"], shop["lag"], shop["dead"]) == (0, url, "running", 5, 2)
    assert shop["memory_bytes"] > 1_000_000
    monitor(stopped())  # status 503 has the same body
    assert "failed: SourceGap: Offsets are gone." in cli("top", "--url", url, "--once")[1]


def test_an_endpoint_that_refuses_or_does_not_answer(
    cli: Run, endpoint: tuple[str, Monitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = endpoint
    code, _, err = cli("top", "--url", url)
    assert code == 2
    assert f"{url} requires a token. Set HEADRACE_VIEWER_TOKEN or HEADRACE_VIEWER_TOKEN_FILE." in err
    monkeypatch.setenv("HEADRACE_VIEWER_TOKEN", "another-token-of-32-characters")
    assert "requires another token" in cli("top", "--url", url)[2]
    assert "does not respond" in cli("top", "--url", "http://127.0.0.1:1")[2]
    assert "Invalid URL: 'localhost:9187'." in cli("top", "--url", "localhost:9187")[2]
    code, _, err = cli("top", "--url", "http://lake.example:9187")
    assert code == 2
    assert "unencrypted. Use https://, or --plaintext" in err
