"""`/metrics`: the monitor in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from headrace.serve.metrics import FAMILIES, HISTOGRAMS, Family, HistogramFamily
from headrace.serve.monitor import Monitor
from headrace.serve.pipeline_view import PipelineView
from headrace.serve.process_memory import ProcessMemory
from headrace.version import VERSION


class Exposition:
    """The metrics of a process, computed when they are scraped: from memory, without the broker and the stores."""

    def __init__(self, monitor: Monitor, profiles: Sequence[Collector] = ()) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in (_ProcessMetrics(monitor), _PipelineMetrics(monitor), *profiles):
            self._registry.register(collector)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics, and their media type: OpenMetrics if the client accepts it, else the text format."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type


class _ProcessMetrics(Collector):
    def __init__(self, monitor: Monitor) -> None:
        self._monitor, self._memory = monitor, ProcessMemory()

    def collect(self) -> Iterator[Metric]:
        """Metrics of the process."""
        yield InfoMetricFamily("headrace", "Version of Headrace.", {"version": VERSION})
        started = self._monitor.started.timestamp()
        yield GaugeMetricFamily("headrace_start_time_seconds", "When the process started.", started)
        memory = GaugeMetricFamily(
            "headrace_memory_bytes", "Memory (PSS): of this process, Spark's JVM and the workers.", labels=["process"]
        )
        sizes = self._memory.by_kind()
        for kind, size in sizes.items():
            memory.add_metric([kind], size)
        yield memory
        yield GaugeMetricFamily("headrace_spark_running", "1 if the JVM of Spark runs.", float("jvm" in sizes))


class _PipelineMetrics(Collector):
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterator[Metric]:
        """Metrics of all pipelines."""
        views = self._monitor.pipelines()
        for family in FAMILIES:
            yield _metric(family, views)
        for histogram in HISTOGRAMS:
            yield _histogram(histogram, views)


def _metric(family: Family, views: Sequence[PipelineView]) -> Metric:
    metric_type = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = metric_type(family.name, family.meaning, labels=["pipeline", *family.labels])
    for view in views:
        for labels, value in family.bounded(view):
            metric.add_metric([view.name, *labels], value)
    return metric


def _histogram(family: HistogramFamily, views: Sequence[PipelineView]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.meaning, labels=["pipeline"])
    for view in views:
        distribution = family.distribution(view)
        metric.add_metric([view.name], distribution.buckets(), sum_value=distribution.sum)
    return metric
