"""`headrace run --listen` as a command: scraped by Prometheus' parser while a pipeline runs, and with a broker down."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from headrace.dev.kafka import Broker
from services.endpoint_client import Client
from services.kafka import produce
from services.pipelines import Running, records, run_cli, spec_text, start_cli
from services.wait import eventually
from services.webhook_receiver import Receiver, served

VIEWER, OPERATOR = f"viewer-{uuid.uuid4().hex}", f"operator-{uuid.uuid4().hex}"
TOKENS = {"HEADRACE_VIEWER_TOKEN": VIEWER, "HEADRACE_OPERATOR_TOKEN": OPERATOR}


def _client(running: Running) -> Client:
    return Client(eventually(lambda: running.of("endpoint"), 60, running.said)[0]["address"])


def _samples(client: Client) -> dict[tuple[str, ...], float]:
    """Values of a scrape by name and values of the labels, those in order of their names."""
    status, body, _ = client.get("/metrics", VIEWER)
    assert status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


def test_a_scrape_agrees_with_the_events_and_the_broker(
    kafka: Broker, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = new_topic(2)
    for partition, count in enumerate((30, 20)):
        produce(kafka.bootstrap, topic, records(0, count), partition)
    shop = tmp_path / "shop.yaml"
    options = {"flush": {"every": "200ms"}, "freshness": {"target": "1m"}}
    shop.write_text(spec_text(kafka.bootstrap, [topic], tmp_path / "shop", pipeline="shop", **options))
    web = tmp_path / "web.yaml"
    source = {"generate": {"records": 500, "partitions": 3}}
    web.write_text(json.dumps({"pipeline": "web", "source": source, "table": {"path": f"{tmp_path}/web/events"}}))
    hook = Receiver()
    hook.open.set()
    settings = {**TOKENS, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    with ExitStack() as services:
        services.enter_context(served(hook))
        command = ["run", shop, web, "--console", "--traces", hook.url]
        running = services.enter_context(start_cli(command, settings))
        client = _client(running)
        assert client.get("/live")[0] == 200
        assert [client.get(path)[0] for path in ("/metrics", "/health", "/ready")] == [401] * 3
        running.until_read(550)
        for lag in (("headrace_lag_records", "shop"), ("headrace_lag_records", "web")):
            eventually(lambda lag=lag: _samples(client).get(lag) == 0, 60, f"{lag} falls to 0")
        scrape = _samples(client)
        _check_counts(scrape, running, topic)
        assert client.get("/ready", OPERATOR)[0] == 200
        status, health, _ = client.get("/health", VIEWER)
        assert (status, health["healthy"]) == (200, True), health
        _check_commands(settings, running, client)
        _check_console(client, running)
        assert running.stop() == 0
        assert not [token for token in (VIEWER, OPERATOR) if token in running.said() + str(health)]
    spans = [span for body in hook.posted() for span in _spans(body)]
    assert len([span for span in spans if span == "batch"]) == len(running.of("batch"))
    assert set(spans) == {"batch", "stage", "check", "intent", "commit", "ledger"}


def _spans(body: bytes) -> list[str]:
    """Names of the spans of an OTLP request."""
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    return [span.name for span in resource.scope_spans[0].spans]


def _check_commands(settings: dict[str, str], running: Running, client: Client) -> None:
    """`status`, `top` and `pause` find the process through its control socket."""

    def printed(*arguments: str) -> list[dict[str, Any]]:
        done = run_cli(arguments, settings)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    for rows in (printed("status", "--json"), printed("top", "--once", "--json")):
        batches = {event["pipeline"]: event["batch"] for event in running.of("batch")}
        assert {row["pipeline"]: row["batch"] for row in rows} == batches
        assert {(row["process"], row["state"], row["lag"]) for row in rows} == {(running.child.pid, "running", 0)}
    (paused,) = printed("pause", "web", "--json")
    assert paused["state"] == "paused"
    states = {row["pipeline"]: row["state"] for row in client.get("/health", VIEWER)[1]["pipelines"]}
    assert states == {"shop": "running", "web": "paused"}
    (resumed,) = printed("resume", "web", "--json")
    assert resumed["state"] == "running"


def _check_console(client: Client, running: Running) -> None:
    """The pages of a run, and a change of the paused pipeline."""
    assert client.get("/")[0] == 401
    for path in ("/", "/pipelines/shop", "/pipelines/web", "/pipelines/shop/dead-letters", "/pipelines/shop/offsets"):
        assert client.get(path, VIEWER)[0] == 200
    assert client.post("/pipelines/web/changes/resume", {"confirm": "yes"}, VIEWER)[0] == 403
    assert client.post("/pipelines/web/changes/resume", {"confirm": "yes"}, OPERATOR)[0] == 303
    eventually(lambda: "running" in client.get("/pipelines/web", VIEWER)[1], 60, running.said)
    eventually(lambda: "operator from 127.0.0.1" in client.get("/pipelines/web/audit", VIEWER)[1], 60, running.said)


def _check_counts(scrape: dict[tuple[str, ...], float], running: Running, topic: str) -> None:
    for pipeline in ("shop", "web"):
        batches = [event for event in running.of("batch") if event["pipeline"] == pipeline]
        assert scrape["headrace_records_read_total", pipeline] == sum(each["read"] for each in batches)
        assert scrape["headrace_batches_total", pipeline] == len(batches)
        assert scrape["headrace_last_batch", pipeline] == batches[-1]["batch"]
        assert scrape["headrace_pipeline_state", pipeline, "running"] == 1
        assert scrape["headrace_pipeline_healthy", pipeline] == 1
        for outcome in ("routed", "dead"):
            assert scrape["headrace_records_total", outcome, pipeline] == sum(each[outcome] for each in batches)
        for path, table in batches[-1]["tables"].items():
            assert scrape["headrace_table_version", pipeline, path] == table["version"]
        phases = scrape["headrace_batch_phase_seconds_total", "stage", pipeline]
        assert 0 < phases <= scrape["headrace_batch_duration_seconds_sum", pipeline]
    for partition, count in (("0", 30), ("1", 20)):
        assert scrape["headrace_partition_end_offset", partition, "shop", topic] == count
        assert scrape["headrace_partition_position", partition, "shop", topic] == count
        assert scrape["headrace_partition_lag_records", partition, "shop", topic] == 0
    assert scrape["headrace_lag_known", "shop"] == scrape["headrace_freshness_met", "shop"] == 1
    assert scrape["headrace_memory_bytes", "jvm"] > 0
    assert scrape[("headrace_spark_running",)] == 1


@pytest.fixture
def refused() -> Iterator[int]:
    """A port on which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


