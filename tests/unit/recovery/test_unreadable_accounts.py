"""A commit of a batch whose account cannot be read: its userMetadata was replaced, so it proves nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.delta.batch_commits import BatchCommit
from headrace.delta.restores import restored_since
from headrace.delta.snapshot import load_state
from headrace.delta.txn import batch_txn, partition_txn
from headrace.errors import TxnMismatch
from headrace.ledger.table_evidence import TableEvidence, beyond
from headrace.pipeline.table_commits import TableCommits
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from services.staging import intent, opened, staged, table_intent

TXN = batch_txn("shop")


def replace_account(store: Store, version: int, text: str = "nightly load") -> None:
    """What a session-wide `spark.databricks.delta.commitInfo.userMetadata` does to the commits of Spark."""
    path = Path(store.root) / f"_delta_log/{version:020}.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"].pop("headrace", None)
            line["commitInfo"]["userMetadata"] = text
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.fixture
def table(tmp_path: Path) -> Store:
    """A table with three batches, whose third commit did not see the RESTORE before it."""
    store = Store(str(tmp_path / "t"))
    writer = AppendWriter.open(store, "shop")
    writer.commit(table_intent(store, [staged(store, [1])], "a" * 32, create=True), intent(1))
    writer.commit(table_intent(store, [staged(store, [2])], "a" * 32), intent(2))
    opened(store).restore(0)
    log = AppendWriter.open(store, "shop").log_writer
    log.append([staged(store, [3])], {TXN: 3}, {"read_version": 1})
    return store


def test_a_restore_is_found_although_the_commit_after_it_has_no_account(table: Store) -> None:
    state = load_state(table, [TXN])
    assert state is not None
    assert restored_since(table, state, TXN).newest == 2
    replace_account(table, state.version)
    assert restored_since(table, state, TXN).newest == 2
    assert restored_since(table, state, TXN, checked=2).newest is None, "answered before"


def test_the_plan_of_a_batch_is_unknown_without_its_account(table: Store) -> None:
    tables: Any = SimpleNamespace(of=lambda part: SimpleNamespace(store=table))
    commits = TableCommits(SimpleNamespace(), tables, SimpleNamespace())  # type: ignore[arg-type]
    part, batch = table_intent(table, [], "a" * 32), intent(3)
    replace_account(table, 3)
    assert commits.attempt_of(part, batch) == 0, "there is only one attempt"
    with pytest.raises(TxnMismatch, match=r"version 3 .* has no Headrace batch entry"):
        commits.attempt_of(replace(part, attempt=1), replace(batch, attempt=1))
    replace_account(table, 3, '{"headrace": {"attempt": 1}}')  # as the hint says
    assert commits.attempt_of(replace(part, attempt=1), replace(batch, attempt=1)) == 1


def test_offsets_come_from_the_table_that_tells_them() -> None:
    told = {TXN: 7, partition_txn("shop", "orders", 0): 41}
    unreadable = BatchCommit(3, 7, 0, {TXN: 7}, {}, 0)
    readable = BatchCommit(3, 7, 0, told, {"ranges": [["orders", 0, 40, 42]]}, 0)
    evidence = TableEvidence(7, {}, {"a": unreadable, "b": readable}, {})
    assert beyond(evidence, "shop").position == {("orders", 0): 42}
