"""A refused connection is told with endpoint and cause within three seconds, whoever asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
                Profile(f"http://{at}", allow_http=True, access_key_id="a", secret_access_key="b"),
            ).get("y"),
            StorageUnreachable,
        ),
    ],
)
def test_a_registry_and_a_store(ask: Callable[[str], Any], error: type[Exception], address: str) -> None:
    with soon(), pytest.raises(error, match=rf"http://{address}.*Connection refused"):
        ask(address)
