"""Every example is run as its README says: its commands one after the other, and what they print."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.console import follow, pattern, shown
from docs.pages import EXAMPLES
from headrace.dev.kafka import free_ports
from headrace.validate.load import examine_text
from services.local_kafka import local_kafka

FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/README.md"))
ADDRESS = "localhost:9092"


def name(folder: Path) -> str:
    return folder.name


# ---- without a broker ----


def test_every_folder_is_in_the_index():
    listed = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)/README\.md\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    folders = [path.name for path in EXAMPLES.iterdir() if path.is_dir()]
    assert sorted(listed) == [(folder, folder) for folder in sorted(folders)]


@pytest.mark.parametrize("folder", [EXAMPLES, *FOLDERS], ids=name)
def test_a_readme_is_short(folder: Path):
    assert len((folder / "README.md").read_text().splitlines()) <= 40


@pytest.mark.parametrize("folder", [path.parent for path in sorted(EXAMPLES.glob("*/pipeline.yaml"))], ids=name)
def test_a_spec_has_no_findings(folder: Path):
    _, findings = examine_text((folder / "pipeline.yaml").read_text(), folder, "pipeline.yaml")
    assert not [str(finding) for finding in findings]


@pytest.mark.parametrize(
    ("expected", "output", "matches"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc\n", False),
        ("a\nb", "a\nb\nc\n", False),
        ("…\nb", "x\ny\nb\n", True),
        ("…\nb", "b\n", True),
        ("…\nb", "x\nbc\n", False),
        ("a … c", "a b c\n", True),
        ("a … c", "a\nc\n", False),
        ("a.c", "abc\n", False),
        ("", "a\nb", True),
        ("a b", " a b   \n", False),
        (" a b", " a b   \n", True),
    ],
)
def test_outputs_are_compared(expected: str, output: str, matches: bool):
    assert bool(pattern(expected).fullmatch(shown(output))) is matches


# ---- with one ----


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The broker that the READMEs tell to start, on a port that is free here."""
    port = next(iter(free_ports()))
    with local_kafka(tmp_path_factory.mktemp("broker") / "headrace-kafka", port):
        yield f"localhost:{port}"


@pytest.mark.service
@pytest.mark.parametrize("folder", [path for path in FOLDERS if (path / "pipeline.yaml").exists()], ids=name)
def test_a_pipeline_does_what_its_readme_shows(folder: Path, address: str, tmp_path: Path):
    place = shutil.copytree(folder, tmp_path / folder.name)
    for file in place.iterdir():
        file.write_text(file.read_text().replace(ADDRESS, address))
    follow(place)


@pytest.mark.parametrize("folder", [path for path in FOLDERS if not (path / "pipeline.yaml").exists()], ids=name)
def test_a_program_does_what_its_readme_shows(folder: Path, tmp_path: Path):
    follow(shutil.copytree(folder, tmp_path / folder.name))
