"""Partition columns that are made: by day, by hour, by bucket; the same values for good, and no column of the rows'."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.errors import ColumnMismatch
from headrace.spec.partition import PartitionBy
from headrace.spec.types import TIMESTAMP
from headrace.stage.derived_partitions import derive
from headrace.validate.load import examine_text
from services.in_process_pipeline import THEN, Harness

MOMENTS = [datetime(2026, 1, 2, 23, 59, 59, 999_999, UTC), datetime(1969, 12, 31, 23, tzinfo=UTC), None]
COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "at", "type": "timestamp"}, {"name": "user", "type": "string"}]
EVENTS = [
    {"id": 1, "at": "2026-01-02T00:30:00+02:00", "user": "ann"},
    {"id": 2, "at": "2026-01-02T13:30:00Z", "user": "bob"},
    {"id": 3},
]


def by(**how: Any) -> PartitionBy:
    return PartitionBy.model_validate(how)


def bucket(value: object, buckets: int) -> int:
    return int(hashlib.md5(str(value).encode()).hexdigest()[:8], 16) % buckets  # noqa: S324


@pytest.mark.parametrize("kind", [TIMESTAMP, pa.timestamp("us")])
def test_a_day_and_an_hour_are_those_of_utc(kind: pa.DataType):
    naive = [each and each.replace(tzinfo=kind.tz and UTC) for each in MOMENTS]
    moments = pa.chunked_array([pa.array(naive[:1], kind), pa.array(naive[1:], kind)])
    assert derive(by(date="at"), moments).to_pylist() == [date(2026, 1, 2), date(1969, 12, 31), None]
    assert derive(by(hour="at"), moments).to_pylist() == [23, 23, None]


@pytest.mark.parametrize("values", [["ann", "", "ü", "ann", None], [0, -1, 2**62, None]])
def test_a_bucket_is_one_that_every_engine_can_tell(values: list[Any]):
    found = derive(by(hash="user", buckets=7), pa.array(values)).to_pylist()
    assert found == [None if each is None else bucket(each, 7) for each in values]


def test_buckets_are_even():
    found = derive(by(hash="id", buckets=16), pa.array(range(16_000))).to_pylist()
    assert all(850 < found.count(each) < 1150 for each in range(16))


def test_names_are_told_by_what_they_are_made_of():
    made = [
        by(date="at"),
        by(hour="at"),
        by(hash="user", buckets=2),
        by(date="_timestamp"),
        by(**{"date": "at", "as": "day"}),
    ]
    assert [each.column for each in made] == ["at_date", "at_hour", "user_bucket", "timestamp_date", "day"]


@pytest.mark.parametrize("declared", [True, False])
def test_rows_get_their_partitions_from_their_own_columns(tmp_path: Path, declared: bool):
    """Twice: into a table that is made, and into the one that is there. A time that is not declared is a text."""
    parts = [{"date": "at" if declared else "_timestamp", "as": "day"}, {"hash": "user", "buckets": 4}]
    table = {"path": str(tmp_path / "t"), "partition_by": parts, **({"columns": COLUMNS} if declared else {})}
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": table})
    harness.feed(EVENTS)
    harness.feed(EVENTS)
    found = DeltaTable(tmp_path / "t")
    assert found.metadata().partition_columns == ["day", "user_bucket"]
    rows = sorted(found.to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    days = [date(2026, 1, 1), date(2026, 1, 2), None] if declared else [THEN.date()] * 3
    assert [row["day"] for row in rows] == [each for each in days for _ in range(2)]
    users = [bucket("ann", 4), bucket("bob", 4), None]
    assert [row["user_bucket"] for row in rows] == [each for each in users for _ in range(2)]
    assert harness.dead() == []


def test_a_field_that_has_the_name_of_a_made_column_stops(tmp_path: Path):
    table = {"path": str(tmp_path / "t"), "partition_by": [{"hash": "user", "buckets": 4}]}
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": table})
    harness.feed(EVENTS)
    with pytest.raises(ColumnMismatch, match="conflicts with a column of the same name"):
        harness.feed([{"id": 4, "user": "eve", "user_bucket": 1}])


def test_a_column_that_is_no_time_stops(tmp_path: Path):
    harness = Harness(
        tmp_path, {"route": {"by": "fixed"}, "table": {"path": str(tmp_path / "t"), "partition_by": [{"date": "id"}]}}
    )
    with pytest.raises(ColumnMismatch, match="'id_date' from 'id', which is long"):
        harness.feed(EVENTS)


@pytest.mark.parametrize(
    ("partition_by", "key", "seen"),
    [
        ("[{date: at, hour: at}]", "table.partition_by[0]", "together"),
        ("[{}]", "table.partition_by[0]", "none of"),
        ("[{hash: user}]", "table.partition_by[0]", "only one of hash and buckets"),
        ("[{hash: user, buckets: 1}]", "table.partition_by[0].buckets", "1"),
        ("[{date: nobody}]", "table.partition_by[0].date", "no column 'nobody'"),
        ("[{date: at, as: user}]", "table.partition_by[0]", "is an existing column"),
        ("[{date: at, as: 'a b'}]", "table.partition_by[0].as", "' '"),
        ("[{date: at}, at_date]", "table.partition_by[1]", "duplicate column"),
        ("[{hash: _timestamp, buckets: 3}]", "table.partition_by[0].hash", "a time"),
        ("[{day: at}]", "table.partition_by[0].day", "unknown key"),
    ],
)
def test_partitions_that_cannot_be(tmp_path: Path, partition_by: str, key: str, seen: str):
    text = "pipeline: web\nsource: {generate: {}}\ntable:\n  path: t\n  columns:\n"
    text += "".join(f"    - {{name: {each['name']}, type: {each['type']}}}\n" for each in COLUMNS)
    _, found = examine_text(f"{text}  partition_by: {partition_by}\n", tmp_path, "web.yaml")
    assert [each.key for each in found] == [key]
    assert seen in found[0].message


def test_rows_that_are_merged_have_no_made_partitions(tmp_path: Path):
    text = "pipeline: web\nsource: {generate: {}}\ntable: {path: t, mode: upsert, merge: {keys: [id]}, "
    _, found = examine_text(f"{text}partition_by: [{{date: at}}]}}\n", tmp_path, "web.yaml")
    assert "not supported with merges" in found[0].message
