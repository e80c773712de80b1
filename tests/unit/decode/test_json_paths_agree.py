"""The fast way and the exact way say the same of every value, whatever the schema."""

from __future__ import annotations

import json
import math
import string

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.decode.base import Decoded, DecodeLimits
from headrace.decode.json.decoder import JsonDecoder
from headrace.decode.payload_field import PayloadField, is_json_text, json_field, payload_field

NAMES = ["a", "b", "c", "id", "x.y", "we ird", "ü", "sl/ash", "til~de"]
SCALARS = [
    pa.bool_(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(9, 2),
    pa.decimal128(38, 10),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
]
TEXTS = [
    "",
    "x",
    "12",
    "true",
    '"quoted": "text"',
    "a,]b,}c",
    "ü😀\0",
    "\\u",
    "QUI=",
    "QQ==",
    "QR==",
    "NaN",
    "2024-02-29",
    "2023-02-29",
    "0000-01-01",
    "2024-01-01T00:00:00Z",
    "2024-01-01t00:00:00z",
    "2024-01-01T00:00:00.123456789+05:30",
    "2024-01-01T00:00:00",
    "2024-12-31T23:59:60Z",
    "0001-01-01T00:00:00+10:00",
    "9999-12-31T23:59:59.999999Z",
    "2024-01-01 00:00:00Z",
    "2024-W01-1",
]
NUMBERS = [
    "0",
    "-0",
    "1",
    "-1",
    "127",
    "128",
    "-129",
    "1.0",
    "1e3",
    "1.70",
    "0.1",
    "-0.0",
    "12345.67",
    "12345.678",
    "1e-7",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "123456789012345678901234567890",
    "0.1234567890123456789",
    "12.340000000000000001",
    "0.1000000000000000055",
    "12.34000000000000",
    "340282366920938463463374607431768211457",
    "3.4028235e38",
    "1e-400",
    "1e39",
    "1e308",
    "1e400",
    "1714564800",
    "1714564800123",
    "-1",
    "16777217",
]
STRANGERS = ["new", "new", "new", "NEW", "A", "0", "*", "_source", "other=", "", "n" * 300]
STRANGE = [
    *NUMBERS[:9],
    '"t"',
    "[]",
    "{}",
    "[5]",
    "[[1]]",
    "[NaN]",
    "NaN",
    '{"k":1.5}',
    '{"k":1,"k":2}',
    '{"0":1}',
    '{"k":{"m":[1,{"n":null}]}}',
    '{"k":[{"m":1},{"m":2,"o":"x"}]}',
    '{"k":[{"m":1,"m":2}]}',
    '{"K":1,"k":inf}',
    '[{"m":1},{"m":{"n":[]}}]',
]
ENDS = [""] * 18 + [" ", "\n", ",", ", "]
BROKEN = ["NaN", "Infinity", "-inf", "tru", "01", "+1", "1.", "[1,]", '{"a":1,}', '"\\ud800"', "'x'", ""]


def fields(depth: int, names: list[str] = NAMES) -> st.SearchStrategy[list[pa.Field]]:
    def build(picked: list[str]) -> st.SearchStrategy[list[pa.Field]]:
        return st.tuples(*(field(name, depth) for name in picked)).map(list)

    return st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).flatmap(build)


def field(name: str, depth: int) -> st.SearchStrategy[pa.Field]:
    return st.builds(
        lambda kind, nullable, reading: _field(name, kind, nullable, reading),
        types(depth),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([""] * 6 + ["json", "ms", "ns", "local-utc"]),
    )


def _field(name: str, kind: pa.DataType, nullable: bool, reading: str) -> pa.Field:
    if reading == "json":
        return json_field(name, nullable)
    return PayloadField(name, kind, nullable, unit=reading if pa.types.is_timestamp(kind) else "").to_arrow()


def types(depth: int) -> st.SearchStrategy[pa.DataType]:
    scalar = st.sampled_from(SCALARS)
    if depth == 0:
        return scalar
    inner = types(depth - 1)
    return st.one_of(
        scalar,
        scalar,
        fields(depth - 1).map(pa.struct),
        st.builds(lambda kind, null: pa.list_(pa.field("element", kind, null)), inner, st.booleans()),
        st.builds(lambda kind, null: pa.map_(pa.string(), pa.field("value", kind, null)), inner, st.booleans()),
    )


@st.composite
def texts(draw, schema: pa.Schema) -> str:
    """A value that mostly fits, with its faults; written with or without white space."""
    if draw(st.integers(0, 14)) == 0:
        return draw(st.sampled_from(["[]", "5", '"{"', "null", " {}", "{}{}", "{}\n", "[{}]"]))
    return draw(_object(list(schema), draw(st.sampled_from(["", " ", "\n  "]))))


