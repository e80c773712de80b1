"""Structures: inferred from good values, merged in any order, turned into columns and back out as JSON."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.inference import KEYS, evolve, infer, inferred_fields, merge_all, merge_inferred, of, text_reasons
from headrace.decode.payload_field import PayloadField, is_json_text

LONG, DOUBLE, TEXT = {"type": "long"}, {"type": "double"}, {"type": "string"}
JSON = {"type": "json"}

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=3),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


def seen(*rows: object) -> dict:
    return infer(pa.array([json.dumps(row) for row in rows], pa.string()))


def columns(*rows: object) -> dict[str, pa.Field]:
    return {item.name: item for item in inferred_fields(seen(*rows))}


def is_text(item: pa.Field) -> bool:
    return pa.types.is_string(item.type) and is_json_text(item)


@settings(max_examples=150, deadline=None)
@given(st.lists(objects, min_size=1, max_size=6))
def test_by_the_column_as_one_by_one(rows):
    assert normal(seen(*rows)) == normal(merge_all(of(row) for row in rows))


@settings(max_examples=300, deadline=None)
@given(objects, objects, objects)
def test_merge_in_any_order(one, two, three):
    one, two, three = of(one), of(two), of(three)
    assert normal(merge_inferred(one, two)) == normal(merge_inferred(two, one))
    assert normal(merge_inferred(merge_inferred(one, two), three)) == normal(
        merge_inferred(one, merge_inferred(two, three))
    )
    assert normal(merge_inferred(one, one)) == normal(one)
    assert merge_inferred({}, one) == one
    assert json.loads(json.dumps(one)) == one


def normal(structure: dict) -> dict:
    """The same without the order of keys, and without the reasons for text, which are only for people."""
    if "fields" in structure:
        return {
            "type": "struct",
            "fields": {key: normal(structure["fields"][key]) for key in sorted(structure["fields"])},
        }
    if "element" in structure:
        return {"type": "list", "element": normal(structure["element"])}
    return {key: value for key, value in structure.items() if key != "why"}


def test_scalars_and_conflicts():
    found = columns(
        {"n": 1, "x": 1, "t": "2024-01-01T00:00:00Z", "b": True, "none": None, "mixed": 1, "big": 2**65},
        {"n": 2, "x": 2.5, "t": "y", "b": None, "none": None, "mixed": "a", "big": 1},
    )
    assert found["n"].type == pa.int64()
    assert found["x"].type == pa.float64()
    assert found["t"].type == pa.string()
    assert found["t"].metadata is None
    assert found["b"].type == pa.bool_()
    assert found["big"].type == pa.int64()
    assert is_text(found["mixed"])
    assert "none" not in found


def test_objects_and_lists():
    found = columns(
        {"o": {"a": 1}, "l": [1, 2.5], "s": [{"k": 1}, {"m": "x"}], "e": {}, "n": [], "h": [1, "x"], "d": [[1]]},
        {"o": {"b": "x"}, "l": [], "s": [], "e": {}, "n": [None], "h": [], "d": []},
    )
    assert found["o"].type == pa.struct([("a", pa.int64()), ("b", pa.string())])
    assert found["l"].type == pa.list_(pa.field("element", pa.float64()))
    assert found["s"].type.value_type == pa.struct([("k", pa.int64()), ("m", pa.string())])
    assert found["d"].type == pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64()))))
    assert is_text(found["h"])
    assert not {"e", "n"} & found.keys()


def test_an_empty_object_becomes_what_others_hold():
    assert seen({"o": {}}, {"o": {"a": 1}})["fields"]["o"]["fields"] == {"a": LONG}


def test_an_object_with_too_many_keys_is_a_map_kept_as_text():
    rows = [{"o": {f"k{number}": 1}} for number in range(KEYS + 1)]
    assert normal(seen(*rows)["fields"]["o"]) == JSON
    assert is_text(columns(*rows)["o"])
    assert len(columns({f"k{number}": 1 for number in range(KEYS + 100)})) == KEYS + 100


def test_names_in_two_cases_make_one_column():
    assert list(columns({"id": 1}, {"ID": 2})) in (["id"], ["ID"])
    assert columns({"a b": 1, "_source": 2, "ok": 1}).keys() == {"ok"}


def test_evolve_adds_at_every_depth_and_changes_nothing():
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("o", pa.struct([pa.field("a", pa.int64(), nullable=False)])),
            pa.field("l", pa.list_(pa.field("element", pa.struct([("k", pa.int64())]), nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.struct([("v", pa.int64())]))),
            PayloadField("far", pa.string(), path="way.far").to_arrow(),
        ],
        metadata={b"x": b"y"},
    )
    grown = evolve(
        schema,
        seen(
            {
                "id": "text",
                "o": {"a": "x", "b": 1},
                "l": [{"n": {"deep": True}}],
                "m": {"q": {"w": 1}},
                "new": [1],
                "ID": 2,
            }
        ),
    )
    assert grown.field("id") == schema.field("id")
    assert grown.field("o").type == pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    element = pa.struct([("k", pa.int64()), ("n", pa.struct([("deep", pa.bool_())]))])
    assert grown.field("l").type == pa.list_(pa.field("element", element, nullable=False))
    assert grown.field("m").type.item_type == pa.struct([("v", pa.int64()), ("w", pa.int64())])
    assert grown.names == ["id", "o", "l", "m", "far", "new"]
    assert grown.metadata == schema.metadata
    assert evolve(schema, {}) == schema
    assert evolve(grown, seen({"o": {"b": "other"}})) == grown


@pytest.mark.parametrize("structure", [{}, {"type": "struct", "fields": {}}])
def test_nothing_seen_makes_no_columns(structure):
    assert inferred_fields(structure) == []
    assert infer(pa.array([], pa.string())) == {}


BIG = 2**53 + 1  # no double holds it


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ([1, 2.5], pa.float64()),
        ([2**53, -(2**53), 0.5], pa.float64()),
        ([BIG, 2], pa.int64()),
        ([BIG, 2.5], None),
        ([2.5, -BIG], None),
        ([2**60, 2.5, 1], None),
        ([2**70, 2.5], None),
    ],
)
def test_a_double_is_inferred_only_where_it_holds_every_integer(field, kind):
    item = columns(*({"n": value} for value in field))["n"]
    assert is_text(item) if kind is None else item.type == kind


@pytest.mark.parametrize("empty", [None, [], {}, [None], [[]], [{}], {"a": None}, {"a": []}, [{"a": {}}, None]])
def test_what_has_no_typed_value_makes_no_column(empty):
    assert columns({"id": 1, "f": empty}).keys() == {"id"}
    assert columns({"o": {"a": 1, "f": empty}})["o"].type == pa.struct([("a", pa.int64())])


@settings(max_examples=200, deadline=None)
@given(st.lists(values, min_size=1, max_size=4))
def test_a_column_is_made_where_a_value_has_a_type(found):
    def typed(value: object) -> bool:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return value is not None if inner is None else any(map(typed, inner))

    if any(map(typed, found)):
        assert "f" in columns(*({"f": value} for value in found))


def test_what_has_no_typed_value_decides_nothing():
    assert columns({"f": []}, {"f": {}}) == {}
    assert columns({"f": []}, {"f": {"a": 1}})["f"].type == pa.struct([("a", pa.int64())])
    assert columns({"f": {}}, {"f": ["a"]})["f"].type == pa.list_(pa.field("element", pa.string()))
    assert is_text(columns({"f": [[], {"a": 1}]})["f"])


@settings(max_examples=200, deadline=None)
@given(st.lists(objects, min_size=1, max_size=6))
def test_every_column_of_text_has_its_reason_and_no_other_column(rows):
    found = text_reasons(seen(*rows))
    assert {name for name in found if "." not in name} == {
        name for name, item in columns(*rows).items() if is_text(item)
    }
    assert all(found.values())


def test_the_reasons_of_text_say_what_was_seen():
    many = {str(number): 1 for number in range(KEYS + 1)}
    assert text_reasons(seen({"a": 1, "b": {"c": [1]}, "d": many, "e": 1.5}, {"a": "x", "b": {"c": [True]}})) == {
        "a": "of several types: integer, string",
        "b.c": "arrays whose elements are of several types: boolean, integer",
        "d": f"objects with more than {KEYS} keys",
    }
