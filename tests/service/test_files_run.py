"""`headrace run --until latest` over files, killed in between: each row once, in its table or as a dead letter."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.faults import Point
from services.pipelines import start_cli


@pytest.mark.usefixtures("spark")
def test_files_are_read_once_although_runs_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        lines = b"".join(b'{"n":%d}\n' % (10 * number + row) for row in range(10))
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"n":40}\n')[:-3])
    files = {"path": str(folder), "settle": "0s", "after": {"move": str(tmp_path / "done")}}
    content = {
        "pipeline": "drop",
        "source": {"files": files},
        "table": {"path": str(tmp_path / "lake" / "t"), "columns": [{"name": "n", "type": "bigint"}]},
    }
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(content))
    for point in (Point.AFTER_STAGING, Point.AFTER_COMMIT):
        with run(spec, f"{point}:batch=1=kill") as killed:
            assert killed.wait() == -signal.SIGKILL, killed.said()
        assert len(list(folder.iterdir())) == 5  # nothing is moved before the ledger has the batch
    with run(spec) as finished:
        assert finished.wait() == 0, finished.said()
    table = DeltaTable(tmp_path / "lake" / "t").to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == list(range(41))
    dead_letters = DeltaTable(tmp_path / "lake" / "_headrace" / "drop" / "dead_letters").to_pyarrow_table()
    assert dead_letters["reason"].to_pylist() == ["malformed"]
    assert [path.name for path in folder.iterdir()] == ["bad.jsonl.gz"]
    assert len(list((tmp_path / "done").iterdir())) == 4


def run(spec: Path, fault: str = "") -> Any:
    """`headrace run --until latest` with a fault armed."""
    return start_cli(["run", str(spec), "--until", "latest"], {"HEADRACE_FAULT": fault})
