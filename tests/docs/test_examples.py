"""Every example is run as its README says: its commands one after the other, and what they print."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from docs.console import follow, pattern, shown
from docs.pages import EXAMPLES
from headrace.dev.kafka import free_ports
from headrace.validate.load import examine_text
from services.danube_stand_in import StandIn
from services.local_kafka import local_kafka
from services.rivven import RivvenServer

FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/README.md"))
ADDRESS = "localhost:9092"
DANUBE_ADDRESS = "http://localhost:6650"
OTHER_SERVERS = ("danube", "rivven")  # examples that need another server than Kafka
OWN_ADDRESSES = ("127.0.0.1:8080", "localhost:4317", "localhost:4318")  # of receivers
HTTP_ADDRESS = "127.0.0.1:8080"
DANUBE_ADDRESS = "http://localhost:6650"


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
def test_a_spec_has_no_diagnostics(folder: Path):
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


@pytest.fixture(scope="module")
def danube_address() -> Iterator[str]:
    """A stand-in for a Danube broker."""
    with StandIn() as stand_in:
        yield stand_in.url


@pytest.mark.service
@pytest.mark.parametrize(
    "folder",
    [path for path in FOLDERS if (path / "pipeline.yaml").exists() and path.name not in OTHER_SERVERS],
    ids=name,
)
def test_a_pipeline_does_what_its_readme_shows(folder: Path, address: str, tmp_path: Path):
    _follow_and_stop(_with_addresses(folder, {ADDRESS: address}, tmp_path))


def test_the_pipeline_of_rivven_does_what_its_readme_shows(rivven: RivvenServer, tmp_path: Path):
    follow(_with_addresses(EXAMPLES / "rivven", {ADDRESS: rivven.address}, tmp_path))


def test_the_pipeline_of_danube_does_what_its_readme_shows(danube_address: str, tmp_path: Path):
    _follow_and_stop(_with_addresses(EXAMPLES / "danube", {DANUBE_ADDRESS: danube_address}, tmp_path))


def _with_addresses(folder: Path, servers: dict[str, str], tmp_path: Path) -> Path:
    place = shutil.copytree(folder, tmp_path / folder.name)
    free = iter(free_ports())
    addresses = servers | {each: f"{each.partition(':')[0]}:{next(free)}" for each in OWN_ADDRESSES}
    for file in place.iterdir():
        text = file.read_text()
        for shown_address, address in addresses.items():
            text = text.replace(shown_address, address)
        file.write_text(text)
    return place


def _follow_and_stop(place: Path) -> None:
    try:
        follow(place)
    finally:
        for pid in place.glob("*.pid"):  # of programs that a README starts in the background
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("folder", [path for path in FOLDERS if not (path / "pipeline.yaml").exists()], ids=name)
def test_a_program_does_what_its_readme_shows(folder: Path, tmp_path: Path):
    follow(shutil.copytree(folder, tmp_path / folder.name))
