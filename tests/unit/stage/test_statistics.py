"""Delta's statistics: exact where they can be, open where they cannot, never in the way of a row."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spec.types import TIMESTAMP, TIMESTAMP_NTZ
from headrace.stage.parquet import OpenFile, dictionary_columns
from headrace.stage.statistics import decimal_text, leaves, parquet_columns, text_above

LAST = "\U0010ffff"


def stats_text(*groups: pa.Table, limit: int = 32) -> str:
    schema = groups[0].schema
    file = OpenFile(schema, leaves(schema, limit), "snappy", dictionary_columns(groups[0]))
    for group in groups:
        file.write(group)
    return file.close()[2]


def stats(*groups: pa.Table, limit: int = 32) -> dict[str, Any]:
    return dict(json.loads(stats_text(*groups, limit=limit), parse_float=Decimal))


def bounds(kind: pa.DataType, *values: Any) -> tuple[Any, Any]:
    found = stats(pa.table({"c": pa.array(values, kind)}))
    return found["minValues"].get("c"), found["maxValues"].get("c")


@pytest.mark.parametrize(
    ("kind", "values", "low", "high"),
    [
        (pa.int8(), [3, None, -4], -4, 3),
        (pa.int64(), [2**63 - 1, -(2**63)], -(2**63), 2**63 - 1),
        (pa.string(), ["b", "", "é"], "", "é"),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], "0001-01-01", "9999-12-31"),
        (
            TIMESTAMP,
            [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)],
            "0001-01-01T00:00:00.000000Z",
            "2024-01-01T00:00:00.123456Z",
        ),
        (TIMESTAMP_NTZ, [datetime(2024, 1, 1)], "2024-01-01T00:00:00.000000", "2024-01-01T00:00:00.000000"),
        (pa.decimal128(5, 2), [Decimal("-1.5"), Decimal("0.01")], Decimal("-1.50"), Decimal("0.01")),
        (pa.float64(), [1.5, math.inf], Decimal("1.5"), None),
        (pa.float64(), [-math.inf, 1.5], None, Decimal("1.5")),
        (pa.float64(), [1.5, math.nan], None, None),
        (pa.float64(), [math.nan], None, None),
        (pa.float32(), [0.1], Decimal("0.10000000149011612"), Decimal("0.10000000149011612")),
        (pa.bool_(), [True, False], False, True),
        (pa.bool_(), [True, None], True, True),
        (pa.bool_(), [None], None, None),
        (pa.binary(), [b"a"], None, None),
        (pa.string(), [None, None], None, None),
        (pa.float64(), [None], None, None),
    ],
)
def test_bounds_of_each_type(kind: pa.DataType, values: list[Any], low: Any, high: Any) -> None:
    assert bounds(kind, *values) == (low, high)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_is_bounded_by_both_of_its_signs(zero: float) -> None:
    text = stats_text(pa.table({"c": [zero]}))
    assert '"minValues":{"c":-0.0},"maxValues":{"c":0.0}' in text


def test_decimals_keep_all_their_digits() -> None:
    most, least = (Decimal(f"{sign}9999999999999999999999999999.9999999999") for sign in ("", "-"))
    assert bounds(pa.decimal128(38, 10), most, least) == (least, most)
    assert decimal_text(5, 3) == "0.005"
    assert decimal_text(-12345, 2) == "-123.45"
    assert decimal_text(7, 0) == "7"


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_a_decimal_is_its_digits(unscaled: int, scale: int) -> None:
    assert Decimal(decimal_text(unscaled, scale)) == Decimal(f"{unscaled}E-{scale}")


@pytest.mark.parametrize(
    ("value", "above"),
    [
        ("a" * 32, "a" * 32),
        ("a" * 33, "a" * 31 + "b"),
        ("a" * 31 + "😀x", "a" * 31 + "😁"),
        ("a" * 31 + "\ud7ffx", "a" * 31 + "\ue000"),
        ("a" * 31 + LAST + "x", "a" * 30 + "b"),
        ("a" + LAST * 40, "b"),
        (LAST * 33, None),
    ],
)
def test_a_cut_text_is_raised_above_all_it_stands_for(value: str, above: str | None) -> None:
    assert text_above(value) == above


TEXT = st.text(
    st.sampled_from(["a", "\ud7ff", "\ue000", "\uffff", "😀", LAST]) | st.characters(codec="utf-8"), max_size=40
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.sampled_from(["a", "😀", LAST]), min_size=25, max_size=32) | TEXT, min_size=1, max_size=8))
def test_bounds_hold_every_text(values: list[str]) -> None:
    low, high = bounds(pa.string(), *values)
    for value in values:
        assert low.encode() <= value.encode()
        assert high is None or (value.encode() <= high.encode() and len(high) <= 32)


def test_nested_fields_are_bounded_and_their_nulls_counted() -> None:
    kind = pa.struct([("n", pa.int32()), ("real", pa.float64()), ("list", pa.list_(pa.field("element", pa.int32())))])
    rows = pa.table(
        {
            "s": pa.array([{"n": 1, "real": 1.0, "list": [None]}, {"n": None, "real": 2.0, "list": None}, None], kind),
            "m": pa.array([[("k", None)], None, []], pa.map_(pa.string(), pa.int32())),
        }
    )
    assert stats(rows) == {
        "numRecords": 3,
        "minValues": {"s": {"n": 1, "real": Decimal("1.0")}},
        "maxValues": {"s": {"n": 1, "real": Decimal("2.0")}},
        "nullCount": {"s": {"n": 2, "real": 1, "list": 2}, "m": 1},
    }


def test_row_groups_are_summed_up() -> None:
    schema = pa.schema(
        [("n", pa.int64()), ("money", pa.decimal128(38, 2)), ("text", pa.string()), ("real", pa.float64())]
    )
    one = {"n": [5], "money": [Decimal("-3.00")], "text": ["b"], "real": [1.0]}
    none: dict[str, list[Any]] = {"n": [None], "money": [None], "text": [None], "real": [None]}
    two = {"n": [-5], "money": [Decimal("2.50")], "text": ["é"], "real": [-1.0]}
    assert stats(*(pa.table(group, schema=schema) for group in (one, none, two))) == {
        "numRecords": 3,
        "minValues": {"n": -5, "money": Decimal("-3.00"), "text": "b", "real": Decimal("-1.0")},
        "maxValues": {"n": 5, "money": Decimal("2.50"), "text": "é", "real": Decimal("1.0")},
        "nullCount": {"n": 1, "money": 1, "text": 1, "real": 1},
    }


def test_one_nan_opens_the_bounds_of_the_whole_file() -> None:
    groups = [pa.table({"c": [value]}) for value in (1.0, math.nan, 2.0)]
    assert stats(*groups)["minValues"] == {}
    assert stats(*groups[:1], *groups[2:])["maxValues"] == {"c": 2}


def test_what_a_footer_lacks_stays_absent() -> None:
    long = "z" * 5000  # a footer keeps no bounds of that size
    assert stats(pa.table({"c": ["a", long]}), pa.table({"c": ["b"]})) == {
        "numRecords": 3,
        "minValues": {},
        "maxValues": {},
        "nullCount": {"c": 0},
    }


def test_times_beyond_the_calendar_have_no_bounds() -> None:
    assert bounds(pa.date32(), -10_000_000) == (None, None)
    assert bounds(TIMESTAMP, 2**62) == (None, None)


@pytest.mark.parametrize(("limit", "named"), [(0, []), (1, ["a"]), (3, ["a", "s"]), (-1, ["a", "s", "z"])])
def test_only_the_first_leaves_are_counted(limit: int, named: list[str]) -> None:
    rows = pa.table({"a": [1], "s": [{"x": 1, "y": 2}], "z": [1]})
    assert [*stats(rows, limit=limit)["nullCount"]] == named


def test_names_are_escaped() -> None:
    assert stats(pa.table({'a"b\\c.d ü': [1]}))["minValues"] == {'a"b\\c.d ü': 1}


def test_columns_are_found_in_the_footer_by_their_place() -> None:
    inner = pa.struct([("x", pa.list_(pa.field("item", pa.struct([("y", pa.int32())])))), ("z", pa.float64())])
    schema = pa.schema([("s", inner), ("m", pa.map_(pa.string(), pa.list_(pa.int32()))), ("t", pa.string())])
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink, store_schema=False)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    names = [footer.schema.column(place).path for place in range(footer.num_columns)]
    assert [".".join(path) for path, _ in parquet_columns(schema)] == names


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.floats(width=32), min_size=1))
def test_bounds_of_floats_hold_every_value(values: list[float | None]) -> None:
    low, high = bounds(pa.float32(), *values)
    column = pa.array(values, pa.float32())
    if low is not None:
        assert pc.all(pc.greater_equal(column, float(low))).as_py()
    if high is not None:
        assert pc.all(pc.less_equal(column, float(high))).as_py()
