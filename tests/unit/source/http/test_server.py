"""The HTTP server on a real socket, with a real spool."""

from __future__ import annotations

import gzip
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import UsageError
from headrace.source.http.server import HttpReceiver
from headrace.source.ranges import Range
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.writer import Spool, SpoolLimits
from headrace.validate.load import loads
from services.certs import Certificates

NDJSON, JSON = "application/x-ndjson", "application/json"


@dataclass
class Server:
    folder: Path
    spool: Spool
    receiver: HttpReceiver
    port: int
    context: ssl.SSLContext | None = None

    def connection(self) -> http.client.HTTPConnection:
        if self.context is not None:
            return http.client.HTTPSConnection("localhost", self.port, timeout=30, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        with closing(self.connection()) as connection:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            response.content = response.read()  # type: ignore[attr-defined]
            return response

    def post(self, path: str, body: bytes, kind: str = JSON, **headers: str) -> tuple[int, Any]:
        response = self.request("POST", path, body, content_type=kind, **headers)
        return response.status, json.loads(response.content)  # type: ignore[attr-defined]

    def records(self, topic: str) -> list[dict[str, Any]]:
        """What a reader of the spool sees."""
        end = open_reader(str(self.folder)).ends().get(topic, 0)
        batches = record_batches(open_reader(str(self.folder)), Range(topic, 0, 0, end)) if end else ()
        return [row for batch in batches for row in batch.to_pylist()]

    def values(self, topic: str) -> list[bytes]:
        return [row["value"] for row in self.records(topic)]


@contextmanager
def serving(folder: Path, source: str = "topics: [orders]", limits: SpoolLimits | None = None, more: str = ""):
    text = f"pipeline: p\nsource: {{http: {{listen: '127.0.0.1:0', {source}}}}}\ntable: {{path: {folder}/t}}\n{more}"
    [spec] = loads(text, folder)
    spool = Spool.open(folder / "spool", "p", limits)
    receiver = HttpReceiver(spec.source.http, spec.limits.record_bytes)
    events: list[dict[str, Any]] = []
    receiver.start(spool, events.append)
    try:
        yield Server(folder / "spool", spool, receiver, int(events[0]["address"].rpartition(":")[2]))
    finally:
        receiver.stop()
        spool.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as started:
        yield started


# ---- bodies ----


def test_an_object_is_one_record_as_it_was_sent(server: Server) -> None:
    body = b' {"id": 1,  "id": 2, "big": 1e999} '
    assert server.post("/v1/orders", body) == (
        202,
        {"topic": "orders", "stored": 1, "rejected": 0, "duplicate": False, "records": [{"offset": 0}]},
    )
    assert server.values("orders") == [body.strip()]


def test_the_elements_of_an_array_are_records(server: Server) -> None:
    status, answer = server.post("/v1/orders", b'[{"a": "x,]"}, [1, {"b": 2}] ,3, {"c": "\\""}]')
    assert (status, answer["records"]) == (202, [{"offset": each} for each in range(4)])
    assert server.values("orders") == [b'{"a": "x,]"}', b'[1, {"b": 2}]', b"3", b'{"c": "\\""}']
    assert server.post("/v1/orders", b"\xef\xbb\xbf [4, 5]")[1]["stored"] == 2  # after a byte order mark
    assert server.values("orders")[4:] == [b"4", b"5"]


def test_lines_are_records_and_are_not_parsed(server: Server) -> None:
    body = b'{"a":1}\r\n\n  {"broken": \n"\xff"\n'
    assert server.post("/v1/orders", body, NDJSON)[1]["stored"] == 3
    assert server.values("orders") == [b'{"a":1}', b'{"broken":', b'"\xff"']


def test_any_other_type_is_one_record_of_bytes(server: Server) -> None:
    body = bytes(range(256))
    assert server.post("/v1/orders", body, "application/octet-stream")[0] == 202
    assert server.values("orders") == [body]


def test_key_and_headers_apply_to_all_records_of_a_request(server: Server) -> None:
    server.post("/v1/orders", b"[1,2]", headrace_key="k-7", headrace_header_Trace="t")
    assert [(row["key"], row["headers"]) for row in server.records("orders")] == [
        (b"k-7", [{"key": "trace", "value": b"t"}])
    ] * 2


@pytest.mark.parametrize(
    ("body", "kind", "error"),
    [
        (b"", JSON, "no_records"),
        (b"  ", JSON, "no_records"),
        (b"[]", JSON, "no_records"),
        (b"\n \n", NDJSON, "no_records"),
        (b'[{"a":1}', JSON, "malformed"),
        (b'[{"a":"]', JSON, "malformed"),
    ],
)
def test_a_body_without_records_is_refused(server: Server, body: bytes, kind: str, error: str) -> None:
    status, answer = server.post("/v1/orders", body, kind)
    assert (status, answer["error"]) == (400, error)
    assert server.values("orders") == []


def test_compressed_bodies(server: Server) -> None:
    lines = b'{"a":1}\n{"a":2}\n'
    zstd = pa.compress(lines, "zstd", asbytes=True)
    assert (
        server.post("/v1/orders", gzip.compress(lines[:8]) + gzip.compress(lines[8:]), NDJSON, content_encoding="gzip")[
            0
        ]
        == 202
    )
    assert server.post("/v1/orders", zstd, NDJSON, content_encoding="zstd")[0] == 202
    assert server.values("orders") == [b'{"a":1}', b'{"a":2}'] * 2
    for body, encoding, expected in (
        (gzip.compress(lines)[:-9], "gzip", 400),
        (b"not zstd", "zstd", 400),
        (b"x", "br", 415),
    ):
        status, answer = server.post("/v1/orders", body, NDJSON, content_encoding=encoding)
        assert (status, answer["error"]) == (expected, "encoding")
    assert len(server.values("orders")) == 4


# ---- limits ----


def test_limits_hold_after_decompression(tmp_path: Path) -> None:
    with serving(
        tmp_path, "topics: [orders], max_body: 1000, max_records: 3", more="limits: {record_bytes: 100}"
    ) as server:
        bomb = gzip.compress(b"0" * 10_000_000)
        for body, headers, error in (
            (b"x" * 1001, {}, "body_too_large"),
            (bomb[:1000], {"content_encoding": "gzip"}, "body_too_large"),
            (pa.compress(b"0" * 10_000_000, "zstd", asbytes=True), {"content_encoding": "zstd"}, "body_too_large"),
            (b"1\n2\n3\n4\n", {}, "too_many_records"),
            (b"x" * 101, {}, "record_too_large"),
        ):
            status, answer = server.post("/v1/orders", body, NDJSON, **headers)
            assert (status, answer["error"]) == (413, error)
        chunks = server.request("POST", "/v1/orders", iter([b"x" * 600] * 3), content_type=NDJSON)  # type: ignore[arg-type]
        assert chunks.status == 413
        assert server.values("orders") == []
        status, answer = server.post("/v1/orders", b"1\n" + b"x" * 101 + b"\n3", NDJSON)
        assert (status, answer["stored"], answer["rejected"]) == (202, 2, 1)
        assert answer["records"] == [{"offset": 0}, {"error": "record_too_large", "bytes": 101}, {"offset": 1}]
        assert server.values("orders") == [b"1", b"3"]


def test_large_headers_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "topics: [orders], max_headers: 2000") as server:
        assert server.request("POST", "/v1/orders", b"1", x="y" * 5_000).status == 431
        assert server.post("/v1/orders", b"1")[0] == 202


