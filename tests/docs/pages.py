"""Markdown as the tests read it: pages, fenced blocks, tables, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from headrace.cli import app
from headrace.spec.base import SpecModel, model_keys, names_parts, parts_in

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
# Every spec key has an example on one of these pages.
KEY_EXAMPLES = [
    *sorted((DOCS / "reference").rglob("*.md")),
    *(page for page in sorted((DOCS / "how-to").glob("*.md")) if not page.name.startswith("coming-from")),
]
GUIDES = [
    ROOT / "README.md",
    DOCS / "getting-started.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    *sorted((DOCS / "operate").glob("*.md")),
]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *EXAMPLES.rglob("*.md")])
SMALLEST = {
    "pipeline": "web",
    "source": {"kafka": {"brokers": "localhost:9092", "topics": ["web_requests"]}},
    "table": {"path": "./lake/web_requests"},
}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, its mark, its text."""

    page: Path
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    """A page as people call it."""
    return page.relative_to(ROOT).as_posix()


def text(page: str) -> str:
    """A page's text."""
    return (ROOT / page).read_text()


def blocks(language: str, *pages: Path) -> list[Block]:
    """All blocks of a language."""
    return [each for page in pages or PAGES for each in _blocks(page) if each.language == language]


def _blocks(page: Path) -> Iterator[Block]:
    for found in re.finditer(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        line = page.read_text()[: found.start()].count("\n") + 1
        yield Block(page, line, found[1], found[2].strip(), found[3])


def whole(block: Block) -> str:
    """A YAML block as a whole spec: a fragment is laid over the smallest one, another source replaces its source."""
    if block.mark.split(" ")[0] != "fragment":
        return block.text
    fragment = yaml.safe_load(block.text)
    replaced = {"source"} if "kafka" not in fragment.get("source", {"kafka"}) else set()
    smallest = {key: value for key, value in SMALLEST.items() if key not in replaced}
    return yaml.safe_dump(laid_over(smallest, fragment))


def laid_over(below: Any, above: Any) -> Any:
    """Mappings united, all else replaced."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {key: laid_over(below.get(key), above[key]) if key in above else below[key] for key in {**below, **above}}


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level, found = heading.split(" ")[0], text(page).split(f"\n{heading}\n", 1)
    assert len(found) == 2, f"{page} has no heading '{heading}'"
    return re.split(rf"^#{{1,{len(level)}}} ", found[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(markdown: str) -> list[list[str]]:
    """The cells of all table rows, heads and rules left out."""
    lines = markdown.splitlines()
    rules = {number for number, line in enumerate(lines) if re.fullmatch(r"[|: -]*-{3}[|: -]*", line)}
    heads = {number - 1 for number in rules}
    table = [line for number, line in enumerate(lines) if line.startswith("|") and number not in rules | heads]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def codes(cell: str) -> list[str]:
    """The words in back quotes."""
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{word} ")
        else:
            yield before + word, command


COMMANDS: dict[str, Any] = dict(_commands(typer.main.get_command(app)))  # by all their words


def paths(value: Any, part: type[SpecModel], prefix: str = "") -> Iterator[str]:
    """The dotted paths of the keys a spec uses."""
    for each in value if isinstance(value, list) else [value]:
        for key, inner in each.items() if isinstance(each, dict) else ():
            field = model_keys(part).get(key)
            yield prefix + key
            inner = list(inner.values()) if field and names_parts(field.annotation) else inner
            for model in parts_in(field.annotation) if field else ():
                yield from paths(inner, model, f"{prefix}{key}.")
