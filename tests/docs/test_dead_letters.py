"""The page about dead letters is a session: its records, its commands, and what they print."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.pages import DOCS, blocks, codes, laid_over, rows, section
from headrace.cli import main
from headrace.ledger.replays import OUTCOMES, ReplayOutcome
from headrace.spec import Spec
from headrace.validate.load import load
from services.in_process_pipeline import Harness

PAGE = DOCS / "how-to" / "dead-letters.md"


class Written(Harness):
    """A harness whose spec is a file."""

    @property
    def spec(self) -> Spec:
        return load(self.folder / "shop.yaml")[0]


def test_the_page_shows_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    harness = Written(tmp_path)
    shown = sorted([*blocks("yaml", PAGE), *blocks("json", PAGE), *blocks("console", PAGE)], key=lambda each: each.line)
    ran = 0
    spec: dict[str, Any] = {}
    for block in shown:
        if block.language == "yaml" and block.mark in ("", "fragment shop"):
            spec = laid_over(spec, yaml.safe_load(block.text))
            (tmp_path / "shop.yaml").write_text(yaml.safe_dump(spec))
        elif block.language == "json":
            harness.feed([line.encode() for line in block.text.splitlines()])
        elif block.language == "console":
            for command, _, output in (part.partition("\n") for part in block.text.split("$ ")[1:]):
                monkeypatch.setattr(sys, "argv", command.split())
                with pytest.raises(SystemExit) as ended:
                    main()
                assert not ended.value.code
                assert timeless(capsys.readouterr().out, tmp_path) == timeless(output, tmp_path)
                ran += 1
    assert ran == 7
    assert harness.offsets("purchase") == {0: 1, 1: 1, 3: 1}


def timeless(text: str, folder: Path) -> str:
    """Output without what differs from day to day and folder to folder."""
    text = re.sub(
        r"2026-03-10 12:00:00|(?<=before )\d{4}-\d\d-\d\d|spec [0-9a-f]{12}", "*", text.replace(str(folder), "…")
    )
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?= (?:to|UTC))", "*", text)


def test_the_columns_and_outcomes_are_documented():
    listed = [
        code for row in rows(section("docs/how-to/replay.md", "## The table of outcomes")) for code in codes(row[0])
    ]
    assert listed == OUTCOMES.names
    promised = rows(section("docs/how-to/replay.md", "## Guarantees"))
    assert [codes(row[0])[0] for row in promised] == list(ReplayOutcome)
