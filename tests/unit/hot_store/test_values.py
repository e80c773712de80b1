"""Every value of a Delta table is in PostgreSQL as it is, or the row is named in `headrace_rejected`."""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import set_json_loads

from headrace.delta.schema import SOURCE
from headrace.errors import HotStoreTableInvalid, HotStoreValueRejected
from services.hot_stores import Followed, sources
from services.postgres import Database
from services.random_rows import columns, rows

LARGEST = Decimal("9" * 28 + "." + "9" * 10)
_NUMBERS = itertools.count()


@pytest.fixture
def orders(tmp_path: Path, database: Database) -> Iterator[Followed]:
    orders = Followed(tmp_path, database)
    yield orders
    orders.restart()


def in_json(kind: pa.DataType, value: Any) -> Any:
    """A nested value as `jsonb` has it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {item.name: in_json(item.type, value[item.name]) for item in kind}
    if pa.types.is_map(kind):
        return {key: in_json(kind.item_type, each) for key, each in value}
    if pa.types.is_list(kind):
        return [in_json(kind.value_type, each) for each in value]
    if pa.types.is_binary(kind):
        return base64.b64encode(value).decode()
    if pa.types.is_floating(kind) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, float):
        single = pa.types.is_float32(kind)
        return Decimal(str(pa.scalar(value, kind).cast(pa.string()).as_py())) if single else Decimal(repr(value))
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text + ("Z" if kind.tz else "")
    return value.isoformat() if isinstance(value, date) else value


def same(kind: pa.DataType, value: Any, hot: Any) -> bool:
    if pa.types.is_nested(kind):
        return numbers(hot) == numbers(in_json(kind, value))
    if isinstance(value, float):
        code = "<f" if pa.types.is_float32(kind) else "<d"
        return (math.isnan(value) and math.isnan(hot)) or struct.pack(code, value) == struct.pack(code, hot)
    return type(hot) is type(value) and hot == value


def numbers(value: Any) -> Any:
    """Numbers of one type, as JSON has only one."""
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [numbers(each) for each in value]
    return Decimal(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value


def has_zero_character(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(map(has_zero_character, value.values()))
    return isinstance(value, list | tuple) and any(map(has_zero_character, value))


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_of_every_type(tmp_path: Path, database: Database, data: st.DataObject):
    kinds = data.draw(columns("avro"))
    values = data.draw(st.lists(rows(kinds, "avro"), min_size=1, max_size=8))
    number = next(_NUMBERS)
    orders = Followed(tmp_path / str(number), database, {"table": f"t{number}"})
    arrays = [pa.array([row[name] for row in values], kind) for name, kind in kinds.items()]
    # delta-rs declares the type only for a column of it, not for one that is nested.
    arrays.append(pa.nulls(len(values), pa.timestamp("us")))
    orders.append(pa.table([*arrays, sources(range(len(values)))], [*kinds, "local", SOURCE.name]))
    try:
        orders.catch_up()
    finally:
        orders.restart()
    with database.server.connect(database.name) as connection:
        set_json_loads(lambda text: json.loads(text, parse_float=Decimal), connection)
        cursor = connection.execute(f'SELECT * FROM headrace."t{number}"')
        found = [dict(zip([item.name for item in cursor.description or ()], row, strict=True)) for row in cursor]
    hot = {row["_source_offset"]: row for row in found}
    rejected = database.query('SELECT "offset" FROM headrace.headrace_rejected WHERE delta_table = %s', orders.path)
    expected = {offset for offset, row in enumerate(values) if any(map(has_zero_character, row.values()))}
    assert {offset for (offset,) in rejected} == expected
    assert hot.keys() == set(range(len(values))) - expected
    for offset, row in hot.items():
        for name, kind in kinds.items():
            assert same(kind, values[offset][name], row[name]), (kind, values[offset][name], row[name])


def test_the_ends_of_every_type(orders: Followed):
    texts = ["", "\\.", "\\N", 'a"b', "a\nb\r\n\\.\nc", "\t", "é👍", "x" * 100_000]
    decimals = [LARGEST, LARGEST.copy_negate(), Decimal("1E-10"), None]
    floats = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1, None]
    times = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None]
    columns = {
        "text": pa.array(texts),
        "amount": pa.array([decimals[at % 4] for at in range(8)], pa.decimal128(38, 10)),
        "ratio": pa.array(floats, pa.float64()),
        "at": pa.array([times[at % 3] for at in range(8)], pa.timestamp("us", "UTC")),
        "day": pa.array([date.min, date.max, None, date(1970, 1, 1)] * 2),
        "data": pa.array([b"", b"\0\xff\\x", None, b"x"] * 2),
    }
    orders.append(pa.table({**columns, SOURCE.name: sources(range(8))}))
    orders.catch_up()
    for offset, row in enumerate(orders.hot()):
        for name, values in columns.items():
            assert same(values.type, values[offset].as_py(), row[name]), (name, row[name])


def test_a_time_before_those_of_postgresql(orders: Followed):
    """Delta has none, but a file may."""
    ancient = pa.array([-(2**63) + 1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    orders.append(pa.table({"at": ancient, "number": pa.array([1], pa.int64()), SOURCE.name: sources([1])}))
    orders.catch_up()
    assert orders.hot() == []
    [(reason,)] = orders.database.query("SELECT reason FROM headrace.headrace_rejected")
    assert reason == "column at: is before 4714-11-24 BC"


def create(orders: Followed, columns: str) -> None:
    orders.database.query(f"SET ROLE {orders.database.role}; CREATE TABLE headrace.orders ({columns})")


def test_columns_of_other_types_hold_the_values_exactly(orders: Followed):
    create(
        orders,
        "number numeric, amount numeric(40,12), ratio numeric, single numeric, doc jsonb, id uuid, name varchar(4)",
    )
    rows = {
        "number": pa.array([2**63 - 1]),
        "amount": pa.array([LARGEST], pa.decimal128(38, 10)),
        "ratio": pa.array([0.1 + 0.2]),  # a cast in PostgreSQL keeps 15 digits
        "single": pa.array([0.1], pa.float32()),
        "doc": pa.array(['{"a": 12345678901234567890.5}']),
        "id": pa.array(["00000000-0000-4000-8000-000000000001"]),
        "name": pa.array(["ab  "]),
    }
    orders.append(pa.table({**rows, SOURCE.name: sources([1])}))
    orders.catch_up()
    [row] = orders.hot()
    assert (row["number"], row["amount"], row["name"]) == (2**63 - 1, LARGEST, "ab  ")
    assert (row["ratio"], row["single"]) == (Decimal("0.30000000000000004"), Decimal("0.1"))
    assert str(row["id"]) == "00000000-0000-4000-8000-000000000001"
    assert orders.database.query("SELECT doc->>'a' FROM headrace.orders") == [("12345678901234567890.5",)]


def test_values_that_a_column_refuses_are_named(orders: Followed):
    create(orders, "number bigint CHECK (number <> 13), doc jsonb, name varchar(4)")
    numbers, names = [1, 13, 2, 3, 4], ["abcd", "a", "abcd  ", "a", "b"]
    docs = ["{}", "{}", "{}", "{", '{"a": "\\u0000"}']
    columns = {"number": pa.array(numbers), "doc": pa.array(docs), "name": pa.array(names)}
    orders.append(pa.table({**columns, SOURCE.name: sources(range(5))}))
    orders.catch_up()
    assert orders.numbers() == [1]
    rejected = orders.database.query('SELECT version, "offset", reason FROM headrace.headrace_rejected ORDER BY 2')
    assert [row[:2] for row in rejected] == [(0, offset) for offset in (1, 2, 3, 4)]
    reasons = [row[2] for row in rejected]
    assert reasons[1] == "column name: is longer than 4 characters"
    assert [
        text in reason for text, reason in zip(["check constraint", "longer", "json", "Unicode"], reasons, strict=True)
    ]
    assert orders.events[-1]["rejected"] == 4


def test_required_stops_at_a_value_and_continues_there(tmp_path: Path, database: Database):
    orders = Followed(tmp_path, database, {"policy": "required"})
    orders.orders(1, name="a")
    orders.catch_up()
    orders.orders(2, name="b\0c")
    with pytest.raises(HotStoreValueRejected, match=r"orders/0, offset 2: column name: contains the character U\+0000"):
        orders.catch_up()
    assert orders.numbers() == [1]
    orders.orders(3, name="d")
    best_effort = Followed(tmp_path, database)  # a way out
    best_effort.catch_up()
    assert best_effort.numbers() == [1, 3]
    for each in (orders, best_effort):
        each.restart()


def test_wider_types_make_the_column_wider(orders: Followed):
    create(orders, "number integer, amount numeric(10,2)")
    amount = pa.array([Decimal("12345678901.23")], pa.decimal128(20, 2))
    orders.append(pa.table({"number": pa.array([2**40]), "amount": amount, SOURCE.name: sources([1])}))
    orders.catch_up()
    assert [(row["number"], row["amount"]) for row in orders.hot()] == [(2**40, Decimal("12345678901.23"))]


def test_a_type_that_would_change_values_is_refused(orders: Followed):
    create(orders, "number bigint, amount numeric(10,1)")
    amount = pa.array([Decimal("1.25")], pa.decimal128(10, 2))
    orders.append(pa.table({"number": pa.array([1]), "amount": amount, SOURCE.name: sources([1])}))
    with pytest.raises(HotStoreTableInvalid, match=r"'amount' of type numeric\(10,1\) cannot hold"):
        orders.catch_up()
