"""Declared columns beside those that an existing table has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.errors import ColumnMismatch
from headrace.validate import online
from services.in_process_pipeline import Harness

RECORD = {"id": 9007199254740993, "name": "Ada", "tags": ["x"], "amount": 1.25, "other": True}
AMOUNT = {"name": "amount", "type": "decimal(10,2)"}


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
    DeltaTable.create(str(tmp_path / "orders"), schema)
    return Harness(tmp_path, {"route": {"by": "fixed"}})


def _declare(harness: Harness, *columns: dict[str, Any], **more: Any) -> None:
    harness.options["table"] = {"path": f"{harness.folder}/orders", "columns": list(columns), **more}


def test_one_declared_column_takes_nothing_from_the_others_of_the_table(harness: Harness):
    _declare(harness, AMOUNT)
    harness.feed([RECORD])
    (row,) = harness.rows("orders")
    assert {name: str(row[name]) for name in row} == {
        "id": "9007199254740993",
        "name": "Ada",
        "tags": "['x']",
        "amount": "1.25",
    }


def test_only_declared_columns_are_filled_where_the_spec_says_so(harness: Harness):
    _declare(harness, AMOUNT, only_declared=True)
    (found,) = online._tables(harness.spec)
    assert (found.severity, found.key) == ("warning", "table.only_declared")
    assert "no record sets id, name, tags of" in found.message
    harness.feed([RECORD])
    (row,) = harness.rows("orders")
    assert [name for name, value in row.items() if value is not None] == ["amount"]


def test_a_column_that_must_not_be_null_is_not_left_out(harness: Harness):
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    DeltaTable.create(str(harness.folder / "strict"), strict)
    _declare(harness, AMOUNT, only_declared=True, path=f"{harness.folder}/strict")
    (found,) = online._run_check(harness.spec, "table", online._tables)
    assert "only_declared excludes 'id', which must not be NULL" in found.message
    with pytest.raises(ColumnMismatch, match="Declare the columns, or remove only_declared"):
        harness.feed([RECORD])
    del harness.options["table"]["only_declared"]
    harness.feed([])
    harness.feed([RECORD])
    assert [row["id"] for row in harness.rows("strict")] == [RECORD["id"]]


@pytest.mark.parametrize(
    "more",
    [
        {"table": {"columns": [{"name": "NAME", "type": "string"}]}},
        {"table": {"columns": [{"name": "NAME", "type": "string"}], "only_declared": True}},
        {"table": {"columns": [{"name": "size", "type": "struct<Width:bigint>"}]}},
        {"transform": [{"jmespath": {"size.Width": "id"}}]},
    ],
)
def test_no_table_gets_columns_whose_names_differ_only_in_case(harness: Harness, more: dict[str, Any]):
    """No reader could open it."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("size", pa.struct([("width", pa.int64())]))])
    DeltaTable.create(str(harness.folder / "twins"), schema)
    harness.options |= more
    harness.options["table"] = {"path": f"{harness.folder}/twins", **more.get("table", {})}
    (found,) = online._run_check(harness.spec, "table", online._tables)
    assert found.severity == "error"
    for _ in range(2):
        with pytest.raises(ColumnMismatch, match=r"(name|width|Width)"):
            harness.feed([RECORD])
    assert DeltaTable(str(harness.folder / "twins")).version() == 0
