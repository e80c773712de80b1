"""What is remembered of deletes: it goes along with its table's types."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.log import EPOCH, version_path
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import SOURCE, to_delta
from headrace.errors import TxnMismatch
from headrace.write.intent import MergeRules
from headrace.write.tombstones import Tombstones
from model.merging import Change
from services.changes import Merged
from services.staging import intent, opened

MERGING = MergeRules(("id",), sequence="seq", tombstone_retention=3600)
WIDER = {
    "int to long": (pa.int32(), pa.int64(), [7, 8]),
    "long to decimal": (pa.int64(), pa.decimal128(20, 0), [Decimal(7), Decimal(8)]),
    "decimal to a wider one": (pa.decimal128(5, 1), pa.decimal128(9, 3), [Decimal(7), Decimal(8)]),
    "date to time": (pa.date32(), pa.timestamp("us"), [datetime(1970, 1, 8), datetime(1970, 1, 9)]),
}


def remember(made: Merged, schema: pa.Schema, key: Any, batch: int) -> Tombstones:
    """One delete more, in the columns that the table has by then."""
    made.schema = schema
    tombstones = Tombstones(made.state.child("tombstones/t"), "shop")
    part = made.part([Change("delete", key, 5, offset=batch)], batch)
    tombstones.commit(part, MERGING, intent(batch), schema)
    return tombstones


@pytest.mark.parametrize("kinds", WIDER.values(), ids=WIDER)
def test_keys_that_widen_are_stored_together(tmp_path: Path, kinds: tuple[pa.DataType, pa.DataType, Any]) -> None:
    narrow, wide, values = kinds
    made, columns = Merged(None, tmp_path, MERGING), [("seq", pa.int64()), ("a", pa.int64()), ("b", pa.int64()), SOURCE]
    first = date(1970, 1, 8) if narrow == pa.date32() else 7
    remember(made, pa.schema([("id", narrow), *columns]), first, 1)
    grown = pa.schema([("id", wide), *columns])
    for batch in (2, 2):  # once
        tombstones = remember(made, grown, values[1], batch)
    rows = tombstones.rows(tombstones.files(datetime.now(UTC)))
    assert rows.schema.field("id").type == wide
    assert sorted(rows["id"].to_pylist()) == values
    again = Tombstones(tombstones.store, "shop")
    assert to_delta(again.columns) == to_delta(tombstones.columns)


# ---- tombstones that are missing ----


@pytest.fixture
def merged(tmp_path: Path) -> Merged:
    """A table with a delete, whose merges the log no longer has: others committed since, and the log was cleaned up."""
    made = Merged(None, tmp_path, MERGING)
    made.batch([Change("put", 1, 1, (1, 1))], 1)
    made.batch([Change("delete", 1, 5, offset=1)], 2)
    clean_log(made)
    return made


def clean_log(made: Merged) -> None:
    newest = LogWriter.open(made.table).note("VACUUM END", {}, {})
    opened(made.table).create_checkpoint()
    for version in range(newest):
        (Path(made.table.uri) / version_path(version)).unlink()


def late(made: Merged, now: datetime = EPOCH) -> None:
    part = made.part([Change("put", 1, 3, (3, 3), offset=2)], 3)
    made.open().commit(part, replace(intent(3), retention_time=now))


def test_missing_tombstones_are_an_error_if_the_log_no_longer_has_the_last_merge(merged: Merged) -> None:
    shutil.rmtree(merged.state.child("tombstones").uri)
    with pytest.raises(TxnMismatch, match=r"the tombstones at .* are missing"):
        late(merged)
    assert merged.rows() == {}, "the row that was deleted at 5 does not come back by a change of 3"


def test_missing_tombstones_that_have_expired_do_not_matter(merged: Merged) -> None:
    shutil.rmtree(merged.state.child("tombstones").uri)
    late(merged, datetime.now(UTC) + timedelta(seconds=3600))
    assert merged.rows() == {1: (3, 3, 3)}


def test_tombstones_that_are_there_are_not_missing(merged: Merged) -> None:
    late(merged)
    assert merged.rows() == {}


def test_no_tombstones_are_missing_in_a_table_that_the_pipeline_never_merged_into(merged: Merged) -> None:
    part = merged.part([Change("put", 2, 3, (3, 3), offset=2)], 1)
    merged.open("other").commit(part, intent(1, "other"))
    assert merged.rows() == {2: (3, 3, 3)}


def test_a_commit_without_a_merge_does_not_hide_missing_tombstones(tmp_path: Path) -> None:
    """The txn of a batch may be set again by a commit of its own, which knows nothing of tombstones."""
    made = Merged(None, tmp_path, MERGING)
    made.batch([Change("put", 1, 1, (1, 1))], 1)
    made.batch([Change("delete", 1, 5, offset=1)], 2)
    LogWriter.open(made.table, [], lambda _: None).append((), {"headrace:shop": 2}, {"batch": 2})
    shutil.rmtree(made.state.child("tombstones").uri)
    with pytest.raises(TxnMismatch, match=r"the tombstones at .* are missing"):
        late(made)
