"""The receiver of the source `danube`, on the stand-in and, where its program is, on the real broker."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from headrace.errors import AuthenticationFailed, BrokerUnreachable, PermissionDenied, SourceTopicGone
from headrace.source.danube.client import DanubeClient
from headrace.source.danube.receiver import DanubeReceiver
from headrace.source.ranges import Range
from headrace.source.spool.disk import LocalDisk
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.writer import Spool, SpoolLimits
from headrace.spec import Spec
from headrace.validate.load import loads
from services.danube import BROKERS, TestProducer, broker, danube_source
from services.danube_stand_in import StandIn
from services.wait import eventually

PACE = 50  # messages: the real broker drops those that a subscription has not read before 256 more


@dataclass
class Receiving:
    """A receiver with its spool."""

    spec: Spec
    folder: Path
    spool: Spool
    receiver: DanubeReceiver
    events: list[Any] = field(default_factory=list)

    def records(self, topic: str) -> list[dict[str, Any]]:
        """What the spool has of a topic; headers as a mapping."""
        until = self.spool.ends().get(topic, 0)
        batches = record_batches(open_reader(str(self.folder)), Range(topic, 0, 0, until)) if until else []
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [row | {"headers": {each["key"]: each["value"] for each in row["headers"]}} for row in rows]

    def values(self, topic: str) -> list[bytes]:
        """The values of a topic."""
        return [row["value"] for row in self.records(topic)]

    @property
    def retries(self) -> list[Any]:
        """Events of errors."""
        return [each for each in self.events if each["event"] == "retry"]

    def count(self) -> int:
        """Number of records."""
        return sum(self.spool.ends().values())


@contextmanager
def receiving(
    url: str, folder: Path, *topics: str, streams: int | None = None, limits: SpoolLimits | None = None, **options: Any
) -> Iterator[Receiving]:
    """Receive into `folder` from when all streams are open until the end of the block."""
    given = {name: options.pop(name) for name in ("poll_seconds", "patience") if name in options}
    spec = spec_of(url, folder, *topics, **options)
    spool = Spool.open(folder / "spool", spec.pipeline, limits)
    assert spec.source.danube is not None
    receiver = DanubeReceiver(spec, spec.source.danube, **given)
    found = Receiving(spec, folder / "spool", spool, receiver)
    try:
        receiver.start(spool, found.events.append)
        wanted = len(topics) if streams is None else streams
        eventually(lambda: len(receiver.connected()) == wanted, say=lambda: f"{receiver.failure()} {found.events}")
        yield found
    finally:
        receiver.stop()
        spool.close()


def spec_of(url: str, folder: Path, *topics: str, **options: Any) -> Spec:
    """A spec that retries at once."""
    content = {
        "pipeline": "fish",
        "source": danube_source(url, *topics, **options),
        "table": {"path": f"{folder}/lake"},
        "retry": {"unreachable": {"initial_interval": "20ms", "max_interval": "100ms"}},
    }
    return loads(json.dumps(content), folder)[0]


def new_topic() -> tuple[str, str]:
    """A topic of Danube, and its name in records."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    return f"/default/{name}", f"default.{name}"


def numbered(start: int, count: int) -> list[bytes]:
    """Values that are all different."""
    return [b'{"id": %d}' % number for number in range(start, start + count)]


def send_paced(producer: TestProducer, found: Receiving, values: list[bytes], **options: Any) -> None:
    """Send, never far ahead of the receiver."""
    before = found.count()
    for start in range(0, len(values), PACE):
        part = values[start : start + PACE]
        producer.send(part, **options)
        eventually(lambda: found.count() >= before + start + len(part), say=lambda: str((found.count(), found.events)))  # noqa: B023


