"""The counters of an account: one list for the sum, the ledger, events and summaries."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from headrace.ledger.row import SCHEMA
from headrace.plan.accounting import COUNTERS, KEYED, RECORDS, Counts

_NUMBERS = st.integers(0, 9)
_ACCOUNTS = st.builds(
    Counts,
    **{
        each.name: st.dictionaries(st.sampled_from("abc"), _NUMBERS) if each.name in KEYED else _NUMBERS
        for each in fields(Counts)
    },
)


@given(_ACCOUNTS, _ACCOUNTS)
def test_a_sum_has_the_sum_of_every_counter(one: Counts, two: Counts) -> None:
    total = one + two
    for name in ("value_bytes", *COUNTERS):
        parts = [getattr(each, name) for each in (one, two, total)]
        if name in KEYED:
            keys = {*parts[0], *parts[1]}
            assert parts[2] == {key: parts[0].get(key, 0) + parts[1].get(key, 0) for key in keys}
        else:
            assert parts[2] == parts[0] + parts[1]


def test_the_ledger_has_a_column_for_every_counter() -> None:
    assert [name for name in SCHEMA.names if name in COUNTERS] == list(COUNTERS)
    assert list(Counts().counters()) == list(COUNTERS)
    assert list(Counts().records()) == list(RECORDS) == list(COUNTERS[: len(RECORDS)])
