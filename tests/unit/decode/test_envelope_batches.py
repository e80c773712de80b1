"""What an envelope makes of a batch is what it would make of each value alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.base import Rejects
from headrace.decode.envelope.base import EnvelopeForm, EnvelopeScan, classify
from headrace.decode.envelope.formats import ENVELOPES
from headrace.reasons import Reason

PATHS = ("op", "payload.op", "source_type", "event_type", "schema", "table", "specversion", "type")
WORDS = ["c", "d", "r", "x", "", "Insert", "Update", "Delete", "insert", "log", "1.0", "1.", "2.0", "shop", "orders"]
VALUES = st.lists(st.fixed_dictionaries({path: st.sampled_from([None, *WORDS]) for path in PATHS}), max_size=30)


def look(name: str, values: Sequence[dict[str, Any]]) -> tuple[EnvelopeScan, dict[int, tuple[Reason, str]]]:
    rejects = Rejects()
    seen = ENVELOPES[name].scan(lambda path: pa.array([each[path] for each in values], pa.string()), rejects)
    return seen, {at: (reason, detail) for at, reason, detail in rejects}


def told(seen: EnvelopeScan, at: int) -> tuple[EnvelopeForm | None, dict[str, str | None], str | None]:
    number = int(seen.which[at])
    texts = {name: column[at].as_py() for name, column in seen.texts.items() if column[at].as_py() is not None}
    return (
        None if number < 0 else seen.forms[number],
        texts,
        None if seen.types is None else seen.types[at].as_py(),
    )


@pytest.mark.parametrize("name", ENVELOPES)
@settings(max_examples=60, deadline=None)
@given(values=VALUES)
def test_a_batch_is_its_values(name, values):
    seen, rejects = look(name, values)
    assert len(seen.which) == len(values)
    assert len({*seen.forms}) == len(seen.forms)
    for at, value in enumerate(values):
        alone, refused = look(name, [value])
        form, texts, kind = told(alone, 0)
        assert told(seen, at)[0] == form
        assert rejects.get(at) == refused.get(0)
        assert told(seen, at)[2] == kind
        if form is not None and "stream" not in form.paths:  # others say it themselves
            assert told(seen, at)[1] == texts


def test_the_stream_of_a_change_is_its_schema_and_table():
    change = {"op": "Insert", "source_type": "postgres", "event_type": None}
    names = [("shop", "orders"), (None, "orders"), ("shop", ""), (None, None), ("", "")]
    seen, _ = look("rivven", [{**change, "schema": one, "table": two} for one, two in names])
    assert seen.texts["stream"].to_pylist() == ["shop.orders", "orders", "shop", None, None]


def test_as_many_kinds_as_values_cost_no_more_than_values():
    judged: list[Any] = []
    form, rejects = EnvelopeForm(), Rejects()

    def judge(seen: Sequence[str | None]) -> EnvelopeForm | tuple[Reason, str]:
        judged.append(seen)
        return form if int(seen[0] or 0) % 2 else (Reason.UNKNOWN_OPERATION, f"no {seen[0]}")

    count = 20_000
    forms, which = classify([pa.array(map(str, range(count))), pa.nulls(count, pa.string())], judge, rejects)
    assert forms == [form]
    assert which.tolist() == [-1, 0] * (count // 2)
    assert rejects.index == list(range(0, count, 2))
    assert rejects.detail[1] == "no 2"
    assert len(judged) == count
