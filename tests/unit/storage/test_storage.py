"""The storage layer: atomic and durable puts on a real disk, errors under our names, no way out of a root."""

from __future__ import annotations

import errno
import http.server
import os
import pickle
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    HeadraceError,
    PermissionDenied,
    StorageFull,
    StorageUnreachable,
    TransientError,
    UsageError,
)
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.store import Profile, Store
from services.certs import Certificates

SECRETS = ("CANARY-ID", "CANARY-SECRET", "CANARY-TOKEN")


def profile(endpoint: str = "http://127.0.0.1:9", **more: str) -> Profile:
    names = ("access_key_id", "secret_access_key", "session_token")
    keys = dict(zip(names, SECRETS, strict=True))
    return Profile({"endpoint": endpoint, "region": "eu-west-1", "allow_http": True, "options": more, **keys})


def travelled(store: Store) -> Store:
    return pickle.loads(pickle.dumps(store))  # noqa: S301


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "lake"))


def test_round_trip(store: Store) -> None:
    store.put("a/b.txt", b"one")
    assert store.get("a/b.txt") == b"one"
    store.put("a/b.txt", b"two")
    assert store.get("a/b.txt") == b"two"
    assert store.exists("a/b.txt")
    assert not store.exists("a/c.txt")
    assert not store.exists("a")
    store.delete(["a/b.txt", "a/never.txt"])
    with pytest.raises(NotFound, match=r"a/b\.txt"):
        store.get("a/b.txt")


def test_listing_is_ordered_begins_past_a_name_and_hides_unfinished_puts(store: Store, tmp_path: Path) -> None:
    for name in ("log/2.json", "log/10.json", "log/1.json", "other/x", "log/sub/3.json"):
        store.put(name, b"12")
    (tmp_path / "lake/log/.headrace-unfinished").write_bytes(b"half")
    names = [item.path for item in store.list("log")]
    assert names == ["log/1.json", "log/10.json", "log/2.json", "log/sub/3.json"]
    assert [item.path for item in store.list("log", after="log/10.json")] == ["log/2.json", "log/sub/3.json"]
    assert next(store.list("log")).size == 2
    assert list(store.list("nowhere")) == []
    assert len(list(store.list())) == 5


def test_a_put_reaches_the_disk_before_its_name_is_seen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, link = os.fsync, os.link

    def seen(descriptor: int) -> None:
        order.append("folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "file")
        fsync(descriptor)

    def linked(source: Path, target: Path) -> None:
        order.append("link")
        link(source, target)

    store.put("log/0", b"")
    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(os, "link", linked)
    store.put_new("log/1", b"x")
    assert order == ["file", "link", "folder"]


def test_a_failed_put_leaves_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store.put("log/0", b"")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull, match="log/1"):
        store.put_new("log/1", b"x")
    assert [item.name for item in (tmp_path / "lake/log").iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EACCES, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.EIO, StorageUnreachable),
        (errno.ESTALE, StorageUnreachable),
    ],
)
def test_errors_of_the_system_have_our_names(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[HeadraceError]
) -> None:
    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(kind, match="log/1"):
        store.put("log/1", b"x")


def test_tables_stay_readable_as_the_umask_says(store: Store, tmp_path: Path) -> None:
    store.put("t/part-0.parquet", b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "lake/t/part-0.parquet").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_tag_changes_with_the_object(store: Store) -> None:
    assert store.tag("x") is None
    first = store.put_new("x", b"1")
    assert store.tag("x") == first
    second = store.put("x", b"1")
    assert store.tag("x") == second != first


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\0b", "../../etc/passwd"])
def test_no_key_leaves_its_root(store: Store, path: str) -> None:
    verbs = [
        store.get,
        store.child,
        store.exists,
        store.tag,
        lambda key: store.put(key, b""),
        lambda key: store.delete([key]),
    ]
    for verb in verbs:
        with pytest.raises(UsageError):
            verb(path)


@pytest.mark.parametrize(
    "uri",
    [
        "http://host/x",
        "gs://",
        "hdfs://name/x",
        "wasbs://c@account.blob.core.windows.net/x",
        "az://C/x",
        "abfss://c@account/x",
        "abfss://lake@account.dfs.core.windows.net:1/x",
        "ftp://x",
        "javascript://x",
        "s3://",
        "s3:///key",
        "s3://user:pass@bucket/x",
        "s3a://bucket@evil/x",
        "s3://bucket/a/../b",
        "s3://bucket/a//b",
        "s3://bucket/%2e%2e/b",
        "s3://bucket/x?versionId=1",
        "s3://bucket/x#part",
        "s3://bucket/a\\b",
        "s3://bucket/\0",
        "file://host/x",
        "file:///a/%2e%2e/b",
        "file:///a?b",
        "file:///a#b",
        "/lake/a%20b",
        "/lake/a#b",
        "/lake/a?b",
        "file:///lake/a%2520b",
        "",
    ],
)
def test_hostile_locations_are_refused(uri: str) -> None:
    with pytest.raises(UsageError):
        Store(uri)


def test_spellings_of_a_location(tmp_path: Path) -> None:
    odd = tmp_path / "a b ü+=:"
    store = Store(str(odd))
    assert store.uri == str(odd)
    assert Store(store.delta_uri).uri == str(odd)
    assert Store("s3a://lake/shop/orders/").uri == "s3://lake/shop/orders"
    assert Store("s3://lake").child("a/b").uri == "s3://lake/a/b"
    assert Store("s3://lake/a").spark_uri == "s3a://lake/a"
    assert Store("gs://lake/a").spark_uri == "gs://lake/a"
    azure = Store("abfs://lake@account.dfs.core.windows.net/a/")
    assert azure.uri == azure.spark_uri == "abfss://lake@account.dfs.core.windows.net/a"
    assert Store("az://lake/a", Profile(azure={"account_name": "account"})).spark_uri == azure.spark_uri
    assert Store("relative").uri == str(Path("relative").absolute())


