"""The endpoint on a real socket."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.errors import UsageError
from headrace.serve.access import Access, ListenOptions, Role, denied, tokens_from
from headrace.serve.endpoint import Endpoint
from headrace.serve.health import health_of
from headrace.serve.monitor import Monitor
from headrace.serve.supervised_pipeline import DRAINED
from services.certs import Certificates
from services.endpoint_client import Client
from services.monitored import HOT_STORE, TABLE, hot_store, progress, retry, shop_spec, state, stopped

VIEWER, OPERATOR = "viewer-token-of-32-characters-aa", "operator-token-of-32-characters-"
LOCAL = ListenOptions("127.0.0.1:0")


@pytest.fixture
def monitor() -> Monitor:
    return Monitor([shop_spec()])


async def _pause(request: Request) -> Response:
    return denied(request, Role.OPERATOR) or JSONResponse({"paused": True})


def _client(monitor: Monitor, environment: dict[str, str]) -> Iterator[Client]:
    access = Access(LOCAL, tokens_from(environment))
    endpoint = Endpoint(monitor, LOCAL, access=access, routes=[Route("/pause", _pause, methods=["POST"])])
    try:
        yield Client(endpoint.start())
    finally:
        endpoint.stop()


@pytest.fixture
def open_client(monitor: Monitor) -> Iterator[Client]:
    yield from _client(monitor, {})


@pytest.fixture
def client(monitor: Monitor) -> Iterator[Client]:
    yield from _client(monitor, {"HEADRACE_VIEWER_TOKEN": VIEWER, "HEADRACE_OPERATOR_TOKEN": OPERATOR})


def test_without_tokens_everyone_on_loopback_may_read_and_nobody_may_operate(open_client: Client) -> None:
    assert [open_client.get(path)[0] for path in ("/live", "/metrics", "/health")] == [200, 200, 200]
    status, answer, _ = open_client.request("POST", "/pause")
    assert (status, answer["error"]) == (403, "forbidden")
    assert "HEADRACE_OPERATOR_TOKEN" in answer["message"]


def test_every_path_but_one_requires_a_token(monitor: Monitor) -> None:
    access = Access(LOCAL, tokens_from({"HEADRACE_VIEWER_TOKEN": VIEWER}))
    endpoint = Endpoint(monitor, LOCAL, access=access)
    client = Client(endpoint.start())
    try:
        answers = {route.path: client.get(route.path)[0] for route in endpoint.application.router.routes}  # type: ignore[attr-defined]
    finally:
        endpoint.stop()
    assert answers == {"/live": 200, "/metrics": 401, "/ready": 401, "/health": 401}


ROUTES = [("GET", "/metrics"), ("GET", "/ready"), ("GET", "/health"), ("POST", "/pause"), ("GET", "/no-such-page")]


def test_with_tokens_only_live_is_open(client: Client) -> None:
    assert client.get("/live")[0] == 200
    for method, path in ROUTES:
        for token in (None, "", "wrong"):
            status, answer, headers = client.request(method, path, token)
            assert (status, answer["error"]) == (401, "unauthorized"), path
            assert headers["www-authenticate"].startswith("Bearer")


def test_roles(client: Client, monitor: Monitor) -> None:
    monitor(progress())
    statuses = {token: [client.request(*each, token)[0] for each in ROUTES] for token in (VIEWER, OPERATOR)}
    assert statuses == {VIEWER: [200, 200, 200, 403, 404], OPERATOR: [200, 200, 200, 200, 404]}


def test_after_ten_wrong_tokens_the_address_has_to_wait(client: Client) -> None:
    assert {client.get("/health", "wrong")[0] for _ in range(10)} == {401}
    status, answer, headers = client.get("/health", VIEWER)
    assert (status, answer["error"]) == (429, "too_many_wrong_tokens")
    assert 0 < int(headers["retry-after"]) <= 60
    assert client.get("/live")[0] == 200


def test_foreign_hosts_are_rejected(open_client: Client) -> None:
    status, answer, _ = open_client.get("/health", Host="evil.example")
    assert (status, answer["error"]) == (421, "host_not_allowed")


def test_responses_are_not_cached_and_not_sniffed(open_client: Client) -> None:
    headers = open_client.get("/health")[2]
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_a_pipeline_is_ready_once_it_runs(open_client: Client, monitor: Monitor) -> None:
    status, answer, _ = open_client.get("/ready")
    assert (status, answer) == (503, {"ready": False, "waiting": ["shop"]})
    monitor(progress())
    assert open_client.get("/ready")[:2] == (200, {"ready": True, "waiting": []})
    monitor.remove("shop")  # as before a directory of specs has been read
    assert open_client.get("/ready")[:2] == (503, {"ready": False, "waiting": []})


PROBLEMS = [
    ([progress()], []),
    ([progress(lag=None)], ["the lag is unknown: the source does not respond"]),
    ([stopped()], ["failed: SourceGap: Offsets are gone."]),
    ([progress(), retry("BrokerUnreachable")], ["waits for the next attempt: BrokerUnreachable: no answer"]),
    ([stopped(), state("restarting")], ["restarts after an error: SourceGap: Offsets are gone."]),
    ([progress(), state("stopped", "a request")], ["stopped: a request"]),
    ([progress(), state("stopped", DRAINED)], []),
    (
        [progress(), retry("HotStoreUnreachable")],
        ["the hot store cannot be written: HotStoreUnreachable: no answer"],
    ),
    ([progress(), retry("HotStoreUnreachable"), hot_store("recovered")], []),
    ([progress(lag=5, seconds=3600.0)], ["the oldest unread record is 3,600 s old; freshness.target is 30s"]),
]


@pytest.mark.parametrize(("events", "problems"), PROBLEMS)
def test_the_health_says_why(events: list[dict[str, Any]], problems: list[str]) -> None:
    monitor = Monitor([shop_spec("freshness: {target: 30s}\n")])
    for event in events:
        monitor(event)
    health = health_of(monitor)
    assert health["pipelines"][0]["problems"] == problems
    assert health["healthy"] is health["pipelines"][0]["healthy"] is (not problems)


def test_a_hot_store_that_fails_leaves_the_pipeline_ready() -> None:
    monitor = Monitor([shop_spec(HOT_STORE)])
    for event in (progress(), hot_store("applied"), retry("HotStoreUnreachable")):
        monitor(event)
    (pipeline,) = health_of(monitor)["pipelines"]
    assert (pipeline["healthy"], pipeline["ready"]) == (False, True)
    table = {"version": 3, "lag_commits": None, "lag_seconds": None}
    assert pipeline["hot_store"] == {"error": "HotStoreUnreachable: no answer", "tables": {TABLE: table}}


def test_an_unhealthy_process_answers_503(open_client: Client, monitor: Monitor) -> None:
    monitor(stopped())
    status, answer, _ = open_client.get("/health")
    (pipeline,) = answer["pipelines"]
    assert (status, answer["healthy"], pipeline["state"]) == (503, False, "failed")
    assert pipeline["reason"] == {"error": "SourceGap", "message": "Offsets are gone.", "hint": "Resume."}


def test_an_unknown_lag_is_null_in_health_and_absent_in_metrics(open_client: Client, monitor: Monitor) -> None:
    monitor(progress(lag=None))
    (pipeline,) = open_client.get("/health")[1]["pipelines"]
    assert (pipeline["lag"], pipeline["lag_seconds"], pipeline["partitions"]) == (None, None, [])
    text = open_client.get("/metrics")[1]
    assert 'headrace_lag_known{pipeline="shop"} 0.0' in text
    assert "\nheadrace_lag_records{" not in text


def test_open_metrics_if_the_client_accepts_it(open_client: Client) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    status, text, headers = open_client.get("/metrics", Accept=accept)
    assert status == 200
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_tls(monitor: Monitor, certificates: Certificates) -> None:
    options = ListenOptions("127.0.0.1:0", certificate=certificates.server, key=certificates.server)
    endpoint = Endpoint(monitor, options, access=Access(options, {}))
    url = endpoint.start()
    try:
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(certificates.authority))
        assert Client(url, context).get("/live")[0] == 200
    finally:
        endpoint.stop()


def test_an_address_in_use(monitor: Monitor, open_client: Client) -> None:
    options = ListenOptions(f"127.0.0.1:{open_client.url.port}")
    with pytest.raises(UsageError, match="Cannot listen on 127") as raised:
        Endpoint(monitor, options, access=Access(options, {})).start()
    assert "--listen" in raised.value.hint
