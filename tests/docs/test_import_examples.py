"""The pages of other systems: their configurations are imported as the pages show it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.console import pattern, shown
from docs.pages import DOCS, blocks, section
from headrace.cli import app

HEADING = "## Import your configuration"
PAGES = [page for page in sorted((DOCS / "how-to").glob("coming-from-*.md")) if HEADING in page.read_text()]


def test_every_importer_has_its_page():
    assert len(PAGES) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_import_does_what_the_page_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In this process: a page has two or three commands."""
    monkeypatch.chdir(tmp_path)
    for language in ("toml", "yaml", "ini"):
        for block in blocks(language, page):
            if "." in block.mark:
                Path(block.mark).write_text(block.text)
    (console,) = re.findall(r"```console\n(.*?)```", section(f"docs/how-to/{page.name}", HEADING), re.DOTALL)
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command)
        program = words.index("headrace")
        variables = dict(word.split("=", 1) for word in words[:program])
        result = CliRunner().invoke(app, words[program + 1 :], env=variables)
        assert result.exit_code == 0, result.output
        assert pattern(expected).fullmatch(shown(result.output)), f"{command}\n{result.output}"
