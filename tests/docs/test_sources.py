"""One reference page per source, and the fields of generated events."""

from __future__ import annotations

import json

from docs.pages import DOCS, blocks, codes, rows, section
from headrace.source.base import SOURCES
from headrace.source.sample_events import KINDS, event

FOLDER = DOCS / "reference" / "sources"


def test_every_source_has_a_page():
    assert sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README") == sorted(SOURCES)


def test_the_fields_of_generated_events():
    bodies = {body["type"]: body for body in (json.loads(event(1, 0, offset).value) for offset in range(100))}
    common, *others = rows(section("docs/reference/sources/generate.md", "## Records"))[-4:]
    fields = {codes(row[1])[0]: codes(row[0]) for row in others}
    assert sorted(fields) == sorted(KINDS)
    for kind, body in bodies.items():
        assert sorted({*codes(common[0]), *fields[kind]}) == sorted({*body, *body["user"]})
    [example] = blocks("json", FOLDER / "generate.md")
    assert list(json.loads(example.text)) == list(bodies["purchase"])
