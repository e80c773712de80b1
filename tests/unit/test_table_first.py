"""Tables that nobody has described: made by their first records, with the columns they show."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace import Table
from headrace.errors import SchemaMismatch, TableNotFound, UsageError

RECORDS: list[dict[str, Any]] = [
    {"id": 1, "day": "a", "price": Decimal("1.50"), "nothing": None},
    {"id": 2, "day": "b", "more": {"x": [1.5]}},
]


def test_a_table_is_made_by_its_first_records(tmp_path: Path):
    table = Table.get_or_create(tmp_path / "t", partition_by=["day"], properties={"owner": "ann"})
    assert not table.exists()
    with pytest.raises(TableNotFound):
        table.metadata()
    done = table.bulk_insert(each for each in RECORDS)
    assert (done.version, done.rows) == (1, 2)
    about = table.metadata()
    assert (about.partition_by, about.properties["owner"]) == (("day",), "ann")
    assert about.schema.names == ["id", "day", "price", "more"]
    assert about.schema.field("price").type == pa.decimal128(3, 2)
    table.bulk_insert([{"id": 3, "day": "a"}])
    with pytest.raises(SchemaMismatch):
        table.bulk_insert([{"strange": 3}])
    assert table.query().count() == 3
    assert Table.get_or_create(tmp_path / "t").bulk_insert([{"id": 4}]).version == 3


def test_an_upsert_makes_it_as_well_and_a_partition_gives_its_column(tmp_path: Path):
    table = Table.get_or_create(tmp_path / "t", partition_by=["day"])
    assert table.upsert([{"id": 1}, {"id": 1}, {"id": 2}], "id", partition="day=a").inserted == 2
    assert table.query().order_by("id").records() == [{"id": 1, "day": "a"}, {"id": 2, "day": "a"}]


@pytest.mark.parametrize(
    "records",
    [
        pa.table({"id": pa.array([1, 2], pa.int32()), "none": pa.nulls(2)}),
        pd.DataFrame({"id": pd.array([1, 2], "int32")}),
        pl.DataFrame({"id": [1, 2], "none": [None, None]}, schema_overrides={"id": pl.Int32}),
    ],
    ids=["arrow", "pandas", "polars"],
)
def test_frames_keep_their_types(tmp_path: Path, records: Any):
    table = Table.get_or_create(tmp_path / "t")
    assert table.bulk_insert(records).rows == 2
    assert table.schema() == pa.schema([pa.field("id", pa.int32())])


def test_records_that_show_nothing_make_nothing(tmp_path: Path):
    table = Table.get_or_create(tmp_path / "t")
    for records in ([], [{}], [{"id": None}]):
        with pytest.raises(UsageError, match="which columns"):
            table.bulk_insert(records)
    with pytest.raises(SchemaMismatch, match="do not agree"):
        table.bulk_insert([{"id": 1}, {"id": "x"}])
    assert not table.exists()
