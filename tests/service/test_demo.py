"""The demo: works, works twice, proves its account, and clears nothing that is not its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.cli import main
from headrace.dev.demo import MARKER
from headrace.runtime.environment_archive import build_environment
from services.delta_scan import scanned
from services.pipelines import run_cli

RECORDS = 5000


def _demo(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headrace", "demo", str(folder), "--records", str(RECORDS), *more])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def _counts_match(done: dict[str, Any], folder: Path) -> None:
    assert done["event"] == "summary"
    assert done["read"] == RECORDS == done["routed"] + done["dead"] + done["filtered"] == done["consumer_count"]
    assert (done["counts_match"], done["lag"]) == (True, 0)
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
    _counts_match(json.loads(out.splitlines()[-1]), folder)
    (folder / "left over").write_text("by hand")
    assert _demo(folder, monkeypatch, "--console") == 0
    out, err = capfd.readouterr()
    assert re.fullmatch(r"Console: http://127\.0\.0\.1:\d+", out.splitlines()[-1])
    assert out.splitlines()[-2] == f"To start it again: headrace console {folder}/shop.yaml"
    assert "Console, metrics and health: http://127.0.0.1:" in err
    assert f"read {RECORDS:,} = routed " in out
    assert f"an independent consumer read {RECORDS:,} records; lag 0: they match" in out
    _queries_run(out, tmp_path)
    assert "starting Spark" in err
    assert not (folder / "left over").exists()
    assert (folder / MARKER).exists()


def _queries_run(out: str, folder: Path) -> None:
    """Every query that the demo prints, run as it is printed; all of them count the same."""
    shown = dict(re.findall(r"^  (Headrace|DuckDB|Polars|Spark) +(.+)$", out, re.MULTILINE))
    counts = {
        name: dict(json.loads(run(shown[name], folder)))
        for name, run in {"Headrace": _shell, "DuckDB": _duckdb, "Polars": _polars, "Spark": _spark}.items()
    }
    assert sum(counts["Polars"].values()) > 1000
    assert all(counted == counts["Polars"] for counted in counts.values()), counts


def _ran(command: list[str] | str, **how: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _shell(command: str, folder: Path) -> str:
    rows = [json.loads(line) for line in _ran(f"{command} --json", shell=True).splitlines()]  # noqa: S604
    return json.dumps([list(each["row"].values()) for each in rows if each["event"] == "row"])


def _duckdb(query: str, folder: Path) -> str:
    return json.dumps(scanned(query, folder))


def _polars(expression: str, folder: Path) -> str:
    import polars as pl

    return json.dumps(eval(expression, {"pl": pl}).rows())  # noqa: S307


def _spark(command: str, folder: Path) -> str:
    """By plain PySpark, with defaults that suit a small machine; nothing of Headrace is in it."""
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    defaults = {"spark.sql.shuffle.partitions": 1, "spark.databricks.delta.snapshotPartitions": 1}
    more = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    (conf / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in (defaults | more).items()))
    out = _ran(command.split(), env={**os.environ, "SPARK_CONF_DIR": str(conf)})
    return json.dumps([(path, int(count)) for path, count in re.findall(r"^\|(/\S*) *\|(\d+) *\|$", out, re.MULTILINE)])


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    assert _demo(folder, monkeypatch) == 2
    assert "was not created by the demo" in capsys.readouterr().err
    assert (folder / "thesis.txt").read_text() == "years of work"


@pytest.mark.slow
def test_the_demo_on_a_cluster(tmp_path: Path) -> None:
    build_environment()
    folder = tmp_path / "demo"
    arguments = ["demo", folder, "--records", str(RECORDS), "--master", "cluster", "--json"]
    finished = run_cli(arguments, within=500)
    assert finished.returncode == 0, finished.stderr[-2000:]
    _counts_match(json.loads(finished.stdout.splitlines()[-1]), folder)
    assert 'master: "spark://127.0.0.1:' in (folder / "shop.yaml").read_text()
