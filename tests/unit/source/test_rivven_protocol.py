"""Rivven's protocol without a server: requests byte by byte, responses as servers send them and as none should."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import BrokerUnreachable, EndpointInvalid, SourceTopicGone
from headrace.source.rivven import messages, protocol
from headrace.source.rivven.client import RivvenClient, RivvenConnection
from headrace.source.rivven.messages import decode_messages
from headrace.source.rivven.protocol import MAX_FRAME, MalformedResponse, ResponseKind, ResponseReader, unsigned, zigzag
from headrace.source.rivven.scram import ScramExchange, ScramFailed

NOW = 1_795_000_000_000
slowly = settings(deadline=None)
Record = tuple[int, bytes | None, bytes, int, list[tuple[str, bytes]]]


def blob(content: bytes) -> bytes:
    return unsigned(len(content)) + content


def encoded(record: Record, partition: int = 0) -> bytes:
    """A record as the server writes it."""
    offset, key, value, timestamp, headers = record
    part = unsigned(offset) + unsigned(partition) + (b"\0" if key is None else b"\1" + blob(key)) + blob(value)
    pairs = b"".join(blob(name.encode()) + blob(content) for name, content in headers)
    return part + unsigned(zigzag(timestamp)) + unsigned(len(headers)) + pairs


def response(records: list[Record], partition: int = 0) -> bytes:
    """The records of a response."""
    return unsigned(len(records)) + b"".join(encoded(each, partition) for each in records)


def decoded(content: bytes, partition: int = 0) -> list[Record]:
    """What Arrow has of them."""
    batch = decode_messages(ResponseReader(content), partition).records("t", partition)
    batch.validate(full=True)
    return [
        (
            row["offset"],
            row["key"],
            row["value"],
            round(row["timestamp"].timestamp() * 1000),
            [(each["key"], each["value"]) for each in row["headers"] or []],
        )
        for row in batch.to_pylist()
    ]


# ---- requests ----


def test_requests_are_the_bytes_of_the_published_protocol():
    """Written by hand from the message types of rivven-protocol 0.0.22."""
    assert protocol.frame(protocol.list_topics(), 258).hex() == "00000006000000010207"
    assert protocol.consume("ab", 3, 300, 1000, True).hex() == "0502616203ac02e807010100"
    assert protocol.consume("ab", 3, 300, 1000, False).hex() == "0502616203ac02e807010000"
    assert protocol.get_offset_bounds("a", 1).hex() == "0e016101"
    assert protocol.get_offset_for_timestamp("a", 1, -3).hex() == "1201610105"
    assert protocol.publish_batch("a", None, [(b"k", b"v"), (None, b"")]).hex() == ("260161000201016b0176000000")
    assert protocol.handshake("h").hex() == "21020168"
    assert protocol.sasl_plain("u", "p").hex() == "0105504c41494e0400750070"


def test_a_request_that_the_server_would_refuse_is_not_sent():
    protocol.frame(bytes(MAX_FRAME - 5), 1)
    with pytest.raises(ValueError, match="the limit"):
        protocol.frame(bytes(MAX_FRAME - 4), 1)


@slowly
@given(st.integers(0, 2**64 - 1))
def test_integers_round_trip(number: int):
    assert ResponseReader(unsigned(number)).integer() == number


@slowly
@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_integers_round_trip(number: int):
    assert ResponseReader(unsigned(zigzag(number))).signed() == number


# ---- records ----

MILLISECONDS = st.one_of(st.just(NOW), st.integers(-(2**36), 2**47))
VALUES = st.one_of(st.binary(min_size=1, max_size=20), st.integers(120, 140).map(bytes))
KEYS = st.one_of(st.none(), st.binary(max_size=4), st.integers(126, 130).map(bytes))
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2)
STEPS = st.one_of(st.just(1), st.integers(1, 300))


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records in ascending offsets; half of the logs are what the first pass assumes."""
    plain = draw(st.booleans())
    offset, records = draw(st.sampled_from([0, 100, 127, 16_380, 2**21 - 2, 2**40])), []
    for _ in range(draw(st.integers(0, 12))):
        timestamp, headers = (NOW, []) if plain else (draw(MILLISECONDS), draw(HEADERS))
        records.append((offset, draw(KEYS), draw(VALUES), timestamp, headers))
        offset += draw(STEPS)
    return records


