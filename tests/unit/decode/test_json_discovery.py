"""The first look at values nobody has met says what inference over all of them says."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.decode.base import Decoded, DecodeLimits
from headrace.decode.inference import KEYS, evolve, merge_all
from headrace.decode.json import discovery
from headrace.decode.json.decoder import JsonDecoder

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**63, -(2**63) - 1, 2**70, 0.5, -1e300]),
    st.text("ab", max_size=2),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from("abcd"), values, max_size=4).map(json.dumps)
BAD = ['{"a":1,}', '{"a":1,"a":2}', '{"b":{"c":1,"c":2}}', "[1]", "", '{"a":NaN}', '{"x y":1}', '{"a":1}{', '{"":1}']


def blank() -> JsonDecoder:
    return JsonDecoder(pa.schema([]), "evolve", DecodeLimits())


def columns(unknown: dict | None) -> list[tuple[str, str, bool]]:
    """The columns that would be made, in no order: their names, types and notes."""
    return sorted((item.name, _typed(item.type), bool(item.metadata)) for item in evolve(pa.schema([]), unknown or {}))


def _typed(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return str(sorted((item.name, _typed(item.type), bool(item.metadata)) for item in kind))
    return f"[{_typed(kind.value_type)}]" if pa.types.is_list(kind) else str(kind)


def looked_at(chunks: list[list[str]]) -> tuple[list[Decoded], list[Decoded]]:
    """What a scout says of each chunk, and what a decoder without columns says of it without one."""
    one, arrays = blank(), [pa.array([text.encode() for text in chunk], pa.binary()) for chunk in chunks]
    return [one.decode(each) for each in arrays], [blank()._decode(each) for each in arrays]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.one_of(objects, objects, objects, st.sampled_from(BAD)), max_size=8), max_size=4))
@example([["{}", '{"b": [[0.5]]}', '{"b": [[9223372036854775808]]}']])
def test_it_finds_what_all_values_show(chunks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "_SAMPLE", 2)
        ours, plain = looked_at(chunks)
    for one, two in zip(ours, plain, strict=True):
        assert one.index.to_pylist() == two.index.to_pylist()
        assert one.rejects == two.rejects
    # What a chunk shows may have been said with an earlier one; what is only ever null makes no column.
    assert columns(merge_all(each.unknown or {} for each in ours)) == columns(
        merge_all(each.unknown or {} for each in plain)
    )


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ({"a": 1.5}, ("a", "double", False)),
        ({"a": "x"}, ("a", "string", True)),
        ({"a": 2**80}, ("a", "int64", False)),
        ({"l": ["x"]}, ("l", "[string]", False)),
        ({"o": {"k": 1}}, ("o", "[('k', 'int64', False)]", False)),
        (
            {"s": {"x": 1, "y": [{"z": True}]}},
            ("s", "[('x', 'int64', False), ('y', \"[[('z', 'bool', False)]]\", False)]", False),
        ),
        ({"n": 1}, ("n", "int64", False)),
        ({"new": "x"}, ("new", "string", False)),
        ({"s": {f"k{nth}": nth for nth in range(KEYS + 1)}}, ("s", "string", True)),
    ],
)
def test_one_late_value_widens_what_a_thousand_have_shown(later, expected):
    """The sample has seen whole numbers, an empty list, an empty object and a null: none of them is the last word."""
    usual = json.dumps({"a": 1, "l": [], "o": {}, "s": {"x": 1}, "n": None})
    ours, plain = looked_at([[usual] * 3_000 + [json.dumps(later)], [usual]])
    assert expected in columns(ours[0].unknown)
    assert columns(ours[0].unknown) == columns(plain[0].unknown)
    assert columns(ours[1].unknown) == columns(ours[0].unknown)


def test_names_that_differ_in_case_make_one_column_and_lose_no_value():
    ours, plain = looked_at([['{"a":1}'] * 3_000 + ['{"A":1}', '{"A":1,"b":2}', '{"o":{"k":1,"K":2}}']])
    assert ours[0].rejects == plain[0].rejects
    assert ours[0].index == plain[0].index
    assert [name for name, _, _ in columns(ours[0].unknown)] == ["a", "b", "o"]


def test_values_like_those_before_need_no_inference():
    usual = pa.array([b'{"a":1,"s":{"x":["y"]}}'] * 5_000, pa.binary())
    decoder = blank()
    found = decoder.decode(usual)
    assert columns(found.unknown) == columns(decoder.decode(usual).unknown)
    assert decoder._discovery._times == 1
    assert decoder._discovery._decoder.decode(usual).unknown is None
