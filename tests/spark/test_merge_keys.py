"""Merges at keys of every kind, whose values are texts of a statement, statistics and filters of files."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.schema import SOURCE
from headrace.delta.staged_file import StagedFile
from headrace.errors import TableRestored
from headrace.spec.types import parse_type
from headrace.stage.change_schema import staged_schema
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store
from headrace.write.intent import MergeRules
from model.merging import Change
from services.changes import Merged
from services.staging import intent

# Each beside others in a batch of its own, so that it is a bound; all that is odd about one kind of them is in it.
KEYS: dict[str, tuple[Any, ...]] = {
    "string": ("x${abc}", "${env:HOME}'\\", "\U0010ffff" * 40),
    "date": (date(1582, 10, 10), date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (
        datetime(1890, 3, 5, 1, 2, 3, 4, UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ),
    "timestamp_ntz": (datetime(1582, 10, 10), datetime(1, 1, 1), datetime.max),
    "decimal(38,24)": (Decimal("1.23456789E-7"), Decimal("-1.23E-22"), Decimal("9.99999999999999999E-7")),
    "binary": (b"\x00\xff", b"", b"\xff" * 50),
    "boolean": (True, False, True),
    "tinyint": (-128, 127, 0),
    "bigint": (-(2**63), 2**63 - 1, 0),
}
NAMES = tuple(f"k{at}" for at in range(len(KEYS)))
SCHEMA = pa.schema(
    [*((name, parse_type(kind)) for name, kind in zip(NAMES, KEYS, strict=True)), ("seq", pa.int64()), SOURCE]
)


class Keyed(Merged):
    """Changes name their keys by number."""

    def stage(self, changes: Sequence[Change], batch: int) -> tuple[StagedFile, ...]:
        """The same with the key's values."""
        schema, made = staged_schema(self.schema, NAMES), []
        for row, change in enumerate(changes):
            place = {"topic": "t", "partition": 0, "offset": change.offset, "timestamp": 0}
            keys = dict(zip(NAMES, (values[change.key or 0] for values in KEYS.values()), strict=True))
            made.append({"_headrace": {"op": change.op, **place, "row": row}, **keys, "seq": change.sequence})
        stager = Stager(lambda uri: Store(uri), f"{batch:08d}-{uuid.uuid4()}")
        place_ = self.state.child(f"staging/{batch}/{self.table_id}")
        stager.add(FileLayout(place_.uri, schema), pa.Table.from_pylist(made, schema=schema))
        return stager.finish()

    def sequences(self) -> list[int]:
        """Of all rows, as Spark reads them."""
        rows = self.spark.read.format("delta").load(self.table.spark_uri).select("seq").collect()
        return sorted(row[0] for row in rows)


@pytest.mark.parametrize("in_process_bytes", [0, 1_000_000], ids=["by Spark", "by hand"])
def test_a_key_of_any_kind_finds_its_row_and_its_delete(in_process_bytes: int, spark: Any, tmp_path: Path) -> None:
    ntz = {"delta.feature.timestampNtz": "supported"}
    made = Keyed(
        spark, tmp_path, MergeRules(NAMES, sequence="seq", tombstone_retention=3600), schema=SCHEMA, properties=ntz
    )
    made.in_process_bytes = in_process_bytes
    made.batch([Change("put", key, 10 + key, offset=key) for key in range(3)], 1)
    for key in range(3):
        made.batch([Change("put", key, 20 + key, offset=3 + key)], 2 + key)
    assert made.sequences() == [20, 21, 22], "each was found"
    made.batch([Change("delete", key, 50, offset=6 + key) for key in range(3)], 5)
    for key in range(3):
        made.batch([Change("put", key, 40, offset=9 + key)], 6 + key)
    assert made.sequences() == [], "no older change brought one back"


def test_a_restore_underneath_stops_the_merge(spark: Any, tmp_path: Path) -> None:
    made = Merged(spark, tmp_path, MergeRules(("id",), sequence="seq", tombstone_retention=3600))
    running = made.open()
    for number in (1, 2):
        running.commit(made.part([Change("put", number, 1, offset=number)], number), intent(number))
    part = made.part([Change("put", 3, 1, offset=3)], 3)
    spark.sql(f"RESTORE TABLE delta.`{made.table.spark_uri}` TO VERSION AS OF 1").collect()
    with pytest.raises(TableRestored, match="restored the table"):
        running.commit(part, intent(3))
    assert made.rows().keys() == {1}


def test_deletes_from_before_the_types_grew_still_count(spark: Any, tmp_path: Path) -> None:
    narrow, wide = ([("id", kind), ("seq", kind)] for kind in (pa.int32(), pa.int64()))
    rest = [("a", pa.int64()), ("b", pa.int64()), SOURCE]
    by_sequence, wider = (
        MergeRules(("id",), sequence="seq", tombstone_retention=3600),
        {"delta.enableTypeWidening": "true"},
    )
    made = Merged(spark, tmp_path, by_sequence, schema=pa.schema([*narrow, *rest]), properties=wider)
    made.batch([Change("put", 1, 1), Change("delete", 2, 10, offset=1)], 1)
    made.schema = pa.schema([*wide, *rest])
    made.open().evolve(made.schema)
    made.batch([Change("delete", 1, 2**40, offset=2), Change("put", 2**40, 1, offset=3)], 2)
    made.batch([Change("put", 1, 2**39, offset=4), Change("put", 2, 9, offset=5)], 3)
    rows = spark.read.format("delta").load(made.table.spark_uri).select("id", "seq").collect()
    assert [tuple(row) for row in rows] == [(2**40, 1)]
