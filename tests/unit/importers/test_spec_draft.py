"""Drafts of specs: the printed text is what was set, with comments, and positions are those of the configuration."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.importers.settings import Place, Setting
from headrace.importers.spec_draft import SpecDraft
from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.yaml_reader import Spot, parse_yaml

FILE = Place("connector.toml", Spot(1))
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.text(max_size=20))
_WORDS = st.sampled_from(
    ["no", "on", "1e3", "0x1F", "5s", "128MiB", "~", "null", "a: b", "- a", "#", "${env:A}", "'", '"']
)
_VALUES = st.recursive(
    _SCALARS | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _printable(value: Any) -> bool:
    """Whether YAML has the characters of all texts; it normalizes some line breaks."""
    if isinstance(value, str):
        return all(char.isprintable() for char in value)
    if isinstance(value, dict):
        return all(_printable(key) and _printable(inner) for key, inner in value.items())
    return not isinstance(value, list) or all(map(_printable, value))


@given(_VALUES.filter(_printable), st.booleans())
def test_the_text_is_what_was_set(value: Any, commented: bool):
    draft = SpecDraft(FILE, "the system")
    draft.set("pipeline", "web")
    draft.set("table.path", value, "why: # this" if commented else "")
    (root,) = parse_yaml(draft.text())
    assert root.plain() == draft.plain() == {"pipeline": "web", "table": {"path": value}}


def test_defaults_are_written_with_a_comment_where_they_differ():
    draft = SpecDraft(FILE, "the system")
    draft.set("flush.every", Setting("a", "5s", FILE, is_set=False), native_default="5s")
    draft.set("flush.rows", Setting("b", 7, FILE, is_set=False), native_default=100_000)
    draft.set("flush.bytes", Setting("c", None, FILE, is_set=False))
    draft.set("retry.conflict", Setting("d", 5, FILE), native_default=5)
    assert draft.text() == "flush:\n  rows: 7  # default of the system\nretry: {conflict: 5}\n"


def test_diagnostics_are_at_the_key_that_a_value_comes_from():
    draft = SpecDraft(FILE, "the system")
    draft.set("source.kafka.topics", [Setting("topics[0]", "a", Place("other.toml", Spot(7, 3)))])
    document = draft.document()
    located = document.locate(UnlocatedDiagnostic(("source", "kafka", "topics", 0), "wrong"))
    assert str(located) == "other.toml:7:3 topics[0] (source.kafka.topics[0]): wrong"
    assert str(document.locate(UnlocatedDiagnostic(("source",), "wrong"))) == "connector.toml:1:1 source: wrong"


def test_keys_are_in_the_order_of_the_reference():
    draft = SpecDraft(FILE, "the system")
    for key in ("flush", "table", "source", "pipeline"):
        draft.set(f"{key}.a" if key != "pipeline" else key, 1)
    assert [line.partition(":")[0] for line in draft.text().splitlines()] == ["pipeline", "source", "table", "flush"]
