"""The control socket: real sockets between a supervisor in this process and the client of the commands."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SetupError, SourceGap, SparkExited, UsageError
from headrace.serve.control_client import process_of, request, running_processes, wait_for_state
from headrace.serve.control_folder import control_folder, short_path
from headrace.serve.live_pipelines import pipelines_of_processes
from services.live import LiveProcess, live_process
from services.monitored import batch, progress, retry
from services.wait import eventually


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime" / "headrace"


def _states(process: LiveProcess) -> list[str]:
    return [event["state"] for event in list(process.events) if event["event"] == "state"]


def test_only_the_user_can_open_the_socket_and_it_goes_with_the_process(tmp_path: Path, runtime: Path) -> None:
    with live_process() as process:
        process.add(tmp_path, "shop")
        (path,) = runtime.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
        (running,) = running_processes("list")
        assert (running.pid, running.error) == (os.getpid(), None)
        (row,) = running.pipelines
        assert (row["pipeline"], row["state"], row["restarts"]) == ("shop", "starting", 0)
        assert row["state_uri"] == f"{tmp_path}/lake/_headrace/shop"
    assert list(runtime.iterdir()) == []
    assert running_processes() == []


def test_a_folder_that_others_can_open_is_not_used(runtime: Path) -> None:
    runtime.mkdir(parents=True, mode=0o755)
    runtime.chmod(0o755)
    with pytest.raises(SetupError, match="Other users can open"):
        control_folder()
    with live_process() as process:
        (warning,) = [event["text"] for event in process.events if event["event"] == "warning"]
    assert "no control socket" in warning


def test_the_status_has_the_figures_of_the_monitor(tmp_path: Path) -> None:
    with live_process() as process:
        process.add(tmp_path, "shop", "web")
        process.monitor(progress(lag=70))
        process.monitor(batch(3, read=10, dead=2))
        live = pipelines_of_processes()
        shop, web = live.pipelines
        assert (shop.pipeline, shop.process, shop.state, shop.healthy) == ("shop", os.getpid(), "running", True)
        assert (shop.lag, shop.lag_seconds, shop.batch, shop.dead, shop.tables) == (70, 7.0, 3, 2, 1)
        assert shop.last_commit is not None
        assert shop.memory_bytes is not None
        assert shop.memory_bytes > 0
        assert (web.state, web.lag, web.lag_seconds, web.batch, web.last_commit) == ("starting", None, None, None, None)
        process.monitor(retry("BrokerUnreachable"))
        shop, _ = pipelines_of_processes().pipelines
        assert (shop.state, shop.healthy) == ("retrying", False)
        assert shop.reason == "waits for the next attempt: BrokerUnreachable: no answer"


def test_pause_resume_and_restart(tmp_path: Path) -> None:
    with live_process() as process:
        process.add(tmp_path, "shop", "web")
        running = process_of("shop")
        (row,) = request(running.socket, "pause", ["shop"])["pipelines"]
        assert (row["pipeline"], row["is_pausing"]) == ("shop", True)
        assert [row["is_pausing"] for row in request(running.socket, "list")["pipelines"]] == [True, False]
        (row,) = request(running.socket, "resume", ["shop"])["pipelines"]
        assert not row["is_pausing"]
        (row,) = request(running.socket, "restart", ["web"])["pipelines"]
        assert row["is_restarting"]
        process.session.released.set()
        reached = wait_for_state(running, "web", lambda row: not row["is_restarting"], 60)
        assert reached is not None
        restarted = ("web", "starting", "restart requested")
        eventually(
            lambda: restarted in [(each["pipeline"], each.get("state"), each.get("reason")) for each in process.events],
            60,
            lambda: str(process.events),
        )


def test_a_failed_pipeline_says_why_and_can_be_restarted(tmp_path: Path) -> None:
    hint = "Use `headrace resume SPEC --accept-gap`."
    with live_process(SourceGap("Offsets are gone.", hint=hint)) as process:
        process.add(tmp_path, "shop")
        eventually(lambda: _states(process) == ["starting", "failed"], 30, lambda: str(process.events))
        running = process_of("shop")
        (row,) = running.pipelines
        assert (row["state"], row["reason"], row["hint"]) == ("failed", "SourceGap: Offsets are gone.", hint)
        with pytest.raises(UsageError, match="shop cannot be paused: it has failed: SourceGap"):
            request(running.socket, "pause", ["shop"])
        request(running.socket, "restart", ["shop"])
        reached = wait_for_state(running, "shop", lambda row: row["state"] == "starting", 60)
        assert reached is not None


def test_responses_have_no_secrets(tmp_path: Path) -> None:
    def redact(response: Any) -> Any:
        return json.loads(json.dumps(response).replace("s3cr3t-canary", "[redacted]"))

    with live_process(SparkExited("password=s3cr3t-canary"), redact=redact) as process:
        process.add(tmp_path, "shop")
        eventually(lambda: _states(process)[-1:] == ["failed"], 30, lambda: str(process.events))
        (row,) = running_processes("status")[0].pipelines
        assert row["reason"] == "SparkExited: password=[redacted]"
        with pytest.raises(UsageError) as raised:
            request(running_processes()[0].socket, "pause", ["shop"])
        assert "s3cr3t-canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense\n", "Invalid request: "),
        (b"[]\n", "Invalid request."),
        (b'{"command": "stop"}\n', "Unknown command: 'stop'."),
        (b'{"command": "pause", "pipelines": ["other"]}\n', "This process has no pipeline 'other'."),
    ],
)
def test_an_invalid_request_is_answered(runtime: Path, line: bytes, message: str) -> None:
    with live_process():
        (path,) = runtime.iterdir()
        with socket.socket(socket.AF_UNIX) as connection:
            with short_path(path.parent) as folder:
                connection.connect(f"{folder}/{path.name}")
            connection.sendall(line)
            response = json.loads(connection.makefile("rb").readline())
        assert (response["ok"], response["error"]) == (False, "UsageError")
        assert response["message"].startswith(message)
        assert len(running_processes()) == 1


def test_the_socket_of_a_dead_process_is_deleted(tmp_path: Path, runtime: Path) -> None:
    with live_process() as process:
        process.add(tmp_path, "shop")
        with socket.socket(socket.AF_UNIX) as dead, short_path(runtime) as folder:
            dead.bind(f"{folder}/4711-abcdef00.sock")
        assert [each.pid for each in running_processes()] == [os.getpid()]
        assert len(list(runtime.iterdir())) == 1


def test_a_process_that_does_not_answer_is_named(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.control_client._RESPONSE_TIMEOUT", 0.2)
    control_folder()
    with socket.socket(socket.AF_UNIX) as silent:
        with short_path(runtime) as folder:
            silent.bind(f"{folder}/4711-abcdef00.sock")
        silent.listen()
        live = pipelines_of_processes()
        assert live.pipelines == []
        assert live.warnings == ["process 4711 does not respond: timed out"]
        with pytest.raises(UsageError, match=r"No running process has a pipeline 'shop'\. The process 4711 does not"):
            process_of("shop")


def test_a_pipeline_of_several_processes_needs_a_process_id(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No running process found"):
        process_of("shop")
    with live_process() as one, live_process() as other:
        one.add(tmp_path / "one", "shop")
        other.add(tmp_path / "other", "shop", "web")
        with pytest.raises(UsageError, match="Several processes run a pipeline 'shop'") as raised:
            process_of("shop")
        assert raised.value.hint == "Use --process PID."
        assert process_of("web").pid == os.getpid()
        with pytest.raises(UsageError, match=r"Use the name of the pipeline, not its file"):
            process_of("shop.yaml")
        with pytest.raises(UsageError, match="No running process has a pipeline 'more'"):
            process_of("more")
