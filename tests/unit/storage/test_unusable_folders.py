"""Folders that cannot be created are named, never a traceback; a path below a file is one for root too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.errors import PermissionDenied, SetupError
from headrace.runtime import cache, work_folder
from headrace.runtime.session import log_folder
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from headrace.validate import online
from services.in_process_pipeline import Harness
from services.pipelines import HEADRACE

PLACES = ["file/lake", "/proc/headrace"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("no folder")
    return tmp_path


@pytest.mark.parametrize("place", PLACES)
def test_a_store_and_a_lease_name_the_folder(folder: Path, place: str):
    store = Store(str(folder / place))
    for attempt in (lambda: store.put("a/b", b""), lambda: store.put_new("c", b""), lambda: Lease.take(store)):
        with pytest.raises(PermissionDenied, match=r"The directory .* cannot be created.*Specify a directory"):
            attempt()
    assert store.tag("a/b") is None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("key", ["table.path", "storage", "dead_letters.path"])
def test_check_online_finds_the_folder(folder: Path, place: str, key: str):
    wrong = str(folder / place / "deeper/t")
    options: dict[str, Any] = {"route": {"by": "fixed"}, "table": {"path": f"{folder}/lake/t"}}
    options |= {
        "table.path": {"table": {"path": wrong}, "state": f"{folder}/state"},
        "storage": {"state": wrong},
        "dead_letters.path": {"dead_letters": {"path": wrong}},
    }[key]
    spec = Harness(folder, options).spec
    found = list(online._stores(spec))
    assert [each.key for each in found] == [key]
    assert "PermissionDenied" in found[0].message


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME", "HEADRACE_LOG_DIR"])
def test_the_folders_of_this_machine_name_their_setting(folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str):
    monkeypatch.setenv(variable, str(folder / "file/below"))
    makes = {
        "XDG_STATE_HOME": lambda: work_folder.shared_folder("shop"),
        "XDG_CACHE_HOME": lambda: cache.cache_folder("jars"),
        "HEADRACE_LOG_DIR": log_folder,
    }
    with pytest.raises(SetupError, match=rf"Cannot create the directory .*: Not a directory\. Set {variable}"):
        makes[variable]()


def test_a_run_ends_with_the_name_and_no_traceback(folder: Path):
    text = "pipeline: web\nsource: {generate: {records: 5}}\ntable: {path: ./file/lake/web}\n"
    (folder / "web.yaml").write_text(f"{text}retry: {{access_denied: 1}}\n")
    done = subprocess.run([HEADRACE, "run", "web.yaml"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "PermissionDenied: The directory" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


# ---- what the ledger knows ----


def _told(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    monkeypatch.setattr(online, "_topics", lambda spec: [harness.topic])
    return [(each.key, each.message) for each in online._run_check(harness.spec, "state", online._known_tables)]


def test_check_online_finds_tables_that_are_gone_or_others_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    harness = Harness(tmp_path)
    assert _told(harness, monkeypatch) == []
    harness.feed([{"kind": kind} for kind in "abc"])
    assert _told(harness, monkeypatch) == []
    for kind in "ab":
        shutil.rmtree(tmp_path / "lake" / kind)
    write_deltalake(str(tmp_path / "lake/b"), pa.table({"kind": ["b"]}))
    (gone_key, gone), (other_key, other) = _told(harness, monkeypatch)
    assert (gone_key, other_key) == ("table.path", "table.path")
    assert f"TableGone: The table {tmp_path}/lake/a was deleted" in gone
    assert f"TableReplaced: The table {tmp_path}/lake/b was replaced" in other


def test_check_online_finds_a_name_that_another_pipeline_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/one"}})
    harness.feed([{"id": 1}])
    harness.topic, harness.options["table"] = "refunds", {"path": f"{tmp_path}/lake/two"}
    ((key, seen),) = _told(harness, monkeypatch)
    assert key == "pipeline"
    assert f"'shop' is the name of a pipeline that reads orders into {tmp_path}/lake/one" in seen
    harness.options["pipeline"] = "refunds"
    assert _told(harness, monkeypatch) == []


# ---- all columns at once ----


def test_every_column_that_disagrees_is_reported(tmp_path: Path):
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/t"}})
    harness.feed([{"a": 1, "b": 2, "c": "x"}])
    columns = [{"name": name, "type": kind} for name, kind in (("a", "string"), ("b", "date"), ("c", "string"))]
    harness.options["table"]["columns"] = columns
    (found,) = online._tables(harness.spec)
    assert "column 'a' is long" in found.message
    assert "column 'b' is long" in found.message
    assert "'c'" not in found.message


def test_every_column_that_changed_is_reported():
    from headrace.delta.actions import MetadataAction, Protocol
    from headrace.delta.evolution import check_fits
    from headrace.delta.schema import to_delta
    from headrace.delta.snapshot import TableState
    from headrace.errors import TableChanged

    files = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())])
    state = TableState(
        4, MetadataAction("id", to_delta(pa.schema([("a", pa.string()), ("c", pa.string())]))), Protocol()
    )
    with pytest.raises(TableChanged, match=r"column a is string.*; column b is not in the table"):
        check_fits(to_delta(files), state)
