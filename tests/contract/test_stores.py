"""What every kind of storage promises: the same verbs, the same answers, on disk and on a real server of each kind."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    PermissionDenied,
    StorageUnreachable,
    StorageUnsupported,
)
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from headrace.spec import Spec
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.store import Profile, Store
from headrace.validate.load import loads
from headrace.validate.online import online
from services.azure import AzureServer
from services.in_process_pipeline import no_spark
from services.s3 import S3, s3_server
from services.s3gate import Answer, Deed, Passage, s3gate
from services.stores import OBJECT_STORES, STORES, StorageFolder, new_folder

ODD = "day=a%20b%2Fc/x=ü/#?&+:;,'()[]{}^~ 日本.parquet"


@pytest.fixture(params=STORES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    return new_folder(request.param, request, tmp_path)


@pytest.fixture
def store(lake: StorageFolder) -> Store:
    return lake.store()


@pytest.fixture(params=OBJECT_STORES)
def far(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    return new_folder(request.param, request, tmp_path)


@pytest.mark.parametrize("path", ["plain", "a/b/c.json", ODD])
def test_what_is_put_is_got_listed_and_deleted(store: Store, path: str) -> None:
    assert not store.exists(path)
    with pytest.raises(NotFound):
        store.get(path)
    store.put(path, b"one")
    store.put(path, b"two")
    assert store.get(path) == b"two"
    assert (store.read(path, 1, 2), store.read(path, 1, 100)) == (b"w", b"wo")
    with pytest.raises(NotFound):
        store.read("never-there", 0, 1)
    assert [(item.path, item.size) for item in store.list()] == [(path, 3)]
    assert store.tag(path) == next(store.list()).tag
    store.delete([path, "never-there"])
    assert list(store.list()) == []


def test_a_folder_is_no_object(store: Store) -> None:
    store.put("a/b", b"")
    assert not store.exists("a")
    assert store.get("a/b") == b""
    with pytest.raises(NotFound):
        store.get("a")


def test_folders_are_those_right_below(store: Store) -> None:
    assert list(store.folders()) == []
    for path in ("b/c/d.json", "b/e/f", "a b=ü/x", "top", "b/g"):
        store.put(path, b"x")
    assert list(store.folders()) == ["a b=ü", "b"]
    assert list(store.folders("b")) == ["b/c", "b/e"]
    assert list(store.child("b").folders()) == ["c", "e"]
    assert list(store.folders("nowhere")) == []


def test_a_listing_is_in_order_and_begins_where_asked(store: Store) -> None:
    names = [f"log/{number:020}.json" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b"x"), reversed(names)))
    store.put("logs/other", b"x")
    assert [item.path for item in store.list("log")] == names
    assert [item.path for item in store.list("log", after=names[1090])] == names[1091:]
    assert [item.path for item in store.child("log").list(after=f"{1097:020}")] == [
        f"{number:020}.json" for number in range(1097, 1100)
    ]


def test_of_twenty_creators_one_wins_and_its_bytes_stay(store: Store) -> None:
    def attempt(worker: int, name: str) -> int | None:
        try:
            store.put_new(name, b"%d," % worker * 1000)
        except AlreadyExists:
            return None
        return worker

    with ThreadPoolExecutor(20) as pool:
        for round in range(10):
            name = f"log/{round}.json"
            winners = [won for won in pool.map(attempt, range(20), [name] * 20) if won is not None]
            assert len(winners) == 1
            assert store.get(name) == b"%d," % winners[0] * 1000


def test_a_large_object_is_whole(store: Store) -> None:
    data = bytes(range(256)) * 100_000
    store.put("large.parquet", data)
    assert store.get("large.parquet") == data
    with pytest.raises(AlreadyExists):
        store.put_new("large.parquet", b"")
    store.put_new("new.parquet", data)
    assert store.get("new.parquet") == data


def test_many_are_deleted_though_some_are_gone(store: Store) -> None:
    names = [f"a/{number}" for number in range(40)]
    for name in names[::2]:
        store.put(name, b"x")
    store.delete(names)
    assert list(store.list()) == []


@pytest.mark.slow
def test_ten_thousand_objects_are_listed(store: Store) -> None:
    names = [f"log/{number:020}.json" for number in range(10_000)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.put(name, b""), names))
    assert [item.path for item in store.list("log")] == names
    assert [item.path for item in store.list("log", after=names[9_998])] == names[-1:]
    store.delete(names)
    assert next(store.list(), None) is None


def test_a_put_whose_reply_is_lost_has_happened_once(far: StorageFolder) -> None:
    """The client repeats the request and is told that the object exists: its writer must look what is in it."""
    with s3gate(far.endpoint) as gate:
        store = far.at(gate.endpoint).store()
        lost = gate.on("*", "log/1.json", "lose")
        with pytest.raises((AlreadyExists, StorageUnreachable)):
            store.put_new("log/1.json", b"mine")
        assert lost.reached.is_set()
        assert store.get("log/1.json") == b"mine"


@pytest.mark.parametrize("deed", ["refuse", "close"])
def test_a_store_that_is_busy_or_resets_is_asked_again(far: StorageFolder, deed: Deed) -> None:
    with s3gate(far.endpoint) as gate:
        store = far.at(gate.endpoint).store()
        gate.on("*", "key", deed, status=503, times=2)
        started = time.monotonic()
        store.put("key", b"x")
        assert time.monotonic() - started > 0.1  # it waits between attempts
        gate.on("*", "other", deed, status=503, times=1000)
        with pytest.raises(StorageUnreachable, match="other"):
            store.get("other")


@pytest.mark.parametrize("deed", ["refuse", "close", "lose"])
def test_a_deletion_that_fails_is_repeated(far: StorageFolder, deed: Deed) -> None:
    with s3gate(far.endpoint) as gate:
        store = far.at(gate.endpoint).store()
        names = [f"a/{number}" for number in range(5)]
        for name in names:
            store.put(name, b"x")
        failing = gate.on("*", "", deed, status=503, times=5)  # more than the client repeats
        store.delete(names)
        assert failing.reached.is_set()
        assert list(store.list()) == []


def test_a_bucket_that_does_not_exist_is_named(far: StorageFolder) -> None:
    root = far.uri.partition("://")[0] + "://no-such-bucket-0/x"
    with pytest.raises(PermissionDenied, match="no-such-bucket-0"):
        Store(root, far.store().profile).put_new("key", b"")


def test_a_name_that_does_not_resolve_is_no_reason_to_wait(far: StorageFolder) -> None:
    store = far.at("http://no-such-host.invalid:9").store()
    with pytest.raises((EndpointInvalid, StorageUnreachable), match="no-such-host") as error:
        store.get("key")
    assert "Temporary failure" in str(error.value) or error.type is EndpointInvalid


class _Unconditional(Passage):
    """A store that does not know the condition of a put."""

    def forward(self, body: bytes) -> Answer:
        del self.headers["If-None-Match"]
        return super().forward(body)


def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "s3", authorization="none") as server, s3gate(server.endpoint, _Unconditional) as gate:
        store = Store(f"s3://{server.bucket()}/x", Profile({**server.settings, "endpoint": gate.endpoint}))
        store.put("key", b"1")
        store.put_new("key", b"2")
        assert store.get("key") == b"2"
        with pytest.raises(StorageUnsupported, match="does not support put-if-absent"):
            store.verify_conditional_puts()
        assert [item.path for item in store.list()] == ["key"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        spec = spec_of(tmp_path, server, gate.endpoint)
        with pytest.raises(StorageUnsupported, match=r"/x/events: .*does not support put-if-absent"):
            Pipeline(spec, no_spark, recovery=StartupRecovery()).take_lease()
        [diagnostic] = [each for each in online(spec) if each.severity == "error"]
        assert "StorageUnsupported" in diagnostic.message
        assert diagnostic.key == "table.path"


def spec_of(folder: Path, server: S3, endpoint: str) -> Spec:
    """A pipeline with its state on a disk, and its table in a bucket."""
    storage = {"s3": {"endpoint": endpoint, "allow_http": True, "region": "us-east-1"}}
    content = {
        "pipeline": "apart",
        "source": {"generate": {"records": 1}},
        "table": {"path": f"s3://{server.bucket()}/x/events"},
        "state": str(folder / "state"),
        "storage": storage,
    }
    return loads(json.dumps(content))[0]


def test_a_store_that_refuses_conditions_is_refused(s3: S3, bucket: str) -> None:
    with s3gate(s3.endpoint) as gate:
        store = Store(f"s3://{bucket}/x", Profile({**s3.settings, "endpoint": gate.endpoint}))
        gate.on("PUT", r"/\.check", "refuse", nth=2, times=100, status=501)
        with pytest.raises(StorageUnsupported, match="501 Not Implemented"):
            store.verify_conditional_puts()
        assert list(store.list()) == []


def test_who_is_let_in(s3: S3, bucket: str) -> None:
    for bad in ({"secret_access_key": "wrong"}, {"access_key_id": "nobody"}):
        with pytest.raises(AuthenticationFailed, match=bucket):
            Store(f"s3://{bucket}/x", Profile({**s3.settings, **bad})).get("key")


@pytest.mark.slow
def test_who_is_let_in_to_azure(azure: AzureServer) -> None:
    bucket = azure.bucket()
    wrong = {**azure.settings, "account_key": "d3Jvbmc="}
    with pytest.raises((AuthenticationFailed, PermissionDenied), match=bucket):
        Store(f"az://{bucket}/x", Profile(azure=wrong)).get("key")
