"""The monitor: the events of a run, as readers see them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.serve.monitor import Monitor
from headrace.serve.pipeline_view import PipelineState
from services.monitored import TABLE, batch, hot_store, partitions, progress, retry, shop_spec, state, stopped


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def monitor(clock: Clock) -> Monitor:
    monitor = Monitor(clock=clock)
    monitor.add(shop_spec())
    return monitor


def test_a_new_pipeline_is_starting_and_knows_nothing(monitor: Monitor) -> None:
    view = monitor.pipeline("shop")
    assert view.state is PipelineState.STARTING
    assert (view.batch, view.committed, view.records_per_second) == (None, None, None)
    assert view.lag.records is None
    assert not view.lag.is_known
    assert view.counts.read == 0


def test_progress_gives_the_lag_and_the_running_state(monitor: Monitor, clock: Clock) -> None:
    clock.pass_seconds(3)
    monitor(progress(lag=50))
    view = monitor.pipeline("shop")
    assert view.state is PipelineState.RUNNING
    assert view.since == clock.now
    assert (view.lag.records, view.lag.seconds) == (50, 5.0)


def test_the_lag_of_partitions(monitor: Monitor) -> None:
    monitor(progress(lag=7))
    monitor(partitions(7))
    (lag,) = monitor.pipeline("shop").lag.partitions.values()
    assert (lag.position, lag.end, lag.records, lag.seconds) == (100, 107, 7, None)
    monitor(progress(lag=None))
    assert monitor.pipeline("shop").lag.partitions == {}


def test_a_lag_that_nobody_has_read_for_long_is_unknown(monitor: Monitor, clock: Clock) -> None:
    monitor(progress(lag=0))
    clock.pass_seconds(31)
    assert monitor.pipeline("shop").lag.records is None


@pytest.mark.parametrize("event", [stopped(), state("stopped"), state("restarting")])
def test_the_lag_of_a_pipeline_that_does_not_run_is_unknown(monitor: Monitor, event: dict[str, Any]) -> None:
    monitor(progress(lag=0))
    monitor(event)
    monitor(progress(lag=0))  # a late one
    assert monitor.pipeline("shop").lag.records is None


def test_batches_add_up(monitor: Monitor, clock: Clock) -> None:
    monitor(progress())
    clock.pass_seconds(1)
    monitor(batch(1, read=10, dead=2, phases={"stage": 0.3, "commit": 0.1}))
    clock.pass_seconds(1)
    monitor(batch(2, read=30, phases={"stage": 0.5, "commit": 0.1}))
    view = monitor.pipeline("shop")
    assert (view.batch, view.batches, view.committed) == (2, 2, clock.now)
    assert (view.counts.read, view.counts.routed, view.counts.dead) == (40, 38, 2)
    assert view.counts.reasons == {"malformed": 2}
    assert view.phases == {"stage": pytest.approx(0.8), "commit": pytest.approx(0.2)}
    table = view.tables["/lake/orders"]
    assert (table.version, table.rows, table.commits, table.files, table.bytes) == (2, 38, 2, 2, 200)
    assert [(each.batch, each.read) for each in view.last_batches] == [(1, 10), (2, 30)]
    assert view.records_per_second == 20.0


def test_the_rate_falls_to_0_without_records_and_becomes_unknown_without_events(monitor: Monitor, clock: Clock) -> None:
    monitor(progress())
    clock.pass_seconds(1)
    monitor(progress(lag=100, batch=1, read=500))
    assert monitor.pipeline("shop").records_per_second == 500.0
    monitor(batch(1, read=500))
    for _ in range(40):
        clock.pass_seconds(1)
        monitor(progress())
    assert monitor.pipeline("shop").records_per_second == 0.0
    clock.pass_seconds(60)
    assert monitor.pipeline("shop").records_per_second is None


def test_samples_are_of_the_last_15_minutes(monitor: Monitor, clock: Clock) -> None:
    for _ in range(1000):
        monitor(progress(lag=1))
        clock.pass_seconds(2)
    samples = monitor.pipeline("shop").samples
    assert len(samples) == 180
    assert samples[-1].at - samples[0].at >= timedelta(minutes=14)
    assert samples[-1].lag == 1


def test_a_retry_of_the_broker_ends_when_the_lag_is_known_again(monitor: Monitor, clock: Clock) -> None:
    monitor(progress())
    monitor(retry("BrokerUnreachable", seconds=5))
    monitor(progress(lag=None))
    clock.pass_seconds(4)
    monitor(progress(lag=None))
    view = monitor.pipeline("shop")
    assert view.state is PipelineState.RETRYING
    assert view.reason is not None
    assert view.reason.error == "BrokerUnreachable"
    assert view.lag.records is None
    clock.pass_seconds(2)
    monitor(progress(lag=3))
    view = monitor.pipeline("shop")
    assert (view.state, view.reason, view.retries) == (PipelineState.RUNNING, None, {"BrokerUnreachable": 1})


def test_a_retry_of_the_store_within_a_batch_ends_with_the_batch(monitor: Monitor, clock: Clock) -> None:
    monitor(progress())
    monitor(retry("StorageUnreachable"))
    since = clock.now
    clock.pass_seconds(2)
    monitor(retry("StorageUnreachable"))
    clock.pass_seconds(2)
    monitor(progress(lag=3, batch=4, read=3))
    assert monitor.pipeline("shop").state is PipelineState.RETRYING
    assert monitor.pipeline("shop").since == since
    monitor(batch(4))
    assert monitor.pipeline("shop").state is PipelineState.RUNNING


def test_an_error_is_the_reason_of_a_failed_pipeline(monitor: Monitor) -> None:
    monitor(stopped())
    monitor(state("stopped"))
    view = monitor.pipeline("shop")
    assert view.state is PipelineState.FAILED
    assert view.reason is not None
    assert (view.reason.error, view.reason.hint) == ("SourceGap", "Resume.")
    assert view.errors == {"SourceGap": 1}


def test_a_restart_keeps_the_reason_until_the_pipeline_starts(monitor: Monitor) -> None:
    monitor(stopped())
    monitor(state("restarting", "in 5 s"))
    view = monitor.pipeline("shop")
    assert view.state is PipelineState.RESTARTING
    assert view.reason is not None
    assert view.reason.error == "SourceGap"
    monitor(state("starting"))
    view = monitor.pipeline("shop")
    assert (view.state, view.reason, view.starts) == (PipelineState.STARTING, None, 2)
    monitor(progress())
    assert monitor.pipeline("shop").state is PipelineState.RUNNING


def test_the_end_of_a_run(monitor: Monitor) -> None:
    monitor(state("stopped"))
    assert monitor.pipeline("shop").state is PipelineState.STOPPED


def test_maintenance_is_counted_by_operation_and_result(monitor: Monitor) -> None:
    action = {"event": "maintenance", "pipeline": "shop", "operation": "compact", "table": "t", "reason": "r"}
    monitor({**action, "state": "started", "files": 3, "bytes": 30})
    monitor({**action, "state": "done", "files": 3, "bytes": 30, "seconds": 0.5})
    monitor({**action, "state": "failed", "files": 0, "bytes": 0, "message": "m"})
    done, failed = (monitor.pipeline("shop").maintenance["compact", result] for result in ("done", "failed"))
    assert (done.count, done.files, done.bytes, done.seconds) == (1, 3, 30, 0.5)
    assert failed.count == 1


def test_the_hot_store_is_counted_and_its_lag_is_unknown_while_it_fails(monitor: Monitor) -> None:
    monitor(progress())
    monitor(hot_store("applied"))
    monitor(hot_store("applied", version=4, lag_commits=3))
    table = monitor.pipeline("shop").hot_tables[TABLE]
    assert (table.version, table.lag_commits, table.lag_seconds) == (4, 3, 1.5)
    assert (table.rows, table.removed, table.rejected) == (20, 2, 4)
    for failure in (
        retry("HotStoreUnreachable", message="no answer"),
        hot_store("failed", error="HotStoreTableInvalid", message="no answer"),
    ):
        monitor(failure)
        view = monitor.pipeline("shop")
        assert view.state is PipelineState.RUNNING  # batches may continue
        assert view.hot_store_error == f"{failure['error']}: no answer"
        assert (view.hot_tables[TABLE].lag_commits, view.hot_tables[TABLE].lag_seconds) == (None, None)
        monitor(hot_store("recovered"))
        view = monitor.pipeline("shop")
        assert (view.hot_store_error, view.hot_tables[TABLE].lag_commits) == (None, 0)
    assert view.retries == {"HotStoreUnreachable": 1}


def test_unknown_pipelines_and_kinds_change_nothing(monitor: Monitor) -> None:
    before = monitor.changes()
    monitor({"event": "setup", "pipeline": "shop", "text": "Starting Spark…"})
    monitor({"event": "summary", "pipeline": "other"})
    monitor({"event": "warning", "text": "no pipeline"})
    assert monitor.changes() == before


def test_adding_again_keeps_the_counts_and_removing_forgets(monitor: Monitor) -> None:
    monitor(batch(1))
    monitor.add(shop_spec())
    assert monitor.pipeline("shop").batches == 1
    monitor.remove("shop")
    assert monitor.pipelines() == ()
    with pytest.raises(KeyError):
        monitor.pipeline("shop")


def test_a_reader_waits_for_a_change(monitor: Monitor) -> None:
    seen = monitor.changes()
    assert monitor.wait(seen, timeout=0) == seen
    woken: list[int] = []
    reader = threading.Thread(target=lambda: woken.append(monitor.wait(seen, timeout=30)))
    reader.start()
    monitor(progress())
    reader.join(30)
    assert woken == [seen + 1]


TARGET = "freshness: {target: 30s}\n"


def test_a_target_is_met_while_the_oldest_record_is_younger(clock: Clock) -> None:
    monitor = Monitor([shop_spec(TARGET)], clock)
    monitor(progress(lag=100, seconds=30.0))
    assert monitor.pipeline("shop").is_fresh is True
    monitor(progress(lag=100, seconds=30.1))
    assert monitor.pipeline("shop").is_fresh is False
    monitor(progress(lag=0))
    assert monitor.pipeline("shop").is_fresh is True


def test_a_target_is_missed_when_the_lag_is_unknown_for_as_long(clock: Clock) -> None:
    monitor = Monitor([shop_spec(TARGET)], clock)
    monitor(progress(lag=0))
    monitor(state("paused"))
    clock.pass_seconds(30)
    assert monitor.pipeline("shop").is_fresh is True
    clock.pass_seconds(1)
    assert monitor.pipeline("shop").is_fresh is False


def test_without_a_target_freshness_is_no_question(monitor: Monitor) -> None:
    monitor(progress(lag=100, seconds=1e6))
    assert monitor.pipeline("shop").is_fresh is None


def test_durations_and_sizes_of_batches_are_distributed(monitor: Monitor) -> None:
    monitor(batch(1, read=10, seconds=0.1))
    monitor(batch(2, read=11, seconds=400))
    view = monitor.pipeline("shop")
    assert dict(view.batch_seconds.buckets())["0.1"] == 1
    assert view.batch_seconds.buckets()[-2:] == [("300.0", 1), ("+Inf", 2)]
    assert (view.batch_records.count, view.batch_records.sum) == (2, 21)
    assert view.batch_records.buckets()[:3] == [("1", 0), ("10", 1), ("100", 2)]
