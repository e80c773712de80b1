"""One term for one thing: pages do not use words that the vocabulary has replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import PAGES, name, prose

# The replaced word, and the term to use. Text in back quotes (names, old keys in the changelog) is not checked.
REPLACED = {
    r"marks?\b(?!.{0,20}rows)": "txn",
    r"adopt\w*|log tails?": "direct commit, log writer",
    r"begun": "unfinished batch, intent",
    r"book(?:s|ed|ing)?": "record in the ledger",
    r"(?<!dead )(?<!dead-)letters?\b(?!, digits| or digit)": "dead letter",
    r"unmet|doubled": "violations, duplicates",
    r"generations?|anew": "full refresh, again",
    r"upkeep|chores?": "maintenance",
    r"fates?": "outcome",
    r"foresee\w*|mend(?:s|ed|ing)?|tryouts?": "predict, fix, dry run",
    r"for good|own hands|manners": "permanently, in-process, advisory",
    r"made-up|stencils?": "generated, template",
}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_use_the_current_terms(page: Path):
    text = " ".join(re.sub(r"`[^`]*`", "", prose(page)).split())
    found = {
        match[0]: term
        for word, term in REPLACED.items()
        for match in re.finditer(rf"\b(?:{word})", text, re.IGNORECASE)
    }
    assert not found
