"""Every format, the same promises: no value lost, doubled or changed by its neighbours, and nothing raised."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode import FORMATS, Decoded, Decoder, Limits, decoder
from headrace.reasons import Reason

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("inner", pa.struct([pa.field("n", pa.int32())])),
    ]
)


def good(number: int) -> bytes:
    row = {
        "id": number,
        "name": f"n{number}",
        "amount": number / 4,
        "price": number % 100,
        "at": "2024-05-01T12:00:00Z",
        "tags": ["a", "b"],
        "inner": {"n": number % 7},
    }
    return json.dumps({key: row[key] for key in row if key == "id" or (number + len(key)) % 5}).encode()


def nested(depth: int) -> bytes:
    return b'{"id":1,"x":' + b"[" * depth + b"]" * depth + b"}"


# The JSON poison of the guarantees (Q1-Q17), each with the one reason it must get.
JSON_POISON: list[tuple[bytes | None, Reason]] = [
    (b"", Reason.EMPTY),
    (None, Reason.TOMBSTONE),
    (b" \t\r\n", Reason.MALFORMED),
    (b'{"id":1', Reason.MALFORMED),
    (b'{"id":1,}', Reason.MALFORMED),
    (b'{"id":1 , \n}', Reason.MALFORMED),
    (b'{"id":1,"tags":["a",]}', Reason.MALFORMED),
    (b"{'id':1}", Reason.MALFORMED),
    (b'{"id":1,"name":"\x01"}', Reason.MALFORMED),
    (b'{"id":01}', Reason.MALFORMED),
    (b'{"id":1}//', Reason.TRAILING_DATA),
    (b'{"id":1,"name":"\x80"}', Reason.ENCODING),
    (b'{"id":1,"name":"\xc0\xaf"}', Reason.ENCODING),
    (b'{"id":1,"name":"\xed\xa0\x80"}', Reason.ENCODING),
    (b'{"id":1,"name":"\\ud800"}', Reason.ENCODING),
    (b'{"id":1,"\\udc00":1}', Reason.ENCODING),
    (b'{"id":9223372036854775808}', Reason.OVERFLOW),
    (b'{"id":-9223372036854775809}', Reason.OVERFLOW),
    (b'{"id":1' + b"0" * 400 + b"}", Reason.OVERFLOW),
    (b'{"id":1' + b"0" * 9000 + b"}", Reason.OVERFLOW),
    (b'{"id":1,"inner":{"n":2147483648}}', Reason.OVERFLOW),
    (b'{"id":1,"amount":1e400}', Reason.OVERFLOW),
    (b'{"id":1,"amount":-1e400}', Reason.OVERFLOW),
    (b'{"id":1.0}', Reason.TYPE),
    (b'{"id":1e3}', Reason.TYPE),
    (b'{"id":1.7}', Reason.TYPE),
    (b'{"id":"12"}', Reason.TYPE),
    (b'{"id":true}', Reason.TYPE),
    (b'{"id":1,"name":5}', Reason.TYPE),
    (b'{"id":1,"name":{}}', Reason.TYPE),
    (b'{"id":1,"amount":"1"}', Reason.TYPE),
    (b'{"id":1,"amount":NaN}', Reason.MALFORMED),
    (b'{"id":1,"amount":Infinity}', Reason.MALFORMED),
    (b'{"id":1,"amount":-Infinity}', Reason.MALFORMED),
    (b'{"id":1,"x":NaN}', Reason.MALFORMED),
    (b'{"id":1,"x":{"y":[nan]}}', Reason.MALFORMED),
    (b'{"id":1,"price":' + b"1" * 40 + b"}", Reason.OVERFLOW),
    (b'{"id":1,"price":0.' + b"0" * 38 + b"1}", Reason.OVERFLOW),
    (b'{"id":1,"price":1.234}', Reason.OVERFLOW),
    (b'{"id":1,"price":1.000000000000000000001}', Reason.OVERFLOW),
    (b'{"id":1,"id":2}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"ID":2}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"\\u0069d":2}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"inner":{"n":1,"n":1}}', Reason.DUPLICATE_KEY),
    (b'{"id":1,"x":[{"y":{"z":1,"z":1}}]}', Reason.DUPLICATE_KEY),
    (b'{"ID":1}', Reason.BAD_NAME),
    (nested(100), Reason.TOO_DEEP),
    (nested(1_000), Reason.TOO_DEEP),
    (nested(100_000), Reason.TOO_DEEP),
    (b'{"id":1,"x":' + b'{"y":' * 100_000, Reason.TOO_DEEP),
    (b"{" + b",".join(b'"k%d":1' % number for number in range(100_000)) + b"}", Reason.TOO_WIDE),
    (b'{"id":1,"name":"' + b"x" * (17 << 20) + b'"}', Reason.TOO_BIG),
    (b"[1,2]", Reason.NOT_AN_OBJECT),
    (b'"text"', Reason.NOT_AN_OBJECT),
    (b"5", Reason.NOT_AN_OBJECT),
    (b"true", Reason.NOT_AN_OBJECT),
    (b"null", Reason.NOT_AN_OBJECT),
    (b'{"id":1}{"id":2}', Reason.TRAILING_DATA),
    (b'{"id":1}\n{"id":2}', Reason.TRAILING_DATA),
    (b'{"id":1}\0', Reason.TRAILING_DATA),
    (b'{"id":1,"at":"0000-00-00"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"9999-12-31T23:59:60Z"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"2024-02-30T00:00:00Z"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"2024-01-01T00:00:00"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"2024-01-01 00:00:00Z"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":"0001-01-01T00:00:00+10:00"}', Reason.TIMESTAMP),
    (b'{"id":1,"at":1714564800}', Reason.TYPE),
    (b'{"name":"x"}', Reason.MISSING),
    (b'{"id":null}', Reason.MISSING),
    (b"{}", Reason.MISSING),
    (b'{"id":1,"tags":{"a":1}}', Reason.TYPE),
    (b'{"id":1,"tags":["a",1]}', Reason.TYPE),
    (b'{"id":1,"inner":[1]}', Reason.TYPE),
    (b'{"id":1,"inner":"n"}', Reason.TYPE),
]
POISON = {"json": JSON_POISON}
KINDS = [pytest.param(format, at, id=f"{format}-{at}") for format in POISON for at in range(len(POISON[format]))]


def test_every_format_has_its_poison():
    assert POISON.keys() == FORMATS.keys()


def account(found: Decoded, count: int) -> None:
    """Each position is a row or a reject, once; both in order; the rows have the schema to the letter."""
    assert sorted([*found.index.to_pylist(), *found.rejects.index]) == list(range(count))
    assert found.index.to_pylist() == sorted(found.index.to_pylist())
    assert found.rejects.index == sorted(found.rejects.index)
    assert len(found.rejects.index) == len(found.rejects.reason) == len(found.rejects.detail)
    assert all(0 < len(detail) <= 512 for detail in found.rejects.detail)
    assert found.rows.schema.equals(SCHEMA, check_metadata=True)
    assert len(found.rows) == len(found.index)
    found.rows.validate(full=True)


def decode(format: str, values: list[bytes | None]) -> Decoded:
    return _kept(format).decode(pa.array(values, pa.binary()))


def _kept(format: str, kept: dict[str, Decoder] = {}) -> Decoder:  # noqa: B006 - one decoder sees all batches, as in a task
    return kept.setdefault(format, decoder(format, SCHEMA))


@pytest.mark.parametrize(("format", "at"), KINDS)
def test_poison_alone(format, at):
    value, reason = POISON[format][at]
    found = decode(format, [value])
    account(found, 1)
    assert found.rejects.reason == [reason], found.rejects.detail


@pytest.mark.parametrize(("format", "at"), KINDS)
def test_poison_first_in_the_middle_and_last(format, at):
    value, reason = POISON[format][at]
    values = [good(number) for number in range(1000)]
    for place in (0, 500, 999):
        values[place] = value
    found = decode(format, values)
    account(found, 1000)
    assert found.rejects.index == [0, 500, 999]
    assert found.rejects.reason == [reason] * 3
    assert found.rows["id"].to_pylist() == [number for number in range(1000) if number not in (0, 500, 999)]


@pytest.mark.parametrize("format", POISON)
def test_all_poison(format):
    values = [value for value, _ in POISON[format]]
    found = decode(format, values)
    account(found, len(values))
    assert found.rejects.reason == [reason for _, reason in POISON[format]]


@pytest.mark.parametrize("format", POISON)
def test_a_tenth_poison_and_the_same_again(format):
    small = [pair for pair in POISON[format] if pair[0] is None or len(pair[0]) < 2_000]
    values: list[bytes | None] = [good(number) for number in range(2000)]
    expected = {}
    for at, place in enumerate(range(3, 2000, 10)):
        values[place], expected[place] = small[at % len(small)]
    found = decode(format, values)
    account(found, 2000)
    assert dict(zip(found.rejects.index, found.rejects.reason, strict=True)) == expected
    again = decode(format, values)
    assert again.rows.equals(found.rows)
    assert again.rejects == found.rejects


@pytest.mark.parametrize("format", POISON)
def test_truncated_at_every_byte(format):
    whole = good(17)
    found = decode(format, [whole[:end] for end in range(len(whole) + 1)])
    account(found, len(whole) + 1)
    assert found.index.to_pylist() == [len(whole)]
    assert set(found.rejects.reason) == {Reason.EMPTY, Reason.MALFORMED}


@pytest.mark.parametrize("format", POISON)
def test_no_values(format):
    account(decode(format, []), 0)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode)), max_size=20))
def test_random_bytes(format, values):
    account(decode(format, values), len(values))


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_good_values_with_a_few_bytes_changed(format, seed):
    pick = random.Random(seed)
    values = []
    for number in range(30):
        raw = bytearray(good(number))
        for _ in range(pick.randrange(1, 4)):
            raw[pick.randrange(len(raw))] = pick.choice(b'{}[]",:\\0123456789eE.-+ntfu \n\x00\x80\xff')
        values.append(bytes(raw))
    account(decode(format, values), 30)


@pytest.mark.parametrize("format", POISON)
def test_peek_answers_every_value(format):
    values = [value for value, _ in POISON[format]] + [good(1)]
    texts, rejects = decoder(format, pa.schema([])).peek(pa.array(values, pa.binary()), "id")
    assert len(texts) == len(values)
    assert texts[-1].as_py() == "1"
    assert all(texts[at].as_py() is None for at in rejects.index)


@pytest.mark.parametrize("format", FORMATS)
def test_limits_are_the_callers(format):
    tight = decoder(format, SCHEMA, limits=Limits(record_bytes=60, depth=3, keys=3))
    values = [
        b'{"id":1}',
        b'{"id":2,"name":"' + b"x" * 60 + b'"}',
        b'{"id":3,"x":{"y":{}}}',
        b'{"id":4,"a":1,"b":2,"c":3}',
    ]
    found = tight.decode(pa.array(values, pa.binary()))
    assert found.index.to_pylist() == [0]
    assert found.rejects.reason == [Reason.TOO_BIG, Reason.TOO_DEEP, Reason.TOO_WIDE]
