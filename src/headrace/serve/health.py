"""The health of a process as JSON: every pipeline, its tables and its lag, and what is wrong with it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from headrace.serve.monitor import Monitor
from headrace.serve.pipeline_view import LagView, PipelineState, PipelineView
from headrace.serve.supervised_pipeline import DRAINED
from headrace.spec.units import spell_duration
from headrace.version import VERSION

_UNHEALTHY = {
    PipelineState.STOPPED: "stopped",
    PipelineState.FAILED: "failed",
    PipelineState.RETRYING: "waits for the next attempt",
    PipelineState.RESTARTING: "restarts after an error",
}
_COUNTS = ("read", "routed", "dead", "filtered", "skipped")
_OF_THE_SOCKET = ("pipeline", "since", "reason", "partitions")  # that it has itself, or that are too many
_RATES = 20  # newest samples, of five seconds each
_NOT_READY = (PipelineState.STARTING, PipelineState.FAILED, PipelineState.RETRYING, PipelineState.RESTARTING)


def health_of(monitor: Monitor) -> dict[str, Any]:
    """The health of all pipelines."""
    pipelines = [pipeline_health(view) for view in monitor.pipelines()]
    return {
        "healthy": all(each["healthy"] for each in pipelines),
        "version": VERSION,
        "started": _time(monitor.started),
        "pipelines": pipelines,
    }


def pipeline_health(view: PipelineView) -> dict[str, Any]:
    """The health of one pipeline; null is unknown."""
    problems = problems_of(view)
    reason = view.reason
    return {
        "pipeline": view.name,
        "healthy": not problems,
        "ready": view.state not in _NOT_READY,
        "problems": problems,
        "state": view.state.value,
        "since": _time(view.since),
        "reason": reason and {"error": reason.error, "message": reason.message, "hint": reason.hint},
        "batch": view.batch,
        "last_commit": _time(view.committed),
        "records": {name: getattr(view.counts, name) for name in _COUNTS},
        "records_per_second": view.records_per_second,
        "rates": [sample.records_per_second for sample in view.samples[-_RATES:]],
        **_lag(view.lag),
        "tables": {
            path: {"version": table.version, "last_commit": _time(table.committed), "rows": table.rows}
            for path, table in sorted(view.tables.items())
        },
        "hot_store": _hot_store(view),
    }


def _hot_store(view: PipelineView) -> dict[str, Any] | None:
    """The hot store; null without one."""
    if view.spec.hot_store is None:
        return None
    tables = {
        path: {"version": table.version, "lag_commits": table.lag_commits, "lag_seconds": table.lag_seconds}
        for path, table in sorted(view.hot_tables.items())
    }
    return {"error": view.hot_store_error, "tables": tables}


def health_figures(monitor: Monitor, pipeline: str) -> dict[str, Any]:
    """The health of a pipeline as figures of the control socket; empty for an unknown one."""
    try:
        health = pipeline_health(monitor.pipeline(pipeline))
    except KeyError:
        return {}
    return {name: value for name, value in health.items() if name not in _OF_THE_SOCKET}


def problems_of(view: PipelineView) -> list[str]:
    """What is wrong with a pipeline; empty if it is healthy."""
    problems = []
    reason, lag = view.reason, view.lag
    if (state := _UNHEALTHY.get(view.state)) is not None and not (reason and reason.message == DRAINED):
        why = () if reason is None else (reason.error, reason.message)
        problems.append(": ".join(part for part in (state, *why) if part))
    if view.state is PipelineState.RUNNING and lag.checked is not None and not lag.is_known:
        problems.append("the lag is unknown: the source does not respond")
    if view.hot_store_error is not None:
        problems.append(f"the hot store cannot be written: {view.hot_store_error}")
    if view.is_fresh is False:
        problems.append(_stale(view))
    return problems


def _stale(view: PipelineView) -> str:
    assert view.spec.freshness is not None  # noqa: S101
    target = f"freshness.target is {spell_duration(view.spec.freshness.target)}"
    if view.lag.seconds is None:
        return f"it is unknown how old the unread records are; {target}"
    return f"the oldest unread record is {view.lag.seconds:,.0f} s old; {target}"


def _lag(lag: LagView) -> dict[str, Any]:
    return {
        "lag": lag.records,
        "lag_seconds": lag.seconds,
        "lag_reason": lag.reason,
        "partitions": [
            {"topic": topic, "partition": partition, "position": each.position, "end": each.end}
            | {"lag": each.records, "lag_seconds": each.seconds}
            for (topic, partition), each in sorted(lag.partitions.items())
        ],
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