def test_a_full_spool_answers_when_to_send_again(tmp_path: Path) -> None:
    with serving(tmp_path, limits=SpoolLimits(max_bytes=5_000, segment_bytes=1_000)) as server:
        while (response := server.request("POST", "/v1/orders", b"x" * 500)).status == 202:
            assert len(server.records("orders")) < 10
        assert (response.status, response.headers["Retry-After"]) == (429, "5")
        assert json.loads(response.content)["error"] == "SpoolFull"  # type: ignore[attr-defined]
        open_reader(str(server.folder)).commit({"orders": open_reader(str(server.folder)).ends()["orders"]})
        server.spool.trim()
        deadline = time.monotonic() + 30
        while server.request("POST", "/v1/orders", b"x").status != 202:
            assert time.monotonic() < deadline


# ---- repeated requests ----


def test_a_repeated_request_is_stored_once(server: Server) -> None:
    first = server.post("/v1/orders", b"[1,2]", idempotency_key="a")
    again = server.post("/v1/orders", b"[1,2]", idempotency_key="a")
    assert (first[1]["duplicate"], again[1]["duplicate"]) == (False, True)
    assert first[1]["records"] == again[1]["records"] == [{"offset": 0}, {"offset": 1}]
    assert server.post("/v1/orders", b"[1,2]", idempotency_key="b")[1]["records"] == [{"offset": 2}, {"offset": 3}]
    status, answer = server.post("/v1/orders", b"[3]", idempotency_key="a")
    assert (status, answer["error"]) == (422, "SequenceReused")
    others: list[dict[str, str]] = [{"kind": NDJSON}, {"headrace_key": "k"}, {"headrace_header_Trace": "t"}]
    for other in others:  # these would be other records
        assert server.post("/v1/orders", b"[1,2]", idempotency_key="a", **other)[0] == 422
    assert server.values("orders") == [b"1", b"2"] * 2


