"""Headers between Spark and a task: records without any have an empty array on the way, and NULL after it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.delta.schema import HEADERS
from headrace.source.base import restore_null_headers

ONE = [{"key": "h", "value": b"1"}]
TWO = [{"key": "h", "value": None}, {"key": "h", "value": b""}]


@pytest.mark.parametrize("sent", [[[], ONE, [], TWO], [[], []], [ONE, TWO], []], ids=["mixed", "none", "all", "empty"])
@pytest.mark.parametrize("first", [0, 1])
def test_records_without_headers_have_null_headers(sent: list[list[dict[str, object]]], first: int):
    columns = {"offset": pa.array(range(len(sent)), pa.int64()), "headers": pa.array(sent, HEADERS)}
    batch = pa.RecordBatch.from_pydict(columns).slice(first)
    restored = restore_null_headers(batch)
    assert restored.schema == batch.schema
    assert restored.column("headers").to_pylist() == [headers or None for headers in sent][first:]
    assert restored.column("offset").equals(batch.column("offset"))
