"""SASL GSSAPI on a real broker, with a real KDC: the Java client reads topics, offsets and samples."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition

from headrace.dev.kafka import Broker
from headrace.errors import AuthenticationFailed, BrokerUnreachable, SetupError, SourceTopicGone
from headrace.pipeline.preview import preview_records
from headrace.source.base import Bounds, open_source
from headrace.source.kafka import KafkaSource
from headrace.spec import Spec
from services.kafka import admin, make_topic, produce
from services.kerberos import Kdc, kdc_server
from services.pipelines import run_cli
from services.threads import ids, numbered, one_table
from services.wait import eventually

PRINCIPAL = "headrace@TEST.HEADRACE"


@dataclass(frozen=True, slots=True)
class Kerberos:
    """A broker, and the KDC whose tickets it accepts."""

    broker: Broker
    kdc: Kdc


@pytest.fixture(scope="module")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberos]:
    folder = tmp_path_factory.mktemp("kerberos")
    with kdc_server(folder / "kdc", ("headrace",)) as kdc:
        settings = kdc.broker_settings("sasl")
        listeners, users = ("sasl",), {"x": "y"}
        with Broker.start(
            folder / "kafka", listeners=listeners, users=users, settings=settings, jvm=[kdc.jvm]
        ) as broker:
            yield Kerberos(broker, kdc)


@pytest.fixture(autouse=True)
def krb5_conf(kerberos: Kerberos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_JVM", f"{os.environ['HEADRACE_JVM']} {kerberos.kdc.jvm}")


@pytest.fixture
def filled(kerberos: Kerberos) -> str:
    """A topic with 50 records in two partitions."""
    name = make_topic(kerberos.broker.bootstrap, f"t-{uuid.uuid4().hex[:8]}", 2)
    produce(kerberos.broker.bootstrap, name, numbered(0, 50))
    return name


def spec_of(kerberos: Kerberos, topic: str, lake: Path, sasl: dict[str, Any] | None = None, **kafka: Any) -> Spec:
    login = {"mechanism": "GSSAPI", "principal": PRINCIPAL, "keytab": str(kerberos.kdc.keytab), **(sasl or {})}
    source = {"kafka": {"brokers": kerberos.broker.address("sasl"), "topics": [topic], "sasl": login, **kafka}}
    return one_table("unused:1", topic, lake / "t", pipeline="tickets", source=source)


@pytest.fixture
def source(kerberos: Kerberos, filled: str, lake: Path) -> Iterator[KafkaSource]:
    opened = open_source(spec_of(kerberos, filled, lake))
    assert isinstance(opened, KafkaSource)
    yield opened
    opened.close()


def plain(kerberos: Kerberos, topic: str, lake: Path, **kafka: Any) -> KafkaSource:
    """The same topic, read by librdkafka without a login."""
    kafka = {"brokers": kerberos.broker.bootstrap, "topics": [topic], **kafka}
    opened = open_source(one_table("unused:1", topic, lake / "t", source={"kafka": kafka}))
    assert isinstance(opened, KafkaSource)
    return opened


def test_both_clients_tell_the_same(kerberos: Kerberos, source: KafkaSource, filled: str, lake: Path) -> None:
    other = plain(kerberos, filled, lake)
    bounds = source.bounds()
    assert bounds == other.bounds()
    assert sum(bound.latest for bound in bounds.values()) == 50
    assert source.latest(list(bounds)) == other.latest(list(bounds))
    for start in ("end", "start", "2026-01-01T00:00:00+00:00"):
        assert source.tail(10, start).equals(other.tail(10, start))
    lag = source.lag(dict.fromkeys(bounds, 1))
    assert (lag.records, lag.ends) == (48, other.lag({}).ends)
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 600
    other.close()


def test_records_of_every_kind_are_sampled_the_same(kerberos: Kerberos, lake: Path) -> None:
    name = make_topic(kerberos.broker.bootstrap, f"t-{uuid.uuid4().hex[:8]}", 1)
    producer = Producer({"bootstrap.servers": kerberos.broker.bootstrap, "compression.type": "zstd"})
    for key, value in ((None, b"{}"), (b"\x00\xff", None), (b"k", bytes(range(256)) * 40)):
        producer.produce(name, key=key, value=value, headers=[("a", b"\x01"), ("a", None)], timestamp=1_700_000_000_123)
    producer.produce(name, value=b"last")
    producer.flush(20)
    sources = [open_source(spec_of(kerberos, name, lake)), plain(kerberos, name, lake)]
    one, two = (each.tail(10, "end") for each in sources)
    assert one.equals(two)
    assert one.num_rows == 4
    for each in sources:
        each.close()


def test_open_and_aborted_transactions(kerberos: Kerberos, lake: Path) -> None:
    name = make_topic(kerberos.broker.bootstrap, f"t-{uuid.uuid4().hex[:8]}", 1)
    produce(kerberos.broker.bootstrap, name, numbered(0, 5))
    producer = Producer({"bootstrap.servers": kerberos.broker.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"{}")
    producer.flush(20)
    source = open_source(spec_of(kerberos, name, lake))
    assert source.bounds() == {(name, 0): Bounds(0, 5)}
    lag = source.lag({(name, 0): 5})
    assert lag.records == 0
    assert lag.open_transaction is not None
    assert lag.open_transaction.records == 1
    producer.abort_transaction(30)
    eventually(lambda: source.bounds() == {(name, 0): Bounds(0, 7)})  # the marker follows the answer to the producer
    assert source.tail(10, "end").num_rows == 5  # it ends although the last records are not returned
    source.close()


def test_start_positions(kerberos: Kerberos, filled: str, lake: Path) -> None:
    for start, expected in (("latest", 50), ({"timestamp": "2020-01-01T00:00:00Z"}, 0)):
        source = open_source(spec_of(kerberos, filled, lake, start=start))
        assert sum(source.start(source.bounds()).values()) == expected
        source.close()


def test_patterns_and_missing_topics(kerberos: Kerberos, filled: str, lake: Path) -> None:
    source = open_source(spec_of(kerberos, f"{filled}x", lake))
    with pytest.raises(SourceTopicGone, match=f"did you mean '{filled}'"):
        source.bounds()
    source.close()


@pytest.mark.spark
def test_a_run_reads_every_record_and_commits_the_group(kerberos: Kerberos, filled: str, tmp_path: Path) -> None:
    group, offset = f"g-{filled}", TopicPartition(filled, 0, 1)
    other = Consumer({"bootstrap.servers": kerberos.broker.bootstrap, "group.id": f"other-{filled}"})
    other.commit(offsets=[offset], asynchronous=False)  # the first commit of a broker takes seconds
    other.close()
    login = {"mechanism": "GSSAPI", "principal": PRINCIPAL, "keytab": str(kerberos.kdc.keytab)}
    kafka = {"brokers": kerberos.broker.address("sasl"), "topics": [filled], "sasl": login, "group": group}
    spec = tmp_path / "spec.json"
    table = {"path": "./lake/t", "columns": [{"name": "id", "type": "bigint"}]}
    spec.write_text(json.dumps({"pipeline": "tickets", "source": {"kafka": kafka}, "table": table}))
    for command in (["check", spec, "--online"], ["preview", spec], ["run", spec, "--until", "latest"]):
        done = run_cli(command)
        assert done.returncode == 0, done.stderr
        assert "not committed" not in done.stdout + done.stderr
    assert ids(tmp_path / "lake" / "t") == list(range(50))
    client = admin(kerberos.broker.bootstrap)
    committed = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    assert sum(each.offset for each in committed.topic_partitions) == 50
    status = run_cli(["status", spec])
    assert status.returncode == 0, status.stderr


def test_a_preview_without_spark(kerberos: Kerberos, filled: str, lake: Path) -> None:
    assert preview_records(spec_of(kerberos, filled, lake), None).counts.routed > 0


def refused(spec: Spec, kind: type[Exception], message: str) -> None:
    source, started = open_source(spec), time.monotonic()
    try:
        with pytest.raises(kind, match=message):
            source.bounds()
    finally:
        source.close()
    assert time.monotonic() - started < 30


def test_wrong_logins_are_named(kerberos: Kerberos, filled: str, lake: Path, tmp_path: Path) -> None:
    unknown = spec_of(kerberos, filled, lake, {"principal": "nobody@TEST.HEADRACE"})
    refused(unknown, AuthenticationFailed, "The Kerberos login failed: .*")
    absent = spec_of(kerberos, filled, lake, {"keytab": str(tmp_path / "absent.keytab")})
    refused(absent, AuthenticationFailed, r"login failed: the keytab does not exist.* of the principal\.")


@pytest.mark.slow  # the timeout of a request
def test_an_unknown_service_is_waited_for(kerberos: Kerberos, filled: str, lake: Path) -> None:
    """Java asks the KDC for it until its timeout, as for one that is added soon."""
    wrong_service = spec_of(kerberos, filled, lake, {"service_name": "other"})
    refused(wrong_service, BrokerUnreachable, "does not respond")


@pytest.mark.slow  # the timeout of a request
def test_a_broker_that_is_down_is_unreachable(kerberos: Kerberos, filled: str, lake: Path) -> None:
    down = spec_of(kerberos, filled, lake, brokers="127.0.0.1:1")
    refused(down, BrokerUnreachable, "does not respond")


def test_a_kdc_that_is_down_is_waited_for(
    kerberos: Kerberos, filled: str, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = kerberos.kdc.config.read_text()
    config = tmp_path / "krb5.conf"
    config.write_text("\n".join("kdc = localhost:1" if "kdc = " in line else line for line in text.splitlines()))
    monkeypatch.setenv("HEADRACE_JVM", f"-Djava.security.krb5.conf={config}")
    refused(spec_of(kerberos, filled, lake), BrokerUnreachable, "The KDC does not respond")


def test_the_jvm_is_started_again(source: KafkaSource) -> None:
    before = source.bounds()
    children = [each for each in psutil.Process().children() if "py4j.GatewayServer" in each.cmdline()]
    assert children
    for child in children:
        child.kill()

    def bounds() -> dict[tuple[str, int], Bounds]:
        with suppress(BrokerUnreachable):  # while the JVM is ending
            return source.bounds()
        return {}

    assert eventually(bounds) == before


def test_a_jvm_that_does_not_start_is_named(
    kerberos: Kerberos, filled: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_JVM", "-XX:NoSuchOption")
    refused(spec_of(kerberos, filled, lake), SetupError, "did not start.*NoSuchOption")


def test_the_ticket_cache_is_used_without_a_keytab(kerberos: Kerberos, filled: str, lake: Path) -> None:
    """There is none: the login fails by name."""
    source = {
        "kafka": {"brokers": kerberos.broker.address("sasl"), "topics": [filled], "sasl": {"mechanism": "GSSAPI"}}
    }
    refused(one_table("unused:1", filled, lake / "t", source=source), AuthenticationFailed, "Kerberos login")
