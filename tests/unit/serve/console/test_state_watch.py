"""Views from the state of pipelines that run elsewhere, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.serve.console.state_watch import StateWatch
from headrace.serve.pipeline_view import PipelineState
from headrace.serve.redaction import Redaction
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from services.console import filled_pipeline, served_console
from services.in_process_pipeline import Harness
from services.wait import eventually


def watched(harness: Harness) -> StateWatch:
    return StateWatch([harness.spec], Redaction([harness.spec]))


def read(watch: StateWatch, harness: Harness):
    return watch.read(harness.spec, watch.pipeline("shop"))


def test_a_pipeline_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = filled_pipeline(tmp_path)
    harness.serve(monkeypatch)
    view = read(watched(harness), harness)
    assert view.state is PipelineState.STOPPED
    assert view.reason is not None
    assert view.reason.message == "no process holds its lease"
    assert (view.batch, view.batches, view.counts.read, view.counts.dead) == (3, 3, 29, 6)
    assert view.counts.is_complete
    assert [each.batch for each in view.last_batches] == [1, 2, 3]
    assert (view.lag.records, view.records_per_second) == (0, None)
    assert len(view.samples) == 1
    order = view.tables[f"{tmp_path}/lake/order"]
    assert (order.version, order.commits, order.rows) == (3, 3, 12)


def test_the_process_that_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = filled_pipeline(tmp_path)
    harness.serve(monkeypatch)
    watch = watched(harness)
    with Lease.take(Store(harness.spec.state_uri)):
        view = read(watch, harness)
    assert view.state is PipelineState.RUNNING
    assert view.reason is not None
    assert "as process" in view.reason.message
    assert view.records_per_second is not None


def test_a_broker_that_is_down_makes_the_lag_unknown(tmp_path: Path) -> None:
    harness = filled_pipeline(tmp_path)  # nothing listens at its broker
    view = read(watched(harness), harness)
    assert view.lag.records is None
    assert view.batch == 3


def test_a_pipeline_without_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(tmp_path)
    harness.serve(monkeypatch)
    view = read(watched(harness), harness)
    assert (view.state, view.batch, view.batches) == (PipelineState.STOPPED, None, 0)


def test_a_state_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    harness = filled_pipeline(tmp_path)
    for file in Path(harness.spec.state_uri, "known_tables").iterdir():
        file.write_text('{"format": 99}')
    view = read(watched(harness), harness)
    assert view.state is PipelineState.FAILED
    assert view.reason is not None
    assert view.reason.error == "UnsupportedStateFormat"


def test_the_console_of_a_state_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = filled_pipeline(tmp_path)
    harness.serve(monkeypatch)
    watch = watched(harness)
    watch.start()
    try:
        eventually(lambda: watch.pipeline("shop").batch == 3, 60, "the state is read")
        with served_console(harness, {}, watch) as served:
            assert "From the state of the pipelines" in served.page("/", None)
            html = served.page("/pipelines/shop", None)
            assert "no process holds its lease" in html
            assert "Path of batch 3" in html
    finally:
        watch.stop()
