"""One reference page per source, and the fields of generated events."""

from __future__ import annotations

import json
import re
from collections import Counter

import yaml

from docs.pages import DOCS, blocks, codes, rows, section
from headrace.source.base import SOURCES
from headrace.source.sample_events import KINDS, event, events

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


def test_getting_started_shows_the_counts_of_its_pipeline():
    page = DOCS / "getting-started.md"
    spec = yaml.safe_load(next(block.text for block in blocks("yaml", page)))
    options = spec["source"]["generate"]
    partitions, records = options["partitions"], options["records"] // options["partitions"]
    counts = Counter(
        json.loads(item.value)["type"]
        for partition in range(partitions)
        for item in events(options["seed"], partition, 0, records, options["bad_ratio"])
    )
    output = next(block.text for block in blocks("console", page))
    assert dict(re.findall(r"^ (\w+) +(\d+)$", output, re.MULTILINE)) == {kind: str(counts[kind]) for kind in KINDS}
