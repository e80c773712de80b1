"""Records become exactly the table's rows, in one commit, or are refused with the column and the reason."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta.log import version_path
from headrace.errors import PartitionNotFound, SchemaMismatch, TooManyPartitions, UsageError
from headrace.table.records import from_json

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
KINDS = {
    "small": "smallint",
    "real": "float",
    "amount": "decimal(6,2)",
    "text": "string",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "flag": "boolean",
    "raw": "binary",
    "items": "array<struct<n: int>>",
    "names": "map<string,double>",
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.get_or_create(tmp_path / "t", {"id": "bigint!", **KINDS})


def ids(table: Table) -> list[int]:
    return [row["id"] for row in table.query().order_by("id").select("id").records()]


@pytest.mark.parametrize(
    "records",
    [
        [{"id": 1, "text": "a"}, {"id": 2}],
        pa.table({"id": pa.array([1, 2], pa.int32()), "text": pa.array(["a", None], pa.large_string())}),
        pa.record_batch({"id": [1, 2], "text": ["a", None]}),
        pa.table({"id": [1, 2], "text": ["a", None]}).to_reader(),
        pd.DataFrame({"id": [1, 2], "text": ["a", None]}),
        pl.DataFrame({"id": [1, 2], "text": ["a", None]}),
        pa.table({"id": [1, 2], "text": pa.array(["a", None]).dictionary_encode()}),
        ({"id": number, "text": text} for number, text in ((1, "a"), (2, None))),
    ],
    ids=["dicts", "arrow", "batch", "reader", "pandas", "polars", "dictionary", "generator"],
)
def test_records_of_every_kind(table: Table, records: Any) -> None:
    done = table.bulk_insert(records)
    assert (done.version, done.rows, done.files) == (1, 2, 1)
    assert table.query().select("id", "text", "at").order_by("id").records() == [
        {"id": 1, "text": "a", "at": None},
        {"id": 2, "text": None, "at": None},
    ]
    (entry,) = table.history(1)
    assert (entry.operation, entry.rows_written, entry.parameters) == ("WRITE", 2, {"mode": "Append"})


def test_every_type(table: Table) -> None:
    record = {
        "id": 1,
        "small": -32768,
        "real": 1.5,
        "amount": Decimal("9999.99"),
        "text": "ü",
        "at": NOW,
        "local": NOW.replace(tzinfo=None),
        "day": date(1, 1, 1),
        "flag": False,
        "raw": b"\xff",
        "items": [{"n": 1}, {"n": None}, None],
        "names": {"a": 1.0},
    }
    table.bulk_insert([record])
    assert table.query().records() == [record]


def test_times_may_be_text_as_in_json(table: Table) -> None:
    table.bulk_insert(
        [{"id": 1, "at": "2026-01-02T04:04:05.678901+01:00", "day": "2026-01-02", "text": str(UUID(int=1))}]
    )
    assert table.query().select("at", "day").records() == [{"at": NOW, "day": date(2026, 1, 2)}]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"id": "1"}, "'1' is not of type long"),
        ({"id": 1.0}, "1.0 is not of type long"),
        ({"id": True}, "True is not of type long"),
        ({"id": 2**63}, "column id|Column id"),
        ({}, "id: required"),
        ({"id": None}, "id: required"),
        ({"id": 1, "small": 40000}, "does not fit column small"),
        ({"id": 1, "amount": Decimal("1.001")}, r"amount: 1.001 does not fit decimal\(6,2\)"),
        ({"id": 1, "amount": Decimal("NaN")}, "amount: NaN does not fit"),
        ({"id": 1, "amount": 10**4000}, "does not fit decimal"),
        ({"id": 1, "real": 1e300}, r"real: 1e\+300 does not fit float"),
        ({"id": 1, "day": NOW}, "is not of type date"),
        ({"id": 1, "local": "2026-01-01T00:00:00+02:00"}, "is not of type timestamp_ntz"),
        ({"id": 1, "amount": 1.5}, "1.5 is not of type decimal"),
        ({"id": 1, "text": 5}, "5 is not of type string"),
        ({"id": 1, "at": NOW.replace(tzinfo=None)}, "is not of type timestamp"),
        ({"id": 1, "at": "2026-01-01T00:00:00"}, "is not of type timestamp"),
        ({"id": 1, "local": NOW}, "is not of type timestamp_ntz"),
        ({"id": 1, "day": "tomorrow"}, "is not of type date"),
        ({"id": 1, "flag": 1}, "1 is not of type boolean"),
        ({"id": 1, "raw": "text"}, "'text' is not of type binary"),
        ({"id": 1, "items": "text"}, "is not of type array"),
        ({"id": 1, "items": [{"m": 1}]}, "is not of type struct"),
        ({"id": 1, "ID": 1}, "no column 'ID'"),
        ({"id": 1, "more": 1}, "no column 'more'"),
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole(table: Table, record: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said) as refused:
        table.bulk_insert([{"id": 7}, record])
    assert refused.value.expected
    assert table.resolve() == 0
    assert not list(Path(table.path).glob("*.parquet"))


@pytest.mark.parametrize(
    "records",
    [
        pa.table({"id": ["1"]}),
        pa.table({"id": [1.0]}),
        pa.table({"id": [1], "text": [5]}),
        pa.table({"id": [1], "small": [70000]}),
        pa.table({"id": pa.array([1]), "at": pa.array([NOW.replace(tzinfo=None)], pa.timestamp("us"))}),
        pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns", "UTC"))}),
        pa.table({"id": pa.array([None], pa.int64())}),
        pa.table({"id": [1], "flag": [1]}),
        pa.table({"id": [1], "real": [1e300]}),
        pa.table({"id": [1], "day": pa.array([1], pa.timestamp("us"))}),
        pa.table({"id": [1], "amount": [Decimal("10000.00")]}),
        pa.table({"id": [1], "names": pa.array([[("a", 2**53 + 1)]], pa.map_(pa.string(), pa.int64()))}),
        pd.DataFrame({"id": [1.5]}),
    ],
)
def test_columns_that_would_change_a_value_are_refused(table: Table, records: Any) -> None:
    with pytest.raises(SchemaMismatch):
        table.bulk_insert(records)
    assert table.resolve() == 0


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.none() | st.integers(-(2**15), 2**15 - 1) | st.floats(allow_nan=False, width=32), max_size=5))
def test_a_value_comes_back_as_itself_or_is_refused(table: Table, values: list[int | float | None]) -> None:
    """Whole numbers for a float column are taken only where they come back."""
    before = table.query().count()
    try:
        done = table.bulk_insert([{"id": number, "real": value} for number, value in enumerate(values)])
    except SchemaMismatch:
        assert table.query().count() == before
        return
    rows = table.changes(done.version, done.version).order_by("id").records() if values else []
    assert [row["real"] for row in rows] == values


def test_frames_bring_their_index_categories_and_whole_numbers(table: Table) -> None:
    frame = pd.DataFrame({"id": [1, 2], "text": pd.Categorical(["a", "b"]), "real": [3, 4]}).set_index("id")
    assert table.bulk_insert(frame).rows == 2
    table.bulk_insert(frame.set_axis([8, 9]).assign(id=[3, 4]))  # an index without a name is none
    table.bulk_insert(pl.DataFrame({"id": [5], "text": ["c"]}, schema_overrides={"text": pl.Categorical}))
    found = table.query().order_by("id").select("id", "text", "real").records()
    assert [tuple(each.values()) for each in found] == [
        (1, "a", 3.0), (2, "b", 4.0), (3, "a", 3.0), (4, "b", 4.0), (5, "c", None)
    ]  # fmt: skip
    with pytest.raises(SchemaMismatch, match="does not fit column real"):
        table.bulk_insert(pa.table({"id": [6], "real": [2**24 + 1]}))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), "Duplicate column names|'id' more than once"),
        (pa.table([[1], [2]], names=["id", "id"]), "'id' more than once"),
        (pd.DataFrame({"id": [1, 2], "text": ["a", 3]}), "Cannot convert the DataFrame to Arrow"),
        (pd.Series([1]), "cannot be a Series"),
        ([1, 2], "Record 0 is not a dictionary: 1"),
        ([{"id": 1}, None], "Record 1 is not a dictionary"),
        ("id", "cannot be a str"),
        (None, "cannot be a NoneType"),
    ],
)
def test_what_are_no_records_is_said(table: Table, records: Any, said: str) -> None:
    for write in (table.bulk_insert, lambda given: table.upsert(given, "id")):
        with pytest.raises((SchemaMismatch, UsageError), match=said):
            write(records)
    assert table.resolve() == 0


def test_fractions_of_json_are_doubles_at_any_depth_and_digits_are_kept(tmp_path: Path) -> None:
    columns = {
        "d": "double", "p": "decimal(20,10)", "s": "struct<a: double, b: decimal(4,2), n: long>",
        "l": "array<struct<x: float>>", "m": "map<string,double>",
    }  # fmt: skip
    table = Table.get_or_create(tmp_path / "t", columns)
    record = '{"d": 0.1, "p": 0.1234567891, "s": {"a": 1.5, "b": 0.25}, "l": [{"x": 0.5}, null], "m": {"k": 2.5}}'
    table.bulk_insert(from_json(record.encode(), table.schema(), "-"))
    assert table.query().records() == [
        {
            "d": 0.1,
            "p": Decimal("0.1234567891"),
            "s": {"a": 1.5, "b": Decimal("0.25"), "n": None},
            "l": [{"x": 0.5}, None],
            "m": {"k": 2.5},
        }
    ]
    for wrong in (
        b'{"d": 1}\n{"d": NaN}',
        b'{"d": 1}\n{"s": {"a": 1, "a": 2}}',
        b'{"d": 1}\n{"d": 1,}',
        b'{"d": 1}\n[1]',
        b'{"d": 1}\n{"s": {"a": 1e400}}',
        b'{"d": 1}\n{"p": 1e99999999999999999999}',
    ):
        with pytest.raises(UsageError, match="line 2"):
            from_json(wrong, table.schema(), "-")
    with pytest.raises(UsageError, match="line 1: 1e400 does not fit double"):
        from_json(b'{"x": 1e400}', None, "-")
    with pytest.raises(SchemaMismatch, match=r"s\.n: Decimal"):
        table.bulk_insert(from_json(b'{"s": {"n": 1.5}}', table.schema(), "-"))


def test_nothing_is_no_commit(table: Table) -> None:
    assert table.bulk_insert([]).rows == 0
    assert table.bulk_insert(pa.table({"id": pa.array([], pa.int64())})).version == 0
    with pytest.raises(UsageError):
        table.bulk_insert({"id": 1})
    with pytest.raises(UsageError):
        table.bulk_insert(5)


def test_a_partition_is_given_or_checked(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "p", {"id": "bigint", "day": "date", "n": "int"}, ["day", "n"])
    table.bulk_insert([{"id": 1}], partition="day=2026-01-01/n=5")
    table.bulk_insert([{"id": 2, "n": 5}], partition="/day=2026-01-01/n=5/")
    assert table.query().where("day = date '2026-01-01' and n = 5").count() == 2
    with pytest.raises(SchemaMismatch, match="Not all records have n"):
        table.bulk_insert([{"id": 3, "n": 6}], partition="day=2026-01-01/n=5")
    for wrong in ("n=5", "n=5/day=2026-01-01", "day=today/n=5", "x", "day=2026-01-01/n=", ""):
        with pytest.raises(PartitionNotFound) as refused:
            table.bulk_insert([{"id": 3}], partition=wrong)
        assert refused.value.partition == wrong
    assert table.statistics().partitions == 1


def test_partition_values_that_readers_would_not_see_are_refused(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "p", {"id": "bigint", "part": "string"}, ["part"])
    for value in ("", "x" * 300, "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(SchemaMismatch, match="part"):
            table.bulk_insert([{"id": 1, "part": value}])
    with pytest.raises(TooManyPartitions):
        table.bulk_insert([{"id": number, "part": str(number)} for number in range(1001)])
    assert not list(Path(table.path).rglob("*.parquet"))


def test_files_are_as_the_properties_say(tmp_path: Path) -> None:
    wanted = {"delta.parquet.compression.codec": "ZSTD", "delta.dataSkippingNumIndexedCols": "1"}
    table = Table.get_or_create(tmp_path / "t", {"a": "bigint", "b": "bigint"}, properties=wanted)
    table.bulk_insert([{"a": 1, "b": 2}])
    assert list(Path(table.path).glob("*.zstd.parquet"))
    log = (Path(table.path) / version_path(1)).read_text()
    assert '\\"maxValues\\":{\\"a\\":1}' in log


def test_columns_of_a_source_are_null_for_records_of_none(tmp_path: Path) -> None:
    source = "struct<topic: string, partition: int, offset: bigint, timestamp: timestamp>"
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "_source": source})
    table.bulk_insert([{"id": 1}])
    assert table.query().records() == [{"id": 1, "_source": None}]
    assert ids(table) == [1]
