"""A watched folder of real files; the pipelines behind it wait for a Spark session that never comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.control import State
from headrace.serve.spec_folder import SpecFolder, watch_folder
from headrace.serve.supervisor import Supervisor
from services.sessions import FailingSession
from services.wait import eventually


def text(name: str, every: str = "5s") -> str:
    return (
        f"pipeline: {name}\nsource: {{generate: {{rate: 10/s}}}}\nflush: {{every: {every}}}\n"
        f"table: {{path: ./lake/{name}, columns: [{{name: id, type: bigint}}]}}\n"
    )


class Watched:
    """A folder, and what a supervisor did for its changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []
        self.session = FailingSession([])
        self.supervisor = Supervisor(self.session, report=self.events.append, restarts=True)
        self.folder = SpecFolder(path, self.supervisor, self.events.append)

    def write(self, name: str, content: str) -> None:
        (self.path / name).write_text(content)

    def look_twice(self) -> None:
        """A file is taken over once it has not changed between two looks."""
        self.folder.look()
        self.folder.look()

    def running(self) -> dict[str, float]:
        """The pipelines with their `flush.every`."""
        return {name: spec.flush.every.total_seconds() for name, spec in self.supervisor.specs().items()}

    def states(self, name: str) -> list[str]:
        return [
            event["state"] for event in list(self.events) if event["event"] == "state" and event["pipeline"] == name
        ]

    def texts(self, kind: str) -> list[str]:
        return [event["text"] for event in list(self.events) if event["event"] == kind]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    path = tmp_path / "specs"
    path.mkdir()
    watched = Watched(path)
    yield watched
    watched.supervisor.process_stop.set()
    watched.session.released.set()
    assert watched.supervisor.join()


def test_the_pipelines_of_all_files_start(watched: Watched) -> None:
    watched.write("one.yaml", text("web") + "---\n" + text("shop"))
    watched.write("two.yml", text("clicks"))
    watched.write("notes.txt", "no spec")
    watched.folder.start()
    assert watched.running() == {"web": 5, "shop": 5, "clicks": 5}


def test_a_change_restarts_only_its_pipeline(watched: Watched) -> None:
    watched.write("one.yaml", text("web") + "---\n" + text("shop"))
    watched.folder.start()
    eventually(lambda: watched.session.starts == 2, 30, "both start")
    watched.write("one.yaml", text("web", "9s") + "---\n" + text("shop"))
    watched.look_twice()
    assert watched.running() == {"web": 9, "shop": 5}
    watched.session.released.set()
    eventually(lambda: watched.states("web").count("starting") == 2, 30, lambda: str(watched.events))
    reasons = [event["reason"] for event in watched.events if event.get("state") == "starting" and event["reason"]]
    assert reasons[-1] == f"{watched.path}/one.yaml has changed"
    assert watched.states("shop").count("starting") == 1


def test_a_file_that_is_being_written_is_not_read(watched: Watched) -> None:
    watched.folder.start()
    whole = text("web")
    for end in (10, 40, len(whole)):
        watched.write("web.yaml", whole[:end])
        watched.folder.look()
        assert watched.running() == {}
    watched.folder.look()
    assert watched.running() == {"web": 5}
    assert watched.texts("invalid_spec") == []
    for name in (".web.yaml.swp", ".#web.yaml", "web.yaml~", "4913"):
        watched.write(name, text("editor"))
    watched.look_twice()
    assert watched.running() == {"web": 5}


def test_an_invalid_spec_is_reported_once_and_the_old_one_keeps_running(watched: Watched) -> None:
    watched.write("web.yaml", text("web"))
    watched.folder.start()
    watched.write("web.yaml", text("web").replace("generate", "generat"))
    watched.look_twice()
    watched.look_twice()
    (reported,) = watched.texts("invalid_spec")
    head, error, *_ = reported.splitlines()
    assert head == f"{watched.path}/web.yaml is invalid; the earlier version of web keeps running:"
    assert error.startswith(f"{watched.path}/web.yaml:2:")
    assert watched.running() == {"web": 5}
    watched.write("web.yaml", text("web", "9s"))
    watched.look_twice()
    assert watched.running() == {"web": 9}


