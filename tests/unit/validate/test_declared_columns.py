"""Declared columns beside those that an existing table has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.errors import ColumnsDisagree
from headrace.validate import online
from services.desk import Desk

RECORD = {"id": 9007199254740993, "name": "Ada", "tags": ["x"], "amount": 1.25, "other": True}
AMOUNT = {"name": "amount", "type": "decimal(10,2)"}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
    DeltaTable.create(str(tmp_path / "orders"), schema)
    return Desk(tmp_path, {"route": {"by": "fixed"}})


def _declare(desk: Desk, *columns: dict[str, Any], **more: Any) -> None:
    desk.options["table"] = {"path": f"{desk.folder}/orders", "columns": list(columns), **more}


def test_one_declared_column_takes_nothing_from_the_others_of_the_table(desk: Desk):
    _declare(desk, AMOUNT)
    desk.feed([RECORD])
    (row,) = desk.rows("orders")
    assert {name: str(row[name]) for name in row} == {
        "id": "9007199254740993",
        "name": "Ada",
        "tags": "['x']",
        "amount": "1.25",
    }


def test_only_declared_columns_are_filled_where_the_spec_says_so(desk: Desk):
    _declare(desk, AMOUNT, only_declared=True)
    (found,) = online._tables(desk.spec)
    assert (found.severity, found.key) == ("warning", "table.only_declared")
    assert "no record sets id, name, tags of" in found.message
    desk.feed([RECORD])
    (row,) = desk.rows("orders")
    assert [name for name, value in row.items() if value is not None] == ["amount"]


def test_a_column_that_must_not_be_null_is_not_left_out(desk: Desk):
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    DeltaTable.create(str(desk.folder / "strict"), strict)
    _declare(desk, AMOUNT, only_declared=True, path=f"{desk.folder}/strict")
    (found,) = online._run_check(desk.spec, "table", online._tables)
    assert "only_declared excludes 'id', which must not be NULL" in found.message
    with pytest.raises(ColumnsDisagree, match="Declare the columns, or remove only_declared"):
        desk.feed([RECORD])
    del desk.options["table"]["only_declared"]
    desk.feed([])
    desk.feed([RECORD])
    assert [row["id"] for row in desk.rows("strict")] == [RECORD["id"]]
