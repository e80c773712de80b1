"""Every format, the same promises: no value lost, doubled or changed by its neighbours, and nothing raised."""

from __future__ import annotations

import random
from json import loads

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.formats import Case, avro, envelopes, json, msgpack, plain, protobuf
from headrace.decode.base import Decoded, DecodeLimits, Decoder
from headrace.decode.decoders import FORMATS
from headrace.decode.payload_field import MessageScope, PayloadField
from headrace.reasons import Reason

CASES: dict[str, Case] = {
    **json.CASES,
    **envelopes.CASES,
    **avro.CASES,
    **plain.CASES,
    **protobuf.CASES,
    **msgpack.CASES,
}
KINDS = [pytest.param(name, at, id=f"{name}-{at}") for name, case in CASES.items() for at in range(len(case.poison))]


def test_every_format_has_its_poison():
    # A request of OTLP has many rows: `test_otlp.py` compares them with the official library, and has its poison.
    assert {case.format for case in CASES.values()} == FORMATS.keys() - {"otlp"}


def account(found: Decoded, count: int, schema: pa.Schema, many: bool) -> None:
    """Each position is a row or a reject, once; both in order; the rows have the schema to the letter."""
    index = found.index.to_pylist()
    assert sorted([*(set(index) if many else index), *found.rejects.index]) == list(range(count))
    assert found.index.to_pylist() == sorted(found.index.to_pylist())
    assert found.rejects.index == sorted(found.rejects.index)
    assert len(found.rejects.index) == len(found.rejects.reason) == len(found.rejects.detail)
    assert all(0 < len(detail) <= 512 for detail in found.rejects.detail)
    assert found.rows.schema.equals(schema, check_metadata=True)
    assert len(found.rows) == len(found.index)
    found.rows.validate(full=True)


def decode(name: str, values: list[bytes | None]) -> Decoded:
    found = _kept(name).decode(pa.array(values, pa.binary()))
    account(found, len(values), CASES[name].schema, CASES[name].many)
    return found


def _kept(name: str, kept: dict[str, Decoder] = {}) -> Decoder:  # noqa: B006 - one decoder sees all batches, as in a task
    return kept.setdefault(name, CASES[name].decoder())


@pytest.mark.parametrize(("name", "at"), KINDS)
def test_poison_alone(name, at):
    value, reason = CASES[name].poison[at]
    found = decode(name, [value])
    assert found.rejects.reason == [reason], found.rejects.detail


@pytest.mark.parametrize(("name", "at"), KINDS)
def test_poison_first_in_the_middle_and_last(name, at):
    value, reason = CASES[name].poison[at]
    values = [CASES[name].good(number) for number in range(1000)]
    for place in (0, 500, 999):
        values[place] = value
    found = decode(name, values)
    assert found.rejects.index == [0, 500, 999]
    assert found.rejects.reason == [reason] * 3
    alone = decode(name, [good for at, good in enumerate(values) if at not in (0, 500, 999)])
    assert not alone.rejects.index
    assert found.rows.equals(alone.rows)


@pytest.mark.parametrize("name", CASES)
def test_values_in_the_middle_of_a_column(name):
    """A slice of a column is decoded as a column of its own."""
    values = [CASES[name].good(1), CASES[name].poison[0][0], *map(CASES[name].good, range(2, 40)), None]
    part = pa.array(values, pa.binary()).slice(1, 30)
    found, alone = (
        CASES[name].decoder().decode(part),
        CASES[name].decoder().decode(pa.array(part.to_pylist(), pa.binary())),
    )
    assert found.rows.equals(alone.rows)
    assert (found.index, found.rejects) == (alone.index, alone.rejects)


@pytest.mark.parametrize("name", CASES)
def test_all_poison(name):
    poison = CASES[name].poison
    found = decode(name, [value for value, _ in poison])
    assert found.rejects.reason == [reason for _, reason in poison]


