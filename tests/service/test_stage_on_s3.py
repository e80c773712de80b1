"""The same files on S3 as on a disk, odd folder names included."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Profile, Store
from services.s3 import S3

DAYS = ["a b", "50%", "%2F", "a/b", "ü😀", "..", "+&", "plain", None]


def test_files_arrive_under_their_own_names_and_can_be_abandoned(s3: S3, bucket: str) -> None:
    profile = Profile(s3.settings)
    uri = f"s3://{bucket}/lake/t"
    rows = pa.table({"day": DAYS, "n": range(len(DAYS))})
    stager = Stager(lambda table: Store(table, profile), "1-0")
    stager.add(FileLayout(uri, rows.schema, ("day",)), rows)
    files = stager.finish()

    store = Store(uri, profile)
    assert {meta.path for meta in store.list()} == {file.path for file in files}
    for file in files:
        stored = pq.read_table(pa.BufferReader(store.get(file.path)))
        assert [DAYS[n] for n in stored.column("n").to_pylist()] == [file.partition[0][1]]
    stager.abandon()
    assert [*store.list()] == []