def test_a_broker_that_is_down_is_a_reason_and_its_password_is_in_no_answer(refused: int, tmp_path: Path) -> None:
    password = f"canary-{uuid.uuid4().hex}"
    file = tmp_path / "shop.yaml"
    sasl = {"mechanism": "PLAIN", "username": "ann", "password": "${env:PASSWORD}"}
    source: dict[str, Any] = {"kafka": {"brokers": f"127.0.0.1:{refused}", "topics": ["t"], "sasl": sasl}}
    file.write_text(json.dumps({"pipeline": "shop", "source": source, "table": {"path": f"{tmp_path}/t"}}))
    command = ["run", file, "--until", "latest", "--listen", "127.0.0.1:0", "--log-format", "json"]
    hook = Receiver()
    hook.open.set()
    with ExitStack() as services:
        services.enter_context(served(hook))
        exports = ["--webhook", hook.url, "--lineage", hook.url]
        running = services.enter_context(start_cli([*command, *exports], {**TOKENS, "PASSWORD": password}))
        client = _client(running)
        eventually(lambda: running.of("retry"), 60, running.said)
        status, health, _ = client.get("/health", VIEWER)
        (pipeline,) = health["pipelines"]
        assert (status, pipeline["state"], pipeline["reason"]["error"]) == (503, "retrying", "BrokerUnreachable")
        assert pipeline["problems"][0].startswith("waits for the next attempt: BrokerUnreachable: ")
        assert pipeline["lag"] is None
        assert client.get("/ready", VIEWER)[0] == 503
        metrics = client.get("/metrics", VIEWER)[1]
        assert 'headrace_lag_known{pipeline="shop"} 0.0' in metrics
        assert "\nheadrace_lag_records{" not in metrics
        running.stop()
    assert [each["state"] for each in hook.posted() if "state" in each] == ["starting", "stopped"]
    assert [each["eventType"] for each in hook.posted() if "run" in each] == ["START", "COMPLETE"]
    log = "".join(running.errors)
    assert {json.loads(line)["event"] for line in running.errors} >= {"endpoint", "retry", "message", "summary"}
    for canary in (password, VIEWER, OPERATOR):
        assert canary not in log + str(health) + metrics + json.dumps(running.events) + str(hook.posted())
    assert "s3cr3t-path" not in log


def test_an_address_that_others_reach_is_refused_without_protection(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(f"pipeline: web\nsource: {{generate: {{}}}}\ntable: {{path: {tmp_path}/events}}\n")
    refusal = run_cli(["run", file, "--listen", "0.0.0.0:0"])
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "no token is set" in refusal.stderr
    assert "--listen-dangerously-open" in refusal.stderr
