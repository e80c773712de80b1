"""The HTTP server in front of a real Kafka broker."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import Broker, free_ports
from headrace.errors import AuthenticationFailed, SequenceReused, SourceTopicGone
from headrace.source.base import open_source
from headrace.source.http.delivered import Delivered, DeliveredRequests
from headrace.source.http.kafka_destination import KafkaDestination, KafkaLimits
from headrace.source.http.kafka_source import HttpKafkaSource
from headrace.source.http.server import HttpReceiver
from headrace.source.kafka import KafkaSource
from headrace.spec import Spec
from headrace.validate.load import loads
from services.kafka import drop_topic, make_topic, read_all
from services.wait import eventually

NDJSON, JSON = "application/x-ndjson", "application/json"


@dataclass
class Server:
    spec: Spec
    destination: KafkaDestination
    receiver: HttpReceiver
    port: int

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)) as connection:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            response.content = response.read()  # type: ignore[attr-defined]
            return response

    def post(self, path: str, body: bytes, kind: str = JSON, **headers: str) -> tuple[int, Any]:
        response = self.request("POST", path, body, content_type=kind, **headers)
        return response.status, json.loads(response.content)  # type: ignore[attr-defined]


def spec_of(folder: Path, bootstrap: str, topic: str, more: str = "", end: str = "") -> Spec:
    kafka = f"kafka: {{brokers: '{bootstrap}'{more}}}"
    text = f"pipeline: p\nsource: {{http: {{listen: '127.0.0.1:0', topics: [{topic}], {kafka}}}}}\n"
    [spec] = loads(f"{text}table: {{path: {folder}/t}}\n{end}", folder)
    return spec


@contextmanager
def serving(spec: Spec, destination: KafkaDestination | None = None) -> Iterator[Server]:
    source = open_source(spec)
    assert isinstance(source, HttpKafkaSource)
    destination = destination or source.open_destination()
    receiver = source.new_receiver()
    assert isinstance(receiver, HttpReceiver)
    events: list[dict[str, Any]] = []
    try:
        receiver.start(destination, events.append)
        yield Server(spec, destination, receiver, int(events[0]["address"].rpartition(":")[2]))
    finally:
        receiver.stop()
        destination.close()
        source.close()


def limited(spec: Spec, waiting_bytes: int) -> KafkaDestination:
    probe = KafkaSource(spec)
    limits = KafkaLimits(spec.limits.record_bytes, waiting_bytes, delivery_seconds=3)
    return KafkaDestination(probe.kafka.bootstrap, probe.client_settings(), probe.topics, limits)


def test_records_are_in_kafka_as_they_were_sent(kafka: Broker, topic: str, tmp_path: Path) -> None:
    with serving(spec_of(tmp_path, kafka.bootstrap, topic)) as server:
        before = int(time.time() * 1000)
        status, answer = server.post(
            f"/v1/{topic}", b'[{"id": 1},{"id":1e999}]', headrace_key="k-7", headrace_header_Trace="t"
        )
        assert (status, answer["stored"], answer["rejected"], answer["duplicate"]) == (202, 2, 0, False)
        records = read_all(kafka.bootstrap, [topic])
        assert [record.value for record in records] == [b'{"id": 1}', b'{"id":1e999}']
        assert {(record.key, record.headers) for record in records} == {(b"k-7", (("trace", b"t"),))}
        assert answer["records"] == [{"partition": each.partition, "offset": each.offset} for each in records]
        assert all(before - 1000 <= record.timestamp <= time.time() * 1000 for record in records)
        assert server.post(f"/v1/{topic}", b"1\n2\n3", NDJSON)[1]["stored"] == 3
        assert len(read_all(kafka.bootstrap, [topic])) == 5
        counts = server.destination.counts
        assert (counts.records, counts.requests, server.destination.stored_records()) == (5, 2, 0)
        assert server.request("GET", "/health").status == 200
        assert server.post("/v1/other", b"1")[0] == 404


def test_the_pipeline_reads_the_topics_of_the_spec(kafka: Broker, topic: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, kafka.bootstrap, topic)
    source = open_source(spec)
    assert isinstance(source, HttpKafkaSource)
    with closing(source):
        events: list[dict[str, Any]] = []
        source.receive(events.append, accept=False)
        assert events == []
        source.receive(events.append, accept=True)
        source.receive(events.append, accept=True)  # after an error of the pipeline
        (listening,) = events
        address = listening["address"].removeprefix("http://")
        with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            connection.request("POST", f"/v1/{topic}", b"[1,2,3]", {"Content-Type": JSON})
            assert connection.getresponse().status == 202
        bounds = source.bounds()
        assert sum(each.latest for each in bounds.values()) == 3
        assert source.start(bounds) == {(topic, 0): 0, (topic, 1): 0}
        assert sorted(source.tail(10)["value"].to_pylist()) == [b"1", b"2", b"3"]


# ---- records that the topic does not take ----


def test_only_records_that_are_too_large_are_refused(
    kafka: Broker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Although the broker refuses the whole batch in which they are."""
    topic = new_topic(max_message_bytes="2000")
    large = b"x" * 3000
    with serving(spec_of(tmp_path, kafka.bootstrap, topic, end="limits: {record_bytes: 5000}")) as server:
        body = b"\n".join([b"1", b"y" * 6000, large, b"2", *([b"z" * 500] * 20)])
        for duplicate in (False, True):
            status, answer = server.post(f"/v1/{topic}", body, NDJSON, idempotency_key="a")
            assert (status, answer["stored"], answer["rejected"], answer["duplicate"]) == (202, 22, 2, duplicate)
            errors = [(at, each) for at, each in enumerate(answer["records"]) if "error" in each]
            assert errors == [
                (1, {"error": "record_too_large", "bytes": 6000}),
                (2, {"error": "record_too_large", "bytes": 3000}),
            ]
        values = [record.value for record in read_all(kafka.bootstrap, [topic])]
        assert sorted(values) == sorted([b"1", b"2", *([b"z" * 500] * 20)])
        places = {each["offset"]: at for at, each in enumerate(answer["records"]) if "offset" in each}
        assert [values[offset] for offset, at in places.items()] == [body.split(b"\n")[at] for at in places.values()]
        status, answer = server.post(f"/v1/{topic}", large, NDJSON)
        assert (status, answer["error"]) == (413, "record_too_large")
        assert "max.message.bytes" in answer["message"]


