"""Between which keys a batch lies, as Spark's literals: of every kind of key, by the statistics of staged files."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.spec.types import parse_type
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store
from headrace.write.spark_merge import key_bounds, partition_literals

END = "\U0010ffff"
KINDS: dict[str, tuple[list[Any], tuple[str, str] | None]] = {
    "tinyint": ([-128, 127], ("-128Y", "127Y")),
    "smallint": ([3, -32768], ("-32768S", "3S")),
    "int": ([-(2**31), 0], (f"{-(2**31)}", "0")),
    "bigint": ([2**63 - 1, -(2**63)], (f"{-(2**63)}L", f"{2**63 - 1}L")),
    "string": (["b'\\", "${x}"], ("'${x}'", r"'b\'\\'")),
    "date": ([date(9999, 12, 31), date(1, 1, 1)], ("DATE '0001-01-01'", "DATE '9999-12-31'")),
    "timestamp": (
        [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
        ("TIMESTAMP_LTZ '0001-01-01T00:00:00.000000Z'", "TIMESTAMP_LTZ '9999-12-31T23:59:59.999999Z'"),
    ),
    "timestamp_ntz": (
        [datetime(2000, 1, 1), datetime(1582, 10, 10)],
        ("TIMESTAMP_NTZ '1582-10-10T00:00:00.000000'", "TIMESTAMP_NTZ '2000-01-01T00:00:00.000000'"),
    ),
    "decimal(38,24)": (
        [Decimal("1.23E-22"), Decimal("9.9E-7")],
        (
            "CAST(0.000000000000000000000123 AS DECIMAL(38, 24))",
            "CAST(0.000000990000000000000000 AS DECIMAL(38, 24))",
        ),
    ),
    "decimal(38,0)": ([7, -(10**37)], (f"CAST({-(10**37)} AS DECIMAL(38, 0))", "CAST(7 AS DECIMAL(38, 0))")),
    "binary": ([b"a", b"b"], None),
    "boolean": ([True, False], ("false", "true")),
}


def bounds(folder: Path, kind: str, *files: list[Any]) -> list[tuple[str, str, str]]:
    """Of keys in files of their own."""
    schema = pa.schema([pa.field("id", parse_type(kind))])
    staged = []
    for number, values in enumerate(files):
        stager = Stager(lambda uri: Store(uri), f"{number}")
        stager.add(FileLayout(str(folder / "t"), schema), pa.table({"id": values}, schema=schema))
        staged += stager.finish()
    return list(key_bounds(staged, schema, ["id"]))


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_are_exact_literals_of_the_keys_type(tmp_path: Path, kind: str) -> None:
    values, expected = KINDS[kind]
    assert bounds(tmp_path, kind, values) == ([("id", *expected)] if expected else [])
    assert bounds(tmp_path, kind, *([each] for each in values)) == ([("id", *expected)] if expected else [])


@pytest.mark.parametrize("kind", KINDS)
def test_partition_values_are_listed_as_literals_of_their_type(kind: str) -> None:
    values, expected = KINDS[kind]
    rows = pa.table({"id": pa.array([*values, *values, None], parse_type(kind))})
    spaced = {each.replace(" ", "T") for each in expected or ()}  # a timestamp without a zone has a space
    listed = partition_literals(rows).get("id", [])
    assert len(listed) == len(spaced)
    assert {each.replace(" ", "T") for each in listed} == spaced


def test_no_more_than_200_partition_values_are_listed() -> None:
    assert partition_literals(pa.table({"id": pa.array(range(201), pa.int64())})) == {}
    assert len(partition_literals(pa.table({"id": pa.array(range(200), pa.int64())}))["id"]) == 200
    assert partition_literals(pa.table({"id": pa.nulls(2, pa.int64())})) == {}


def test_long_texts_are_within_what_their_beginnings_say(tmp_path: Path) -> None:
    ((_, low, high),) = bounds(tmp_path, "string", ["x" * 40, "é" * 40])
    assert low == f"'{'x' * 32}'"
    assert high > f"'{'é' * 40}'"
    assert bounds(tmp_path, "string", ["a"], [END * 40]) == [], "nothing is above"


def test_files_without_keys_have_none_and_are_no_reason_to_have_no_bounds(tmp_path: Path) -> None:
    assert bounds(tmp_path, "int", [1, None], [None]) == [("id", "1", "1")]
    assert bounds(tmp_path, "int", [None]) == []
