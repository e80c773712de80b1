"""Depth and width of a JSON text by its bytes, held against a parser that reads it one character at a time."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.json import nesting
from headrace.decode.json.nesting import too_deep, values, widest

texts = st.text('[]{}":,\\ab é', max_size=6)
documents = st.recursive(
    st.one_of(st.none(), st.integers(0, 9), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


def raw(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def width(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return max([len(value) if isinstance(value, dict) else 0, *map(width, inner)])


@settings(max_examples=300, deadline=None)
@given(documents, st.booleans(), st.integers(1, 40))
def test_as_a_parser_counts(value, ascii_only, block):
    text = json.dumps(value, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_BLOCK", block)
        deepest = depth(value)
        assert too_deep(raw(text), deepest + 1) is None
        if deepest:
            place = too_deep(raw(text), deepest)
            assert place is not None
            assert text.encode()[place] in b"[{"
        assert widest(raw(text)) == width(value)


def test_values_are_counted_outside_of_strings():
    assert values(raw('{"a":[1,2,"x,[,"],"b":[]}')) == 7


@pytest.mark.parametrize(("element", "declared"), [("[]", True), ("[],{},1", False)])
def test_one_record_costs_no_more_than_its_limits_allow(element, declared):
    """As it was: 16 MB of `[]` into JSON text took 1.5 GB and half a minute."""
    table = {"columns": [{"name": "a", "type": "string", "json": True}]} if declared else {}
    found, peak = _costs("15_900_000", element, table)
    assert (found, peak < 400) == (["too_wide"], True)


@pytest.mark.parametrize("element", ["{}", '{"b":1}'])
def test_the_largest_record_within_the_limit_is_stored(element):
    found, peak = _costs("str(500_000 * len(element) // (1 + element.count(',') + element.count('[')))", element, {})
    assert (found, peak < 600) == ([], True)


@pytest.mark.parametrize("character", ["x", "\\\\n"])
def test_a_string_of_the_largest_record_costs_no_more(character):
    found, peak = _costs("15_900_000", character, {}, before='\'{"id":1,"a":"\'', after="'\"}'", between='""')
    assert (found, peak < 600) == ([], True)


_MEASURED = """
import resource, sys
sys.path.insert(0, {tests!r})
from services.plans import envelopes, letters, plan_of
element = {element!r}
size = int({size})
joined = element + {between}
raw = ({before} + joined * (size // len(joined)) + element + {after}).encode()
given, plan = envelopes([raw]), plan_of(table={table!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print([reason for _, _, reason in letters(plan.apply(given))])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def _costs(
    size: str,
    element: str,
    table: dict,
    before: str = '\'{"id":1,"a":[\'',
    after: str = "']}'",
    between: str = "','",
) -> tuple[list[str], int]:
    """The reasons of the dead letters, and by how many megabytes the process has grown."""
    tests = str(Path(__file__).parents[2])
    parts = {"before": before, "after": after, "between": between}
    code = _MEASURED.format(tests=tests, element=element, size=size, table=table, **parts)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reasons, grown = done.stdout.splitlines()
    return ast.literal_eval(reasons), int(grown)