def test_a_record_that_the_topic_rejects_is_named(kafka: Broker, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic(cleanup_policy="compact")
    with serving(spec_of(tmp_path, kafka.bootstrap, topic)) as server:
        status, answer = server.post(f"/v1/{topic}", b"1")
        assert (status, answer["error"]) == (400, "UsageError")
        assert server.post(f"/v1/{topic}", b"1", headrace_key="k")[0] == 202


# ---- repeated requests ----


def test_a_repeated_request_is_sent_once(kafka: Broker, topic: str, tmp_path: Path) -> None:
    with serving(spec_of(tmp_path, kafka.bootstrap, topic)) as server:
        first = server.post(f"/v1/{topic}", b"[1,2]", idempotency_key="a")
        again = server.post(f"/v1/{topic}", b"[1,2]", idempotency_key="a")
        assert (first[1]["duplicate"], again[1]["duplicate"]) == (False, True)
        assert first[1]["records"] == again[1]["records"]
        status, answer = server.post(f"/v1/{topic}", b"[3]", idempotency_key="a")
        assert (status, answer["error"]) == (422, "SequenceReused")
        answers: list[int] = []
        senders = [
            threading.Thread(target=lambda: answers.append(server.post(f"/v1/{topic}", b"[5]", idempotency_key="b")[0]))
            for _ in range(8)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert answers == [202] * 8
        assert server.destination.counts.duplicates == 8
    assert sorted(record.value or b"" for record in read_all(kafka.bootstrap, [topic])) == [b"1", b"2", b"5"]


def test_the_window_forgets_by_requests_records_and_age() -> None:
    def delivered(count: int) -> Delivered:
        return Delivered(array("i", [0] * count), array("q", range(count)))

    window = DeliveredRequests(max_requests=2, max_age=10, max_records=5)
    keys = [("t", "", str(number)) for number in range(5)]
    window.add(keys[0], 1, delivered(1), now=0)
    window.add(keys[1], 2, delivered(1), now=1)
    assert window.find(keys[0], 1, now=2) == replace(delivered(1), duplicate=True)
    with pytest.raises(SequenceReused):
        window.find(keys[0], 9, now=2)
    window.add(keys[2], 3, delivered(3), now=2)
    assert [window.find(key, 0, now=2) is not None for key in keys[:3]] == [False, True, True]
    window.add(keys[3], 4, delivered(5), now=3)
    assert [window.find(key, 0, now=3) is not None for key in keys[:4]] == [False, False, False, True]
    assert window.find(keys[3], 4, now=14) is None


# ---- brokers ----


def test_a_topic_that_does_not_exist_is_named(kafka: Broker, tmp_path: Path) -> None:
    topic = make_topic(kafka.bootstrap, "http-invoices")
    with pytest.raises(SourceTopicGone, match=r"'http-invoice' does not exist .* did you mean 'http-invoices'"):
        HttpKafkaSource(*_opened(spec_of(tmp_path, kafka.bootstrap, "http-invoice"))).open_destination()
    with serving(spec_of(tmp_path, kafka.bootstrap, topic)) as server:
        assert server.post(f"/v1/{topic}", b"1")[0] == 202
        drop_topic(kafka.bootstrap, topic)
        response = server.request("POST", f"/v1/{topic}", b"2")
        answer = json.loads(response.content)  # type: ignore[attr-defined]
        assert (response.status, answer["error"], response.headers["Retry-After"]) == (503, "SourceTopicGone", "5")
        assert f"The topic '{topic}' does not exist" in answer["message"]
        make_topic(kafka.bootstrap, topic)
        eventually(lambda: server.post(f"/v1/{topic}", b"3")[0] == 202, within=90)
    assert [record.value for record in read_all(kafka.bootstrap, [topic])] == [b"3"]


def _opened(spec: Spec) -> tuple[Any, ...]:
    assert spec.source.http is not None
    return spec, spec.source.http.kafka, lambda: None


def test_credentials_are_checked_before_the_server_starts(
    secure_kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(secure_kafka.bootstrap, "http-secure")
    sasl = ", sasl: {mechanism: SCRAM-SHA-512, username: ann, password: '${env:KAFKA_WORD}'}"
    monkeypatch.setenv("KAFKA_WORD", "wrong")
    spec = spec_of(tmp_path, secure_kafka.address("sasl"), topic, sasl)
    with pytest.raises(AuthenticationFailed, match=r"Check source\.http\.kafka\.tls and source\.http\.kafka\.sasl\."):
        HttpKafkaSource(*_opened(spec)).open_destination()
    monkeypatch.setenv("KAFKA_WORD", "ann-secret")
    with serving(spec_of(tmp_path, secure_kafka.address("sasl"), topic, sasl)) as server:
        assert server.post(f"/v1/{topic}", b"1")[0] == 202


def test_without_a_broker_requests_are_refused_at_once(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, f"127.0.0.1:{next(iter(free_ports()))}", "orders")
    with serving(spec) as server:
        response = server.request("POST", "/v1/orders", b"1")
        answer = json.loads(response.content)  # type: ignore[attr-defined]
        assert (response.status, answer["error"], response.headers["Retry-After"]) == (503, "BrokerUnreachable", "5")
        health = server.request("GET", "/health")
        assert (health.status, json.loads(health.content)["reason"]) == (503, "BrokerUnreachable")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that a test may stop."""
    with Broker.start(tmp_path_factory.mktemp("own-broker")) as broker:
        make_topic(broker.bootstrap, "orders")
        yield broker


def test_what_waits_for_the_broker_is_bounded(own_broker: Broker, tmp_path: Path) -> None:
    """A suspended broker keeps its connections and confirms nothing."""
    spec = spec_of(tmp_path, own_broker.bootstrap, "orders")
    with serving(spec, limited(spec, waiting_bytes=5_000)) as server:
        assert server.post("/v1/orders", b"x" * 10_000, NDJSON)[0] == 202  # alone, a request of any size
        answers: list[int] = []
        waiting = threading.Thread(target=lambda: answers.append(server.post("/v1/orders", b"w" * 6_000, NDJSON)[0]))
        assert own_broker.pid is not None
        os.kill(own_broker.pid, signal.SIGSTOP)
        try:
            waiting.start()
            eventually(lambda: server.destination.stored_records() == 1, within=60)
            response = server.request("POST", "/v1/orders", b"1")
            answer = json.loads(response.content)  # type: ignore[attr-defined]
            assert (response.status, answer["error"], response.headers["Retry-After"]) == (429, "QueueFull", "1")
            waiting.join(90)
            assert answers == [503]  # not confirmed in time
        finally:
            os.kill(own_broker.pid, signal.SIGCONT)
        eventually(lambda: server.post("/v1/orders", b"2")[0] == 202, within=90)
        assert (server.destination.counts.full, server.destination.stored_bytes) == (1, 0)
    values = [record.value for record in read_all(own_broker.bootstrap, ["orders"])]
    assert values.count(b"2") == values.count(b"x" * 10_000) == 1


def test_clients_that_send_again_lose_nothing_when_the_broker_restarts(own_broker: Broker, tmp_path: Path) -> None:
    with serving(spec_of(tmp_path, own_broker.bootstrap, "orders")) as server:
        acknowledged: list[bytes] = []
        ended = threading.Event()

        def send(client: int) -> None:
            for number in itertools.count():
                value = b'{"client": %d, "id": %d}' % (client, number)
                while server.post("/v1/orders", value, idempotency_key=f"{client}-{number}")[0] != 202:
                    ended.wait(0.1)
                acknowledged.append(value)
                if ended.is_set():
                    return

        clients = [threading.Thread(target=send, args=(client,)) for client in range(3)]
        for client in clients:
            client.start()
        eventually(lambda: len(acknowledged) > 20, within=60)
        own_broker.kill()
        eventually(lambda: server.request("GET", "/health").status == 503, within=60)
        count = len(acknowledged)
        own_broker.restart()
        eventually(lambda: len(acknowledged) > count + 20, within=90)
        ended.set()
        for client in clients:
            client.join(90)
    stored = [record.value for record in read_all(own_broker.bootstrap, ["orders"])]
    assert set(acknowledged) <= set(stored)