@slowly
@given(logs(), st.integers(0, 300))
def test_records_round_trip(records: list[Record], partition: int):
    assert decoded(response(records, partition), partition) == records


@pytest.mark.parametrize("start", [0, 126, 16_383 - 5, 2_097_151 - 5, 2**35 - 3])
@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384])
def test_common_records_are_decoded_by_columns(start: int, size: int, monkeypatch: pytest.MonkeyPatch):
    """Across the boundaries at which integers need another byte."""
    monkeypatch.setattr(messages, "_one_by_one", lambda *_: pytest.fail("decoded one by one"))
    records: list[Record] = [(start + index, None, b"x" * size, NOW + index, []) for index in range(12)]
    assert decoded(response(records)) == [(*each[:2], each[2], *each[3:]) for each in records]
    keyed: list[Record] = [(start + index, b"k" * index * 20, b"x" * (size + 1), NOW, []) for index in range(12)]
    assert decoded(response(keyed)) == keyed


@slowly
@given(logs())
def test_both_ways_to_decode_agree(records: list[Record]):
    content = response(records)
    reader = ResponseReader(content)
    slow = messages._one_by_one(reader, reader.count(6), 0).records("t", 0)
    assert decode_messages(ResponseReader(content), 0).records("t", 0).equals(slow)


def test_an_empty_value_with_a_key_is_a_tombstone():
    records: list[Record] = [(0, b"k", b"", NOW, []), (1, None, b"", NOW, []), (2, b"", b"v", NOW, [])]
    assert [each[1:3] for each in decoded(response(records))] == [(b"k", None), (None, b""), (b"", b"v")]


# ---- hostile responses ----

NO_RECORDS = {
    "a count beyond the bytes": unsigned(9) + encoded((0, None, b"x", NOW, [])),
    "an absurd count": unsigned(2**63) + bytes(100),
    "a value beyond the end": unsigned(1) + unsigned(0) * 3 + unsigned(2**40) + bytes(20),
    "a key beyond the end": unsigned(1) + unsigned(0) * 2 + b"\1" + unsigned(10_000) + bytes(20),
    "an endless integer": unsigned(1) + b"\xff" * 30,
    "an offset beyond 63 bits": unsigned(1) + unsigned(2**63) + encoded((0, None, b"x", NOW, []))[1:],
    "an option that is neither": unsigned(1) + unsigned(0) * 2 + b"\2" + bytes(20),
    "another partition": response([(0, None, b"x", NOW, [])], partition=1),
    "bytes behind the records": response([(0, None, b"x", NOW, [])]) + b"\0",
    "bytes behind no records": b"\0\0",
    "an absurd number of headers": encoded((0, None, b"x", NOW, []))[:-1].join([unsigned(1), unsigned(2**30)]),
    "a timestamp of the year 300,000": response([(0, None, b"x", 2**53, [])]),
    "no bytes": b"",
}


@pytest.mark.parametrize("content", NO_RECORDS.values(), ids=NO_RECORDS)
def test_no_records(content: bytes):
    tracemalloc.start()
    try:
        with pytest.raises(MalformedResponse):
            decode_messages(ResponseReader(content), 0)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@slowly
@given(st.binary(max_size=60))
@example(b"\1\0\0\1")
def test_any_bytes_are_records_or_a_named_error(content: bytes):
    with suppress(MalformedResponse):
        decode_messages(ResponseReader(content), 0).records("t", 0).validate(full=True)


@slowly
@given(logs().filter(len), st.data())
def test_truncated_records_are_a_named_error(records: list[Record], data: Any):
    content = response(records)
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(MalformedResponse):
        decode_messages(ResponseReader(content[:cut]), 0)


@slowly
@given(logs().filter(len), st.data())
def test_changed_records_are_records_or_a_named_error(records: list[Record], data: Any):
    content = bytearray(response(records))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedResponse):
        decode_messages(ResponseReader(bytes(content)), 0).records("t", 0).validate(full=True)


