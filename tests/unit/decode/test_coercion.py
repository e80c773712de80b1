"""Columns that take values of other types: text with anything, times as text and numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.base import Decoded, Rejects
from headrace.decode.decoders import decoder
from headrace.decode.payload import payload_schema_of
from headrace.decode.payload_field import PayloadField
from headrace.decode.typed.fit import fit_values
from headrace.errors import SpecError
from headrace.reasons import Reason
from headrace.spec.route_id import RouteId
from headrace.spec.table import Coerce
from services.plans import envelopes, letters, plan_of, rows, spec_of

UTC_TIME = pa.timestamp("us", "UTC")
BOTH = Coerce(string=True, timestamp="us")
TEXTS = pa.list_(pa.field("element", pa.string()))
INNER = pa.struct([("s", pa.string()), ("n", pa.int64()), ("at", UTC_TIME)])
PAYLOAD = pa.schema(
    [
        PayloadField("s", pa.string(), coerce=BOTH).to_arrow(),
        PayloadField("at", UTC_TIME, coerce=BOTH).to_arrow(),
        PayloadField("texts", TEXTS, coerce=BOTH).to_arrow(),
        PayloadField("inner", INNER, coerce=BOTH).to_arrow(),
        PayloadField("inners", pa.list_(pa.field("element", INNER)), coerce=BOTH).to_arrow(),
        PayloadField("named", pa.map_(pa.string(), pa.string()), coerce=BOTH).to_arrow(),
        pa.field("n", pa.int64()),
    ]
)


def decode(*values: Any, payload: pa.Schema = PAYLOAD) -> Decoded:
    texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return decoder("json", payload).decode(pa.array(texts, pa.binary()))


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('"plain"', "plain"),
        ('"a \\"b\\" \\u00e9 \\ud83d\\ude00\\n"', 'a "b" é 😀\n'),
        ('""', ""),
        ("12", "12"),
        ("1.70", "1.70"),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("true", "true"),
        ("null", None),
        ('{"b": 1,  "a":"x"}', '{"b": 1,  "a":"x"}'),
        ('[1,"two"]', '[1,"two"]'),
    ],
)
def test_a_text_column_stores_text_plainly_and_anything_else_as_its_json(text: str, stored: str | None):
    found = decode(b'{"s": "x"}', f'{{"s": {text}}}'.encode(), f'{{"inner": {{"s": {text}}}}}'.encode())
    assert not found.rejects.detail
    first, second, third = found.rows.to_pylist()
    assert (first["s"], second["s"], third["inner"]["s"]) == ("x", stored, stored)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("2023-11-14T22:13:20Z", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("2023-11-14T23:13:20.5+01:00", datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)),
        (1_700_000_000_000_001, datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_timestamp_column_takes_text_and_numbers(value: Any, stored: datetime | None):
    found = decode({"at": 0}, {"at": "1970-01-01T00:00:00Z"}, {"at": value}, {"inner": {"at": value}})
    assert not found.rejects.detail
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    one, two, three, four = found.rows.to_pylist()
    assert (one["at"], two["at"], three["at"], four["inner"]["at"]) == (epoch, epoch, stored, stored)


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        ("yesterday", Reason.TIMESTAMP, "expected a date and time with zone (RFC 3339), saw text 'yesterday'"),
        (1.5, Reason.TYPE, "expected timestamp, saw the number 1.5"),
        (True, Reason.TYPE, "expected timestamp, saw true"),
        (10**20, Reason.TIMESTAMP, "the number 100000000000000000000 is not a time in us, years 1 to 9999"),
        ({}, Reason.TYPE, "expected timestamp, saw an object"),
    ],
)
def test_what_is_no_time_is_a_dead_letter(value: Any, reason: Reason, detail: str):
    found = decode({"at": 1}, {"at": value}, {"inner": {"at": value}})
    assert found.index.to_pylist() == [0]
    assert found.rejects.reason == [reason, reason]
    assert found.rejects.detail == [f"at: {detail}", f"inner.at: {detail}"]


def test_half_of_a_surrogate_pair_is_a_dead_letter():
    found = decode(b'{"s": "\\ud800"}', b'{"s": "x"}')
    assert (found.index.to_pylist(), found.rejects.reason) == ([1], [Reason.ENCODING])


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TIME = st.none() | st.integers(-(10**15), 10**15) | st.just("2023-11-14T22:13:20Z")
INNERS = st.none() | st.fixed_dictionaries({"s": ANY, "n": st.integers(0, 9), "at": TIME})
ROW = st.fixed_dictionaries(
    {
        "s": ANY,
        "at": TIME,
        "texts": st.none() | st.lists(ANY, max_size=3),
        "inner": INNERS,
        "inners": st.none() | st.lists(INNERS, max_size=3),
        "named": st.none() | st.dictionaries(st.text("ab", max_size=2), ANY, max_size=2),
        "n": st.integers(0, 9),
    }
)


def expected(name: str, value: Any) -> Any:
    """The value of a column or field, as the reader of one value after the other would find it."""
    if value is None or name == "n":
        return value
    if name == "at":
        return 1_700_000_000_000_000 if isinstance(value, str) else value
    if name == "inner":
        return {key: expected(key, item) for key, item in value.items()}
    if name in ("texts", "inners"):
        return [expected("s" if name == "texts" else "inner", item) for item in value]
    if name == "named":
        return [(key, expected("s", item)) for key, item in value.items()]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with times as numbers, which Python compares exactly."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([item.with_type(as_numbers(item.type)) for item in kind])
    return pa.list_(as_numbers(kind.value_type)) if pa.types.is_list(kind) else kind


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_every_path_coerces_alike(values: list[dict[str, Any]], separators: tuple[str, str]):
    texts = [json.dumps(each, ensure_ascii=False, separators=separators).encode() for each in values]
    found = decode(*texts)
    assert not found.rejects.detail
    table = found.rows.cast(pa.schema([item.with_type(as_numbers(item.type)) for item in found.rows.schema]))
    texts_of = [{name: expected(name, value) for name, value in each.items()} for each in values]
    assert [same_spaces(row) for row in table.to_pylist()] == [same_spaces(row) for row in texts_of]


def same_spaces(value: Any) -> Any:
    """Texts that are JSON as their values: the original text has the spaces of its producer."""
    if isinstance(value, dict):
        return {key: same_spaces(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [same_spaces(item) for item in value]
    try:
        return value if not isinstance(value, str) else ("JSON", json.loads(value))
    except ValueError:
        return value


# ---- typed formats ----


def fit(kind: pa.DataType, values: list[Any], column: pa.DataType) -> Decoded:
    layout = payload_schema_of(pa.schema([PayloadField("v", column, coerce=BOTH).to_arrow()]))
    natural = pa.table({"v": pa.array(values, kind)})
    return fit_values(natural, np.arange(len(values)), layout, "ignore", Rejects())


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.string(), "x", "x"),
        (pa.string(), '"x"', '"x"'),
        (pa.int64(), 5, "5"),
        (pa.bool_(), True, "true"),
        (pa.struct([("a", pa.int64())]), {"a": 1}, '{"a":1}'),
        (pa.list_(pa.string()), ["a"], '["a"]'),
        (UTC_TIME, 0, "1970-01-01T00:00:00.000000Z"),
    ],
)
def test_typed_values_in_a_text_column(kind: pa.DataType, value: Any, stored: str):
    found = fit(kind, [value, None], pa.string())
    assert (found.rows["v"].to_pylist(), found.rejects.detail) == ([stored, None], [])


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.string(), "1970-01-01T00:00:00.000005Z"), (pa.int64(), 5), (UTC_TIME, 5)]
)
def test_typed_values_in_a_timestamp_column(kind: pa.DataType, value: Any):
    found = fit(kind, [value, None], UTC_TIME)
    assert found.rows["v"].cast(pa.int64()).to_pylist() == [5, None]


def test_a_typed_value_that_is_no_time():
    found = fit(pa.string(), ["x"], UTC_TIME)
    assert found.rejects.reason == [Reason.TIMESTAMP]


def test_json_texts_of_typed_formats():
    values = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['"a\\n"', "5", '{"b":1}', None]))
    layout = payload_schema_of(pa.schema([PayloadField("v", pa.string(), coerce=BOTH).to_arrow()]))
    found = fit_values(pa.table({"v": values}), np.arange(4), layout, "ignore", Rejects())
    assert found.rows["v"].to_pylist() == ["a\n", "5", '{"b":1}', None]


# ---- in a pipeline ----


def test_an_inferred_column_with_values_of_several_types_is_text():
    plan = plan_of(table={"coerce": {"string": True}})
    applied = plan.apply(envelopes([{"id": "a"}, {"id": 5}, {"id": {"b": True}}]))
    assert [row["id"] for row in rows(applied)] == ["a", "5", '{"b": true}']
    assert not applied.tables[RouteId("")].schema.field("id").metadata
    later = plan.apply(envelopes([{"id": [1]}, {"id": "b"}]))
    assert [row["id"] for row in rows(later)] == ["[1]", "b"]


def test_columns_of_an_existing_table_are_coerced():
    existing = pa.schema([("s", pa.string()), ("at", UTC_TIME), ("n", pa.int64())])
    plan = plan_of(
        {"": existing}, table={"create": "never", "source": False, "coerce": {"string": True, "timestamp": "ms"}}
    )
    applied = plan.apply(envelopes([{"s": 1, "at": 5, "n": 1}, {"s": "x", "at": "1970-01-01T00:00:00Z"}, {"n": "x"}]))
    assert [(row["s"], row["at"].microsecond) for row in rows(applied)] == [("1", 5000), ("x", 0)]
    assert letters(applied) == [(2, "decode", "type")]


def test_declared_columns_with_a_reading_of_their_own_are_not_coerced():
    columns = [{"name": "j", "type": "string", "json": True}, {"name": "at", "type": "timestamp", "unit": "s"}]
    plan = plan_of(table={"columns": columns, "coerce": {"string": True, "timestamp": "us"}})
    applied = plan.apply(envelopes([{"j": "x", "at": 1}, {"at": "1970-01-01T00:00:00Z"}]))
    assert [(row["j"], row["at"].second) for row in rows(applied)] == [('"x"', 1)]
    assert letters(applied) == [(1, "decode", "type")]


@pytest.mark.parametrize(
    "contract", [{"wrong_type": "rescue"}, {"new_field": "rescue"}, {"wrong_type": "widen"}], ids=str
)
def test_coerce_excludes_contracts_for_wrong_types(contract: dict[str, str]):
    with pytest.raises(SpecError, match=r"coerce with (rescue|widen)"):
        spec_of(table={"coerce": {"string": True}, "contract": contract, "features": ["typeWidening"]})
