"""Changes by operators, on pipelines that run here without a JVM; each asks first and is in the audit log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.ledger.audit import AuditEntry, AuditLog, AuditPhase
from headrace.pipeline.control import State
from headrace.serve.console.changes import ChangeKind
from headrace.serve.monitor import Monitor
from headrace.serve.supervisor import Supervisor
from headrace.storage.store import Store
from services.console import OPERATOR, TOKENS, VIEWER, ServedConsole, filled_pipeline, served_console
from services.sessions import FailingSession
from services.wait import eventually

SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ServedConsole, Supervisor]]:
    """A console with the supervisor of its pipeline, which runs."""
    harness = filled_pipeline(tmp_path)
    harness.serve(monkeypatch)
    monitor = Monitor()
    supervisor = Supervisor(FailingSession([]), report=monitor, monitor=monitor)
    with served_console(harness, TOKENS, monitor) as served, served.console.control(supervisor):
        supervisor.start([harness.spec])
        try:
            eventually(lambda: state(supervisor) is State.RUNNING, 60, "the pipeline runs")
            yield served, supervisor
        finally:
            supervisor.process_stop.set()
            assert supervisor.join()


def state(supervisor: Supervisor) -> State:
    return supervisor.states()[0].state


def confirm(served: ServedConsole, change: str, token: str = OPERATOR, **form: str) -> tuple[int, Any]:
    path = f"/pipelines/shop/changes/{change}"
    status, html, _ = served.client.post(path, {"confirm": "yes", **form}, token, **SAME_SITE)
    return status, html


def entries(served: ServedConsole) -> list[AuditEntry]:
    """The audit log, oldest first."""
    return AuditLog(Store(served.harness.spec.state_uri)).newest(100)[::-1]


def finished(served: ServedConsole) -> AuditEntry:
    """The last entry, once its change has ended."""
    eventually(lambda: entries(served)[-1].phase is not AuditPhase.REQUESTED, 60, "the change ends")
    return entries(served)[-1]


def test_pause_and_resume(running: tuple[ServedConsole, Supervisor]) -> None:
    served, supervisor = running
    html = served.page("/pipelines/shop/changes/pause", OPERATOR)
    assert "State now" in html
    assert "headrace pause shop" in html
    assert state(supervisor) is State.RUNNING  # the page only asks
    assert entries(served) == []
    assert confirm(served, "pause")[0] == 303
    eventually(lambda: state(supervisor) is State.PAUSED, 60, "the pipeline pauses")
    requested, done = entries(served)
    assert (requested.phase, requested.action, requested.state) == (AuditPhase.REQUESTED, "pause", "running")
    assert (requested.role, requested.address, requested.subject) == ("operator", "127.0.0.1", "pipeline")
    assert (done.phase, done.change) == (AuditPhase.DONE, requested.change)
    assert done.state in ("running, pause requested", "paused")
    assert confirm(served, "resume")[0] == 303
    eventually(lambda: state(supervisor) is State.RUNNING, 60, "the pipeline continues")
    text = served.page("/pipelines/shop/audit")
    assert text.count("operator from 127.0.0.1") == 4
    assert "in progress" not in text


def test_restart(running: tuple[ServedConsole, Supervisor]) -> None:
    served, supervisor = running
    since = supervisor.states()[0].since
    assert confirm(served, "restart")[0] == 303
    eventually(lambda: supervisor.states()[0].since > since and state(supervisor) is State.RUNNING, 60, "it restarts")


def test_viewers_and_unconfirmed_requests_change_nothing(running: tuple[ServedConsole, Supervisor]) -> None:
    served, supervisor = running
    for change in ChangeKind:
        assert confirm(served, change, VIEWER)[0] == 403
    table = served.table_path("order").rpartition("/")[2]
    for change, typed in (("pause", ""), ("replay", "yes"), ("replay", ""), ("vacuum", "yes")):
        status, html = confirm(served, change, confirm=typed, table=table if change == "vacuum" else "")
        assert status == 400, change
        assert "to confirm" in html
    assert confirm(served, "explode")[0] == 404
    assert confirm(served, "vacuum", table="nothing")[0] == 404
    assert entries(served) == []
    assert state(supervisor) is State.RUNNING
    assert "Pause…" not in served.page("/pipelines/shop")
    assert "Pause…" in served.page("/pipelines/shop", OPERATOR)


def test_replay_of_a_running_pipeline(running: tuple[ServedConsole, Supervisor]) -> None:
    served, supervisor = running
    html = served.page("/pipelines/shop/changes/replay?reason=bad_route", OPERATOR)
    assert "bad_route, " in html
    content = json.loads(served.harness.spec.text)
    served.harness.options["route"] = {"by": {"sql": "replace(kind, '/', '_')"}}
    supervisor.change(served.harness.spec)
    assert content["route"] != served.harness.options["route"]
    eventually(lambda: supervisor.spec_of("shop").route.kind == "sql", 60, "the spec is changed")
    assert confirm(served, "replay", reason="bad_route", confirm="shop")[0] == 303
    entry = finished(served)
    assert (entry.phase, entry.state) == (AuditPhase.DONE, "1 dead letter: 1 replayed, 0 still dead, 0 filtered")
    assert entry.subject == "dead letters (bad_route)"
    assert [row["id"] for row in served.harness.rows("lake/a_b")] == [7]
    eventually(lambda: state(supervisor) is State.RUNNING, 60, "the pipeline runs again")
    assert "5 unresolved" in served.page("/pipelines/shop/dead-letters")


def test_optimize_and_vacuum(running: tuple[ServedConsole, Supervisor]) -> None:
    served, _ = running
    key = served.table_path("order").rpartition("/")[2]
    rows = len(served.harness.rows("lake/order"))
    assert "Small files" in served.page(f"/pipelines/shop/changes/optimize?table={key}", OPERATOR)
    assert confirm(served, "optimize", table=key)[0] == 303
    entry = finished(served)
    assert entry.phase is AuditPhase.DONE
    assert re.match(r"version 4: 3 files \(.*\) became 1 \(.*\)$", entry.state)
    assert entries(served)[-2].state == "version 3"
    uri = f"{served.harness.folder}/lake/order"
    assert entry.subject == uri
    assert len(DeltaTable(uri).file_uris()) == 1
    assert len(served.harness.rows("lake/order")) == rows
    assert "Files to delete" in served.page(f"/pipelines/shop/changes/vacuum?table={key}", OPERATOR)
    assert confirm(served, "vacuum", table=key, confirm="order")[0] == 303
    assert finished(served).phase is AuditPhase.DONE


def test_a_change_that_fails_is_in_the_audit_log(running: tuple[ServedConsole, Supervisor]) -> None:
    served, supervisor = running
    supervisor.process_stop.set()
    assert supervisor.join()
    assert confirm(served, "pause")[0] == 303
    entry = finished(served)
    assert entry.phase is AuditPhase.FAILED
    assert entry.state.startswith("UsageError: shop cannot be paused: it has stopped")
    assert "× failed" in served.page("/pipelines/shop/audit")


def test_without_an_audit_log_nothing_is_changed(
    running: tuple[ServedConsole, Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, supervisor = running
    (Path(served.harness.spec.state_uri) / "audit").write_text("not a directory")
    status, html = confirm(served, "pause")
    assert (status, state(supervisor)) == (502, State.RUNNING)
    assert "Nothing was changed" in html
    assert not supervisor.states()[0].is_pausing
