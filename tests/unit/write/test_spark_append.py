"""Tables that Spark writes, and others alter underneath: found before Spark is asked, so without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.delta.log import EPOCH
from headrace.delta.restores import restored_since
from headrace.delta.snapshot import load_state
from headrace.delta.txn import batch_txn
from headrace.errors import PipelineStopped, TableChanged, TableGone, TableReplaced, TableRestored
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from headrace.write.intent import Intent, MergeRules, TableIntent
from headrace.write.leased_writer import LeasedWriter
from headrace.write.merge_sql import SPARK
from headrace.write.staged_changes import StagedChanges
from headrace.write.tombstones import Tombstones
from model.merging import Change
from services.changes import Merged
from services.staging import SCHEMA, intent, opened, staged, table_intent

MARK = batch_txn("shop")


class Written(LeasedWriter):
    """Its commits are Spark's but for Spark: of a writer that does not look at what came before."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def _write(self, table: TableIntent, intent: Intent) -> None:
        seen = self._known().version
        self.meanwhile()
        tail = AppendWriter.open(self._store, "shop").log_writer
        tail.append(table.files, {MARK: intent.batch}, {"read_version": seen})


@pytest.fixture
def lake(tmp_path: Path) -> Store:
    """A table with two batches of the pipeline."""
    store = Store(str(tmp_path / "t"))
    tail = AppendWriter.open(store, "shop")
    tail.commit(table_intent(store, [staged(store, [1])], "a" * 32, create=True), intent(1))
    tail.commit(table_intent(store, [staged(store, [2])], "a" * 32), intent(2))
    return store


def table(store: Store) -> Written:
    return Written(None, store, "shop", store.child("tombstones"), 0)  # type: ignore[arg-type]


def part(store: Store, number: int) -> TableIntent:
    """A part of a batch whose file is staged beside the table, for Spark to append."""
    file = replace(staged(store, [number]), table=f"{store.uri}-staged")
    return table_intent(store, [file], "a" * 32)


def _restored(store: Store) -> None:
    opened(store).restore(0)


def _gone(store: Store) -> None:
    shutil.rmtree(store.root)


def _replaced(store: Store) -> None:
    _gone(store)
    for _ in range(3):
        write_deltalake(store.root, pa.table({"id": [1], "day": ["a"]}), mode="append")


def _set_back(store: Store) -> None:
    (Path(store.root) / "_delta_log/00000000000000000001.json").unlink()


def _dropped(store: Store) -> None:
    write_deltalake(store.root, pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite")


def _retyped(store: Store) -> None:
    rows = pa.table({"id": ["x"], "day": ["a"]})
    write_deltalake(store.root, rows, mode="overwrite", schema_mode="overwrite")


ALTERED: list[tuple[Callable[[Store], None], type[PipelineStopped], str]] = [
    (_restored, TableRestored, "--table-restored=refill"),
    (_set_back, TableRestored, "--table-restored=keep"),
    (_replaced, TableReplaced, "--accept-new-table"),
    (_gone, TableGone, "--accept-new-table"),
    (_dropped, TableChanged, "--accept-new-table"),
    (_retyped, TableChanged, "--accept-new-table"),
]


@pytest.mark.parametrize(("alter", "named", "command"), ALTERED, ids=[each[0].__name__[1:] for each in ALTERED])
def test_a_table_altered_underneath_stops_it_with_that_name_and_the_command(
    lake: Store, alter: Callable[[Store], None], named: type[PipelineStopped], command: str
) -> None:
    running, batch = table(lake), part(lake, 3)
    alter(lake)
    with pytest.raises(named) as stopped:
        running.commit(batch, intent(3))
    assert command in stopped.value.hint


def test_what_others_add_is_gone_along_with(lake: Store) -> None:
    running = table(lake)
    write_deltalake(lake.root, pa.table({"id": [9], "day": ["x"], "new": [1]}), mode="append", schema_mode="merge")
    assert running.commit(part(lake, 3), intent(3)).version == 3


def test_to_evolve_a_restored_table_does_not_hide_that_it_was(lake: Store) -> None:
    running = table(lake)
    _restored(lake)
    for _ in range(2):
        with pytest.raises(TableRestored):
            running.evolve(SCHEMA)


def test_a_restore_beside_a_commit_is_found_after_it_and_at_the_next_start(lake: Store) -> None:
    running = table(lake)
    running.meanwhile = lambda: _restored(lake)
    with pytest.raises(TableRestored, match="Version 2"):
        running.commit(part(lake, 3), intent(3))
    state = load_state(lake, [MARK])
    assert state is not None
    assert (state.version, state.txns) == (3, {MARK: 3}), "the commit is there, after the restore"
    assert restored_since(lake, state, MARK).newest == 2
    running = table(lake)
    running.commit(part(lake, 4), intent(4))  # once somebody has answered
    assert DeltaTable(lake.root).version() == 4
    assert restored_since(lake, load_state(lake) or state, MARK).newest is None


@pytest.mark.parametrize(
    ("keys", "distinct"),
    [((1, 2, 3), True), ((1, 2, 1), False), ((1, None, None), True), ((), True)],
    ids=["each once", "one twice", "truncates", "none"],
)
def test_a_batch_without_a_key_twice_is_known_as_such(
    tmp_path: Path, keys: tuple[int | None, ...], distinct: bool
) -> None:
    made = Merged(None, tmp_path, MergeRules(("id",)))
    said = [Change("put" if key else "truncate", key, offset=at) for at, key in enumerate(keys)]
    files = [file for each in said for file in made.stage([each], each.offset)]  # also over files
    part = made.part([Change("put", 9)], 9)
    tombstones = Tombstones(made.state.child("tombstones"), "shop")
    changes = StagedChanges(replace(part, files=(*files, *part.files)), made.merging, tombstones, EPOCH)
    assert changes.sql(SPARK).distinct is distinct
