"""Poison among good records, through the whole plan: the good are rows, the bad are letters, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.decode.exact import Exact
from headrace.plan import Applied, Plan
from services.plans import MOMENT, adds_up, envelopes, plan_of, shaped

TABLE: dict[str, Any] = {
    "columns": [
        {"name": "id", "type": "bigint", "nullable": False},
        {"name": "kind", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "price", "type": "decimal(9,2)"},
        {"name": "moment", "type": "timestamp"},
        {"name": "tags", "type": "array<string>"},
        {"name": "inner", "type": "struct<n: int>"},
    ]
}
# What the guarantees call Q1 to Q17 and Q23 to Q26, as far as JSON goes: the value, the step that finds it, the reason.
POISON: list[tuple[bytes | None, str, str]] = [
    (b"", "decode", "empty"),
    (None, "decode", "tombstone"),
    (b" \t\n", "decode", "malformed"),
    (b'{"id":1,"kind":"a"', "decode", "malformed"),
    (b'{"id":1,"kind":"a",}', "decode", "malformed"),
    (b'{"id":1,"kind":"\x80"}', "decode", "encoding"),
    (b'{"id":1,"kind":"\xed\xa0\x80"}', "decode", "encoding"),
    (b'{"id":9223372036854775808}', "decode", "overflow"),
    (b'{"id":1' + b"0" * 400 + b"}", "decode", "overflow"),
    (b'{"id":1,"amount":1e400}', "decode", "overflow"),
    (b'{"id":1.0}', "decode", "type"),
    (b'{"id":"12"}', "decode", "type"),
    (b'{"id":1,"amount":NaN}', "decode", "malformed"),
    (b'{"id":1,"amount":-Infinity}', "decode", "malformed"),
    (b'{"id":1,"price":' + b"1" * 40 + b"}", "decode", "overflow"),
    (b'{"id":1,"price":1.234}', "decode", "overflow"),
    (b'{"id":1,"id":1}', "decode", "duplicate_key"),
    (b'{"id":1,"ID":1}', "decode", "duplicate_key"),
    (b'{"id":1,"x":{"y":1,"y":1}}', "decode", "duplicate_key"),
    (b'{"id":1,"x":' + b"[" * 1000 + b"]" * 1000 + b"}", "decode", "too_deep"),
    (b'{"id":1,"x":' + b'{"y":' * 100_000, "decode", "too_deep"),
    (b"{" + b",".join(b'"k%d":1' % at for at in range(10_001)) + b"}", "decode", "too_wide"),
    (b'{"id":1,"kind":"' + b"x" * 2000 + b'"}', "decode", "too_big"),
    (b"[1,2]", "decode", "not_an_object"),
    (b'"text"', "decode", "not_an_object"),
    (b"null", "decode", "not_an_object"),
    (b'{"id":1}{"id":2}', "decode", "trailing_data"),
    (b'{"id":1}\n{"id":2}', "decode", "trailing_data"),
    (b'{"id":1,"moment":"0000-00-00"}', "decode", "timestamp"),
    (b'{"id":1,"moment":"9999-12-31T23:59:60Z"}', "decode", "timestamp"),
    (b'{"id":1,"moment":"2024-01-01T00:00:00"}', "decode", "timestamp"),
    (b"{}", "decode", "missing"),
    (b'{"id":1,"tags":["a",1]}', "decode", "type"),
    (b'{"id":1,"inner":"n"}', "decode", "type"),
    (b'{"id":1,"kind":{}}', "decode", "type"),
]
_LIMITS = {"record_bytes": 1000}
_BIG = {"too_deep", "too_wide"}  # these must reach their own limit first
GOODS = 1000


def good(number: int) -> bytes:
    """Texts that mean something to a shell, a browser, a log or SQL are data like any other."""
    words = ["=cmd()", "<script>", "\x1b[2J", '\n{"level":"INFO"', "'; drop table t", "s3://other/x", "\u0000", "№"]
    row = {"id": number, "kind": words[number % len(words)], "amount": number / 4, "inner": {"n": number % 7}}
    return json.dumps(row).encode()


def _positions(bad: Any) -> dict[str, list[Any]]:
    goods = [good(number) for number in range(GOODS)]
    tenth = [bad if at % 10 == 3 else value for at, value in enumerate(goods)]
    return {
        "alone": [bad],
        "first": [bad, *goods],
        "last": [*goods, bad],
        "middle": [*goods[:500], bad, *goods[500:]],
        "all": [bad] * 50,
        "tenth": tenth,
    }


def _compiled(reason: str) -> Plan:
    limits = {} if reason in _BIG else _LIMITS
    return shaped(plan_of(table=TABLE, limits=limits))


@pytest.mark.parametrize("at", range(len(POISON)), ids=lambda at: f"{POISON[at][2]}-{at}")
def test_poison_costs_only_itself_wherever_it_stands(at: int):
    bad, step, reason = POISON[at]
    plan = _compiled(reason)
    for where, values in _positions(bad).items():
        applied = plan.apply(envelopes(values))
        _right(applied, values, bad, step, reason, where)
    again = plan.apply(envelopes(values))
    assert (again.letters, again.tables) == (applied.letters, applied.tables)  # a replay tells the same


def _right(applied: Applied, values: list[Any], bad: Any, step: str, reason: str, where: str) -> None:
    poisoned = [offset for offset, value in enumerate(values) if value is bad]
    counts = adds_up(applied)
    assert counts.reasons == {reason: len(poisoned)}, where
    found = applied.letters.to_pylist()
    assert [each["offset"] for each in found] == poisoned, where
    assert {(each["value"], each["step"], each["reason"]) for each in found} == {(bad, step, reason)}, where
    assert all(0 < len(each["detail"]) <= 512 and each["rejected_at"] == MOMENT for each in found)
    expected = [json.loads(value) for value in values if value is not bad]
    got = applied.tables[""].select(["id", "kind", "amount", "inner"]).to_pylist() if expected else []
    assert got == expected, where


def test_good_records_cost_no_call_of_the_exact_reader(monkeypatch: pytest.MonkeyPatch):
    """The exact reader works value by value; it may see the poison and its like, never the good."""
    read: list[bytes] = []
    real: Callable[[Exact, bytes], Any] = Exact.read
    monkeypatch.setattr(Exact, "read", lambda self, raw: (read.append(raw), real(self, raw))[1])
    plan = shaped(plan_of(table=TABLE))
    plan.apply(envelopes([good(number) for number in range(GOODS)]))
    assert read == []
    for bad, _, _ in POISON:
        del read[:]
        plan.apply(envelopes([good(number) if number % 100 else bad for number in range(GOODS)]))
        assert set(read) <= {bad}


def test_routed_poison_is_found_before_and_after_its_table_is_known():
    plan = plan_of(route={"by": {"field": "kind"}}, tables=[{"match": "^shop", "columns": TABLE["columns"]}])
    values: list[Any] = [{"kind": "shop", "id": at} for at in range(20)]
    values[3], values[7], values[9] = b'{"kind":"shop","id":1.0}', b'{"kind":"shop"', b'{"kind":"/etc/passwd","id":1}'
    applied = plan.apply(envelopes(values))
    told = {each["offset"]: (each["step"], each["reason"], each["table"]) for each in applied.letters.to_pylist()}
    assert told == {
        3: ("decode", "type", "/lake/shop"),
        7: ("decode", "malformed", None),
        9: ("route", "bad_route", None),
    }
    assert adds_up(applied).routed == 17


def test_a_million_ways_to_fail_are_still_one_reason_and_a_short_detail():
    values = [json.dumps({"id": f"{at}" + "x" * 2000}).encode() for at in range(2000)]
    applied = shaped(plan_of(table=TABLE)).apply(envelopes(values))
    assert applied.counts.reasons == {"type": 2000}
    assert max(len(each) for each in applied.letters["detail"].to_pylist()) <= 512
