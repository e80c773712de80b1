"""Tables that nobody has described: made by their first records, with the columns they show."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace import Table
from headrace.errors import HeadraceError, SchemaMismatch, TableNotFound, UsageError
from headrace.spec.types import parse_type

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
        with pytest.raises(UsageError, match="Cannot infer the columns"):
            table.bulk_insert(records)
    with pytest.raises(SchemaMismatch, match="have different types"):
        table.bulk_insert([{"id": 1}, {"id": "x"}])
    assert not table.exists()


AT = datetime(2026, 1, 2, 3, 4, 5, 678901)


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        (pd.Series(["a"], dtype="category"), "string", "a"),
        (pd.Series([AT], dtype="datetime64[ns]"), "timestamp_ntz", AT),
        (pd.Series([AT], dtype="datetime64[ns]").dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), "timestamp",
         AT.replace(tzinfo=UTC)),
        (pa.array([AT], pa.timestamp("ms")), "timestamp_ntz", AT.replace(microsecond=678000)),
        (pa.array([200], pa.uint8()), "smallint", 200),
        (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", Decimal(2**64 - 1)),
        (pa.array([b"ab"], pa.binary(2)), "binary", b"ab"),
        (pa.array(["x"], pa.string_view()), "string", "x"),
        (pa.array([[1]], pa.large_list(pa.uint16())), "array<int>", [1]),
        (pa.array([Decimal("1.5")], pa.decimal256(20, 1)), "decimal(20,1)", Decimal("1.5")),
        (pl.Series(["a"], dtype=pl.Categorical), "string", "a"),
        (pl.Series(["a"], dtype=pl.Enum(["b", "a"])), "string", "a"),
    ],
)  # fmt: skip
def test_types_of_frames_become_those_of_tables(tmp_path: Path, column: Any, kind: str, value: Any):
    frame = {pa.Array: pa.table, pd.Series: pd.DataFrame, pl.Series: pl.DataFrame}
    records = next(make for base, make in frame.items() if isinstance(column, base))({"x": column})
    for table in (Table.get_or_create(tmp_path / "a"), Table.get_or_create(tmp_path / "b", {"x": kind})):
        table.bulk_insert(records)
        assert table.schema().field("x").type == parse_type(kind)
        assert table.query().records() == [{"x": value}]
    if isinstance(column, pa.Array):
        made = Table.get_or_create(tmp_path / "c", pa.schema([("x", column.type)]))
        assert made.schema() == table.schema()


def test_types_that_no_table_holds_are_named(tmp_path: Path):
    for kind in (
        pa.time32("s"),
        pa.duration("s"),
        pa.decimal256(40, 0),
        pa.list_(pa.null()),
        pa.month_day_nano_interval(),
    ):
        with pytest.raises(UsageError, match="Column x: Unsupported type"):
            Table.get_or_create(tmp_path / "t", pa.schema([("x", kind)]))
        with pytest.raises(UsageError, match="Column x: Unsupported type"):
            Table.get_or_create(tmp_path / "t").bulk_insert(pa.table({"x": pa.array([None], kind)}))
    assert not Table(tmp_path / "t").exists()


def test_a_first_write_that_is_refused_makes_no_table(tmp_path: Path):
    for write in (
        lambda table: table.upsert([{"id": 1}], "nobody"),
        lambda table: table.upsert([{"id": None, "v": 1}, {"id": 1}], "id"),
        lambda table: table.upsert([{"id": 1}, {"id": 1}], "id", deduplicate=False),
        lambda table: table.upsert(pa.table({"id": [1]}), "id", partition="day=a/x=1"),
        lambda table: table.bulk_insert([{"id": 1}], "nonsense"),
        lambda table: table.bulk_insert([{"id": 1}], "x=1"),
        lambda table: table.bulk_insert([{"id": 1, "day": ""}]),
        lambda table: table.bulk_insert([{"id": 1}]),
        lambda table: table.bulk_insert([{"id": 2**70, "day": "a"}]),
        lambda table: table.bulk_insert([{1: 2, "day": "a"}]),
    ):
        with pytest.raises(HeadraceError):
            write(Table.get_or_create(tmp_path / "t", partition_by="day"))
        assert not Table(tmp_path / "t").exists()
    table = Table.get_or_create(tmp_path / "t", partition_by=["day"])
    reader = pa.table({"id": [1, 2]}).to_reader()
    assert table.upsert(reader, "id", partition="day=a%2Fb").inserted == 2
    assert table.query().select("day").limit(1).records() == [{"day": "a/b"}]
