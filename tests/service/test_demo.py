"""The demo: works, works twice, proves its account, and clears nothing that is not its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.cli import main
from headrace.demonstration import MARKER

RECORDS = 5000


def _demo(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headrace", "demo", str(folder), "--records", str(RECORDS), *more])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def _proven(done: dict[str, Any], folder: Path) -> None:
    assert done["event"] == "summary"
    assert done["read"] == RECORDS == done["routed"] + done["dead"] + done["filtered"] == done["consumer_count"]
    assert (done["proven"], done["lag"]) == (True, 0)
    assert sum(done["reasons"].values()) == done["dead"] > 0
    assert done["filtered"] > 0
    rows = {path: DeltaTable(path).to_pyarrow_dataset().count_rows() for path in done["tables"]}
    assert rows == done["tables"]
    assert {Path(path).name for path in rows} >= {"page_view", "dead_letters"}
    assert all(Path(path).is_relative_to(folder) for path in rows)


def test_the_demo_works_and_works_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    folder = tmp_path / "demo"
    assert _demo(folder, monkeypatch, "--json") == 0
    out, _ = capfd.readouterr()
    _proven(json.loads(out.splitlines()[-1]), folder)
    (folder / "left over").write_text("by hand")
    assert _demo(folder, monkeypatch) == 0
    out, err = capfd.readouterr()
    assert f"read {RECORDS:,} = routed " in out
    assert f"an independent consumer counts {RECORDS:,} records; lag 0: they agree" in out
    assert "delta_scan(" in out
    assert "starting Spark" in err
    assert not (folder / "left over").exists()
    assert (folder / MARKER).exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    assert _demo(folder, monkeypatch) == 2
    assert "not an earlier demo's" in capsys.readouterr().err
    assert (folder / "thesis.txt").read_text() == "years of work"
