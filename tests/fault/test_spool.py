"""A damaged spool stops its pipeline, which continues with the file that was restored: nothing is skipped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.errors import SpoolDamaged
from headrace.source.base import open_source
from headrace.source.ranges import Range
from headrace.source.spool.block import BLOCK_SCHEMA
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.source import SpoolSource
from headrace.source.spool.writer import Incoming
from headrace.validate.load import loads
from services.in_process_pipeline import Records, run_once


def read_here(source: SpoolSource, _: Any, ranges: Sequence[Range]) -> Records:
    """The records of the ranges, without Spark."""
    return Records(batch for part in ranges for batch in record_batches(open_reader(source._folder), part))


@pytest.mark.parametrize("damage", ["changed", "deleted"])
def test_a_pipeline_continues_when_its_spool_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(SpoolSource, "read", read_here)
    content = {
        "pipeline": "shop",
        "source": {"http": {"topics": ["orders"]}},
        "table": {"path": str(tmp_path / "lake" / "t"), "columns": [{"name": "n", "type": "bigint"}]},
    }
    spec = loads(json.dumps(content))[0]
    source = open_source(spec)
    assert isinstance(source, SpoolSource)
    with closing(source.open_destination()) as spool:
        for number in range(3):
            row = {"key": None, "value": b'{"n":%d}' % number, "headers": None, "timestamp": None}
            batch = pa.RecordBatch.from_pylist([row], BLOCK_SCHEMA)
            spool.append(Incoming("orders", batch)).result(10)
    assert run_once(spec, batch_records=1) == 3
    with closing(source.open_destination()) as spool:
        row["value"] = b'{"n":3}'
        spool.append(Incoming("orders", pa.RecordBatch.from_pylist([row], BLOCK_SCHEMA))).result(10)
    (segment,) = (tmp_path / "lake" / "_headrace" / "shop" / "spool").rglob("*.seg")
    whole = segment.read_bytes()
    if damage == "changed":
        segment.write_bytes(whole.replace(b'{"n":3}', b'{"n":4}'))
    else:
        segment.unlink()
    for _ in range(2):
        with pytest.raises(SpoolDamaged) as stopped:
            run_once(spec)
        assert stopped.value.hint
    segment.write_bytes(whole)
    assert run_once(spec) == 1
    rows = DeltaTable(tmp_path / "lake" / "t").to_pyarrow_table()["n"].to_pylist()
    assert sorted(rows) == [0, 1, 2, 3]
