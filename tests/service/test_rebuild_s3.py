"""Where a pipeline may have written is found on S3 without a look at every file."""

from __future__ import annotations

from headrace.storage.store import Profile, Store
from services.s3 import S3


def test_folders_are_told_apart_though_their_names_begin_alike(s3: S3, bucket: str) -> None:
    at = {"endpoint": s3.endpoint, "region": s3.region, "access_key_id": s3.key, "secret_access_key": s3.secret}
    store = Store(f"s3://{bucket}/lake", Profile(path_style=True, allow_http=True, **at))
    for path in ("a/_delta_log/0.json", "a/x", "a-b/x", "a.b/y/z", "a0/x", "file", "a0b/x"):
        store.put(path, b"")
    assert sorted(store.folders()) == ["a", "a-b", "a.b", "a0", "a0b"]
    assert list(store.child("none").folders()) == []
