"""The registry's client against servers that are slow, huge, wrong, gone or in the way."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.decode.registry import client
from headrace.decode.registry.client import Registered, Registry, UnknownSchema
from headrace.errors import AuthenticationFailed, PermissionDenied, RegistryUnreachable
from headrace.spec.registry import RegistrySpec
from services.certs import Certificates, make_certificates

Answer = tuple[int, Any]


class Server:
    """Answers by path; counts what it was asked."""

    def __init__(self, answers: dict[str, Answer] | Callable[[str], Answer], tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answers = answers if callable(answers) else lambda path: answers.get(path, (404, {"error_code": 40403}))
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append((self.path, dict(self.headers)))
                status, content = server.answers(self.path)
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                if status in (301, 302):
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.scheme = "https" if tls else "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.http.server_port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


@contextmanager
def trickle(piece: bytes, before: bytes = b"") -> Iterator[str]:
    """A server that sends a little, for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        line, _ = listener.accept()
        with line:
            try:
                line.sendall(before)
                while not ended.wait(0.02):
                    line.sendall(piece)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    ended.set()
    thread.join(5)
    listener.close()


def registry(url: str, folder: Path, **more: Any) -> Registry:
    return Registry(RegistrySpec(url=url, **more), folder)


def test_a_schema_and_all_it_refers_to(tmp_path):
    def reference(name: str) -> dict[str, Any]:
        return {"name": name, "subject": f"s/{name}", "version": 3}

    answers = {
        "/schemas/ids/7": (
            200,
            {"schema": "top", "schemaType": "PROTOBUF", "references": [reference("a"), reference("b")]},
        ),
        "/subjects/s%2Fa/versions/3?deleted=true": (200, {"schema": "text a", "references": [reference("c")]}),
        "/subjects/s%2Fb/versions/3?deleted=true": (200, {"schema": "text b", "references": [reference("c")]}),
        "/subjects/s%2Fc/versions/3?deleted=true": (200, {"schema": "text c"}),
    }
    with Server(answers) as server:
        found = registry(server.url, tmp_path).schema(7)
    assert found == Registered(7, "PROTOBUF", "top", {"a": "text a", "b": "text b", "c": "text c"})
    assert list(found.references) == ["c", "a", "b"]


def test_what_is_known_needs_no_registry(tmp_path):
    with Server({"/schemas/ids/1": (200, {"schema": '"int"'})}) as server:
        first = registry(server.url, tmp_path)
        assert first.schema(1) == first.schema(1) == Registered(1, "AVRO", '"int"')
        assert len(server.asked) == 1
    assert registry(server.url, tmp_path).schema(1).text == '"int"'
    with pytest.raises(RegistryUnreachable):
        registry(server.url, tmp_path).schema(2)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id":1}', b'{"id":1,"kind":"XML","text":"","references":{}}'])
def test_a_broken_file_is_asked_for_again(tmp_path, content):
    (tmp_path / "1.json").write_bytes(content)
    with Server({"/schemas/ids/1": (200, {"schema": '"int"'})}) as server:
        assert registry(server.url, tmp_path).schema(1).text == '"int"'
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]
    assert registry(server.url, tmp_path).schema(1).text == '"int"'


def test_a_folder_that_takes_nothing_only_costs_questions(tmp_path):
    (tmp_path / "file").write_text("")
    with Server({"/schemas/ids/1": (200, {"schema": '"int"'})}) as server:
        assert registry(server.url, tmp_path / "file").schema(1).text == '"int"'


def test_an_unknown_id_is_stored_for_a_while(tmp_path):
    now = [0.0]
    with Server({}) as server:
        asked = Registry(RegistrySpec(url=server.url), tmp_path, lambda: now[0])
        for _ in range(3):
            with pytest.raises(UnknownSchema, match="no schema 9"):
                asked.schema(9)
        assert len(server.asked) == 1
        server.answers = lambda _: (200, {"schema": '"int"'})
        now[0] = 60.0
        assert asked.schema(9).text == '"int"'


def test_no_registry_has_negative_ids(tmp_path):
    with pytest.raises(UnknownSchema):
        registry("http://127.0.0.1:9", tmp_path).schema(-1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((401, {}), AuthenticationFailed),
        ((403, {}), PermissionDenied),
        ((500, {"error_code": 50001}), RegistryUnreachable),
        ((503, b"<html>"), RegistryUnreachable),
        ((429, {}), RegistryUnreachable),
        ((301, b""), RegistryUnreachable),
        ((404, b"<html>no such page"), RegistryUnreachable),
        ((404, {"error_code": 404}), RegistryUnreachable),
        ((200, b"<html>log in here"), RegistryUnreachable),
        ((200, b"[" * 100_000), RegistryUnreachable),
        ((200, {"no": "schema"}), RegistryUnreachable),
        ((200, []), RegistryUnreachable),
        ((200, {"schema": "x", "schemaType": "XML"}), UnknownSchema),
        ((200, {"schema": "x", "references": [{"name": "a"}]}), UnknownSchema),
        ((200, {"schema": "x" * (5 << 20)}), UnknownSchema),
    ],
)
def test_other_answers(tmp_path, answer, error):
    with Server(lambda _: answer) as server, pytest.raises(error):
        registry(server.url, tmp_path).schema(1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["same", "endless"])