@st.composite
def _object(draw, items: list[pa.Field], gap: str) -> str:
    members = []
    for item in items:
        chance = draw(st.integers(0, 19))
        if chance == 0:
            continue
        value = "null" if chance == 1 else draw(_value(item, gap))
        members.append(f"{json.dumps(item.name)}:{gap}{value}")
        if chance == 2:
            members.append(f"{json.dumps(draw(st.sampled_from([item.name, item.name.upper()])))}:{gap}{value}")
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        members.append(f"{json.dumps(draw(st.sampled_from(STRANGERS)))}:{gap}{draw(st.sampled_from(STRANGE))}")
    return "{" + f",{gap}".join(members) + draw(st.sampled_from(ENDS)) + "}"


@st.composite
def _value(draw, item: pa.Field, gap: str) -> str:
    if draw(st.integers(0, 24)) == 0:
        return draw(st.sampled_from([*BROKEN, *NUMBERS, "{}", "[]", "true", '"5"', '{"k":[[[1]]]}']))
    kind = item.type
    if is_json_text(item):
        return draw(st.sampled_from(["1", "1.70", '"é"', '"\\u00e9"', '{"k":[1,{"m":null}]}', "[ 1,2 ]", '{"k": 1.0}']))
    if pa.types.is_struct(kind):
        return draw(_object(list(kind), gap))
    if pa.types.is_map(kind):
        keys = draw(st.lists(st.sampled_from(["k", "K", "l", "m m"]), max_size=3, unique=True))
        return draw(_object([pa.field(key, kind.item_type) for key in keys], gap))
    if pa.types.is_list(kind):
        values = [draw(_value(kind.value_field, gap)) for _ in range(draw(st.integers(0, 3)))]
        if draw(st.integers(0, 9)) == 0:
            values.append("null")
        return "[" + f",{gap}".join(values) + draw(st.sampled_from(ENDS)) + "]"
    return draw(_scalar(kind, payload_field(item).unit))


def _scalar(kind: pa.DataType, unit: str) -> st.SearchStrategy[str]:
    if pa.types.is_boolean(kind):
        return st.sampled_from(["true", "false"])
    if pa.types.is_integer(kind) or (pa.types.is_timestamp(kind) and unit in ("ms", "ns")):
        return st.one_of(st.integers(-130, 130).map(str), st.sampled_from(NUMBERS))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        floats = st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr)
        return st.one_of(st.integers(-(10**6), 10**6).map(lambda n: str(n / 100)), floats, st.sampled_from(NUMBERS))
    letters = st.text(string.printable, max_size=5)
    return st.one_of(st.sampled_from(TEXTS), letters).map(json.dumps)


