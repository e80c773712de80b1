"""The supervisor: real pipelines without Spark (they fail, wait for a lease, or have nothing to do), one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import errors
from headrace.errors import HeadraceError, PipelineStopped, SparkExited, SpecError, UsageError
from headrace.pipeline.control import PauseRequest, State, StopRequest
from headrace.retry import Retry
from headrace.serve import supervised_pipeline
from headrace.serve.supervised_pipeline import restart_may_help
from headrace.serve.supervisor import Supervisor
from headrace.spec import Spec
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from headrace.validate.load import loads
from services.sessions import FailingSession
from services.wait import eventually

DECISIONS = {
    "SourceGap SourceTopicGone SourceReplaced SourceRewound SourceRepartitioned SpoolDamaged FileChanged TableGone",
    "TableReplaced TableRestored TableChanged TableFeature DirectCommitBlocked TxnMismatch UnsupportedStateFormat",
    "TooManyPartitions ContractViolation ColumnMismatch UnknownColumn TooManyRejected StorageUnsupported",
    "EnvironmentMismatch UsageError SpecError",
}


def spec(folder: Path, name: str = "web") -> Spec:
    text = f"pipeline: {name}\nsource: {{generate: {{rate: 10/s}}}}\n"
    text += f"table: {{path: ./lake/{name}, columns: [{{name: id, type: bigint}}]}}\n"
    return loads(text, folder)[0]


@contextmanager
def supervised(*failures: HeadraceError, restarts: bool = True) -> Iterator[tuple[Supervisor, list[dict[str, Any]]]]:
    events: list[dict[str, Any]] = []
    shared = FailingSession(failures)
    supervisor = Supervisor(shared, report=events.append, restarts=restarts)
    try:
        yield supervisor, events
    finally:
        supervisor.process_stop.set()
        shared.released.set()
        assert supervisor.join()


def states(events: list[dict[str, Any]], name: str = "web") -> list[str]:
    return [event["state"] for event in list(events) if event["event"] == "state" and event["pipeline"] == name]


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_pipeline, "BACKOFF", Retry(0.01, 0.02))


def test_only_errors_that_nobody_has_to_resolve_are_worth_a_restart() -> None:
    for name in " ".join(DECISIONS).split():
        assert not restart_may_help(errors.ERRORS[name]("x")), name
    assert restart_may_help(SparkExited("x"))
    assert restart_may_help(HeadraceError("KeyError: a bug"))
    assert restart_may_help(PipelineStopped("Spark failed: unknown"))


def test_a_failed_pipeline_is_started_again(tmp_path: Path) -> None:
    with supervised(SparkExited("one"), SparkExited("two")) as (supervisor, events):
        supervisor.add(spec(tmp_path))
        expected = ["starting", "restarting", "starting", "restarting", "starting", "running"]
        eventually(lambda: states(events) == expected[:5], 30, lambda: str(events))
        (state,) = supervisor.states()
        assert (state.state, state.restarts) == (State.STARTING, 2)
    reasons = [event["reason"] for event in events if event["event"] == "state" and event["state"] == "restarting"]
    assert reasons == ["SparkExited: one", "SparkExited: two"]
    assert states(events)[-1] == "stopped"


def test_without_restarts_the_first_error_ends_it(tmp_path: Path) -> None:
    with supervised(SparkExited("one"), restarts=False) as (supervisor, events):
        supervisor.add(spec(tmp_path))
        assert supervisor.join()
        assert states(events) == ["starting", "failed"]
        (result,) = supervisor.results()
        assert isinstance(result.error, SparkExited)


def test_an_error_that_requires_a_decision_leaves_the_others_running(tmp_path: Path) -> None:
    gap = errors.SourceGap("Offsets are gone.", hint="Use `headrace resume SPEC --accept-gap`.")
    with supervised(gap) as (supervisor, events):
        supervisor.add(spec(tmp_path))
        eventually(lambda: states(events) == ["starting", "failed"], 30, lambda: str(events))
        supervisor.add(spec(tmp_path, "other"))
        eventually(lambda: supervisor.states()[0].state is State.STARTING, 30, "the other starts")
        other, failed = supervisor.states()
        assert (other.pipeline, failed.pipeline) == ("other", "web")
        assert (failed.reason, failed.hint) == ("SourceGap: Offsets are gone.", gap.hint)
        with pytest.raises(UsageError, match=r"web cannot be paused: it has failed: SourceGap.*headrace restart web"):
            supervisor.pause("web")
        supervisor.restart("web")
        assert states(events)[-1] == "starting"


def test_a_pipeline_that_another_process_runs_waits_for_it(tmp_path: Path) -> None:
    web = spec(tmp_path)
    with supervised() as (supervisor, events):
        with Lease.take(Store(web.state_uri)):
            supervisor.add(web)
            eventually(lambda: states(events).count("restarting") > 1, 30, lambda: str(events))
        started = len(states(events))
        eventually(lambda: supervisor._shared.starts == 1, 30, lambda: str(events))  # type: ignore[attr-defined]
        assert "failed" not in states(events)[started:]


def test_an_interlude_comes_between_two_runs(tmp_path: Path) -> None:
    """Without the lease, which the interlude may take."""
    web, calls = spec(tmp_path), list[tuple[bool, State]]()

    def interlude(is_ending: bool) -> None:
        with Lease.take(Store(web.state_uri)):
            calls.append((is_ending, supervisor.states()[0].state))

    with supervised() as (supervisor, events):
        supervisor.add(web)
        eventually(lambda: supervisor._shared.starts == 1, 30, lambda: str(events))  # type: ignore[attr-defined]
        supervisor._get("web").interrupt(interlude, "an interlude")
        supervisor._shared.released.set()  # type: ignore[attr-defined]
        eventually(lambda: calls and states(events).count("starting") == 2, 30, lambda: str(events))
        assert calls[0][0] is False
    reasons = [event["reason"] for event in events if event["event"] == "state" and event["state"] == "starting"]
    assert reasons == [None, "an interlude"]


def test_an_interlude_of_a_pipeline_that_ends_is_told(tmp_path: Path) -> None:
    calls: list[bool] = []
    with supervised() as (supervisor, events):
        supervisor.add(spec(tmp_path))
        eventually(lambda: supervisor._shared.starts == 1, 30, lambda: str(events))  # type: ignore[attr-defined]
        supervisor.process_stop.set()
        supervisor._get("web").interrupt(calls.append, "an interlude")
        supervisor._shared.released.set()  # type: ignore[attr-defined]
        assert supervisor.join()
        assert calls == [True]
        supervisor._get("web").interrupt(calls.append, "an interlude")  # one that has ended is not started
        assert calls == [True, False]
        assert states(events).count("starting") == 1


def test_removing_one_leaves_the_others(tmp_path: Path) -> None:
    with supervised() as (supervisor, events):
        for name in ("web", "shop"):
            supervisor.add(spec(tmp_path, name))
        eventually(lambda: supervisor._shared.starts == 2, 30, "both start")  # type: ignore[attr-defined]
        supervisor.is_endless = True
        joined = threading.Thread(target=supervisor.join)
        joined.start()
        supervisor.remove("web")
        supervisor._shared.released.set()  # type: ignore[attr-defined]
        eventually(lambda: [state.pipeline for state in supervisor.states()] == ["shop"], 30, lambda: str(events))
        assert states(events, "web")[-1] == "stopped"
        with pytest.raises(UsageError, match=r"This process has no pipeline 'web'\. Its pipelines: shop\."):
            supervisor.restart("web")
        supervisor.process_stop.set()
        joined.join(30)
        assert not joined.is_alive()


def test_two_pipelines_of_one_name_or_state_are_refused(tmp_path: Path) -> None:
    with supervised() as (supervisor, _):
        supervisor.add(spec(tmp_path))
        with pytest.raises(SpecError, match="same state"):
            supervisor.add(spec(tmp_path))
        with pytest.raises(SpecError, match="same pipeline name: web"):
            supervisor.add(spec(tmp_path / "elsewhere"))


def test_two_pipelines_with_one_spool_are_refused(tmp_path: Path) -> None:
    text = "pipeline: {0}\nsource: {{http: {{topics: [a], spool: {{path: ./spool}}}}}}\ntable: {{path: ./{0}}}\n"
    with supervised() as (supervisor, _):
        supervisor.add(*loads(text.format("a"), tmp_path))
        with pytest.raises(SpecError, match=f"same spool: {tmp_path}/spool"):
            supervisor.add(*loads(text.format("b"), tmp_path))


def test_a_stop_of_the_process_is_a_stop_of_each_pipeline() -> None:
    process = threading.Event()
    one, other = StopRequest(process), StopRequest(process)
    one.set()
    assert (one.is_set(), other.is_set(), other.wait(0.01)) == (True, False, False)
    threading.Timer(0.05, process.set).start()
    assert other.wait(30)


def test_a_pause_lasts_until_it_is_lifted_or_the_pipeline_ends() -> None:
    pause, ending = PauseRequest(), threading.Event()
    pause.set()
    waiting = threading.Thread(target=pause.wait, args=(ending.is_set,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    pause.lift()
    waiting.join(30)
    assert not waiting.is_alive()
    pause.set()
    ending.set()
    pause.wait(ending.is_set)
    assert pause.is_set
