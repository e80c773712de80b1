"""Each page of another system says what maps to what, what is better, what is missing, and how to go back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from docs.pages import DOCS, blocks, name, rows, section
from headrace.importers.analytics import import_analytics
from headrace.importers.environment import process_settings

PAGES = sorted((DOCS / "how-to").glob("coming-from-*.md"))
HEADINGS = ("## What maps to what", "## What is better", "## What is missing", "## Go back")


def test_the_index_has_every_page():
    index = (DOCS / "how-to" / "coming-from.md").read_text()
    assert len(PAGES) == 8
    assert not [page.name for page in PAGES if f"({page.name})" not in index]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("heading", HEADINGS)
def test_every_page_has_the_four_parts(page: Path, heading: str):
    content = section(name(page), heading)
    assert len(content.split()) > 15, "a heading has text"
    assert heading != HEADINGS[0] or rows(content), "settings map in a table"
    assert heading not in HEADINGS[1:3] or content.count("\n- ") > 1, "a list of several points"


def test_the_columns_of_the_analytics_page_are_those_of_its_import():
    [block] = [each for each in blocks("yaml", *PAGES) if each.mark == "fragment analytics-events"]
    shown, imported = yaml.safe_load(block.text), yaml.safe_load(import_analytics(process_settings({})).text())
    assert shown["transform"] == imported["transform"]
    assert shown["table"]["columns"] == imported["table"]["columns"]