@pytest.mark.parametrize("name", CASES)
def test_a_tenth_poison_and_the_same_again(name):
    small = [pair for pair in CASES[name].poison if pair[0] is None or len(pair[0]) < 2_000]
    values: list[bytes | None] = [CASES[name].good(number) for number in range(2000)]
    expected = {}
    for at, place in enumerate(range(3, 2000, 10)):
        values[place], expected[place] = small[at % len(small)]
    found = decode(name, values)
    assert dict(zip(found.rejects.index, found.rejects.reason, strict=True)) == expected
    again = decode(name, values)
    assert again.rows.equals(found.rows)
    assert again.rejects == found.rejects


@pytest.mark.parametrize("name", CASES)
def test_the_message_comes_along_where_it_is_asked_for(name):
    case = CASES[name]
    asked = case.schema.append(PayloadField("the message", pa.string(), message=MessageScope()).to_arrow())
    small = [pair[0] for pair in case.poison if pair[0] is None or len(pair[0]) < 2_000]
    values = pa.array([*small, *(case.good(number) for number in range(50)), *small], pa.binary())
    found = case.decoder(asked).decode(values)
    account(found, len(values), asked, case.many)
    assert found.rows.drop_columns(["the message"]).equals(case.decoder().decode(values).rows)
    told = {type(loads(text)) for text in found.rows["the message"].to_pylist() if text is not None}
    assert told <= {dict}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.truncated is not None])
def test_truncated_at_every_byte(name):
    whole = CASES[name].good(17)
    found = decode(name, [whole[:end] for end in range(len(whole) + 1)])
    assert set(found.index.to_pylist()) == {len(whole)}
    assert set(found.rejects.reason) == CASES[name].truncated


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.truncated is None])
def test_where_a_part_is_a_value_too_the_others_are_dead_letters_and_the_whole_is_whole(name):
    whole = CASES[name].good(17)
    found = _kept(name).decode(pa.array([whole[:end] for end in range(len(whole) + 1)], pa.binary()))
    assert not set(found.index.to_pylist()) & set(found.rejects.index)
    last = pc.equal(found.index, len(whole))
    assert found.rows.filter(last).equals(decode(name, [whole]).rows)


@pytest.mark.parametrize("name", CASES)
def test_no_values(name):
    assert not len(decode(name, []).index)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode)), max_size=20))
def test_random_bytes(name, values):
    decode(name, values)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_good_values_with_a_few_bytes_changed(name, seed):
    pick = random.Random(seed)
    values: list[bytes | None] = []
    for number in range(30):
        raw = bytearray(CASES[name].good(number))
        for _ in range(pick.randrange(1, 4)):
            raw[pick.randrange(len(raw))] = pick.choice(CASES[name].alphabet)
        values.append(bytes(raw))
    decode(name, values)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.peeked])
def test_peek_answers_every_value(name):
    case = CASES[name]
    assert case.peeked is not None
    path, expected = case.peeked
    values = [value for value, _ in case.poison] + [case.good(1)]
    texts, rejects = case.decoder(pa.schema([])).peek(pa.array(values, pa.binary()), path)
    assert len(texts) == len(values)
    assert texts[-1].as_py() == expected
    assert all(texts[at].as_py() is None for at in rejects.index)


def test_limits_of_json_are_the_callers():
    tight = CASES["json"].decoder(limits=DecodeLimits(record_bytes=60, depth=3, keys=3))
    values = [
        b'{"id":1}',
        b'{"id":2,"name":"' + b"x" * 60 + b'"}',
        b'{"id":3,"x":{"y":{}}}',
        b'{"id":4,"a":1,"b":2,"c":3}',
    ]
    found = tight.decode(pa.array(values, pa.binary()))
    assert found.index.to_pylist() == [0]
    assert found.rejects.reason == [Reason.TOO_BIG, Reason.TOO_DEEP, Reason.TOO_WIDE]


@pytest.mark.parametrize("name", CASES)
def test_a_value_beyond_the_callers_limit(name):
    value = CASES[name].good(17)
    found = CASES[name].decoder(limits=DecodeLimits(record_bytes=len(value) - 1)).decode(pa.array([value], pa.binary()))
    assert found.rejects.reason == [Reason.TOO_BIG]
