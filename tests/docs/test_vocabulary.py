"""One term for one thing: pages, messages and names do not use words that the vocabulary has replaced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import PAGES, ROOT, name, prose

SOURCES = sorted((ROOT / "src" / "headrace").rglob("*.py"))

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
    r"folders?": "directory",
}
# Names hold a noun of their content: `rows`, not `found`.
REPLACED_NAMES = re.compile(
    r"(?:^|_)(?:found|made|said|told|marks?|(?<!dead_)letters?|doubles?|begun|adopt\w*|vouched|scout|lessons)(?:_|$)"
)
TECHNICAL_NAMES = {
    "double": "the type",
    "doubles": "values of the type",
    "_double": "the type",
    "_doubles": "values of the type",
    "holds_double": "the type",
    "mark": "a position in PyYAML",
}


def _replaced(text: str) -> dict[str, str]:
    """The replaced words of a text, with the term to use."""
    text = " ".join(re.sub(r"`[^`]*`", "", text).split())
    return {
        match[0]: term
        for word, term in REPLACED.items()
        for match in re.finditer(rf"\b(?:{word})", text, re.IGNORECASE)
    }


def _messages(tree: ast.Module) -> Iterator[str]:
    """Texts of several words; of an f-string, the parts between its expressions. Docstrings are not messages."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if is_text and " " in node.value.strip():
            yield node.value


def _names(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines: variables, attributes, parameters, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_use_the_current_terms(page: Path):
    assert _replaced(prose(page)) == {}


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_messages_use_the_current_terms(source: Path):
    messages = _messages(ast.parse(source.read_text()))
    assert {message: words for message in messages if (words := _replaced(message))} == {}


def test_names_are_nouns_of_the_vocabulary():
    sources = {source.relative_to(ROOT / "src" / "headrace").as_posix(): source for source in SOURCES}
    names = {
        f"{path}: {each}"
        for path, source in sources.items()
        for each in _names(ast.parse(source.read_text()))
        if REPLACED_NAMES.search(each.lower()) and each.lower() not in TECHNICAL_NAMES
    }
    assert names == set()
