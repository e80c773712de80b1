"""What every kind of storage promises: the same verbs, the same answers, on local disk and on a real S3 server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import AuthenticationFailed, PermissionDenied
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.store import Profile, Store
from services.s3 import S3

ODD = "day=a%20b%2Fc/x=ü/#?&+:;,'()[]{}^~ 日本.parquet"


def profile_of(s3: S3) -> Profile:
    return Profile(s3.endpoint, path_style=True, allow_http=True, access_key_id=s3.key, secret_access_key=s3.secret)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return Store(str(tmp_path / "my lake"))
    server: S3 = request.getfixturevalue("s3")
    return Store(f"s3://{server.bucket()}/my lake", profile_of(server))


@pytest.mark.parametrize("path", ["plain", "a/b/c.json", ODD])
def test_what_is_put_is_got_listed_and_deleted(store: Store, path: str) -> None:
    assert not store.exists(path)
    with pytest.raises(NotFound):
        store.get(path)
    store.put(path, b"one")
    store.put(path, b"two")
    assert store.get(path) == b"two"
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


def test_of_many_creators_one_wins_and_its_bytes_stay(store: Store) -> None:
    def attempt(worker: int, name: str) -> int | None:
        try:
            store.put_new(name, b"%d" % worker * 1000)
        except AlreadyExists:
            return None
        return worker

    with ThreadPoolExecutor(8) as pool:
        for round in range(10):
            name = f"log/{round}.json"
            winners = [won for won in pool.map(attempt, range(8), [name] * 8) if won is not None]
            assert len(winners) == 1
            assert store.get(name) == b"%d" % winners[0] * 1000


def test_a_large_object_is_whole(store: Store) -> None:
    data = bytes(range(256)) * 100_000
    store.put("large.parquet", data)
    assert store.get("large.parquet") == data


def test_who_is_let_in(s3: S3, bucket: str) -> None:
    good = profile_of(s3)
    for bad in (replace(good, secret_access_key="wrong"), replace(good, access_key_id="nobody")):
        with pytest.raises(AuthenticationFailed, match=bucket):
            Store(f"s3://{bucket}/x", bad).get("key")
    with pytest.raises(PermissionDenied, match="NoSuchBucket"):
        Store("s3://no-such-bucket/x", good).put_new("key", b"")
