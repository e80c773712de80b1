"""Where a pipeline may have written is found on S3 without a look at every file."""

from __future__ import annotations

from headrace.storage.store import Profile, Store
from services.s3 import S3


def test_folders_are_distinguished_though_their_names_begin_alike(s3: S3, bucket: str) -> None:
    store = Store(f"s3://{bucket}/lake", Profile(s3.settings))
    for path in ("a/_delta_log/0.json", "a/x", "a-b/x", "a.b/y/z", "a0/x", "file", "a0b/x"):
        store.put(path, b"")
    assert sorted(store.folders()) == ["a", "a-b", "a.b", "a0", "a0b"]
    assert list(store.child("none").folders()) == []
