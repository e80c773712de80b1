"""Log checkpoints come by themselves and never stand in a batch's way."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from headrace.delta.checkpoints import CheckpointWriter
from headrace.delta.log import LOG, newest_version, version_path
from headrace.delta.log_writer import LogWriter
from headrace.delta.snapshot import open_at
from headrace.delta.txn import txn_names
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from services.staging import ids, intent, opened, staged, table_intent


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "orders"))


def filled(store: Store, checkpoints: CheckpointWriter, batches: int, **properties: str) -> None:
    table = AppendWriter(LogWriter.open(store, txn_names("shop")), checkpoints)
    name = str(uuid.uuid4())
    for batch in range(1, batches + 1):
        part = table_intent(store, [staged(store, [batch])], name, create=batch == 1, properties=properties)
        table.commit(part, intent(batch))


def checkpoints_of(store: Store) -> list[str]:
    return [item.path for item in store.list(LOG) if item.path.endswith(".checkpoint.parquet")]


def test_every_interval_a_checkpoint_appears_in_the_background(store: Store) -> None:
    checkpoints = CheckpointWriter()
    filled(store, checkpoints, 12, **{"delta.checkpointInterval": "5"})
    assert checkpoints.wait(30)
    assert checkpoints_of(store)
    assert store.exists(f"{LOG}/_last_checkpoint")
    assert ids(store) == list(range(1, 13))
    assert opened(store).transaction_version("headrace:shop") == 12


def test_a_version_seen_is_opened_whatever_a_listing_shows_beyond_it(store: Store) -> None:
    """delta-rs may list a version and miss the one before it, while both are being added."""
    filled(store, CheckpointWriter(), 6)
    hidden = store.get(version_path(4))
    store.delete([version_path(4)])
    with pytest.raises(DeltaError, match="gap"):
        opened(store)
    assert open_at(store, 3).version() == 3
    store.put(version_path(4), hidden)
    assert newest_version(store) == 5


def test_few_commits_need_none(store: Store) -> None:
    checkpoints = CheckpointWriter()
    filled(store, checkpoints, 12)
    assert checkpoints.wait(30)
    assert checkpoints_of(store) == []


def test_a_checkpoint_that_fails_fails_nothing_else(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    class Nowhere(Store):
        @property
        def delta_uri(self) -> str:
            return f"{super().delta_uri}-nowhere" if not opening else super().delta_uri

    opening = True
    nowhere, checkpoints = Nowhere(store.uri), CheckpointWriter()
    table = AppendWriter(LogWriter.open(nowhere, txn_names("shop")), checkpoints)
    opening = False
    for batch in range(1, 8):
        properties = {"delta.checkpointInterval": "2"}
        part = table_intent(store, [staged(store, [batch])], "a-table", create=batch == 1, properties=properties)
        table.commit(part, intent(batch))
    assert checkpoints.wait(30)
    assert "cannot write a log checkpoint" in caplog.text
    assert ids(store) == list(range(1, 8))
