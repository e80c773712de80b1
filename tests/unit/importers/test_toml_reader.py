"""TOML with positions: the values are those of tomllib, and each key is where the text says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.importers.toml_reader import parse_toml
from headrace.spec.yaml_reader import InvalidYaml, Spot, YamlNode

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.toml"))
TEXT = '''title = "a # no comment"  # a comment
"quoted key" = 'literal'
a.b = [1, 2.5, # one
  true]
text = """
[no.header]
c = "\\""""
point = {x = 1, y = {z = "}"}}

[server]
at = 2026-01-31

[[topics]]
name = "first"
[[topics]]
name = "second"
[topics.options]
deep = -1
[[topics.routes]]
to = "x"
'''


def _keys(node: YamlNode) -> Iterator[tuple[str, Spot]]:
    """Keys with their positions, in the order of the document."""
    if not isinstance(node.content, str | int | float | None):
        entries = node.content if isinstance(node.content, tuple) else ()
        for item in entries:
            yield from _keys(item)
        for key, (spot, inner) in node.content.items() if not isinstance(node.content, tuple) else ():
            yield key, spot
            yield from _keys(inner)


def test_each_key_has_its_position():
    positions = [(key, spot.line, spot.column) for key, spot in _keys(parse_toml(TEXT))]
    assert positions == [
        ("title", 1, 1),
        ("quoted key", 2, 1),
        ("a", 3, 1),
        ("b", 3, 1),
        ("text", 5, 1),
        ("point", 8, 1),
        ("x", 8, 10),
        ("y", 8, 17),
        ("z", 8, 22),
        ("server", 10, 1),
        ("at", 11, 1),
        ("topics", 13, 1),
        ("name", 14, 1),
        ("name", 16, 1),
        ("options", 17, 1),
        ("deep", 18, 1),
        ("routes", 19, 1),
        ("to", 20, 1),
    ]


def test_the_items_of_arrays_have_their_positions():
    node = parse_toml('a = [\n  "x",\n  {b = 1},\n]\n')
    entry = node.child("a")
    assert entry is not None
    assert [(item.spot.line, item.spot.column) for item in entry[1].content] == [(2, 3), (3, 3)]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_the_values_are_those_of_tomllib(file: Path):
    assert parse_toml(file.read_text()).plain() == tomllib.loads(file.read_text())


@pytest.mark.parametrize(("text", "line"), [("a = \nb = 1", 1), ("a = 1\na = 2", 2), ("[a\n", 1)])
def test_invalid_toml_is_an_error_with_its_position(text: str, line: int):
    with pytest.raises(InvalidYaml, match="invalid TOML") as error:
        parse_toml(text)
    assert error.value.spot.line == line


@given(st.text(max_size=60))
def test_any_text_is_toml_or_an_error(text: str):
    try:
        parse_toml(text)
    except InvalidYaml:
        return
    assert isinstance(tomllib.loads(text), dict)