@pytest.mark.parametrize("length", [0, 5, MAX_FRAME + 1, 2**32 - 1])
def test_an_impossible_length_of_a_frame(length: int):
    with pytest.raises(MalformedResponse, match="a frame of"):
        protocol.frame_length(length.to_bytes(4, "big"))


PARSERS = [protocol.topic_names, protocol.partition_count, protocol.cleanup_policy, protocol.optional_offset]


@slowly
@given(st.binary(max_size=40), st.sampled_from(PARSERS))
def test_any_bytes_are_a_response_or_a_named_error(content: bytes, parse: Callable[[ResponseReader], object]):
    with suppress(MalformedResponse):
        parse(ResponseReader(content))


# ---- a client of servers that are none ----


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], RivvenClient]]:
    """Start something that answers every connection with these bytes, and closes it; a client of it."""
    opened: list[Any] = []

    def start(content: bytes) -> RivvenClient:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection = listener.accept()[0]
                    connection.recv(65536)
                    connection.sendall(content)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        client = RivvenClient(RivvenConnection(f"127.0.0.1:{listener.getsockname()[1]}", timeout=5))
        opened.extend((listener, client))
        return client

    yield start
    for each in opened:
        each.close()


def framed(body: bytes, correlation: int = 1) -> bytes:
    return protocol.frame(body, correlation)


WELCOME = framed(unsigned(ResponseKind.HANDSHAKE_RESULT) + unsigned(2) + b"\1" + blob(b"OK"))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of 1,213,486,160 bytes"),
        (framed(b"\x0c", correlation=7), "request 7; expected that to 1"),
        (framed(b"\x0c"), "response 12; expected 35"),
        (WELCOME.replace(b"\0\0\0\0\1", b"\1\0\0\0\1"), "format 1"),
        (framed(unsigned(ResponseKind.ERROR) + unsigned(2**31) + b"x"), "limit"),
    ],
)
def test_what_is_no_rivven_server_is_named(answering: Any, content: bytes, word: str):
    with pytest.raises(EndpointInvalid, match=word) as caught:
        answering(content).topics()
    assert "source.rivven.broker" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"\0\0", WELCOME[:-1], WELCOME])
def test_a_connection_that_ends_early_is_transient(answering: Any, content: bytes):
    with pytest.raises(BrokerUnreachable, match="was lost"):
        answering(content).topics()


def test_another_protocol_version_is_named(answering: Any):
    content = framed(unsigned(ResponseKind.HANDSHAKE_RESULT) + unsigned(9) + b"\0" + blob(b"too old"))
    with pytest.raises(EndpointInvalid, match=r"protocol version 9.*version 2: too old"):
        answering(content).topics()


def test_errors_of_the_server_are_errors_by_name(answering: Any):
    def error(text: str) -> bytes:
        return WELCOME + framed(unsigned(ResponseKind.ERROR) + blob(text.encode()), 2)

    with pytest.raises(SourceTopicGone, match="'orders' does not exist"):
        answering(error("Topic not found: orders")).bounds([("orders", 0)])
    with pytest.raises(BrokerUnreachable, match="NOT_LEADER"):
        answering(error("NOT_LEADER_FOR_PARTITION: Leader is node 'b'")).bounds([("orders", 0)])


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port} does not respond: Connection refused"):
        RivvenClient(RivvenConnection(f"127.0.0.1:{port}")).topics()


# ---- SCRAM ----


def test_the_exchange_of_rfc_7677():
    exchange = ScramExchange("user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert exchange.first() == "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    final = exchange.final(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    exchange.verify("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(ScramFailed, match="impostor"):
        exchange.verify("v=" + "A" * 43 + "=")


@pytest.mark.parametrize(
    "challenge",
    [
        "",
        "r=abc,s=AAAA,i=4096",
        "r=other,s=AAAA,i=4096",
        "r=abcd,s=?,i=4096",
        "r=abcd,s=AAAA,i=1000000000",
        "r=abcd,i=x",
    ],
)
def test_a_server_that_asks_for_too_much_is_refused(challenge: str):
    with pytest.raises(ScramFailed):
        ScramExchange("user", "pencil", nonce="abc").final(challenge)


def test_secrets_are_not_shown():
    connection = RivvenConnection("localhost:1", None, "PLAIN", "ann", "CANARY")
    assert "CANARY" not in repr(connection)
