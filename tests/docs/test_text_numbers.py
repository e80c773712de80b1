"""The how-to for numbers sent as text does what it says."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import yaml

from docs.pages import DOCS, GUIDES, blocks, section
from headrace.pipeline.preview import preview_records
from headrace.validate.load import loads
from services.plans import envelopes

RECORDS = [
    {"id": 1, "amount": "12.50", "quantity": "3", "weight": "1.5"},
    {"id": 2, "amount": "12,50", "quantity": "3"},
    {"id": 3, "amount": "1", "quantity": "3.6"},
    {"id": 4, "amount": "1", "quantity": 7, "weight": "heavy"},
    {"id": 5, "amount": "", "quantity": "1"},
    {"id": 6},
]


def test_numbers_sent_as_text(tmp_path: Path):
    [spec] = [each.text for each in blocks("yaml", DOCS / "how-to" / "transform.md") if "text-numbers" in each.text]
    assert spec in section("docs/how-to/transform.md", "## Numbers sent as text")
    found = preview_records(loads(spec, tmp_path)[0], envelopes(RECORDS))
    [table] = found.tables.values()
    assert table.drop_columns(["_source"]).to_pylist() == [
        {"id": 1, "amount": Decimal("12.50"), "quantity": 3, "weight": 1.5},
        {"id": 4, "amount": Decimal("1.00"), "quantity": 7, "weight": None},
        {"id": 6, "amount": None, "quantity": None, "weight": None},
    ]
    dead = {row["offset"] + 1: (row["step"], row["reason"]) for row in found.dead_letters.to_pylist()}
    assert dead == {2: ("transform", "transform"), 3: ("stage", "overflow"), 5: ("transform", "transform")}


def test_every_pipeline_of_the_guides_has_a_name_of_its_own():
    specs = [block for block in blocks("yaml", *GUIDES) if not block.mark]
    names = [document["pipeline"] for block in specs for document in yaml.safe_load_all(block.text) if document]
    assert sorted(names) == sorted(set(names))
