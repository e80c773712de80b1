"""The Rivven source against the real server: offsets, start positions, replays, gaps, restarts, security."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    EndpointInvalid,
    SourceGap,
    SourceRewound,
    SourceTopicGone,
    UsageError,
)
from headrace.faults import Point
from headrace.pipeline.preview import preview_records
from headrace.source.base import Bounds
from headrace.source.ranges import Range
from headrace.source.rivven.client import RivvenClient, RivvenConnection, TlsFiles
from headrace.source.rivven.reader import read_batches
from headrace.source.rivven.source import RivvenSource
from headrace.spec import Spec
from headrace.validate.load import loads
from services.certs import Certificates
from services.in_process_pipeline import ingest
from services.pipelines import start_cli
from services.rivven import RivvenServer, gateway, rivven_server

TESTS = Path(__file__).parents[1]


def spec_of(server: RivvenServer, lake: Path | str = "./lake", **rivven: Any) -> Spec:
    """A spec over a server; `pipeline` and the keys of the source can be given."""
    return loads(json.dumps(content_of(server.address, lake, **rivven)), Path.cwd())[0]


def content_of(address: str, lake: Path | str, **rivven: Any) -> dict[str, Any]:
    """A spec of events, with the keys of the source."""
    return {
        "pipeline": "shop",
        "source": {"rivven": {"broker": address, **rivven}},
        "table": {"path": f"{lake}/events", "columns": [{"name": "id", "type": "bigint"}]},
        "flush": {"every": "200ms"},
        "retry": {"unreachable": {"initial_interval": "50ms", "max_interval": "500ms"}},
    }


def events(start: int, count: int, padding: int = 0) -> Iterator[bytes]:
    """Events with consecutive ids."""
    return (json.dumps({"id": number, "pad": "x" * padding}).encode() for number in range(start, start + count))


def read(server: RivvenServer, topic: str, start: int, until: int, committed: bool = True) -> pa.Table:
    """A range as a task reads it."""
    batches = read_batches(RivvenConnection(server.address), committed, Range(topic, 0, start, until))
    return pa.Table.from_batches(batches, RECORD_SCHEMA)


def topics_at(connection: RivvenConnection) -> list[str]:
    """The topics that a connection sees."""
    with RivvenClient(connection) as client:
        return client.topics()


@pytest.fixture
def source(rivven: RivvenServer) -> Iterator[Any]:
    """A maker of sources, which are closed."""
    opened = []

    def make(**keys: Any) -> RivvenSource:
        opened.append(RivvenSource(spec_of(rivven, **keys)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def topic(rivven: RivvenServer) -> str:
    """A topic of two partitions with 150 events each; nothing may be added to it."""
    return rivven.topic(events(0, 300), 2)


# ---- offsets ----


def test_topics_and_bounds(rivven: RivvenServer, topic: str, source: Any):
    one = source(topics=[topic])
    assert one.topics() == {topic: topic}
    assert one.bounds() == {(topic, 0): Bounds(0, 150), (topic, 1): Bounds(0, 150)}
    assert one.latest([(topic, 1)]) == {(topic, 1): 150}
    assert source(pattern=f"^{topic}$").topics() == {topic: topic}
    assert source(pattern="^no such").bounds() == {}


def test_start_positions(topic: str, source: Any):
    bounds = source(topics=[topic]).bounds()

    def start(position: Any) -> list[int]:
        return list(source(topics=[topic], start=position).start(bounds).values())

    assert start("earliest") == [0, 0]
    assert start("latest") == [150, 150]
    assert start({"offsets": {"1": 20}}) == [0, 20]
    assert start({"offsets": {topic: {"0": 7}}}) == [7, 0]
    assert start({"timestamp": "2020-01-01T00:00:00Z"}) == [0, 0]
    assert start({"timestamp": "2100-01-01T00:00:00Z"}) == [150, 150]
    with pytest.raises(UsageError, match="has no offset 151; the server has 0 to 150"):
        start({"offsets": {"0": 151}})
    with pytest.raises(UsageError, match="/7 does not exist"):
        start({"offsets": {"7": 0}})


def test_a_start_at_a_timestamp_is_its_first_record(rivven: RivvenServer, topic: str, source: Any):
    stamps = read(rivven, topic, 0, 150)["timestamp"].to_pylist()
    wanted = stamps[75]
    first = next(index for index, stamp in enumerate(stamps) if stamp >= wanted)
    one = source(topics=[topic], start={"timestamp": wanted.isoformat()})
    assert one.start(one.bounds())[topic, 0] == first


def test_an_unknown_topic_is_named_with_similar_ones(rivven: RivvenServer, topic: str, source: Any):
    similar = topic[:-1] + ("x" if topic[-1] != "x" else "y")
    with pytest.raises(SourceTopicGone, match=f"'{similar}' does not exist .*; did you mean '{topic}'") as caught:
        source(topics=[similar]).topics()
    assert caught.value.facts == {"topic": similar}


def test_the_lag(topic: str, source: Any):
    one = source(topics=[topic])
    behind = one.lag({(topic, 0): 140, (topic, 1): 150})
    assert behind.records == 10
    assert 0 <= behind.seconds < 3600
    assert (one.lag({(topic, 0): 150, (topic, 1): 150}).records, one.lag(one.latest([(topic, 0)])).records) == (0, 150)


# ---- records ----


def test_a_range_is_read_the_same_each_time(rivven: RivvenServer, topic: str):
    first = read(rivven, topic, 10, 140)
    assert first["offset"].to_pylist() == list(range(10, 140))
    assert first["key"].to_pylist() == [f"k{2 * offset}".encode() for offset in range(10, 140)]
    assert first["value"].to_pylist() == list(events(0, 300))[20:280:2]
    assert set(first["topic"].to_pylist()) == {topic}
    assert set(first["timestamp_type"].to_pylist()) == {1}
    assert all(datetime.now(UTC) - stamp < timedelta(hours=1) for stamp in first["timestamp"].to_pylist())
    assert read(rivven, topic, 10, 140) == first
    assert pa.concat_tables([read(rivven, topic, 10, 71), read(rivven, topic, 71, 140)]).combine_chunks() == first


def test_records_beyond_the_limit_of_a_response(rivven: RivvenServer, monkeypatch: pytest.MonkeyPatch):
    """12 MB in records of 3,000 bytes and a few of 2 MB: the first request asks for more than a response can have."""
    sizes = [3000] * 1500 + [2_000_000] * 4 + [10] * 20
    values = [bytes([65 + index % 26]) * size for index, size in enumerate(sizes)]
    monkeypatch.setattr("headrace.source.rivven.reader._FIRST_COUNT", 10_000)
    topic = rivven.topic(values)
    assert read(rivven, topic, 0, len(values))["value"].to_pylist() == values


def test_tombstones(rivven: RivvenServer):
    topic, client = rivven.topic([b"1"]), rivven.client()
    client.publish(topic, [(b"k", b""), (None, b""), (None, b"2")])
    assert read(rivven, topic, 0, 4)["value"].to_pylist() == [b"1", None, b"", b"2"]


@pytest.mark.parametrize("sample", ["rivven-changes", "rivven-events"])
def test_both_envelopes(rivven: RivvenServer, sample: str, tmp_path: Path):
    """Recorded topics, sent to a server and read from it, become the rows that are expected of the records."""
    import sample_topics.test_sample_topics as samples

    records = samples.records_of(sample)
    topic = rivven.topic([])
    pairs = [
        (key, value or b"")
        for key, value in zip(*(records[name].to_pylist() for name in ("key", "value")), strict=True)
    ]
    rivven.client().publish(topic, pairs)
    spec = samples.spec_of(sample, tmp_path)
    read_back = read(rivven, topic, 0, len(records)).set_column(0, "topic", records["topic"])
    ingest(spec, read_back)
    expected = json.loads((TESTS / "sample_topics" / f"{sample}.json").read_text())
    tables = samples.stored(tmp_path / "lake")
    assert {table: [samples.plain(row) for _, row in rows] for table, rows in tables.items()} == expected["tables"]
    assert {str(each["offset"]): each["reason"] for each in samples.letters_of(spec)} == expected["letters"]


def test_a_preview(rivven: RivvenServer, topic: str):
    (table,) = preview_records(spec_of(rivven, topics=[topic]), None, 5).tables.values()
    assert table["id"].to_pylist() == [291, 293, 295, 297, 299]


# ---- transactions, deleted records, compaction ----


@pytest.fixture(scope="module")
def transactions(rivven: RivvenServer) -> str:
    """Offsets 0 and 7 to 8 without a transaction, 1 to 2 committed (then a control record), 4 to 5 aborted."""
    topic, client = rivven.topic([b"a"]), rivven.client()
    client.publish_transaction(topic, [b"b", b"c"], commit=True)
    client.publish_transaction(topic, [b"d", b"e"], commit=False)
    client.publish(topic, [(None, b"f"), (None, b"g")])
    return topic


@pytest.mark.parametrize("start", range(9))
@pytest.mark.parametrize("committed", [True, False])
def test_transactions(rivven: RivvenServer, transactions: str, committed: bool, start: int):
    expected = [0, 1, 2, 7, 8] if committed else [0, 1, 2, 4, 5, 7, 8]
    for until in range(start, 10):
        offsets = read(rivven, transactions, start, until, committed)["offset"].to_pylist()
        assert offsets == [each for each in expected if start <= each < until]


def test_a_response_without_a_committed_record(rivven: RivvenServer, monkeypatch: pytest.MonkeyPatch):
    """More aborted records than one response has."""
    monkeypatch.setattr("headrace.source.rivven.reader._FIRST_COUNT", 3)
    topic, client = rivven.topic([b"a"]), rivven.client()
    client.publish_transaction(topic, [b"no"] * 10, commit=False)
    client.publish(topic, [(None, b"z")])
    assert read(rivven, topic, 0, 13)["value"].to_pylist() == [b"a", b"z"]


def test_deleted_records_are_a_gap(rivven: RivvenServer, source: Any):
    topic = rivven.topic(events(0, 20))
    rivven.client().delete_records(topic, 0, 5)
    assert source(topics=[topic]).bounds() == {(topic, 0): Bounds(5, 20)}
    with pytest.raises(SourceGap, match="no longer has offsets 3 to 4") as caught:
        read(rivven, topic, 3, 20)
    assert (caught.value.facts["wanted"], caught.value.facts["earliest"]) == (3, 5)
    one = source(topics=[topic], start={"timestamp": "2020-01-01T00:00:00Z"})
    assert one.start(one.bounds()) == {(topic, 0): 5}


def test_records_deleted_during_a_read_are_a_gap(rivven: RivvenServer, monkeypatch: pytest.MonkeyPatch):
    """The server answers with later records and no error."""
    monkeypatch.setattr("headrace.source.rivven.reader._FIRST_COUNT", 5)
    monkeypatch.setattr("headrace.source.rivven.reader._RESPONSE_BYTES", 200)
    topic = rivven.topic(events(0, 50))
    batches = read_batches(RivvenConnection(rivven.address), True, Range(topic, 0, 0, 50))
    assert next(batches)["offset"].to_pylist() == [0, 1, 2, 3, 4]
    rivven.client().delete_records(topic, 0, 40)
    with pytest.raises(SourceGap, match="its earliest is 40"):
        list(batches)


def test_a_range_that_the_server_does_not_have(rivven: RivvenServer, topic: str):
    with pytest.raises(SourceRewound, match="ends at 150, but the range to read ends at 151"):
        read(rivven, topic, 0, 151)


def test_a_deleted_topic_keeps_its_records(rivven: RivvenServer, source: Any):
    """So a topic of the same name continues it, and its name can be its id."""
    topic, client = rivven.topic(events(0, 10)), rivven.client()
    client.delete_topic(topic)
    with pytest.raises(SourceTopicGone):
        source(topics=[topic]).bounds()
    client.create_topic(topic)
    client.publish(topic, [(None, b"more")])
    assert source(topics=[topic]).bounds() == {(topic, 0): Bounds(0, 11)}


# ---- restarts ----


def test_records_that_a_killed_server_lost_are_a_gap(tmp_path: Path):
    """Version 0.0.22 appends its write-ahead log with offset 0 at a start, and then does not find what was there."""
    with rivven_server(tmp_path) as server:
        topic = server.topic(events(0, 1500, padding=200))
        server.kill()
        server.start()
        with pytest.raises(SourceGap, match="returns no records for offsets 1 to 1499"):
            read(server, topic, 0, 1500)
        server.client().publish(topic, [(None, b"new")] * 3)
        with pytest.raises(SourceGap, match="returns no records for offsets 1 to"):
            read(server, topic, 0, 1503)


def test_a_server_that_is_killed_during_a_read_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.source.rivven.reader._FIRST_COUNT", 10)
    monkeypatch.setattr("headrace.source.rivven.reader._RESPONSE_BYTES", 400)
    with rivven_server(tmp_path) as server:
        topic = server.topic(events(0, 300))
        server.stop()  # its write-ahead log is empty after an orderly stop
        server.start()
        batches = read_batches(RivvenConnection(server.address), True, Range(topic, 0, 0, 300))
        records = [next(batches)]
        server.kill()
        with pytest.raises(BrokerUnreachable):
            list(batches)  # the pipeline retries the batch
        server.start()
        again = read_batches(RivvenConnection(server.address), True, Range(topic, 0, 0, 300))
        records = [next(again)]
        server.kill()
        server.start()
        records += again  # the reader itself reconnects
        assert [offset for each in records for offset in each["offset"].to_pylist()] == list(range(300))


# ---- security ----


def pem(path: Path) -> str:
    return path.read_text()


def test_tls(rivven: RivvenServer, topic: str, certificates: Certificates):
    with gateway(rivven, certificates=certificates) as address:
        trusted = RivvenConnection(address, TlsFiles(ca=pem(certificates.authority)))
        batches = read_batches(trusted, True, Range(topic, 0, 0, 150))
        assert sum(map(len, batches)) == 150
        with pytest.raises(AuthenticationFailed, match="certificate is not trusted"):
            topics_at(RivvenConnection(address, TlsFiles(ca=pem(certificates.stranger))))
        with pytest.raises((BrokerUnreachable, EndpointInvalid)):
            topics_at(RivvenConnection(address, timeout=3))
    with pytest.raises((AuthenticationFailed, BrokerUnreachable)):
        topics_at(RivvenConnection(rivven.address, TlsFiles(ca=pem(certificates.authority)), timeout=3))


def test_client_certificates(rivven: RivvenServer, certificates: Certificates):
    authority, chain, key = (
        pem(path) for path in (certificates.authority, certificates.client_chain, certificates.client_key)
    )
    with gateway(rivven, certificates=certificates, client_certificates=True) as address:
        assert topics_at(RivvenConnection(address, TlsFiles(authority, chain, key)))
        with pytest.raises((AuthenticationFailed, BrokerUnreachable)):
            topics_at(RivvenConnection(address, TlsFiles(authority)))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_authentication(rivven: RivvenServer, topic: str, certificates: Certificates, mechanism: str):
    tls = TlsFiles(ca=pem(certificates.authority))
    with gateway(rivven, certificates=certificates, users={"ann": "ann-secret"}) as address:
        allowed = RivvenConnection(address, tls, mechanism, "ann", "ann-secret")
        assert sum(map(len, read_batches(allowed, True, Range(topic, 0, 0, 150)))) == 150
        for name, password in (("ann", "wrong-secret"), ("eve", "ann-secret")):
            with pytest.raises(AuthenticationFailed, match="rejects the credentials") as caught:
                topics_at(RivvenConnection(address, tls, mechanism, name, password))
            assert "secret" not in str(caught.value)


def test_credentials_at_the_real_server(tmp_path: Path):
    """It has no users: nobody can be added. What it answers to wrong credentials is its own."""
    with rivven_server(tmp_path, authentication=True) as server:
        for mechanism, word in (("SCRAM-SHA-256", "rejects the credentials"), ("PLAIN", "requires a TLS connection")):
            with pytest.raises(AuthenticationFailed, match=word) as caught:
                topics_at(RivvenConnection(server.address, None, mechanism, "ann", "ann-secret"))
            assert "source.rivven.sasl" in caught.value.hint
        with pytest.raises(AuthenticationFailed, match="authenticate first") as caught:
            topics_at(RivvenConnection(server.address))
        assert caught.value.hint == "Set source.rivven.sasl."


# ---- whole pipelines ----


def test_kill_and_run_again(rivven: RivvenServer, tmp_path: Path):
    """`headrace run --until latest`, killed after the commit of a batch, and again to its end."""
    topic = rivven.topic(events(0, 1200), 2)
    content = content_of(rivven.address, tmp_path / "lake", topics=[topic])
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps(content))
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    command = ["run", file, "--until", "latest"]
    with start_cli(command, environment | {"HEADRACE_FAULT": f"{Point.AFTER_COMMIT}:batch=1=kill"}) as running:
        assert running.wait(300) == -signal.SIGKILL, running.said()
    rivven.client().publish(topic, [(None, value) for value in events(1200, 50)])
    with start_cli(command, environment) as running:
        assert running.wait(300) == 0, running.said()
    rows = DeltaTable(str(tmp_path / "lake" / "events")).to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == list(range(1250))
