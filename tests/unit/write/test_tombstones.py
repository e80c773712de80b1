"""What is remembered of deletes: it goes along with its table's types."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.schema import SOURCE, to_delta
from headrace.write.intent import MergeRules
from headrace.write.tombstones import Tombstones
from model.merging import Change
from services.changes import Merged
from services.staging import intent

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
def test_keys_that_widen_are_remembered_together(tmp_path: Path, kinds: tuple[pa.DataType, pa.DataType, Any]) -> None:
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