@st.composite
def cases(draw):
    schema = pa.schema(draw(fields(2, NAMES)))
    values = draw(st.lists(texts(schema), min_size=1, max_size=8))
    return schema, [value.encode() for value in values], draw(st.sampled_from(["ignore", "evolve", "reject"]))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_both_ways_agree(case):
    schema, values, new_field = case
    both, exact = JsonDecoder(schema, new_field, DecodeLimits()), JsonDecoder(schema, new_field, DecodeLimits())
    assert both._prover is not None
    exact._prover = None
    # What the first batch teaches the fast way must not change what it says of the next.
    for some in (values[: len(values) // 2], values, values[::-1]):
        column = pa.array(some, pa.binary())
        assert_same(both.decode(column), exact.decode(column), some)


@st.composite
def alike(draw):
    """Values that one producer wrote: the same keys in the same order, and now and then a fault."""
    schema = pa.schema(draw(fields(2, NAMES)))
    others = draw(st.lists(st.sampled_from([*NAMES, *STRANGERS]), max_size=2))
    gap = draw(st.sampled_from(["", " ", "\n  "]))
    known = draw(st.permutations(list(schema)))[: draw(st.integers(1, 4))]
    shown = [*known, *(pa.field(name, draw(types(1))) for name in others if name not in schema.names)]
    keys = [f"{json.dumps(item.name, ensure_ascii=False)}:{gap}" for item in shown]
    written = [st.one_of(*[_value(item, gap)] * 4, st.just("null")) for item in shown]
    values = [
        "{" + f",{gap}".join(key + draw(value) for key, value in zip(keys, written, strict=True)) + "}"
        for _ in range(draw(st.integers(2, 8)))
    ]
    return schema, [value.encode() for value in values], draw(st.sampled_from(["ignore", "ignore", "evolve"]))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(alike())
def test_values_of_one_pattern_agree(case):
    schema, values, new_field = case
    both, exact = JsonDecoder(schema, new_field, DecodeLimits()), JsonDecoder(schema, new_field, DecodeLimits())
    exact._prover = None
    for some in (values, values[::-1]):
        column = pa.array(some, pa.binary())
        assert_same(both.decode(column), exact.decode(column), some)


FORGED = [
    *NUMBERS,
    *BROKEN,
    *STRANGE,
    *map(json.dumps, TEXTS),
    *(
        "00",
        "-",
        "-01",
        "-00",
        "-00.0",
        ".5",
        "-.5",
        "1.e3",
        "1e",
        "1e+",
        "0x1F",
        "-0x1",
        "1_0",
        "1 ",
        "\t1",
        "1\v",
        "٣",
    ),
    *("nul", "nulll", "nope", "null ", "true", "false", "tru", "falsee", "True"),
    *(
        '"',
        '""',
        '"""',
        '"a"b"',
        '"a',
        'a"',
        '"\\',
        '"\\"',
        '"\t"',
        '"a\nb"',
        '"ü😀"',
        '":"',
        '"a":',
        '"a","b"',
        '"a":1,"b',
    ),
    *("[", "]", "[]", "[ ]", "[,]", "[null]", "[1,2]", "[1, 2]", "[1,2,]", "[1 ,2]", "[[1]]", "[1]]", '["a"', "1,2"),
    *('["a","b"]', '["a", "b"]', '["a",]', '["a""b"]', '["a"b","c"]', '["","",""]', '[""]', '["a\\","b"]', '[",",","]'),
    *(
        "[true,false]",
        "[1.5,2]",
        "[-0,01]",
        '["2024-01-01"]',
        '["2024-01-01",null]',
        '["QUI=","QQ=="]',
        "{}",
        '{"x":1}',
    ),
    *('1,"x":1', '1,"y":1', "1}", '1}{"a":1', '{"x":1},"a":2', '1,"end":"b"}\n{"a":1,"x":2'),
]


# A column's type and what its pattern is traced from; what nobody reads is taken for what it is there.
LISTS = [pa.list_(pa.field("element", kind)) for kind in SCALARS]
READ = [(kind, "null") for kind in [*SCALARS, *LISTS]]
UNREAD = [(None, first) for first in ("true", '"s"', "1.5", "[true]", '["s"]', "[1.5]", "null")]


@pytest.mark.parametrize(("kind", "first"), [*READ, *UNREAD], ids=str)
@pytest.mark.parametrize("gap", ["", " "])
def test_nothing_forged_passes_for_a_value(kind, first, gap):
    """Every fault stands among values of one pattern, where the quickest way has only their bytes to tell."""
    read = [] if kind is None else [("x", kind)]
    schema = pa.schema([("a", pa.int64()), *read, ("end", pa.string())])
    written = [f'{{"a":{gap}1,{gap}"x":{gap}{value},{gap}"end":{gap}"b"}}'.encode() for value in [first, *FORGED]]
    column = pa.array(written, pa.binary())
    both, exact = JsonDecoder(schema, "ignore", DecodeLimits()), JsonDecoder(schema, "ignore", DecodeLimits())
    exact._prover = None
    expected = exact.decode(column)
    assert_same(both.decode(column), expected, written)
    # The pattern is known by now; each value alone meets it too.
    assert both._templates._known
    for value in written:
        one = pa.array([value], pa.binary())
        assert_same(both.decode(one), exact.decode(one), [value])


def assert_same(one: Decoded, two: Decoded, values: list[bytes]) -> None:
    assert list(zip(one.rejects.index, one.rejects.reason, strict=True)) == list(
        zip(two.rejects.index, two.rejects.reason, strict=True)
    ), values
    assert one.rejects == two.rejects
    assert one.index.to_pylist() == two.index.to_pylist()
    assert one.rows.schema.equals(two.rows.schema, check_metadata=True)
    assert [_comparable(row) for row in one.rows.to_pylist()] == [_comparable(row) for row in two.rows.to_pylist()]
    assert one.ignored == two.ignored
    assert one.unknown == two.unknown
    one.rows.validate(full=True)
    two.rows.validate(full=True)


def _comparable(value):
    """Equal only when every bit is: -0.0 is not 0.0."""
    if isinstance(value, float):
        return (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return value


@pytest.mark.parametrize("new_field", ["ignore", "evolve", "reject"])
def test_the_fast_way_takes_what_is_common(new_field):
    """Missing and null fields, nested lists of objects and maps never cost a per-record call."""
    line = pa.struct([("sku", pa.string()), ("n", pa.int32()), ("price", pa.decimal128(9, 2))])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("lines", pa.list_(pa.field("element", line))),
            ("labels", pa.map_(pa.string(), pa.string())),
            ("address", pa.struct([("city", pa.string()), ("geo", pa.struct([("lat", pa.float64())]))])),
        ]
    )
    values = [
        b'{"id":1,"at":"2024-01-01T00:00:00.123456789Z","lines":[{"sku":"a","n":1,"price":9.90},{"sku":null}]}',
        b'{"labels":{"k":"v","K":null},"address":{"city":"x","geo":{"lat":1}}}',
        b'{"address":{"geo":null}, "id": null,\n "lines": []}',
        b"{}",
    ]
    decoder = JsonDecoder(schema, new_field, DecodeLimits())
    proof = decoder._prover.prove(pa.array([value.decode() for value in values]))
    assert proof.proven.all()
    assert len(decoder.decode(pa.array(values, pa.binary())).rows) == 4


def test_texts_with_hexadecimal_digits_are_no_long_numbers():
    """A row with a decimal is proven though its id looks like a number with an exponent."""
    schema = pa.schema([("id", pa.string()), ("price", pa.decimal128(9, 2))])
    values = [f'{{"id":"{each}","price":9.90}}' for each in ("41e238-1e123", "1e-400", "7e-999a")]
    proof = JsonDecoder(schema, "ignore", DecodeLimits())._prover.prove(pa.array(values))
    assert proof.proven.all()


@pytest.mark.parametrize("new_field", ["ignore", "evolve", "reject"])
def test_values_of_few_patterns_need_no_parser(new_field):
    """Spaced or not, with a field or without, null or not: two patterns are met in one batch, and all values fit."""
    user = pa.struct([("id", pa.int64()), ("name", pa.string())])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(9, 2)),
            ("rate", pa.float64()),
            ("user", user),
            ("tags", pa.list_(pa.field("element", pa.string()))),
            ("sizes", pa.list_(pa.field("element", pa.int32()))),
            ("ok", pa.bool_()),
            ("labels", pa.map_(pa.string(), pa.string())),
        ]
    )
    values = [
        b'{"user":{"id":5,"name":"\xc3\xbc"},"id":-1,"tags":["a","b"],"sizes":[1,2],"at":"2024-01-01T00:00:00Z","ok":true}',
        b'{"user":{"id":6,"name":null},"id":null,"tags":[],"sizes":[],"at":"2024-01-01T00:00:00.5+01:00","ok":false}',
        b'{"id": 7, "rate": 1e3, "price": 1.70, "tags": ["a, b", ""], "sizes": [3, 4], "labels": null, "user": null}\n',
        b'{"id": 0, "rate": -2, "price": 1234567.8, "tags": null, "sizes": [-5], "labels": null, "user": null}\n',
    ]
    decoder = JsonDecoder(schema, new_field, DecodeLimits())
    fitting = decoder._templates.fit(pa.array([value.decode() for value in values]))
    assert sorted(position for each in fitting for position in each.index.tolist()) == [0, 1, 2, 3]
    assert len(decoder.decode(pa.array(values, pa.binary())).rows) == 4