def test_a_removed_file_stops_its_pipelines(watched: Watched) -> None:
    watched.write("web.yaml", text("web"))
    watched.write("shop.yaml", text("shop"))
    watched.folder.start()
    (watched.path / "web.yaml").unlink()
    watched.folder.look()
    assert set(watched.running()) == {"web", "shop"}, "an editor may be about to create it again"
    watched.folder.look()
    assert set(watched.running()) == {"shop"}
    watched.write("web.yaml", text("web"))
    watched.look_twice()
    assert set(watched.running()) == {"web", "shop"}


def test_a_renamed_file_changes_nothing(watched: Watched) -> None:
    watched.write("web.yaml", text("web"))
    watched.folder.start()
    (watched.path / "web.yaml").rename(watched.path / "site.yaml")
    watched.look_twice()
    assert watched.states("web") == ["starting"]


def test_a_pipeline_in_two_files_runs_from_the_first(watched: Watched) -> None:
    watched.write("a.yaml", text("web"))
    watched.write("b.yaml", text("web", "9s"))
    watched.folder.start()
    assert watched.running() == {"web": 5}
    (warning,) = watched.texts("warning")
    assert "the pipeline web is already in" in warning


def test_a_pause_outlasts_a_change(watched: Watched) -> None:
    watched.write("web.yaml", text("web"))
    watched.folder.start()
    watched.supervisor.pause("web")
    watched.write("web.yaml", text("web", "9s"))
    watched.look_twice()
    assert watched.supervisor.states()[0].is_pausing


def test_a_config_map_of_kubernetes(watched: Watched) -> None:
    """Its files are links into `..data`, a link to a folder that is replaced at once."""

    def publish(version: str, files: dict[str, str]) -> None:
        folder = watched.path / version
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_text(content)
            if not (watched.path / name).is_symlink():
                (watched.path / name).symlink_to(Path("..data") / name)
        (watched.path / "..data_tmp").symlink_to(version)
        (watched.path / "..data_tmp").rename(watched.path / "..data")

    publish("..2026_01", {"web.yaml": text("web"), "shop.yaml": text("shop")})
    watched.folder.start()
    assert watched.running() == {"web": 5, "shop": 5}
    publish("..2026_02", {"web.yaml": text("web", "9s"), "shop.yaml": text("shop")})
    watched.look_twice()
    assert watched.running() == {"web": 9, "shop": 5}
    assert watched.states("shop") == ["starting"]
    (watched.path / "..2026_02" / "shop.yaml").unlink()
    watched.look_twice()
    assert set(watched.running()) == {"web"}


def test_a_folder_that_disappears_stops_nothing(watched: Watched, tmp_path: Path) -> None:
    # The lake is elsewhere: a pipeline that writes below the folder would create it again, without the spec.
    watched.write("web.yaml", text("web").replace("./lake", f"{tmp_path}/lake"))
    watched.folder.start()
    watched.path.rename(watched.path.with_name("elsewhere"))
    watched.look_twice()
    watched.look_twice()
    assert set(watched.running()) == {"web"}
    (warning,) = watched.texts("warning")
    assert "cannot be read" in warning


def test_an_empty_folder_is_waited_for(watched: Watched) -> None:
    with watch_folder(watched.path, watched.supervisor, watched.events.append):
        assert "has no spec files" in watched.texts("warning")[0]
        watched.write("web.yaml", text("web"))
        eventually(lambda: set(watched.running()) == {"web"}, 30, lambda: str(watched.events))
        assert watched.supervisor.states()[0].state is State.STARTING
        watched.supervisor.process_stop.set()