@pytest.fixture(scope="module", params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of each kind."""
    with broker(request.param, tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """A stand-in of its own, to misbehave."""
    with StandIn() as server:
        yield server


# ---- on all brokers ----


def test_a_message_becomes_a_record_with_its_attributes_as_headers(url: str, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(url, topic, name="shop")
    with receiving(url, tmp_path, topic) as found:
        producer.send([b"first"], attributes={"trace": "é", "a": ""}, key="k-1", time_ms=1_700_000_000_123)
        producer.send([b""])
        eventually(lambda: found.count() == 2)
        first, second = found.records(name)
    assert (first["topic"], first["partition"], first["offset"], first["key"], first["value"]) == (
        name,
        0,
        0,
        b"k-1",
        b"first",
    )
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert first["headers"] == {"a": b"", "trace": "é".encode(), "danube.offset": b"0", "danube.producer": b"shop"}
    assert (second["key"], second["value"], second["headers"]["danube.offset"]) == (None, b"", b"1")


def test_partitions_are_read_as_one_topic(url: str, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(url, topic, partitions=3)
    with receiving(url, tmp_path, topic, streams=3) as found:
        send_paced(producer, found, numbered(0, 90))
        rows = found.records(name)
    assert sorted(row["value"] for row in rows) == sorted(numbered(0, 90))
    positions = Counter((row["headers"]["danube.partition"], row["headers"]["danube.offset"]) for row in rows)
    assert positions == Counter((b"%d" % part, b"%d" % offset) for part in range(3) for offset in range(30))


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_every_type_of_subscription_receives_all_messages(url: str, tmp_path: Path, kind: str):
    topic, name = new_topic()
    producer = TestProducer(url, topic)
    with receiving(url, tmp_path, topic, subscription_type=kind) as found:
        for number in range(3):  # few: the real broker looks for messages of other keys every half second
            send_paced(producer, found, numbered(number * 5, 5), key=f"key-{number}")
        assert sorted(found.values(name)) == sorted(numbered(0, 15))
        if kind in ("Exclusive", "Failover"):
            assert found.values(name) == numbered(0, 15)


def test_topics_without_reliable_dispatch_are_received(url: str, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(url, topic, reliable=False)
    with receiving(url, tmp_path, topic) as found:
        for value in numbered(0, 20):  # one by one: such a broker drops what a consumer does not read at once
            before = found.count()
            producer.send([value])
            eventually(lambda: found.count() == before + 1)  # noqa: B023
        assert found.values(name) == numbered(0, 20)


def test_messages_between_two_runs_are_received_by_the_second(url: str, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(url, topic)
    with receiving(url, tmp_path, topic) as found:
        send_paced(producer, found, numbered(0, 20))
    producer.send(numbered(20, 20))
    with receiving(url, tmp_path, topic) as found:
        eventually(lambda: found.count() == 40)
        assert found.values(name) == numbered(0, 40)


def test_two_pipelines_with_subscriptions_of_their_own_receive_everything(url: str, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(url, topic)
    with (
        receiving(url, tmp_path / "a", topic, subscription="a") as one,
        receiving(url, tmp_path / "b", topic, subscription="b") as other,
    ):
        send_paced(producer, one, numbered(0, 30))
        eventually(lambda: other.count() == 30)
        assert one.values(name) == other.values(name) == numbered(0, 30)


def test_a_topic_continues_at_a_subscription_of_its_own(url: str, tmp_path: Path):
    topic, name = new_topic()
    other, _ = new_topic()
    producer, _ = TestProducer(url, topic), TestProducer(url, other)
    with receiving(url, tmp_path / "a", topic, subscription="payments") as found:
        send_paced(producer, found, numbered(0, 20))
    producer.send(numbered(20, 20))
    with receiving(url, tmp_path / "b", topic, other, subscriptions={topic: "payments"}) as found:
        eventually(lambda: found.count() == 20)
        assert found.values(name) == numbered(20, 20)


def test_a_topic_that_does_not_exist_is_named(url: str, tmp_path: Path):
    spec = spec_of(url, tmp_path, "/default/nothing-here")
    assert spec.source.danube is not None
    client = DanubeClient(spec.source.danube)
    with pytest.raises(SourceTopicGone, match=r"'/default/nothing-here' does not exist .* Start its producer"):
        client.partitions("/default/nothing-here")
    with receiving(url, tmp_path, "/default/nothing-here", streams=0) as found:
        eventually(lambda: isinstance(found.receiver.failure(), SourceTopicGone))


def test_schema_ids_are_looked_up_in_the_registry(url: str, tmp_path: Path):
    topic, name = new_topic()
    subject = topic.rpartition("/")[2]
    producer = TestProducer(url, topic)
    number, version = producer.register(subject, "json_schema", b'{"type": "object"}')
    with receiving(url, tmp_path, topic, schema_registry=True) as found:
        producer.send([b"{}", b"{}"], schema=(number, version))
        producer.send([b"[]"])
        producer.send([b"1"], schema=(999_999, 1))
        eventually(lambda: found.count() == 4)
        first, second, bare, unknown = (row["headers"] for row in found.records(name))
    expected = {"id": b"%d" % number, "version": b"%d" % version, "subject": subject.encode(), "type": b"json_schema"}
    assert {key: first[f"danube.schema_{key}"] for key in expected} == expected
    assert first | {"danube.offset": b"1"} == second
    assert not [key for key in bare if "schema" in key]
    assert [key for key in unknown if "schema" in key] == ["danube.schema_id", "danube.schema_version"]


def test_an_exclusive_subscription_in_use_is_waited_for(url: str, tmp_path: Path):
    topic, _ = new_topic()
    producer = TestProducer(url, topic)
    other = producer.consume("taken", "someone-else")
    with receiving(url, tmp_path, topic, subscription="taken", streams=0) as found:
        eventually(lambda: [each for each in found.retries if "in use by another consumer" in each["message"]])
        assert found.receiver.failure() is None
    other.cancel()


# ---- a broker that misbehaves ----


def test_redelivered_messages_are_stored_once_and_acknowledged_again(stand_in: StandIn, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic)
    with receiving(stand_in.url, tmp_path, topic, subscription="s") as found:
        producer.send(numbered(0, 30))
        eventually(lambda: len(stand_in.acked) == 30)
        stand_in.redeliver(topic, "s", [0, 7, 29])
        producer.send(numbered(30, 5))
        eventually(lambda: len(stand_in.acked) == 38 and stand_in.unacked(topic, "s") == 0)
        assert found.values(name) == numbered(0, 35)
    with receiving(stand_in.url, tmp_path, topic, subscription="s") as found:  # also by a later process
        stand_in.redeliver(topic, "s", [3, 31])
        eventually(lambda: len(stand_in.acked) == 40 and stand_in.unacked(topic, "s") == 0)
        assert found.values(name) == numbered(0, 35)


def test_dropped_streams_lose_and_duplicate_nothing(stand_in: StandIn, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic, partitions=2)
    with receiving(stand_in.url, tmp_path, topic, streams=2, subscription="s") as found:
        for start in range(0, 400, 40):
            producer.send(numbered(start, 40))
            stand_in.drop_streams()
        eventually(lambda: found.count() >= 400)
        eventually(lambda: not any(stand_in.unacked(each, "s") for each in producer.topics))
        assert sorted(found.values(name)) == sorted(numbered(0, 400))


def test_messages_in_any_order_are_all_stored(stand_in: StandIn, tmp_path: Path):
    stand_in.reorders = stand_in.holds = True
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic)
    with receiving(stand_in.url, tmp_path, topic, subscription_type="Shared", subscription="s") as found:
        producer.send(numbered(0, 200))
        stand_in.holds = False
        eventually(lambda: found.count() >= 200 and stand_in.unacked(topic, "s") == 0)
        assert found.values(name) != numbered(0, 200)
        assert sorted(found.values(name)) == sorted(numbered(0, 200))


def test_a_broker_that_restarts_and_forgets_acknowledgements_is_reconnected(stand_in: StandIn, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic)
    with receiving(stand_in.url, tmp_path, topic, subscription="s") as found:
        for start in range(0, 90, 30):
            producer.send(numbered(start, 30))
            eventually(lambda: found.count() >= start + 30)  # noqa: B023
            stand_in.restart(forget_acks=20)
        eventually(lambda: found.receiver.connected())
        eventually(lambda: stand_in.unacked(topic, "s") == 0)
        assert found.values(name) == numbered(0, 90)
        assert found.retries


def test_lost_acknowledgements_are_sent_again(stand_in: StandIn, tmp_path: Path):
    stand_in.ignores_acks, stand_in.ack_timeout = True, 0.1
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic)
    with receiving(stand_in.url, tmp_path, topic, subscription="s") as found:
        producer.send(numbered(0, 30))
        eventually(lambda: found.count() == 10)  # the window
        stand_in.ignores_acks = False
        eventually(lambda: stand_in.unacked(topic, "s") == 0)
        assert found.values(name) == numbered(0, 30)


def test_a_full_spool_is_waited_for_and_blocks_no_subscription(stand_in: StandIn, tmp_path: Path):
    stand_in.ack_timeout = 0.2  # so that a stream that stays open would have its messages counted as failed
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic)
    limits = SpoolLimits(max_bytes=30_000)
    values = [b"x" * 1000 + b"%03d" % number for number in range(60)]
    options = {"limits": limits, "subscription": "s", "patience": 0.05}
    with receiving(stand_in.url, tmp_path, topic, **options) as found:
        producer.send(values)
        eventually(lambda: [each for each in found.retries if each["error"] == "SpoolFull"])
        eventually(lambda: not found.receiver.connected())
        stored = found.count()
        assert 0 < stored < 60
    with receiving(stand_in.url, tmp_path, topic, subscription="s") as found:
        eventually(lambda: stand_in.unacked(topic, "s") == 0)
        assert found.values(name) == values
    assert not stand_in.nacked


def test_nothing_is_acknowledged_before_it_is_durable(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):

    released, entered = Event(), Event()
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic)

    with receiving(stand_in.url, tmp_path, topic, subscription="s") as found:
        producer.send(numbered(0, 1))
        eventually(lambda: len(stand_in.acked) == 1)
        file_type = type(LocalDisk(str(tmp_path)).open("probe"))
        sync = file_type.sync

        def slow_sync(file: Any) -> None:
            entered.set()
            released.wait(20)
            sync(file)

        monkeypatch.setattr(file_type, "sync", slow_sync)
        producer.send(numbered(1, 5))
        assert entered.wait(20)
        assert len(stand_in.acked) == 1
        released.set()
        eventually(lambda: len(stand_in.acked) == 6)
        assert found.values(name) == numbered(0, 6)


def test_consumers_that_the_broker_closed_subscribe_again(stand_in: StandIn, tmp_path: Path):
    topic, _ = new_topic()
    producer = TestProducer(stand_in.url, topic)
    with receiving(stand_in.url, tmp_path, topic, poll_seconds=0.05):
        before = sum(method == "Subscribe" for method, _ in stand_in.calls)
        stand_in.closes_consumers = True
        eventually(lambda: sum(method == "Subscribe" for method, _ in stand_in.calls) > before)
        stand_in.closes_consumers = False
        producer.send(numbered(0, 1))
        eventually(lambda: stand_in.acked)


def test_partitions_that_are_added_are_read(stand_in: StandIn, tmp_path: Path):
    topic, name = new_topic()
    TestProducer(stand_in.url, topic, partitions=1)
    with receiving(stand_in.url, tmp_path, topic, poll_seconds=0.05) as found:
        producer = TestProducer(stand_in.url, topic, partitions=12)
        eventually(lambda: len(found.receiver.connected()) == 12)
        producer.send(numbered(0, 24))
        eventually(lambda: found.count() == 24)
        assert {row["headers"]["danube.partition"] for row in found.records(name)} == {
            b"%d" % part for part in range(12)
        }


def test_topics_with_similar_names_are_not_partitions(stand_in: StandIn, tmp_path: Path):
    topic, _ = new_topic()
    for name in (topic, f"{topic}-part-x", f"{topic}-part-1-more", f"{topic}s-part-0"):
        stand_in.topic(name)
    spec = spec_of(stand_in.url, tmp_path, topic)
    assert spec.source.danube is not None
    assert DanubeClient(spec.source.danube).partitions(topic) == [topic]


def test_a_broker_that_is_down_is_waited_for(stand_in: StandIn, tmp_path: Path):
    topic, name = new_topic()
    producer = TestProducer(stand_in.url, topic)
    stand_in.stop()
    with receiving(stand_in.url, tmp_path, topic, streams=0) as found:
        eventually(lambda: [each for each in found.retries if each["error"] == "BrokerUnreachable"])
        stand_in.start()
        eventually(lambda: found.receiver.connected())
        producer.send(numbered(0, 3))
        eventually(lambda: found.values(name) == numbered(0, 3))


def test_a_topic_that_moves_to_another_broker_is_followed(stand_in: StandIn, tmp_path: Path):
    topic, name = new_topic()
    with StandIn() as other:
        for server in (stand_in, other):
            TestProducer(server.url, topic)
        stand_in.redirect = (other.url, False)
        producer = TestProducer(other.url, topic, name="there")
        with receiving(stand_in.url, tmp_path, topic) as found:
            producer.send(numbered(0, 3))
            eventually(lambda: found.values(name) == numbered(0, 3) and len(other.acked) == 3)
            assert not stand_in.acked


def test_brokers_behind_a_proxy_are_named_in_each_call(stand_in: StandIn, tmp_path: Path):
    topic, _ = new_topic()
    producer = TestProducer(stand_in.url, topic)
    stand_in.redirect = (stand_in.url, True)
    with receiving(stand_in.url, tmp_path, topic, poll_seconds=0.05):
        producer.send(numbered(0, 1))
        eventually(lambda: stand_in.acked and "HealthCheck" in dict(stand_in.calls))
    for method in ("Subscribe", "ReceiveMessages", "Ack", "HealthCheck"):
        found = next(metadata for name, metadata in stand_in.calls if name == method)
        assert found["x-danube-broker-url"] == "http://broker-2:6650"


# ---- security ----


def test_a_token_is_sent_and_renewed(tmp_path: Path):
    (tmp_path / "token").write_text("right\n")
    topic, name = new_topic()
    with StandIn(token="right") as server:
        producer = TestProducer(server.url, topic, token="right")
        with receiving(server.url, tmp_path, topic, token="${file:token}") as found:
            producer.send(numbered(0, 2))
            eventually(lambda: found.values(name) == numbered(0, 2))


def test_a_bad_token_is_named_and_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DANUBE_TOKEN", "s3cr3t")
    topic, _ = new_topic()
    with (
        StandIn(token="right") as server,
        receiving(server.url, tmp_path, topic, streams=0, token="${env:DANUBE_TOKEN}") as found,
    ):
        eventually(lambda: found.receiver.failure() is not None)
        failure = found.receiver.failure()
        assert isinstance(failure, AuthenticationFailed)
        assert "Invalid token" in failure.message
        assert "source.danube.token" in failure.hint
        assert "s3cr3t" not in f"{failure}{found.events}{found.spec}"


def test_tls_verifies_the_broker(tmp_path: Path, certificates: Any):
    server_pem = certificates.server.read_bytes()
    topic, name = new_topic()
    with StandIn(tls=(server_pem, server_pem)) as server:
        producer = TestProducer(server.url, topic, ca=certificates.authority.read_bytes())
        with receiving(server.url, tmp_path / "a", topic, tls={"ca": certificates.authority.read_text()}) as found:
            producer.send(numbered(0, 2))
            eventually(lambda: found.values(name) == numbered(0, 2))
        with receiving(
            server.url, tmp_path / "b", topic, streams=0, tls={"ca": certificates.stranger.read_text()}
        ) as found:
            eventually(lambda: isinstance(found.receiver.failure(), AuthenticationFailed))


def test_missing_rights_are_named(stand_in: StandIn, tmp_path: Path):
    topic, _ = new_topic()
    TestProducer(stand_in.url, topic)
    stand_in.denied = "Not allowed to create the subscription for the topic"
    with receiving(stand_in.url, tmp_path, topic, streams=0) as found:
        eventually(lambda: isinstance(found.receiver.failure(), PermissionDenied))
    assert not isinstance(found.receiver.failure(), BrokerUnreachable)
