"""Records that hold many rows: cut exactly, and whole or not at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Plan
from headrace.decode.base import DecodeLimits
from headrace.decode.unpack import json_elements, lines
from headrace.validate.load import loads
from services.plans import envelopes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(alphabet='ab"\\[]{},: é\n', max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)
SPACES = st.text(alphabet=" \t\r\n", max_size=2)


def plan(extra: str = "", decode: str = "{json: {rows: array}}", path: str = "/lake/many") -> Plan:
    text = f"""
pipeline: many
source: {{kafka: {{brokers: "localhost:9092", topics: [t]}}}}
decode: {decode}
table:
  path: "{path}"
  columns: [{{name: id, type: bigint, nullable: false}}, {{name: kind, type: string}}]
{extra}
"""
    [spec] = loads(text)
    return Plan(spec, now=lambda: NOW)


def applied(given: Plan, *values: bytes | None) -> tuple[list[int], dict[int, str], Any]:
    """The ids stored, the letters by offset, the counts."""
    found = given.apply(envelopes(values, "t"))
    ids = [row["id"] for rows in found.tables.values() for row in rows.to_pylist()]
    letters = {row["offset"]: f"{row['reason']}: {row['detail']}" for row in found.dead_letters.to_pylist()}
    assert found.counts.read == found.counts.routed + found.counts.dead + found.counts.filtered + found.counts.skipped
    return ids, letters, found.counts


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(JSON, max_size=4), SPACES, st.booleans()), max_size=6))
def test_elements_are_cut_from_the_original(given_values):
    values = [
        (space + json.dumps(items, ensure_ascii=ascii, indent=1 if space else None) + space).encode()
        for items, space, ascii in given_values
    ]
    pieces = json_elements(pa.array(values, pa.binary()), DecodeLimits())
    assert not pieces.rejects.index
    cut = [[] for _ in values]
    for owner, piece in zip(pieces.owner, pieces.values.to_pylist(), strict=True):
        cut[owner].append(json.loads(piece))
    assert cut == [items for items, _, _ in given_values]


def test_a_sliced_column_is_cut_at_its_own_offsets():
    values = pa.array([b"[9]", None, b'[1,"]"]', b"[]", b"[2]"], pa.binary()).slice(1, 3)
    pieces = json_elements(values, DecodeLimits())
    assert pieces.values.to_pylist() == [b"1", b'"]"']
    assert pieces.owner.tolist() == [1, 1]
    assert pieces.rejects.index == [0]


def test_blank_lines_are_no_rows():
    pieces = lines(pa.array([b"a\r\n\n \nb", b"c"], pa.binary()), DecodeLimits())
    assert [piece.strip() for piece in pieces.values.to_pylist()] == [b"a", b"b", b"c"]
    assert pieces.owner.tolist() == [0, 0, 1]


def test_every_row_of_a_record_or_a_dead_letter():
    ids, letters, counts = applied(
        plan(), b'[{"id":1},{"id":2}]', b'[{"id":3},{"id":"x"},{"id":4}]', b"[]", b'[{"id":5}]', None
    )
    assert ids == [1, 2, 5]
    assert letters[1].startswith("type: element 2: id: expected long")
    assert letters[4].startswith("tombstone")
    assert (counts.routed, counts.dead, counts.filtered) == (2, 2, 1)


def test_an_expression_that_fails_for_one_row_takes_the_record():
    given = plan('transform: [{set: {kind: "CAST(CAST(kind AS INTEGER) AS VARCHAR)"}}]')
    ids, letters, counts = applied(given, b'[{"id":1,"kind":"1"},{"id":2,"kind":"x"}]', b'[{"id":4,"kind":"7"}]')
    assert ids == [4]
    assert list(letters) == [0]
    assert (counts.routed, counts.dead) == (1, 1)


def test_rows_that_are_filtered_leave_the_others():
    given = plan('transform: [{where: "id <> 2"}]')
    ids, letters, counts = applied(given, b'[{"id":1},{"id":2}]', b'[{"id":2},{"id":2}]')
    assert ids == [1]
    assert not letters
    assert (counts.routed, counts.filtered) == (1, 1)


def test_a_record_may_be_in_several_tables_but_not_with_a_row_that_has_none():
    found = plan("route: {by: {sql: kind}}", path="/lake/{route}").apply(
        envelopes([b'[{"id":1,"kind":"a"},{"id":2,"kind":"b"}]', b'[{"id":3,"kind":"a"},{"id":4,"kind":"../b"}]'], "t")
    )
    assert {str(name): rows["id"].to_pylist() for name, rows in found.tables.items()} == {"a": [1], "b": [2]}
    assert found.dead_letters["reason"].to_pylist() == ["bad_route"]
    assert found.dead_letters["table"].to_pylist() == [None]
    assert (found.counts.routed, found.counts.dead) == (1, 1)


def test_the_same_offset_in_every_row():
    found = plan().apply(envelopes([b'[{"id":1},{"id":2}]', b'[{"id":3}]'], "t"))
    [rows] = found.tables.values()
    assert [row["_source"]["offset"] for row in rows.to_pylist()] == [0, 0, 1]


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_packed_lines(codec):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(b'{"id":1}\n{"id":2}\n')
    given = plan(decode=f"{{json: {{rows: lines, compression: {codec}}}}}")
    assert applied(given, bytes(sink.getvalue()))[0] == [1, 2]