LISTS_OF_LISTS = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.bool_(), nullable=False))))


@pytest.mark.parametrize(
    ("item", "texts"),
    [
        (
            pa.field("a", LISTS_OF_LISTS),
            ['{"a":null}', '{"b":1,"a":null}', '{"a":[]}', '{"a":[[true]]}', '{"a":[null]}'],
        ),
        (json_field("a", True), ['{"a":1,"b":1}', '{"a": 1,"b":1}', '{"a": {"k":1},"b":1}', '{"a":[1] ,"b":1}']),
    ],
    ids=["null in place of a list of lists", "white space around a value kept as text"],
)
def test_values_that_are_not_read_by_columns_agree(item, texts):
    schema, values = pa.schema([item, ("b", pa.int64())]), [text.encode() for text in texts]
    both, exact = JsonDecoder(schema, "ignore", DecodeLimits()), JsonDecoder(schema, "ignore", DecodeLimits())
    exact._prover = None
    for some in (values, *([value] for value in values), values[::-1]):
        column = pa.array(some, pa.binary())
        assert_same(both.decode(column), exact.decode(column), some)


def test_a_schema_with_very_many_keys_is_read_without_tables_of_members():
    """Objects times keys would be a table of gigabytes; the other paths read the values."""
    objects = [(f"o{at}", pa.struct([(f"k{at}_{each}", pa.int64()) for each in range(4)])) for at in range(600)]
    decoder = JsonDecoder(pa.schema(objects), "ignore", DecodeLimits())
    assert decoder._members is None
    rows = decoder.decode(pa.array([b'{"o7":{"k7_2":5}}', b'{"o8":{"k8_1":6},"o7":{}}'], pa.binary())).rows
    assert [row["o7"] and row["o7"]["k7_2"] for row in rows.to_pylist()] == [5, None]