def test_requests_at_the_same_time_are_stored_once_each(server: Server) -> None:
    def send(number: int) -> int:
        return server.post("/v1/orders", b"%d" % (number // 2), idempotency_key=str(number // 2))[0]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(100))) == {202}
    assert sorted(map(int, server.values("orders"))) == list(range(50))


# ---- who may send, and where ----


def test_topics_are_those_of_the_spec(tmp_path: Path) -> None:
    with serving(tmp_path, "topics: [orders], pattern: 'web-.*'") as server:
        assert server.post("/v1/web-shop", b"1")[0] == 202
        for topic in ("other", "my-web-shop", "web-%2F..%2Fx", "web-%00"):
            assert server.post(f"/v1/{topic}", b"1")[0] == 404
        wrong = server.request("GET", "/v1/orders")
        assert wrong.status == 405
        assert b"; records are sent to POST /v1/TOPIC." in wrong.content  # type: ignore[attr-defined]
        assert sorted(open_reader(str(server.folder)).ends()) == ["web-shop"]


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "s3cret-one")
    monkeypatch.setenv("TWO", "s3cret-two")
    with serving(tmp_path, "topics: [orders], tokens: ['${env:ONE}', '${env:TWO}']") as server:
        for value in ("", "Bearer", "Bearer wrong", "Basic s3cret-one", "Bearer s3cret-on"):
            response = server.request("POST", "/v1/orders", b"1", authorization=value)
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert b"s3cret" not in response.content  # type: ignore[attr-defined]
        for value in ("Bearer s3cret-one", "bearer s3cret-two"):
            assert server.post("/v1/orders", b"1", authorization=value)[0] == 202
        assert server.request("GET", "/health").status == 200


def test_pages_of_listed_origins_may_send(tmp_path: Path) -> None:
    with serving(tmp_path, "topics: [orders], cors: ['https://shop.example']") as server:
        asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type"}
        allowed = server.request("OPTIONS", "/v1/orders", origin="https://shop.example", **asked)
        assert allowed.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        other = server.request("OPTIONS", "/v1/orders", origin="https://evil.example", **asked)
        assert "Access-Control-Allow-Origin" not in other.headers
        sent = server.request("POST", "/v1/orders", b"1", origin="https://shop.example")
        assert sent.headers["Access-Control-Allow-Origin"] == "https://shop.example"


def test_pages_may_send_headers_of_records(tmp_path: Path) -> None:
    with serving(tmp_path, "topics: [orders], cors: ['https://shop.example']") as server:

        def asked(names: str, origin: str = "https://shop.example") -> http.client.HTTPResponse:
            about = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": names}
            return server.request("OPTIONS", "/v1/orders", origin=origin, **about)

        for names in ("headrace-header-trace", "content-type,Headrace-Header-Trace, headrace-key,headrace-header-x.y"):
            response = asked(names)
            assert response.status == 200
            allowed = {name.strip() for name in response.headers["Access-Control-Allow-Headers"].lower().split(",")}
            assert {name.strip().lower() for name in names.split(",")} <= allowed
        for names in ("headrace-header-", "x-headrace-header-a", "headrace-header-a, x-other", "headrace-header-a b"):
            response = asked(names)
            assert response.status == 400
            refused = {"headrace-header-", "x-headrace-header-a", "x-other", "headrace-header-a b"}
            allowed = {name.strip() for name in response.headers["Access-Control-Allow-Headers"].lower().split(",")}
            assert not refused & allowed
        other = asked("headrace-header-trace", "https://evil.example")
        assert other.status == 400
        assert "Access-Control-Allow-Origin" not in other.headers


def test_tls_with_client_certificates(tmp_path: Path, certificates: Certificates) -> None:
    key, begin, chain = certificates.server.read_text().partition("-----BEGIN CERTIFICATE-----")
    for name, pem in {"key": key, "certificate": begin + chain, "ca": certificates.authority.read_text()}.items():
        (tmp_path / f"{name}.pem").write_text(pem)
    tls = "tls: {certificate: '${file:certificate.pem}', key: '${file:key.pem}', client_ca: '${file:ca.pem}'}"
    with serving(tmp_path, f"topics: [orders], {tls}") as server:
        server.context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            server.post("/v1/orders", b"1")
        server.context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
        assert server.post("/v1/orders", b"1")[0] == 202


# ---- the preset ----


def test_the_analytics_preset(tmp_path: Path) -> None:
    with serving(tmp_path, "preset: analytics") as server:
        event = b'{"event_type": "click", "channel": "web", "session_id": "s-1" }'
        assert server.post("/analytics", event) == (
            200,
            {"success": True, "message": "Event received", "eventId": "s-1"},
        )
        stamped = b'{"event_type":"click","channel":"web","session_id":"s-2","timestamp":"2024-05-01T12:00:00Z"}'
        assert server.post("/analytics", stamped)[0] == 200
        first, second = server.records("analytics-events")
        assert first["value"].startswith(event[:-2])
        assert set(json.loads(first["value"])) == {"event_type", "channel", "session_id", "timestamp"}
        assert (first["key"], second["key"], second["value"]) == (b"s-1", b"s-2", stamped)
        status, answer = server.post("/analytics", b'{"event_type": "click", "channel": "", "session_id": "s"}')
        assert (status, answer["message"]) == (400, "Missing required fields: event_type, channel, session_id")
        for body in (b"{", b"[]", b"[" * 100_000, stamped.decode().encode("utf-16"), stamped[:-1] + b',"v":NaN}'):
            assert server.post("/analytics", body)[0] == 400
        for session in (b'{"a":1}', b"[1]", b"true", b'"\\ud800"'):
            status, answer = server.post("/analytics", stamped.replace(b'"s-2"', session))
            assert (status, answer["message"]) == (400, "session_id: expected text or a number.")
        assert server.post("/analytics", stamped.replace(b'"s-2"', b"7" * 5000))[1]["eventId"] == "7" * 5000
        assert len(server.records("analytics-events")) == 3
        health = json.loads(server.request("GET", "/health").content)  # type: ignore[attr-defined]
        assert (health["status"], health["kafkaReady"]) == ("ok", True)
        assert server.post("/v1/analytics-events", b"{}")[0] == 202


# ---- life ----


def test_a_used_address_is_an_error(server: Server, tmp_path: Path) -> None:
    source = f"http: {{listen: '127.0.0.1:{server.port}', topics: [a]}}"
    [spec] = loads(f"pipeline: p\nsource: {{{source}}}\ntable: {{path: {tmp_path}/t}}\n")
    with pytest.raises(UsageError, match=f"Cannot listen on 127.0.0.1:{server.port}: Address already in use"):
        HttpReceiver(spec.source.http, 1).start(server.spool, print)


def test_stop_answers_requests_and_is_quick(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        idle = server.connection()
        idle.connect()
        statuses: list[int] = []
        thread = threading.Thread(target=lambda: statuses.append(server.post("/v1/orders", b"1")[0]))
        thread.start()
        thread.join()
        started = time.monotonic()
        server.receiver.stop()
        assert time.monotonic() - started < 6
        assert statuses == [202]
        idle.close()
    assert server.values("orders") == [b"1"]
