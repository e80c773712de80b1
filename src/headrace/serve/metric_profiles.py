"""Metrics under the names of the systems that Headrace replaces, for dashboards and alerts that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from headrace.serve.monitor import Monitor
from headrace.serve.pipeline_view import Distribution, PipelineState, PipelineView


class MetricsProfile(StrEnum):
    """The system whose names are used."""

    DANUBE = "danube"
    RIVVEN = "rivven"
    KAFKA_DELTA_INGEST = "kafka-delta-ingest"
    DELTALAKE = "deltalake"


class ProfileMetrics(Collector):
    """The metrics of a profile. `prefix` replaces the first part of the names where a system lets users choose it."""

    def __init__(self, monitor: Monitor, profile: MetricsProfile, prefix: str | None = None) -> None:
        self._monitor, self._profile = monitor, profile
        self._prefix = prefix or DEFAULT_PREFIX.get(profile, "")

    def collect(self) -> Iterator[Metric]:
        """The metrics of all pipelines."""
        return _PROFILES[self._profile](self._monitor.pipelines(), self._prefix)


DEFAULT_PREFIX = {MetricsProfile.RIVVEN: "rivven", MetricsProfile.KAFKA_DELTA_INGEST: "kafka_delta_ingest"}


# ---- figures that several systems have ----


def _commits(view: PipelineView) -> int:
    return sum(table.commits for table in view.tables.values())


def _conflicts(view: PipelineView) -> int:
    return sum(table.conflicts for table in view.tables.values())


def _bytes(view: PipelineView) -> int:
    return sum(table.bytes for table in view.tables.values())


def _files(view: PipelineView) -> int:
    return sum(table.files for table in view.tables.values())


def _milliseconds(view: PipelineView, phase: str) -> float:
    return view.phases.get(phase, 0.0) * 1000


def _mean(total: float, count: float) -> float:
    return total / count if count else 0.0


def _scaled(distribution: Distribution | None, factor: float) -> tuple[list[tuple[str, float]], float]:
    """Buckets and sum of a histogram in another unit."""
    if distribution is None:
        return [("+Inf", 0.0)], 0.0
    bounds = [*(str(bound * factor) for bound in distribution.bounds), "+Inf"]
    counts = [float(count) for _, count in distribution.buckets()]
    return list(zip(bounds, counts, strict=True)), distribution.sum * factor


# ---- Danube ----


def _danube(views: Sequence[PipelineView], prefix: str) -> Iterator[Metric]:
    labels, p = ["connector", "topic"], "danube_connector"
    received = CounterMetricFamily(f"{p}_messages_received", "Messages received.", labels=labels)
    processed = CounterMetricFamily(f"{p}_messages_processed", "Messages processed.", labels=labels)
    failed = CounterMetricFamily(f"{p}_messages_failed", "Messages failed.", labels=[*labels, "error_type"])
    retried = CounterMetricFamily(f"{p}_messages_retried", "Retries.", labels=labels)
    duration = HistogramMetricFamily(f"{p}_processing_duration_seconds", "Duration of batches.", labels=labels)
    size = HistogramMetricFamily(f"{p}_batch_size", "Messages of batches.", labels=labels)
    inflight = GaugeMetricFamily(f"{p}_inflight_messages", "Messages of the current batch.", labels=labels)
    health = GaugeMetricFamily(f"{p}_health", "1 if the connector runs.", labels=labels)
    for view in views:
        at = [view.name, "multi-topic"]
        received.add_metric(at, view.counts.read)
        processed.add_metric(at, view.counts.read - view.counts.dead)
        for reason, count in sorted(view.counts.reasons.items()):
            failed.add_metric([*at, reason], count)
        retried.add_metric(at, sum(view.retries.values()))
        duration.add_metric(at, view.batch_seconds.buckets(), sum_value=view.batch_seconds.sum)
        size.add_metric(at, view.batch_records.buckets(), sum_value=view.batch_records.sum)
        inflight.add_metric(at, view.reading)
        health.add_metric(at, float(view.state is PipelineState.RUNNING))
    yield from (received, processed, failed, retried, duration, size, inflight, health)


# ---- Rivven ----

_RIVVEN_COUNTERS: dict[str, Callable[[PipelineView], float]] = {
    "records_written": lambda view: view.counts.routed,
    "records_failed": lambda view: view.counts.dead,
    "bytes_written": _bytes,
    "commits": _commits,
    "commits_failed": lambda view: view.errors.get("CommitConflict", 0),
    "commit_retries": lambda view: _conflicts(view) + view.retries.get("CommitConflict", 0),
    "files_created": _files,
    "batches_flushed": lambda view: view.batches,
    "commit_latency_us": lambda view: round(_milliseconds(view, "commit") * 1000),
    "write_latency_us": lambda view: round(_milliseconds(view, "stage") * 1000),
    "batch_size_sum": lambda view: view.counts.read,
}
_RIVVEN_GAUGES: dict[str, Callable[[PipelineView], float | None]] = {
    "batch_size_min": lambda view: min((each.read for each in view.last_batches), default=None),
    "batch_size_max": lambda view: max((each.read for each in view.last_batches), default=None),
    "batch_size_avg": lambda view: round(_mean(view.counts.read, view.batches), 1),
    "commit_latency_avg_ms": lambda view: round(_mean(_milliseconds(view, "commit"), view.batches), 3),
    "write_latency_avg_ms": lambda view: round(_mean(_milliseconds(view, "stage"), view.batches), 3),
    "success_rate": lambda view: round(1 - _failed_share(view), 4),
    "retry_rate": lambda view: round(_mean(_conflicts(view), _commits(view)), 4),
    "records_per_second": lambda view: view.records_per_second,
    "bytes_per_second": lambda view: (
        None
        if view.records_per_second is None
        else round(view.records_per_second * _mean(_bytes(view), view.counts.read), 1)
    ),
}


def _failed_share(view: PipelineView) -> float:
    failed = view.errors.get("CommitConflict", 0)
    return _mean(failed, _commits(view) + failed)


def _rivven(views: Sequence[PipelineView], prefix: str) -> Iterator[Metric]:
    for name, value in _RIVVEN_COUNTERS.items():
        counter = CounterMetricFamily(f"{prefix}_delta_{name}", name.replace("_", " "), labels=["pipeline"])
        for view in views:
            counter.add_metric([view.name], value(view))
        yield counter
    for name, computed in _RIVVEN_GAUGES.items():
        gauge = GaugeMetricFamily(f"{prefix}_delta_{name}", name.replace("_", " "), labels=["pipeline"])
        for view in views:
            if (known := computed(view)) is not None:
                gauge.add_metric([view.name], known)
        yield gauge


# ---- kafka-delta-ingest ----


@dataclass(frozen=True, slots=True)
class IngestFigure:
    """A figure of kafka-delta-ingest, under its statsd name."""

    name: str
    kind: Literal["counter", "gauge"]
    value: float


TIMERS = {"recordbatch.write_duration": "stage", "delta.write.duration": "commit"}  # with the phase that they measure


def ingest_figures(view: PipelineView) -> Iterator[IngestFigure]:
    """The counters and gauges of kafka-delta-ingest. An unknown lag is left out."""
    counts, not_transformed = view.counts, view.counts.reasons.get("transform", 0)
    started = view.batches + bool(view.reading)
    counters = {
        "messages.deserialization.completed": counts.read - counts.dead + not_transformed,
        "messages.deserialization.failed": counts.dead - not_transformed,
        "messages.transform.completed": counts.routed,
        "messages.transform.failed": not_transformed,
        "messages.skipped": counts.skipped,
        "recordbatch.started": started,
        "recordbatch.completed": view.batches,
        "delta.write.started": _commits(view) + _conflicts(view),
        "delta.write.completed": _commits(view),
        "delta.write.failed": _conflicts(view),
        "delta.write.size": _bytes(view),
    }
    yield from (IngestFigure(name, "counter", value) for name, value in counters.items())
    yield IngestFigure("buffered.record_batches", "gauge", started - view.batches)
    lags = [each.records for each in view.lag.partitions.values()]
    for name in ("buffer.lag", "delta.write.lag") if lags else ():
        for part, lag in (("num_partitions", len(lags)), ("total", sum(lags)), ("max", max(lags)), ("min", min(lags))):
            yield IngestFigure(f"{name}.{part}", "gauge", lag)


def _kafka_delta_ingest(views: Sequence[PipelineView], prefix: str) -> Iterator[Metric]:
    metrics: dict[str, Metric] = {}
    for view in views:
        for figure in ingest_figures(view):
            name = f"{prefix}_{figure.name}".replace(".", "_")
            metric = metrics.setdefault(name, UnknownMetricFamily(name, figure.name, labels=["message_type"]))
            metric.add_sample(name, {"message_type": view.name}, figure.value)
    yield from metrics.values()
    for timer, phase in TIMERS.items():
        name = f"{prefix}_{timer}".replace(".", "_")
        histogram = HistogramMetricFamily(name, f"{timer}, in seconds", labels=["message_type"])
        for view in views:
            buckets, total = _scaled(view.durations.get(phase), 1)
            histogram.add_metric([view.name], buckets, sum_value=total)
        yield histogram


# ---- Orasi: deltalake_* ----

_DELTALAKE_COUNTERS: dict[str, Callable[[PipelineView], float]] = {
    "records_written": lambda view: view.counts.routed,
    "bytes_written": _bytes,
    "records_read": lambda view: view.counts.read,
    "bytes_read": lambda view: view.counts.value_bytes,
    "transactions": lambda view: _commits(view) + _conflicts(view),
    "transactions_successful": _commits,
    "transactions_failed": _conflicts,
    "write_operations": _commits,
    "read_operations": lambda view: view.batches,
    "schema_operations": lambda view: view.schema_changes,
    "errors": lambda view: sum(view.errors.values()) + sum(view.retries.values()),
}
_DELTALAKE_GAUGES: dict[str, Callable[[PipelineView], float]] = {
    "active_transactions": lambda view: float(view.reading > 0),
    "avg_write_latency_ms": lambda view: round(_mean(_milliseconds(view, "commit"), view.batches), 3),
    "avg_read_latency_ms": lambda view: round(_mean(_milliseconds(view, "stage"), view.batches), 3),
    "avg_transaction_duration_ms": lambda view: round(_mean(view.batch_seconds.sum * 1000, view.batches), 3),
}
_DELTALAKE_HISTOGRAMS: dict[str, Callable[[PipelineView], Distribution | None]] = {
    "write_latency_ms": lambda view: view.durations.get("commit"),
    "read_latency_ms": lambda view: view.durations.get("stage"),
    "transaction_duration_ms": lambda view: view.batch_seconds,
}


def _deltalake(views: Sequence[PipelineView], prefix: str) -> Iterator[Metric]:
    for name, value in _DELTALAKE_COUNTERS.items():
        counter = CounterMetricFamily(f"deltalake_{name}", name.replace("_", " "), labels=["pipeline"])
        for view in views:
            counter.add_metric([view.name], value(view))
        yield counter
    for name, value in _DELTALAKE_GAUGES.items():
        gauge = GaugeMetricFamily(f"deltalake_{name}", name.replace("_", " "), labels=["pipeline"])
        for view in views:
            gauge.add_metric([view.name], value(view))
        yield gauge
    for name, distribution in _DELTALAKE_HISTOGRAMS.items():
        histogram = HistogramMetricFamily(f"deltalake_{name}", name.replace("_", " "), labels=["pipeline"])
        for view in views:
            buckets, total = _scaled(distribution(view), 1000)
            histogram.add_metric([view.name], buckets, sum_value=total)
        yield histogram


_PROFILES: dict[MetricsProfile, Callable[[Sequence[PipelineView], str], Iterator[Metric]]] = {
    MetricsProfile.DANUBE: _danube,
    MetricsProfile.RIVVEN: _rivven,
    MetricsProfile.KAFKA_DELTA_INGEST: _kafka_delta_ingest,
    MetricsProfile.DELTALAKE: _deltalake,
}