def test_a_store_travels_without_its_connections_and_shows_no_secret(store: Store) -> None:
    assert travelled(store).uri == store.uri
    far = Store("s3://lake/x", profile())
    assert travelled(far).profile == far.profile
    assert not any(secret in repr(far) + repr(far.profile) for secret in SECRETS)


def test_one_profile_speaks_to_every_engine() -> None:
    options = Store("s3://lake/x", profile(aws_region="eu-north-1")).delta_options
    assert options["aws_endpoint"] == "http://127.0.0.1:9"
    assert options["aws_region"] == "eu-north-1"  # options override
    assert options["aws_allow_http"] == "true"
    assert options["conditional_put"] == "etag"
    conf = Store("s3://lake/x", profile()).hadoop_conf
    assert conf["fs.s3a.bucket.lake.endpoint"] == "http://127.0.0.1:9"
    assert conf["fs.s3a.bucket.lake.path.style.access"] == "true"
    assert conf["fs.s3a.bucket.lake.secret.key"] == "CANARY-SECRET"
    more = Store("s3://lake/x", profile(**{"fs.s3a.threads.max": "4"}))
    assert more.hadoop_conf["fs.s3a.bucket.lake.threads.max"] == "4"
    assert "fs.s3a.threads.max" not in more.delta_options
    assert Store("/lake").hadoop_conf == {}


def test_an_option_nobody_knows_is_a_mistake_of_the_spec() -> None:
    with pytest.raises(UsageError, match="s3://lake/shop"):
        Store("s3://lake/shop", profile(aws_no_such_thing="1")).get("key")


@contextmanager
def answering(status: int, body: bytes, certificate: Path | None = None) -> Iterator[str]:
    """A server that gives one answer to all, over TLS with a certificate."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", PermissionDenied),
        (404, "NoSuchBucket", PermissionDenied),
        (403, "InvalidAccessKeyId", AuthenticationFailed),
        (403, "SignatureDoesNotMatch", AuthenticationFailed),
        (403, "RequestTimeTooSkewed", AuthenticationFailed),
        (400, "ExpiredToken", AuthenticationFailed),
        (401, "Unauthorized", AuthenticationFailed),
        (404, "NoSuchKey", NotFound),
        (500, "InternalError", StorageUnreachable),
        (503, "SlowDown", StorageUnreachable),
        (507, "InsufficientStorage", StorageFull),
    ],
)
def test_answers_of_a_bucket_have_our_names(status: int, code: str, kind: type[HeadraceError]) -> None:
    with answering(status, f"<Error><Code>{code}</Code></Error>".encode()) as endpoint:
        far = Store("s3://lake/shop", profile(endpoint))
        for verb in (far.get, lambda key: far.put_new(key, b"x")):
            with pytest.raises(kind) as caught:
                verb("some/key")
            assert "s3://lake/shop/some/key" in str(caught.value)
            assert code in str(caught.value)
            assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize(
    "key", ["intents/507", "a 507 b/QuotaExceeded", "InvalidToken", "x - 501 Not Implemented", "301 Moved Permanently"]
)
def test_the_name_of_an_object_is_not_read_as_an_answer(key: str) -> None:
    answers = {404: NotFound, 412: AlreadyExists, 403: PermissionDenied}
    for status, kind in answers.items():
        answer = f"<Error><Message>{key}</Message><Key>{key}</Key></Error>".encode()
        with answering(status, answer) as endpoint, pytest.raises(kind):
            Store("s3://lake/shop", profile(endpoint)).put_new(key, b"x")


def test_a_redirect_to_another_region_is_no_reason_to_wait() -> None:
    answer = b"<Error><Code>PermanentRedirect</Code></Error>"
    with answering(301, answer) as endpoint, pytest.raises(EndpointInvalid, match="s3://lake/shop/key"):
        Store("s3://lake/shop", profile(endpoint)).get("key")


def test_an_unreachable_bucket_is_transient() -> None:
    with pytest.raises(TransientError, match="s3://lake/shop/key"):
        Store("s3://lake/shop", profile()).get("key")


def test_a_failed_tls_handshake_is_no_reason_to_wait(certificates: Certificates) -> None:
    with answering(200, b"", certificates.server) as secure, answering(200, b"") as plain:
        cases = {
            secure: "UnknownIssuer",
            plain.replace("http:", "https:"): "the server does not use TLS",
        }
        for endpoint, reason in cases.items():
            with pytest.raises(EndpointInvalid, match=rf"s3://lake/shop/key \(at {endpoint}\): .*{reason}"):
                Store("s3://lake/shop", profile(endpoint)).get("key")


@pytest.mark.parametrize("key", ["shop/a//b", "shop/a&#10;b"])
def test_a_key_that_cannot_be_listed_is_no_reason_to_wait(key: str) -> None:
    listed = f"<Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag><Size>1</Size>"
    with answering(200, f"<ListBucketResult><Contents>{listed}</Contents></ListBucketResult>".encode()) as endpoint:
        with pytest.raises(UsageError, match=r"s3://lake/shop/ cannot be listed: .*shop/a") as caught:
            list(Store("s3://lake/shop", profile(endpoint)).list())
        assert "Rename or delete the object" in caught.value.hint
