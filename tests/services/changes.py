"""Changes staged for a table that merges, without Spark; and the batches that bring them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace import Table
from headrace.delta.schema import SOURCE, to_delta
from headrace.delta.staged_file import StagedFile
from headrace.errors import Fenced
from headrace.stage.change_schema import staged_schema
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store
from headrace.write.intent import MergeRules, TableIntent
from headrace.write.leased_writer import LeasedWriter
from model.merging import Change, columns_of
from services.staging import intent, opened, rows

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("a", pa.int64()),
        pa.field("b", pa.int64()),
        SOURCE,
    ]
)


class Merged:
    """One table, the folder of its state, and drivers that merge into it."""

    in_process_bytes = 1_000_000_000  # bytes up to which they do so without Spark
    more: Mapping[str, Any] = {}  # columns beside those of the changes

    def __init__(
        self,
        spark: Any,
        folder: Any,
        merging: MergeRules,
        partition_by: tuple[str, ...] = (),
        schema: pa.Schema = SCHEMA,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.spark, self.merging, self.partition_by, self.schema = spark, merging, partition_by, schema
        self.properties = dict(properties or {})
        self.table, self.state = Store(f"{folder}/t"), Store(f"{folder}/state")
        self.table_id = str(uuid.uuid4())

    def open(self, pipeline: str = "shop") -> LeasedWriter:
        """A driver that has seen nothing yet."""
        tombstones = self.state.child("tombstones")
        return LeasedWriter(lambda: self.spark, self.table, pipeline, tombstones, self.in_process_bytes)

    def stage(self, changes: Sequence[Change], batch: int) -> tuple[StagedFile, ...]:
        """The changes in files of their own, as tasks stage them."""
        schema = staged_schema(self.schema, self.merging.keys)
        place = self.state.child(f"staging/{batch}/{self.table_id}")
        stager = Stager(lambda uri: Store(uri), f"{batch:08d}-{uuid.uuid4()}")
        silent = {name: [None] * len(changes) for name in schema.names}
        brought = {**silent, **columns_of(changes), **self.more}
        stager.add(FileLayout(place.uri, schema), pa.table(brought, schema=schema))
        return stager.finish()

    def part(self, changes: Sequence[Change], batch: int) -> TableIntent:
        """The table's part of a batch."""
        state = self.open().state
        return TableIntent(
            self.table.uri,
            self.table_id if state is None else state.table_id,
            state is None,
            to_delta(self.schema),
            self.partition_by,
            self.properties,
            self.stage(changes, batch),
            merging=self.merging,
        )

    def batch(self, changes: Sequence[Change], number: int) -> Any:
        """Merge them as one batch: its receipt."""
        return self.open().commit(self.part(changes, number), intent(number))

    def read(self) -> list[dict[str, Any]]:
        """Every row, as a reader that is not Spark finds them; delta-rs's own datasets refuse deletion vectors."""
        if "delta.enableDeletionVectors" in self.properties:
            return Table(self.table.uri).query().order_by("id").records()
        return rows(self.table)

    def rows(self) -> dict[int, tuple[int | None, ...]]:
        """Key to sequence and values; no key twice."""
        found = self.read()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: (row["seq"], row["a"], row["b"]) for row in found}


def goes_in_once(made: Merged) -> None:
    """A batch counts once whoever comes again with it, and never for one that others have passed."""
    zombie = made.open()
    part = made.part([Change("put", 1, 1, (1, 1)), Change("put", 2, 1, (1, 1), offset=1)], 1)
    first = zombie.commit(part, intent(1))
    assert (first.inserted, first.updated, first.deleted, first.skipped) == (2, 0, 0, False)
    for driver in (zombie, made.open()):
        assert driver.commit(part, intent(1)).skipped
    assert opened(made.table).version() == first.version
    second = made.batch([Change("put", 1, 2, (2, 2), offset=2), Change("delete", 2, 2, offset=3)], 2)
    assert (second.inserted, second.updated, second.deleted) == (0, 1, 1)
    with pytest.raises(Fenced):
        zombie.commit(part, intent(1))
    assert made.rows() == {1: (2, 2, 2)}


def log(count: int, keys: int, seed: int, sequences: bool = True, deletes: float = 0.3) -> list[Change]:
    """A long change log: each key's sequences are distinct."""
    chance, made = random.Random(seed), []
    for number in range(count):
        op = "delete" if chance.random() < deletes else "put"
        key, values = chance.randrange(keys), (chance.randrange(9), chance.choice([None, 1, 2]))
        sequence = chance.randrange(1000) * count + number if sequences else None
        made.append(Change(op, key, sequence, values if op == "put" else (None, None), key % 3, number, number))
    return made


def cut(changes: Sequence[Change], pieces: int) -> list[Sequence[Change]]:
    size = -(-len(changes) // pieces)
    return [changes[at : at + size] for at in range(0, len(changes), size)]
