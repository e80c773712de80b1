"""Merges with deletion vectors: the same table as without, read, vacuumed and compacted by every command."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError

from headrace import Table
from headrace.delta.snapshot import active_files, load_state
from headrace.storage.lease import Lease
from headrace.write.intent import MergeRules
from model.merging import Change, Model
from services.changes import Merged, cut, log
from services.staging import opened

FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
BY_SEQUENCE = MergeRules(("id",), sequence="seq", tombstone_retention=3600)


def test_a_log_in_any_order_ends_as_without_vectors(spark: Any, tmp_path: Path) -> None:
    """The table is made without them; the second batch turns them on."""
    made, changes = Merged(spark, tmp_path, BY_SEQUENCE, properties=FEED), log(600, 120, seed=5)
    mixed = [*changes, *changes[::5]]
    random.Random(6).shuffle(mixed)
    first, *others = cut(mixed, 3)
    made.batch(first, 1)
    assert opened(made.table).to_pyarrow_table().num_rows > 0
    made.properties = VECTORS
    for number, batch in enumerate(others, 2):
        made.batch(batch, number)
    state, table = load_state(made.table, ["headrace:shop"]), Table(made.table.uri, states={"shop": made.state.uri})
    wanted = Model(BY_SEQUENCE).take(sorted(changes, key=lambda each: each.sequence or 0)).table()
    assert state is not None
    assert (state.txns, "deletionVectors" in state.protocol.reader_features) == ({"headrace:shop": 3}, True)
    assert made.rows() == wanted
    with pytest.raises(DeltaError, match="deletionVectors"):
        opened(made.table).to_pyarrow_table()
    size = table.statistics()
    assert size.deletion_vectors > 0
    assert size.rows == table.history()[0].rows_after == len(wanted)
    assert _replayed(table) == wanted, "the change data tells the same rows"
    assert table.repair(dry_run=True).intact
    gone = table.vacuum("0s", force=True)
    assert any(path.endswith(".bin") for path in gone.files)
    assert any(path.startswith("_change_data/") for path in gone.files)
    assert made.rows() == wanted
    assert {tuple(row) for row in spark.sql(f"SELECT id, seq, a, b FROM delta.`{table.path}`").collect()} == {
        (key, *values) for key, values in wanted.items()
    }


@pytest.mark.parametrize(("properties", "batches"), [({}, [3, 2, 1]), (VECTORS, [1])], ids=["whole files", "vectors"])
def test_files_that_are_gone_leave_the_log_and_what_they_held_is_reported(
    properties: dict[str, str], batches: list[int], spark: Any, tmp_path: Path
) -> None:
    """A merge writes rows anew that it does not change: they may be of any batch since their file was first written."""
    made = Merged(spark, tmp_path, BY_SEQUENCE, properties=properties)
    for number, keys in enumerate((range(8), range(2), range(2, 4)), 1):
        made.batch([Change("put", key, number, (number, None), offset=key) for key in keys], number)
    table = Table(made.table.uri, states={"shop": made.state.uri})
    Lease.take(made.state).release()
    assert table.checkpoint() == table.resolve()
    before = made.rows()
    held = max(active_files(made.table, table.resolve()).values(), key=lambda file: file.rows or 0)
    assert (held.vector is not None) == bool(properties)
    (Path(table.path) / held.path).unlink()
    done = table.repair()
    assert (done.rows, [each.batch for each in done.lost], done.unknown_origin) == (held.rows, batches, ())
    kept = made.rows()
    assert len(kept) == len(before) - (held.rows or 0)
    assert kept.items() <= before.items()
    assert spark.read.format("delta").load(table.path).count() == len(kept)
    assert made.batch([Change("put", 7, 9, (9, None), offset=9)], 4).inserted == 1
    assert made.rows() == kept | {7: (9, 9, None)}
    assert table.repair().intact


def _replayed(table: Table) -> dict[int, tuple[Any, ...]]:
    """The rows that all changes lead to, from the first on."""
    held: dict[int, tuple[Any, ...]] = {}
    steps = {"delete": 0, "update_preimage": 0, "insert": 1, "update_postimage": 1}
    changed = table.changes(0).records()
    for row in sorted(changed, key=lambda each: (each["_commit_version"], steps[each["_change_type"]])):
        values = (row["seq"], row["a"], row["b"])
        if steps[row["_change_type"]]:
            assert row["id"] not in held
            held[row["id"]] = values
        else:
            assert held.pop(row["id"]) == values
    return held
