"""What poison costs the good records around it, and where it is found when records have routes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from contract.formats.json import POISON
from headrace.decode.json.exact import ExactReader
from services.plans import adds_up, envelopes, plan_of, shaped

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
GOODS = 1000


def good(number: int) -> bytes:
    """Texts that mean something to a shell, a browser, a log or SQL are data like any other."""
    words = ["=cmd()", "<script>", "\x1b[2J", '\n{"level":"INFO"', "'; drop table t", "s3://other/x", "\u0000", "№"]
    row = {"id": number, "kind": words[number % len(words)], "amount": number / 4, "inner": {"n": number % 7}}
    return json.dumps(row).encode()


def test_good_records_cost_no_call_of_the_exact_reader(monkeypatch: pytest.MonkeyPatch):
    """The exact reader works value by value; it may see the poison and its like, never the good."""
    read: list[bytes] = []
    real: Callable[[ExactReader, str], Any] = ExactReader.read
    monkeypatch.setattr(ExactReader, "read", lambda self, text: (read.append(text.encode()), real(self, text))[1])
    plan = shaped(plan_of(table=TABLE))
    plan.apply(envelopes([good(number) for number in range(GOODS)]))
    assert read == []
    small = [value for value, _ in POISON if value is None or len(value) < 2_000]
    for bad in small:
        del read[:]
        plan.apply(envelopes([good(number) if number % 100 else bad for number in range(GOODS)]))
        assert set(read) <= {bad}


def test_routed_poison_is_found_before_and_after_its_table_is_known():
    plan = plan_of(route={"by": {"field": "kind"}}, tables=[{"match": "^shop", "columns": TABLE["columns"]}])
    values: list[Any] = [{"kind": "shop", "id": at} for at in range(20)]
    values[3], values[7], values[9] = b'{"kind":"shop","id":1.0}', b'{"kind":"shop"', b'{"kind":"/etc/passwd","id":1}'
    applied = plan.apply(envelopes(values))
    told = {each["offset"]: (each["step"], each["reason"], each["table"]) for each in applied.dead_letters.to_pylist()}
    assert told == {
        3: ("decode", "type", "/lake/shop"),
        7: ("decode", "malformed", None),
        9: ("route", "bad_route", None),
    }
    assert adds_up(applied).routed == 17