def test_references_in_a_circle_or_without_end(tmp_path, name):
    def answer(path: str) -> Answer:
        number = 0 if name == "same" else len(server.asked)
        return 200, {"schema": "x", "references": [{"name": f"n{number}", "subject": f"s{number}", "version": 1}]}

    with Server(answer) as server:
        with pytest.raises(UnknownSchema, match="refer"):
            registry(server.url, tmp_path).schema(1)
        assert len(server.asked) < 30


def test_too_many_references(tmp_path):
    def answer(path: str) -> Answer:
        many = [{"name": f"n{n}", "subject": f"s{n}", "version": 1} for n in range(10_000)]
        return 200, {"schema": "x", "references": many if path.startswith("/schemas") else []}

    with Server(answer) as server:
        with pytest.raises(UnknownSchema, match="more than"):
            registry(server.url, tmp_path).schema(1)
        assert len(server.asked) < 300


@pytest.mark.parametrize(
    ("piece", "before"),
    [
        (b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"),
        (b"1\r\nx\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (b"X", b"HTTP/1.1 200 OK\r\nX-Header: "),
        (b"", b""),
    ],
)
def test_a_slow_answer_is_cut(tmp_path, piece, before):
    began = time.monotonic()
    with trickle(piece, before) as url, pytest.raises(RegistryUnreachable):
        registry(url, tmp_path, timeout="300ms").schema(1)
    assert time.monotonic() - began < 5


def test_nobody_listens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(RegistryUnreachable, match="does not respond"):
        registry(f"http://127.0.0.1:{port}", tmp_path).schema(1)


def test_the_password_is_sent_and_read_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("REGISTRY_PASSWORD", "pässword")
    with Server(lambda _: (200, {"schema": '"int"'})) as server:
        asked = registry(server.url, tmp_path, username="ann", password="${env:REGISTRY_PASSWORD}")
        asked.schema(1)
        assert server.asked[0][1]["Authorization"] == "Basic YW5uOnDDpHNzd29yZA=="
        monkeypatch.delenv("REGISTRY_PASSWORD")
        with pytest.raises(AuthenticationFailed, match="REGISTRY_PASSWORD"):
            asked.schema(2)


def test_each_user_has_a_memory_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folders = {client._folder(RegistrySpec(url="http://127.0.0.1:1", username=name)) for name in (None, "ann", "bob")}
    assert len(folders) == 3
    assert client.registry_of(RegistrySpec(url="http://127.0.0.1:1")) is client.registry_of(
        RegistrySpec(url="http://127.0.0.1:1/")
    )


def test_the_environments_proxy_is_not_taken_but_the_specs_is(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Server(lambda _: (200, {"schema": '"int"'})) as server:
        registry(server.url, tmp_path / "a").schema(1)
        registry("http://registry.test/api", tmp_path / "b", proxy=server.url, plaintext=True).schema(1)
    assert [path for path, _ in server.asked] == ["/schemas/ids/1", "http://registry.test/api/schemas/ids/1"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def _tls(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    return context


def test_tls_by_the_specs_authority_only(tmp_path, certificates):
    with Server(lambda _: (200, {"schema": '"int"'}), _tls(certificates)) as server:
        assert registry(server.url, tmp_path / "a", ca=certificates.authority.read_text()).schema(1)
        for ca in (None, certificates.stranger.read_text()):
            with pytest.raises(RegistryUnreachable, match="certificate"):
                registry(server.url, tmp_path / "b", ca=ca).schema(1)


def test_tls_through_a_proxy(tmp_path, certificates):
    with Server(lambda _: (200, {"schema": '"int"'}), _tls(certificates)) as server, tunnel(server) as (proxy, asked):
        found = registry(server.url, tmp_path, ca=certificates.authority.read_text(), proxy=proxy).schema(1)
    assert found.text == '"int"'
    assert [line.rpartition(" ")[0] for line in asked] == [f"CONNECT 127.0.0.1:{server.http.server_port}"]


@contextmanager
def tunnel(server: Server) -> Iterator[tuple[str, list[str]]]:
    """A proxy that joins one line to the server."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[str] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        sink.close()

    def serve() -> None:
        line, _ = listener.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(65536)
        asked.append(head.decode().partition("\r\n")[0])
        other = socket.create_connection(server.http.server_address)
        line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=pump, args=(other, line), daemon=True).start()
        pump(line, other)

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    listener.close()


@pytest.mark.parametrize(
    "url", ["ftp://h", "https://u:p@h", "https://h?x=1", "https://h#x", "https://169.254.169.254", "h:8081", "https://"]
)
def test_addresses_that_are_refused(url):
    with pytest.raises(ValueError, match="https://host:port/path"):
        RegistrySpec(url=url)
