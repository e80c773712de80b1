"""A refused connection is told with endpoint and cause within three seconds, whoever asks."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headrace.decode.registry.client import Registry
from headrace.dev.kafka import free_ports
from headrace.errors import BrokerUnreachable, RegistryUnreachable, StorageUnreachable
from headrace.pipeline.preview import preview_records
from headrace.serve.runner import run_all
from headrace.serve.status import pipeline_status
from headrace.spec import Spec
from headrace.spec.registry import RegistrySpec
from headrace.storage.store import Profile, Store
from headrace.validate.load import loads
from headrace.validate.online import online
from services.pipelines import HEADRACE

SOON = 3.0


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


@pytest.fixture
def address() -> str:
    """Where nobody listens."""
    return f"127.0.0.1:{next(iter(free_ports()))}"


@pytest.fixture(params=["topics: [orders]", "pattern: ^orders"])
def spec(request: pytest.FixtureRequest, address: str, tmp_path: Path) -> Spec:
    text = f"pipeline: far\nsource: {{kafka: {{brokers: '{address}', {request.param}}}}}\ntable: {{path: ./lake/t}}\n"
    return loads(text, tmp_path)[0]


def test_commands_that_ask_the_broker(spec: Spec, address: str) -> None:
    told = rf"The broker at {address} does not respond: Connect to .*{address} failed: Connection refused\."
    with soon(), pytest.raises(BrokerUnreachable, match=told):
        preview_records(spec, None)
    with soon():
        (finding,) = [each for each in online(spec) if each.key.startswith("source")]
    assert address in finding.message
    assert "Connection refused" in finding.message
    with soon():
        found = pipeline_status(spec)
    assert (found["lag"], found["lag_error"].partition(":")[0]) == (None, "BrokerUnreachable")
    assert "Connection refused" in found["lag_error"]


def test_a_run_says_that_it_waits_for_the_broker_and_goes_on(spec: Spec, address: str) -> None:
    stop, waits = threading.Event(), list[dict[str, Any]]()

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "retry":
            waits.append(event)
        if len(waits) == 2:
            stop.set()

    with soon():
        thread = threading.Thread(target=run_all, args=([spec],), kwargs={"report": note, "stop": stop}, daemon=True)
        thread.start()
        while not waits and thread.is_alive():
            thread.join(0.01)
    thread.join(20)
    assert [each["error"] for each in waits[:2]] == ["BrokerUnreachable"] * 2
    assert all(address in each["message"] and "Connection refused" in each["message"] for each in waits[:2])


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda at: Registry(RegistrySpec(url=f"http://{at}")).newest("a"), RegistryUnreachable),
        (
            lambda at: Store(
                "s3://bucket/x",
                Profile(
                    {"endpoint": f"http://{at}", "allow_http": True, "access_key_id": "a", "secret_access_key": "b"}
                ),
            ).get("y"),
            StorageUnreachable,
        ),
    ],
)
def test_a_registry_and_a_store(ask: Callable[[str], Any], error: type[Exception], address: str) -> None:
    with soon(), pytest.raises(error, match=rf"http://{address}.*Connection refused"):
        ask(address)


FAR = """\
pipeline: far
source: {{kafka: {{brokers: "{broker}", {topics}}}}}
decode: {{{format}: {{registry: {{url: "http://{registry}"}}}}}}
storage: {{s3: {{endpoint: "http://{store}", allow_http: true}}}}
table: {{path: s3://lake/orders}}
"""


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where nobody listens."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    ports = islice(free_ports(), 3)
    return {name: f"127.0.0.1:{port}" for name, port in zip(("broker", "store", "registry"), ports, strict=True)}


def _refusals(endpoints: dict[str, str]) -> list[tuple[str, str, str]]:
    return [
        ("source.kafka.brokers", "BrokerUnreachable", endpoints["broker"]),
        ("storage", "StorageUnreachable", f"http://{endpoints['store']}"),
        ("registry", "RegistryUnreachable", f"http://{endpoints['registry']}"),
    ]


@pytest.mark.parametrize("topics", ["topics: [orders]", "pattern: ^orders"])
@pytest.mark.parametrize("format", ["avro", "msgpack"])
def test_check_reports_each_refused_endpoint_once(
    endpoints: dict[str, str], tmp_path: Path, topics: str, format: str
) -> None:
    (spec,) = loads(FAR.format(**endpoints, topics=topics, format=format), tmp_path)
    with soon():
        found = online(spec)
    assert len(found) == 3, [str(each) for each in found]
    for diagnostic, (key, error, endpoint) in zip(found, _refusals(endpoints), strict=True):
        assert diagnostic.key.endswith(key)
        assert diagnostic.message.startswith(error)
        assert endpoint in diagnostic.message
        assert "Connection refused" in diagnostic.message


def test_the_command_names_each_endpoint_with_its_cause(endpoints: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text(FAR.format(**endpoints, topics="topics: [orders]", format="avro"))
    command = [HEADRACE, "check", "--online", "far.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    *errors, summary = done.stdout.splitlines()
    assert summary == "3 errors, 0 warnings"
    for line, (_, error, endpoint) in zip(errors, _refusals(endpoints), strict=True):
        assert line.startswith("error: far.yaml:")
        assert f"{error}: " in line
        assert endpoint in line
        assert "Connection refused" in line
