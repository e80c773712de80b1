"""Links lead somewhere, and no page names a machine, a registry or a command that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import COMMANDS, DOCS, PAGES, ROOT, Block, anchors, blocks, name, prose

OPTIONS = {
    command: {flag for each in found.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
    for command, found in COMMANDS.items()
}
DECISIONS = DOCS / "internals" / "adr"
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_MACHINE = re.compile(r"(?<![\w.])/(?:work|home|root|Users|mnt)/\w+|[A-Z]:\\")
_REGISTRY = re.compile(
    r"pypi\.org|pythonhosted\.org|repo1?\.maven|maven\.org|mvnrepository|npmjs|docker\.io|artifactory"
)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_pages_and_headings(page: Path):
    broken = []
    for target in (one or two for one, two in _LINK.findall(prose(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_names_a_machine_or_a_registry(page: Path):
    found = [match[0] for pattern in (_MACHINE, _REGISTRY) for match in pattern.finditer(page.read_text())]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_shown_are_commands_with_these_options(page: Path):
    wrong = [line for line in _command_lines(page) if not _exists(line)]
    assert not wrong


def test_commands_named_by_messages_exist():
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    named = set(re.findall(r"`(headrace [a-z]+[^`\"\n]*)`", sources))
    assert named
    assert not [line for line in named if not _exists(line)]


def _command_lines(page: Path) -> list[str]:
    quoted = re.findall(r"`(headrace [a-z][^`]*)`", prose(page))
    shell = [line for language in ("sh", "console", "bash") for each in blocks(language, page) for line in _lines(each)]
    return [line for line in [*quoted, *shell] if "…" not in line]


def _lines(block: Block) -> list[str]:
    return re.findall(r"(?:^\$ |^|\| )(headrace [^\n]*)", block.text, re.MULTILINE)


def _exists(line: str) -> bool:
    words = line.split("#")[0].split(" -- ")[0].removesuffix(" --").split()  # what follows are no options
    given = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
    known = [OPTIONS[each] for each in (" ".join(words[1:3]), words[1]) if each in OPTIONS]
    is_group = len(words) == 2 and any(each.startswith(f"{words[1]} ") for each in OPTIONS)
    return is_group or (bool(known) and given <= known[0])


def test_make_targets_shown_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {target for page in PAGES for target in re.findall(r"(?:`|^|\$ )make ([a-z-]+)", page.read_text(), re.M)}
    assert shown <= targets


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.parent != DECISIONS]
    assert not [page for page in pages if page != "README.md" and f"({page})" not in index]


def test_every_decision_is_in_its_index():
    index = (DECISIONS / "README.md").read_text()
    pages = [page for page in sorted(DECISIONS.glob("*.md")) if page.name != "README.md"]
    listed = re.findall(r"\((\d{4}-[^)]+\.md)\)", index)
    assert listed == [page.name for page in pages]


def test_glossary_is_sorted():
    words = re.findall(r"^\| \*\*(.+?)\*\*", (DOCS / "reference" / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(words)
