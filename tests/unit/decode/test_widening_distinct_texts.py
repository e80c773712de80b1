"""Misfits that ask the same of a column are read once, however many they are, and nobody can tell."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode import widening
from headrace.decode.base import DecodeLimits
from headrace.decode.distinct_texts import alike
from headrace.decode.json.strict import Parser
from headrace.spec.route_id import RouteId
from headrace.spec.types import parse_type, type_name
from services.plans import envelopes, letters, plan_of, rows

TYPES = ["byte", "short", "integer", "long", "float", "decimal(4,2)", "decimal(20,0)", "decimal(38,10)", "date"]
WIDEN = {"contract": {"wrong_type": "widen"}, "features": ["typeWidening"], "source": False}

INTEGERS = st.one_of(
    st.integers(-(10**22), 10**22), st.sampled_from([sign * (1 << bits) + by for sign in (1, -1)
    for bits in (7, 15, 24, 31, 53, 63, 64) for by in (-1, 0, 1)])
).map(str)  # fmt: skip
FRACTIONS = st.decimals(allow_nan=False, allow_infinity=False, places=4).map(lambda number: f"{number:f}")
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(json.dumps)
TIMES = st.one_of(st.dates().map(str), st.datetimes().map(lambda time: time.isoformat()), st.just("2024-02-30"))
OTHERS = st.sampled_from(["null", "true", "[]", '{"a":1}', '""', '"x"', '"\\u0031"', "-0", "-0.0", "1e3", "1E400"])
TEXTS = st.one_of(INTEGERS, FRACTIONS, FLOATS, st.one_of(TIMES, INTEGERS, FRACTIONS).map(json.dumps), OTHERS)


def asked(kind: pa.DataType, text: str) -> Any:
    return widening._needed(pa.field("v", kind), Parser(DecodeLimits()).value(text))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(TYPES), st.lists(st.one_of(TEXTS, st.none()), max_size=8))
def test_whoever_stands_for_another_asks_the_same(name: str, texts: list[str | None]):
    kind = parse_type(name)
    others = alike(kind, pa.array(texts, pa.string())).to_pylist()
    assert [each is None for each in others] == [each is None for each in texts]
    for text, other in zip(texts, others, strict=True):
        if text is not None:
            assert asked(kind, other) == asked(kind, text), (text, other)


@pytest.mark.parametrize(
    ("name", "values", "becomes"),
    [
        ("integer", [str(2**31 + at) for at in range(3000)], "long"),
        ("integer", [f"{at}.25" for at in range(3000)], "double"),
        ("long", [f"{at}.5" for at in range(3000)], "decimal(21,1)"),
        ("decimal(4,2)", [f"{at}.125" for at in range(1000, 4000)], "decimal(7,3)"),
        ("float", [f"1{at}e40" for at in range(3000)], "double"),
        ("date", [f'"2024-01-01T00:{at // 60:02}:{at % 60:02}"' for at in range(3000)], "timestamp_ntz"),
    ],
)
def test_many_misfits_are_told_by_a_few(name: str, values: list[str], becomes: str):
    plan = plan_of({"": pa.schema([pa.field("v", parse_type(name)), pa.field("id", pa.int64())])}, table=WIDEN)
    given = envelopes(b'{"v":%b,"id":%d}' % (each.encode(), at) for at, each in enumerate(values))
    with mock.patch.object(widening, "_needed", wraps=widening._needed) as asks:
        applied = plan.apply(given)
    assert asks.call_count < 200
    assert (letters(applied), len(rows(applied))) == ([], len(values))
    assert type_name(applied.tables[RouteId()].schema.field("v").type) == becomes
    if becomes != "timestamp_ntz":
        assert [Decimal(str(row["v"])) for row in rows(applied)] == [Decimal(each) for each in values]


def test_those_that_cannot_be_helped_are_read_once_too():
    plan = plan_of({"": pa.schema([pa.field("v", pa.int32())])}, table=WIDEN)
    values = [{"v": "x"}, {"v": True}, {"v": 2**40}, {"v": [1]}] * 500
    with mock.patch.object(widening, "_needed", wraps=widening._needed) as asks:
        applied = plan.apply(envelopes(values))
    assert asks.call_count < 20
    assert [row["v"] for row in rows(applied)] == [2**40] * 500
    assert {why for _, _, why in letters(applied)} == {"type"}
