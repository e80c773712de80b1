"""Files through a pipeline in this process, abandoned at each crash point: each row once, and no file too early."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import FileChanged
from headrace.faults import Abandoned, Point, armed
from headrace.source.files.source import FilesSource
from headrace.source.ranges import Range
from headrace.validate.load import load, loads
from services.in_process_pipeline import Records, run_once

POINTS = [
    Point.BEFORE_STAGING,
    Point.AFTER_STAGING,
    Point.AFTER_COMMIT,
    Point.BEFORE_LEDGER_WRITE,
    Point.AFTER_LEDGER_WRITE,
]


def read_here(source: FilesSource, _: Any, ranges: Sequence[Range]) -> Records:
    """The records of the ranges, without Spark."""
    return Records(batch for part in ranges for batch in source.reader(source.files_of(part))(part))


@pytest.mark.parametrize("point", POINTS)
def test_each_row_once_whatever_crashes(tmp_path: Path, point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilesSource, "read", read_here)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        rows = b"".join(b'{"n":%d}\n' % (5 * number + row) for row in range(5))
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(rows))
    (folder / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"n":20}\n')[:-3])
    content = {
        "pipeline": "drop",
        "source": {"files": {"path": str(folder), "settle": "0s", "after": {"move": str(tmp_path / "done")}}},
        "table": {"path": str(tmp_path / "lake" / "t"), "columns": [{"name": "n", "type": "bigint"}]},
    }
    spec = loads(json.dumps(content))[0]
    for batch in (1, 2):
        with armed(point, "abandon", batch=batch), pytest.raises(Abandoned):
            run_once(spec)
        moved = {path.name for path in (tmp_path / "done").glob("*")}
        assert moved <= {"0.jsonl.gz", "1.jsonl.gz"}  # of the first 14 records
    run_once(spec)
    assert run_once(spec) == 0
    table = DeltaTable(tmp_path / "lake" / "t").to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == list(range(21))
    dead_letters = DeltaTable(tmp_path / "lake" / "_headrace" / "drop" / "dead_letters").to_pyarrow_table()
    assert dead_letters["reason"].to_pylist() == ["malformed"]
    assert [path.name for path in folder.iterdir()] == ["bad.jsonl.gz"]
    assert len(list((tmp_path / "done").iterdir())) == 4


def test_a_changed_file_is_skipped_by_the_command_of_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilesSource, "read", read_here)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.jsonl").write_bytes(b'{"n":%d}\n' % ord(name))
    content = {
        "pipeline": "drop",
        "source": {"files": {"path": str(folder), "settle": "0s", "poll": "100ms"}},
        "table": {"path": str(tmp_path / "lake" / "t"), "columns": [{"name": "n", "type": "bigint"}]},
    }
    file = tmp_path / "drop.yaml"
    file.write_text(json.dumps(content))
    with armed(Point.BEFORE_STAGING, "abandon", batch=2), pytest.raises(Abandoned):
        run_once(load(file)[0], batch_records=1)
    (folder / "b.jsonl").write_bytes(b'{"n":7}\n{"n":8}\n')
    for _ in range(2):
        with pytest.raises(FileChanged) as stopped:
            run_once(load(file)[0], batch_records=1)
    (command,) = re.findall(r"`headrace (resume SPEC [^`]+)`", stopped.value.message + stopped.value.hint)
    resumed = CliRunner().invoke(app, command.replace("SPEC", str(file)).split())
    assert resumed.exit_code == 0, resumed.output
    run_once(load(file)[0])
    rows = DeltaTable(tmp_path / "lake" / "t").to_pyarrow_table()["n"].to_pylist()
    assert sorted(rows) == [7, 8, ord("a"), ord("c")]
