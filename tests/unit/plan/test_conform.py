"""Fit: rows become exactly the table's columns, in files that Parquet takes, or letters."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.delta.schema import SOURCE
from headrace.plan.conform import fit
from headrace.plan.route_schema import RouteSchema
from headrace.reasons import Reason
from services.plans import envelopes

INNER = pa.struct(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("t", pa.string(), nullable=False),
        pa.field("d", pa.decimal128(4, 1), nullable=False),
        pa.field("deep", pa.struct([pa.field("b", pa.bool_(), nullable=False)]), nullable=False),
    ]
)
NESTED = {
    "struct": INNER,
    "list": pa.list_(pa.field("element", INNER, nullable=False)),
    "map": pa.map_(pa.string(), pa.field("value", INNER, nullable=False)),
}
GOOD = {"a": 1, "t": "x", "d": Decimal("1.5"), "deep": {"b": True}}
WRAP: dict[str, Any] = {
    "struct": lambda item: item,
    "list": lambda item: [GOOD, item],
    "map": lambda item: [("k", item)],
}


def _fit(column: pa.Array, table: pa.Schema, partition_by: tuple[str, ...] = (), name: str = "v") -> Any:
    given = envelopes([{}] * len(column))
    return fit(pa.table({name: column}), given, RouteSchema("/lake/t", pa.schema([]), table, partition_by))


def loose(kind: pa.DataType) -> pa.DataType:
    """The same type with nothing required, as expressions make it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(item.name, loose(item.type)) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, loose(kind.item_type))
    return pa.list_(loose(kind.value_type)) if pa.types.is_list(kind) else kind


@pytest.mark.parametrize("schema", NESTED)
def test_optional_values_with_required_insides_are_files_that_parquet_takes(schema: str):
    """Arrow's writer refuses a NULL below an absent struct, which is how DuckDB and Arrow's cast leave it."""
    kind, good = NESTED[schema], WRAP[schema](GOOD)
    table = pa.schema([pa.field("v", kind)])
    column = pa.array([good, None, good], loose(kind))
    rows, keep, rejects = _fit(column, table)
    assert (keep, len(rejects)) == (None, 0)
    assert rows.schema == table
    rows.validate(full=True)
    file = io.BytesIO()
    pq.write_table(rows, file)
    assert pq.read_table(file)["v"].to_pylist() == column.to_pylist()


@pytest.mark.parametrize("schema", NESTED)
@pytest.mark.parametrize("hole", ["a", "t", "d", "deep"])
def test_a_required_value_that_is_absent_rejects_its_row_at_every_depth(schema: str, hole: str):
    kind, wrap = NESTED[schema], WRAP[schema]
    column = pa.array([wrap(GOOD), wrap({**GOOD, hole: None}), None, wrap(GOOD)], loose(kind))
    rows, keep, rejects = _fit(column, pa.schema([pa.field("v", kind)]))
    assert (rejects.index, rejects.reason) == ([1], [Reason.MISSING])
    assert hole in rejects.detail[0]
    assert keep.to_pylist() == [0, 2, 3]
    rows.validate(full=True)


def test_slices_and_chunks_are_looked_at_where_they_are():
    kind = NESTED["list"]
    column = pa.array([[{}], [GOOD], None, [GOOD, {**GOOD, "a": None}], []], loose(kind))
    chunked = pa.chunked_array([column.slice(1, 2), column.slice(3)])
    rows, _, rejects = _fit(chunked, pa.schema([pa.field("v", kind)]))
    assert rejects.index == [2]
    assert rows["v"].to_pylist() == [[GOOD], None, []]
    rows, _, rejects = _fit(column.slice(1, 2), pa.schema([pa.field("v", kind)]))
    assert rows["v"].to_pylist() == [[GOOD], None]


def test_columns_come_in_the_tables_order_and_absent_ones_are_null():
    table = pa.schema([pa.field("b", pa.string()), pa.field("v", pa.int64()), SOURCE])
    rows, _, _ = _fit(pa.array([1, 2]), table)
    assert rows.schema == table
    assert rows["b"].null_count == 2
    assert [each["offset"] for each in rows["_source"].to_pylist()] == [0, 1]


def test_an_absent_column_that_is_required_rejects_every_row():
    table = pa.schema([pa.field("v", pa.int64()), pa.field("b", pa.string(), nullable=False)])
    rows, keep, rejects = _fit(pa.array([1, 2]), table)
    assert (len(rows), keep.to_pylist(), rejects.reason) == (0, [], [Reason.MISSING] * 2)


@pytest.mark.parametrize(
    ("values", "kind", "kept"),
    [
        (pa.array([1, 127, 128, -129, None]), pa.int8(), [1, 127, None]),
        (pa.array([1.0, 1.5, 1e300, None]), pa.int64(), [1, None]),
        (pa.array([2**53, 2**53 + 1]), pa.float64(), [float(2**53)]),
        (pa.array([0.5, 0.1]), pa.float32(), [0.5]),
        (pa.array([Decimal("1.20"), Decimal("1.25")]), pa.decimal128(9, 1), [Decimal("1.2")]),
        (pa.array([7, 12345]), pa.decimal128(4, 1), [Decimal("7.0")]),
    ],
)
def test_numbers_fit_another_numbers_column_only_unchanged(values: pa.Array, kind: pa.DataType, kept: list[Any]):
    rows, _, rejects = _fit(values, pa.schema([pa.field("v", kind)]))
    assert rows["v"].to_pylist() == kept
    assert set(rejects.reason) == {Reason.OVERFLOW}
    assert len(kept) + len(rejects) == len(values)


def test_an_empty_text_is_no_partition_value_and_null_is_one():
    table = pa.schema([pa.field("v", pa.string()), SOURCE])
    rows, _, rejects = _fit(pa.array(["a", "", None, " "]), table, ("v",))
    assert rows["v"].to_pylist() == ["a", None, " "]
    assert rejects.reason == [Reason.BAD_PARTITION]
    assert len(_fit(pa.array(["a", ""]), table)[0]) == 2


def test_one_dead_letter_a_record_and_the_first_column_speaks():
    table = pa.schema([pa.field("b", pa.int64(), nullable=False), pa.field("v", pa.int8(), nullable=False)])
    _, _, rejects = _fit(pa.array([1000]), table)
    assert (rejects.index, rejects.reason) == ([0], [Reason.MISSING])
    assert rejects.detail[0].startswith("b: ")


def test_a_table_without_columns_takes_nothing():
    rows, keep, rejects = _fit(pa.array([1, 2]), pa.schema([]))
    assert (len(rows), len(keep), rejects.index) == (0, 0, [0, 1])
