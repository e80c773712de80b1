"""Metrics under the names of other systems, as a parser of Prometheus reads them."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from docs.pages import codes, rows, section
from headrace.serve.exposition import Exposition
from headrace.serve.metric_profiles import MetricsProfile, ProfileMetrics
from headrace.serve.monitor import Monitor
from services.monitored import TABLE, batch, partitions, progress, retry, shop_spec


@pytest.fixture
def monitor() -> Monitor:
    monitor = Monitor([shop_spec()])
    phases = {"stage": 0.2, "commit": 0.05}
    table = {TABLE: {"version": 3, "rows": 8, "files": 2, "bytes": 500, "conflicts": 1}}
    for event in (
        retry("CommitConflict"),
        progress(lag=7),
        partitions(3, 4),
        batch(1, read=10, dead=2, phases=phases, bytes=1000, tables=table),
        {"event": "columns", "pipeline": "shop", "table": TABLE, "columns": {}, "text": ""},
    ):
        monitor(event)
    return monitor


def families(monitor: Monitor, profile: MetricsProfile, prefix: str | None = None) -> list[Any]:
    """The metric families of a profile, without Headrace's own."""
    body, _ = Exposition(monitor, [ProfileMetrics(monitor, profile, prefix)]).render("")
    scraped = text_string_to_metric_families(body.decode())
    return [family for family in scraped if not family.name.startswith("headrace")]


def samples(monitor: Monitor, profile: MetricsProfile, prefix: str | None = None) -> dict[str, Any]:
    """Value and labels by name."""
    scraped = families(monitor, profile, prefix)
    return {sample.name: (sample.value, sample.labels) for family in scraped for sample in family.samples}


def values(monitor: Monitor, profile: MetricsProfile, prefix: str | None = None) -> dict[str, float]:
    return {name: value for name, (value, _) in samples(monitor, profile, prefix).items()}


def test_danube(monitor: Monitor) -> None:
    danube = samples(monitor, MetricsProfile.DANUBE)
    at = {"connector": "shop", "topic": "multi-topic"}
    assert danube["danube_connector_messages_received_total"] == (10, at)
    assert danube["danube_connector_messages_processed_total"] == (8, at)
    assert danube["danube_connector_messages_failed_total"] == (2, {**at, "error_type": "malformed"})
    assert danube["danube_connector_messages_retried_total"] == (1, at)
    assert danube["danube_connector_processing_duration_seconds_sum"] == (0.5, at)
    assert danube["danube_connector_batch_size_sum"] == (10, at)
    assert danube["danube_connector_inflight_messages"] == (0, at)
    assert danube["danube_connector_health"] == (1, at)


def test_rivven(monitor: Monitor) -> None:
    rivven = values(monitor, MetricsProfile.RIVVEN, "acme")
    assert rivven["acme_delta_records_written_total"] == 8
    assert rivven["acme_delta_records_failed_total"] == 2
    assert rivven["acme_delta_bytes_written_total"] == 500
    assert rivven["acme_delta_commits_total"] == 1
    assert rivven["acme_delta_commits_failed_total"] == 0
    assert rivven["acme_delta_commit_retries_total"] == 2
    assert rivven["acme_delta_files_created_total"] == 2
    assert rivven["acme_delta_batches_flushed_total"] == 1
    assert rivven["acme_delta_commit_latency_avg_ms"] == 50
    assert rivven["acme_delta_write_latency_avg_ms"] == 200
    assert rivven["acme_delta_success_rate"] == 1
    assert rivven["acme_delta_batch_size_avg"] == rivven["acme_delta_batch_size_min"] == 10


def test_rivven_without_batches_has_the_success_rate_1_and_no_batch_size(monitor: Monitor) -> None:
    rivven = values(Monitor([shop_spec()]), MetricsProfile.RIVVEN)
    assert rivven["rivven_delta_success_rate"] == 1
    assert "rivven_delta_batch_size_min" not in rivven


def test_kafka_delta_ingest(monitor: Monitor) -> None:
    ingest = samples(monitor, MetricsProfile.KAFKA_DELTA_INGEST)
    label = {"message_type": "shop"}
    assert ingest["kafka_delta_ingest_messages_deserialization_completed"] == (8, label)
    assert ingest["kafka_delta_ingest_messages_deserialization_failed"] == (2, label)
    assert ingest["kafka_delta_ingest_recordbatch_completed"] == (1, label)
    assert ingest["kafka_delta_ingest_delta_write_completed"] == (1, label)
    assert ingest["kafka_delta_ingest_delta_write_lag_total"] == (7, label)
    assert ingest["kafka_delta_ingest_delta_write_duration_sum"] == (0.05, label)


def test_deltalake(monitor: Monitor) -> None:
    deltalake = values(monitor, MetricsProfile.DELTALAKE)
    assert deltalake["deltalake_records_written_total"] == 8
    assert deltalake["deltalake_records_read_total"] == 10
    assert deltalake["deltalake_bytes_read_total"] == 1000
    assert deltalake["deltalake_transactions_total"] == 2
    assert deltalake["deltalake_transactions_successful_total"] == 1
    assert deltalake["deltalake_transactions_failed_total"] == 1
    assert deltalake["deltalake_schema_operations_total"] == 1
    assert deltalake["deltalake_errors_total"] == 1
    assert deltalake["deltalake_avg_write_latency_ms"] == 50
    assert deltalake["deltalake_transaction_duration_ms_sum"] == 500


@pytest.mark.parametrize("profile", MetricsProfile)
def test_the_reference_has_the_names_of_a_profile(monitor: Monitor, profile: MetricsProfile) -> None:
    scraped = families(monitor, profile, "PREFIX" if profile in ("rivven", "kafka-delta-ingest") else None)
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in scraped}
    page = section("docs/reference/metrics.md", "## Names of other systems")
    (row,) = [row for row in rows(page) if codes(row[0]) == [profile]]
    assert set(codes(row[2])) == names
