"""What the JSON decoder makes of single things: paths, defaults, units, original text, new fields."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.decode.base import Decoded
from headrace.decode.decoders import decoder
from headrace.decode.payload_field import PayloadField
from headrace.errors import ContractViolation, UsageError
from headrace.reasons import Reason

TIMESTAMP = pa.timestamp("us", "UTC")


def field(name: str, kind: pa.DataType, nullable: bool = True, **reading: Any) -> pa.Field:
    return PayloadField(name, kind, nullable, **reading).to_arrow()


def decode(fields: list[pa.Field], *values: bytes, new_field: str = "ignore") -> Decoded:
    return decoder("json", pa.schema(fields), new_field=new_field).decode(pa.array(values, pa.binary()))


def one(item: pa.Field, text: str) -> object:
    """The value a column takes, or the reason it does not; asked beside a good row, so that both ways are used."""
    found = decode([item], json.dumps({item.name: 0})[:-2].encode() + text.encode() + b"}", b"{}")
    return found.rejects.reason[0] if 0 in found.rejects.index else found.rows[item.name][0].as_py()


def test_rows_keep_the_order_of_the_input():
    found = decode([field("a", pa.int64())], b'{"a":1}', b'{"a":"x"}', b' {"a":2} ', b'\xef\xbb\xbf{"a":3}', b'{"a":4}')
    assert found.index.to_pylist() == [0, 2, 3, 4]
    assert found.rows["a"].to_pylist() == [1, 2, 3, 4]
    assert found.rejects.index == [1]
    assert found.rejects.detail == ["a: expected long, saw text 'x'"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-01T12:00:00Z", datetime(2024, 5, 1, 12, tzinfo=UTC)),
        ("2024-05-01t12:00:00z", datetime(2024, 5, 1, 12, tzinfo=UTC)),
        ("2024-05-01T12:00:00.1234567899+02:00", datetime(2024, 5, 1, 10, 0, 0, 123456, UTC)),
        ("1969-12-31T23:59:59.9999999Z", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        ("2024-02-29T00:00:00-23:59", datetime(2024, 2, 29, 23, 59, tzinfo=UTC)),
        ("2023-02-29T00:00:00Z", Reason.TIMESTAMP),
        ("2024-05-01T24:00:00Z", Reason.TIMESTAMP),
        ("2024-05-01T12:00:00+24:00", Reason.TIMESTAMP),
        ("2024-05-01T12:00Z", Reason.TIMESTAMP),
        ("2024-05-01T12:00:00+0200", Reason.TIMESTAMP),
        ("2024-05-01T12:00:00,5Z", Reason.TIMESTAMP),
        ("2024-05-01", Reason.TIMESTAMP),
        ("٢٠٢٤-05-01T12:00:00Z", Reason.TIMESTAMP),
    ],
)
def test_moments(text, expected):
    assert one(field("at", TIMESTAMP), json.dumps(text)) == expected


def test_moments_without_zone():
    plain = datetime(2024, 5, 1, 12)
    assert one(field("at", pa.timestamp("us")), '"2024-05-01T12:00:00"') == plain
    assert one(field("at", pa.timestamp("us")), '"2024-05-01T12:00:00Z"') == Reason.TIMESTAMP
    local = field("at", TIMESTAMP, unit="local-utc")
    assert one(local, '"2024-05-01T12:00:00"') == plain.replace(tzinfo=UTC)
    assert one(local, '"2024-05-01T14:00:00+02:00"') == plain.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "text", "micros"),
    [
        ("s", "1714564800", 0),
        ("ms", "1714564800001", 1000),
        ("us", "1714564800000001", 1),
        ("ns", "1714564800000001999", 1),
    ],
)
def test_moments_as_numbers(unit, text, micros):
    assert one(field("at", TIMESTAMP, unit=unit), text) == datetime(2024, 5, 1, 12, 0, 0, micros, UTC)
    assert one(field("at", TIMESTAMP, unit=unit), f'"{text}"') == Reason.TYPE
    assert one(field("at", TIMESTAMP, unit=unit), "1.5") == Reason.TYPE


def test_a_number_in_the_wrong_unit_is_no_time():
    assert one(field("at", TIMESTAMP, unit="s"), "1714564800000000") == Reason.TIMESTAMP
    assert one(field("at", TIMESTAMP, unit="ns"), "-1") == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)


def test_dates_and_bytes():
    assert one(field("d", pa.date32()), '"2024-02-29"') == date(2024, 2, 29)
    assert one(field("d", pa.date32()), '"2024-W09-4"') == Reason.TIMESTAMP
    assert one(field("d", pa.date32()), '"20240229"') == Reason.TIMESTAMP
    assert one(field("b", pa.binary()), '"AP8="') == b"\x00\xff"
    assert one(field("b", pa.binary()), '"AP8"') == Reason.TYPE
    assert one(field("b", pa.binary()), '"AP9="') == Reason.TYPE
    assert one(field("b", pa.binary()), '"AP-_"') == Reason.TYPE


def test_numbers_keep_their_digits():
    price = field("p", pa.decimal128(38, 18))
    assert one(price, "0.123456789012345678") == Decimal("0.123456789012345678")
    assert one(price, "0.1234567890123456789") == Reason.OVERFLOW
    assert one(price, "12345678901234567890.5") == Decimal("12345678901234567890.5")
    assert one(price, "1.70") == Decimal("1.7")
    assert one(price, "1e2") == 100
    assert one(price, '"1"') == Reason.TYPE
    assert one(field("f", pa.float32()), "16777217") == 16777216.0
    assert one(field("f", pa.float32()), "1e39") == Reason.OVERFLOW
    assert one(field("d", pa.float64()), "18446744073709551617") == 2.0**64


def test_original_text_is_cut_not_written_again():
    kept = field("raw", pa.string(), json_text=True)
    for text in ["1.70", "0.1234567890123456789", "1E5", '"\\u00e9"', '{ "b" : 1, "a":[ 1.0 ] }', "[]", "true", '"x"']:
        found = decode([field("id", pa.int64()), kept], b'{"id":1,"raw":' + text.encode() + b"}")
        assert found.rows["raw"].to_pylist() == [text]
        found = decode([field("id", pa.int64()), kept], b'{ "raw" : ' + text.encode() + b'\n, "id":1}')
        assert found.rows["raw"].to_pylist() == [text]
    assert decode([kept], b'{"raw":null}', b"{}").rows["raw"].to_pylist() == [None, None]
    assert decode([kept], b'{"raw":{"a":1,"a":2}}').rejects.reason == [Reason.DUPLICATE_KEY]


def test_original_text_inside_lists_and_objects():
    inner = pa.struct([field("k", pa.int64()), field("raw", pa.string(), json_text=True)])
    rows = decode(
        [field("all", pa.list_(pa.field("element", inner)))], b'{"all":[{"k":1,"raw":{"x": 1.0}},{"raw":[]}]}'
    ).rows
    assert rows["all"].to_pylist() == [[{"k": 1, "raw": '{"x": 1.0}'}, {"k": None, "raw": "[]"}]]


def test_paths_reach_into_the_value():
    fields = [field("city", pa.string(), path="user.address.city"), field("age", pa.int64(), path="user.age")]
    found = decode(
        fields, b'{"user":{"address":{"city":"x"},"age":3}}', b'{"user":null}', b'{"user":{"address":5}}', b"{}"
    )
    assert found.rows.to_pylist() == [{"city": "x", "age": 3}, {"city": None, "age": None}, {"city": None, "age": None}]
    assert found.rejects.detail == ["user.address: expected an object, saw the number 5"]


def test_two_columns_may_read_one_place():
    fields = [
        field("user", pa.string(), json_text=True),
        field("age", pa.int64(), path="user.age"),
        field("again", pa.int64(), path="user.age"),
    ]
    found = decode(fields, b'{"user":{"age": 3}}')
    assert found.rows.to_pylist() == [{"user": '{"age": 3}', "age": 3, "again": 3}]
    assert found.ignored == {}


def test_defaults_stand_for_what_is_absent():
    fields = [field("n", pa.int64(), nullable=False, default="7"), field("s", pa.string(), default='"x"')]
    found = decode(fields, b"{}", b'{"s":null}', b'{"n":null}', b'{"n":1,"s":"y"}')
    assert found.rows.to_pylist() == [{"n": 7, "s": "x"}, {"n": 7, "s": None}, {"n": 1, "s": "y"}]
    assert found.rejects.reason == [Reason.MISSING]
    with pytest.raises(UsageError, match="default of column 'n'"):
        decode([field("n", pa.int64(), default='"x"')], b"{}")


def test_a_default_deeper_down():
    inner = pa.struct([field("n", pa.int64(), nullable=False, default="7")])
    found = decode([field("o", inner)], b'{"o":{}}', b"{}", b'{"o":{"n":null}}')
    assert found.rows.to_pylist() == [{"o": {"n": 7}}, {"o": None}]
    assert found.rejects.reason == [Reason.MISSING]


def test_required_at_every_depth():
    element = pa.field("element", pa.struct([pa.field("k", pa.int64(), nullable=False)]), nullable=False)
    fields = [
        field("all", pa.list_(element)),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), False))),
    ]
    values = [b'{"all":[{"k":1}],"m":{"a":1}}', b'{"all":[null]}', b'{"all":[{"k":1},{}]}', b'{"m":{"a":null}}', b"{}"]
    found = decode(fields, *values)
    assert found.index.to_pylist() == [0, 4]
    assert found.rejects.reason == [Reason.MISSING] * 3
    assert found.rejects.detail[1] == "all[1].k: required, and absent or null"


def test_skipped_keys_are_known_and_not_decoded():
    found = decode(
        [field("a", pa.int64()), field("b", pa.int64(), skipped=True)], b'{"a":1,"b":{"x":[1]}}', b'{"b":NaN}'
    )
    assert found.rows.to_pylist() == [{"a": 1}]
    assert found.ignored == {}
    assert found.rejects.reason == [Reason.MALFORMED]


def test_ignored_fields_are_named_and_counted():
    fields = [field("a", pa.int64()), field("o", pa.struct([field("k", pa.int64())]))]
    values = [b'{"a":1,"x":1}', b'{"x":{"deep":[1]},"o":{"k":1,"new":2}}', b'{"a":"bad","x":1}', b'{"o":{"k":1}}']
    found = decode(fields, *values)
    assert found.ignored == {"x": 2, "o.new": 1}
    assert decode(fields, *values).ignored == found.ignored
    many = decode(fields, *[json.dumps({f"k{at}": at}).encode() for at in range(500)])
    assert len(many.ignored) == 201
    assert sum(many.ignored.values()) == 500


def test_reject_and_stop_name_the_new_field():
    fields = [field("a", pa.int64()), field("o", pa.struct([field("k", pa.int64())]))]
    found = decode(fields, b'{"a":1}', b'{"o":{"new":1}}', b'{"o":{"k":null},"x":null}', new_field="reject")
    assert found.rejects.reason == [Reason.NEW_FIELD] * 2
    assert found.rejects.detail[0].startswith("o.new:")
    with pytest.raises(ContractViolation, match=r"o\.new"):
        decode(fields, b'{"a":1}', b'{"o":{"new":1}}', new_field="stop")


def test_evolve_tells_what_is_unknown_of_good_values_only():
    fields = [field("a", pa.int64()), field("o", pa.struct([field("k", pa.int64())]))]
    values = [
        b'{"a":1,"x":1}',
        b'{"a":"bad","garbage":1}',
        b'{"x":2.5,"o":{"n":"t"}}',
        b'{"a":5,"only_null":null}',
        b'{"cut":',
    ]
    found = decode(fields, *values, new_field="evolve")
    assert found.unknown == {
        "type": "struct",
        "fields": {
            "x": {"type": "double"},
            "o": {"type": "struct", "fields": {"n": {"type": "string"}}},
            "only_null": {"type": "null"},
        },
    }
    assert len(found.rows) == 3
    assert decode(fields, b'{"a":1,"only_null":null}', new_field="evolve").unknown is None
    assert decode(fields, b'{"a":1}', new_field="evolve").unknown is None


@pytest.mark.parametrize(
    "name", ["a b", "a=", "", "x" * 256, "_source", "_change_type", "_headrace", "_Headrace_nth", "A", "a;b", "tab\t"]
)
def test_names_that_cannot_be_columns(name):
    value = json.dumps({"a1": 1, name: 1}).encode()
    fields = [field("a1", pa.int64()), field("a", pa.int64())]
    assert decode(fields, value, new_field="evolve").rejects.reason == [Reason.BAD_NAME]
    ignored = decode(fields, value)
    assert ignored.rejects.reason == ([Reason.BAD_NAME] if name == "A" else [])


def test_a_column_read_from_elsewhere_keeps_its_name():
    fields = [field("x", pa.int64(), path="y")]
    assert decode(fields, b'{"y":1,"x":2}', new_field="evolve").rejects.reason == [Reason.BAD_NAME]
    assert decode(fields, b'{"y":1,"x":2}').rows["x"].to_pylist() == [1]


def test_columns_that_differ_only_in_case_are_refused():
    with pytest.raises(UsageError, match="differ only in case"):
        decoder("json", pa.schema([("id", pa.int64()), ("ID", pa.int64())]))
    with pytest.raises(UsageError, match="'xml' is not a format"):
        decoder("xml", pa.schema([]))


def test_odd_names_take_the_exact_way():
    odd = ['quo"te', "back\\slash", "new\nline"]
    found = decode(
        [field(name, pa.int64()) for name in odd], json.dumps({name: at for at, name in enumerate(odd)}).encode()
    )
    assert found.rows.to_pylist() == [{name: at for at, name in enumerate(odd)}]


def test_peek_finds_scalars_as_text():
    values = [
        b'{"a":{"b":"x"}}',
        b'{"a":{"b":1.70}}',
        b'{"a":{"b":true}}',
        b'{"a":{"b":null}}',
        b'{"a":5}',
        b'{"a":{"b":{}}}',
        b'{"a":',
        b'{"a":{"b":18446744073709551616}}',
        b"[1]",
        None,
    ]
    texts, rejects = decoder("json", pa.schema([])).peek(pa.array(values, pa.binary()), "a.b")
    assert texts.to_pylist() == ["x", "1.70", "true", None, None, None, None, "18446744073709551616", None, None]
    assert rejects.index == [5, 6, 8, 9]
    assert rejects.reason == [Reason.TYPE, Reason.MALFORMED, Reason.NOT_AN_OBJECT, Reason.TOMBSTONE]
    pointed, _ = decoder("json", pa.schema([])).peek(pa.array([b'{"a/b":{"~":"y"}}'], pa.binary()), "/a~1b/~0")
    assert pointed.to_pylist() == ["y"]


def test_details_are_short_and_never_the_whole_value():
    found = decode([field("a", pa.int64())], json.dumps({"a": "secret" * 100}).encode())
    assert len(found.rejects.detail[0]) < 100
    found = decode([field("a" * 600, pa.int64())], json.dumps({"a" * 600: "x"}).encode())
    assert len(found.rejects.detail[0]) == 512


def test_what_is_no_object_is_no_row_of_nulls():
    values = [b"[]", b"5", b'"{"', b"null", b"[{}]", b"{}"]
    found = decode([field("a", pa.int64())], *values)
    assert found.index.to_pylist() == [5]
    assert found.rejects.reason == [Reason.NOT_AN_OBJECT] * 5


def test_a_learned_field_proves_no_more_than_before():
    """What one batch teaches must not let the next one pass with a key twice, in two cases, or as an element."""
    taught = decoder("json", pa.schema([field("a", pa.int64())]))
    lesson = [b'{"a":1,"x":1,"o":{"0":1,"k":{"m":"t"}},"l":[{"n":1}]}', b'{"a":1,"X":1}', b'{"o":{"k":null}}']
    assert taught.decode(pa.array(lesson, pa.binary())).ignored == {"x": 1, "X": 1, "o": 2, "l": 1}
    values = [
        b'{"a":1,"x":1,"X":1}',
        b'{"a":1,"x":1,"x":1}',
        b'{"a":1,"o":{"k":{"m":1,"m":1}}}',
        b'{"a":1,"o":{"k":1,"k":1}}',
        b'{"a":1,"o":[7],"a":1}',
        b'{"a":1,"l":[{"n":1,"n":1}]}',
        b'{"a":1,"x":NaN}',
        b'{"a":1,"l":[{"n":[nan]}]}',
        b'{"a":2,"x":"t","o":{"k":{"m":[]}},"l":[{"n":2},{}]}',
    ]
    found = taught.decode(pa.array(values, pa.binary()))
    assert found.rejects.reason == [Reason.DUPLICATE_KEY] * 6 + [Reason.MALFORMED] * 2
    assert found.rows["a"].to_pylist() == [2]
    assert found.ignored == {"x": 1, "o": 1, "l": 1}


def test_a_learned_field_takes_the_fast_way():
    taught = decoder("json", pa.schema([field("a", pa.int64())]))
    taught._members, taught._templates._idle = None, 9  # only the proof is left
    values = pa.array([b'{"a":1,"x":"t","o":{"k":1},"l":[{"n":1},{"n":2}]}'] * 10, pa.binary())
    taught.decode(values)
    assert taught._prover.prove(values.cast(pa.string())).proven.all()
    assert taught.decode(values).ignored == {"x": 10, "o": 10, "l": 10}


def test_fields_ignored_inside_a_list():
    fields = [field("all", pa.list_(pa.field("element", pa.struct([field("k", pa.int64())]))))]
    taught = decoder("json", pa.schema(fields))
    taught._members = None  # only the proof is left
    values = pa.array(
        [b'{"all":[{"k":1,"new":1},{"k":2}]}', b'{"all":[]}', b'{"all":[{"new":1},{"new":2}]}'], pa.binary()
    )
    for _ in range(3):
        found = taught.decode(values)
        assert found.ignored == {"all.new": 2}
        assert found.rows["all"].to_pylist() == [[{"k": 1}, {"k": 2}], [], [{"k": None}, {"k": None}]]
    assert taught._prover.prove(values.cast(pa.string())).proven.all()


def test_names_that_hold_a_wildcard_or_look_like_an_index():
    fields = [field("*", pa.int64()), field("0", pa.int64()), field("o", pa.struct([field("0", pa.int64())]))]
    found = decode(fields, b'{"*":1,"0":2,"o":{"0":3}}', b'{"o":[4]}')
    assert found.rows.to_pylist() == [{"*": 1, "0": 2, "o": {"0": 3}}]
    assert found.rejects.reason == [Reason.TYPE]
    assert decode(fields[1:], b'{"0":2,"o":{"0":3}}', b'{"o":[4]}').rows.to_pylist() == [{"0": 2, "o": {"0": 3}}]


def test_an_error_that_cuts_a_character_is_still_an_error():
    """DuckDB quotes some bytes around a fault, wherever they end; the good values beside it must not suffer."""
    schema = pa.schema([("a", pa.string()), ("b", pa.bool_())])
    for length in range(80):
        values = [b'{"b":[,],"a":"' + b"x" * length + "é😀".encode() * 9 + b'"}', b'{"b":true}']
        found = decoder("json", schema).decode(pa.array(values, pa.binary()))
        assert found.rejects.reason == [Reason.MALFORMED]
        assert found.index.to_pylist() == [1]
