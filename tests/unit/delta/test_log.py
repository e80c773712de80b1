"""The walk through a log: what it reads, where it stops, and what it answers where the log was cleaned up."""

from __future__ import annotations

import json

import pytest

from headrace.delta.log import LogWalk, commits_between, read_commit, version_path
from headrace.errors import ChangeDataUnavailable, StorageUnreachable
from headrace.storage.store import Store
from headrace.table.change_feed import changes


def log_of(folder, versions):
    store = Store(str(folder))
    for version in versions:
        lines = [{"commitInfo": {"operation": "WRITE"}}, {"txn": {"appId": "a", "version": version}}]
        lines.append({"add": {"path": f"{version}.parquet", "size": 1}})
        store.put(version_path(version), "\n".join(map(json.dumps, lines)).encode())
    return store


@pytest.mark.parametrize(
    ("versions", "stop", "oldest", "complete"),
    [
        (range(10), -1, 0, True),
        (range(10), 4, 5, True),
        (range(10), 9, 10, True),
        (range(3, 10), -1, 3, False),
        (range(3, 10), 2, 3, True),
        (range(3, 10), 1, 3, False),
        ((0, 1, 2, 4, 5, 6, 7, 8, 9), -1, 4, False),
        ((), -1, 10, False),
    ],
)
def test_a_walk_tells_whether_it_was_complete(tmp_path, versions, stop, oldest, complete):
    store = log_of(tmp_path, versions)
    walk = LogWalk(store, 9, stop)
    assert [commit.version for commit in walk] == list(range(9, oldest - 1, -1))
    assert (walk.oldest, walk.complete) == (oldest, complete)
    commits = commits_between(store, stop, 9)
    assert (commits is not None) == complete
    assert [commit.version for commit in commits or ()] == (list(range(stop + 1, 10)) if complete else [])


def test_a_walk_that_is_left_early_is_not_complete(tmp_path):
    walk = LogWalk(log_of(tmp_path, range(10)), 9)
    assert next(commit for commit in walk if commit.txns["a"] == 4).added[0].path == "4.parquet"
    assert (walk.oldest, walk.complete) == (4, False)


@pytest.mark.parametrize("kind", ["add", "remove", "cdc"])
def test_a_commit_that_ends_within_a_line_is_not_read(tmp_path, kind):
    store = log_of(tmp_path, [0])
    store.put(version_path(1), b'{"commitInfo":{}}\n{"' + kind.encode() + b'":{"path":"x.par')
    with pytest.raises(StorageUnreachable, match="not a complete commit"):
        read_commit(store, 1)
    assert read_commit(store, 2) is None


def test_changes_of_a_commit_that_was_cleaned_up_are_not_left_out(tmp_path):
    """The version of the oldest checkpoint can be read; the commit that led to it cannot."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    for number in range(4):
        write_deltalake(str(tmp_path), pa.table({"n": [number]}), mode="append")
        if number == 1:
            DeltaTable(str(tmp_path)).create_checkpoint()
    store = Store(str(tmp_path))
    store.delete([version_path(0), version_path(1)])
    assert changes(store, 2, None).arrow()["n"].to_pylist() == [2, 3]
    with pytest.raises(ChangeDataUnavailable, match="no longer has every commit from version 1 to version 3"):
        changes(store, 1, None).arrow()
