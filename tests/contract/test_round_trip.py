"""What went in comes out: random rows of random columns, through a pipeline without a JVM, out of Delta again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.spec import Spec
from headrace.spec.types import type_name
from headrace.validate.load import loads
from services.in_process_pipeline import ingest
from services.plans import envelopes
from services.random_rows import WRITERS, Columns, Row, columns, rows, told


def spec_of(folder: Path, decode: dict[str, Any], declared: Columns) -> Spec:
    content = {
        "pipeline": "rows",
        "source": {"kafka": {"brokers": "localhost:9", "topics": ["web"]}},
        "decode": decode,
        "table": {
            "path": "./lake/rows",
            "columns": [{"name": name, "type": type_name(kind)} for name, kind in declared.items()],
        },
    }
    return loads(json.dumps(content, ensure_ascii=False), folder)[0]


def written(format: str, made: Columns, records: list[Row], folder: Path, *, declare: bool = True) -> DeltaTable:
    """Two batches, each by a pipeline of its own."""
    decode, values = WRITERS[format](made, records, folder)
    spec, given = spec_of(folder, decode, made if declare else {}), envelopes(values)
    half = len(values) // 2
    for part in (given.slice(0, half), given.slice(half)):
        if len(part):
            ingest(spec, part)
    assert not DeltaTable.is_deltatable(spec.dead_letters_uri), DeltaTable(spec.dead_letters_uri).to_pyarrow_table()
    return DeltaTable(folder / "lake" / "rows")


def in_words(declared: Columns, found: list[Row]) -> list[Row]:
    return [{name: told(kind, row[name]) for name, kind in declared.items()} for row in found]


def in_order(table: pa.Table) -> list[Row]:
    return sorted(table.to_pylist(), key=lambda row: row["_source"]["offset"])


@pytest.mark.parametrize("format", WRITERS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_what_went_in_comes_out(tmp_path_factory: pytest.TempPathFactory, format: str, data: st.DataObject):
    declared = data.draw(columns(format))
    records = data.draw(st.lists(rows(declared, format), min_size=1, max_size=8))
    table = written(format, declared, records, tmp_path_factory.mktemp("rows"))
    found = table.to_pyarrow_table()
    assert found.schema.names == [*declared, "_source"]
    assert in_words(declared, in_order(found)) == in_words(declared, records)


@pytest.mark.parametrize("format", ["avro", "protobuf", "msgpack"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_columns_that_a_schema_brings_hold_what_went_in(
    tmp_path_factory: pytest.TempPathFactory, format: str, data: st.DataObject
):
    made = data.draw(columns(format, plain=True))
    records = data.draw(st.lists(rows(made, format), min_size=1, max_size=8))
    found = written(format, made, records, tmp_path_factory.mktemp("rows"), declare=False).to_pyarrow_table()
    assert set(found.schema.names) == {*made, "_source"}
    assert in_words(made, in_order(found)) == in_words(made, records)
