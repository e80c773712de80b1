"""Txns that a table has lost, and RESTOREs far back in its log: found however far, or the pipeline stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from headrace import Table
from headrace.cli import app
from headrace.delta.log import version_path
from headrace.errors import TableFeature, TableRestored, TxnMismatch, UsageError
from headrace.faults import Abandoned, Point, armed
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.resume import Decision, decide
from headrace.validate.online import online
from services.in_process_pipeline import Harness

EXPIRING = "delta.setTransactionRetentionDuration"


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """One table; its topic can be read again."""
    made = Harness(tmp_path, {"route": {}, "table": {"path": f"{tmp_path}/lake/orders"}})
    made.serve(monkeypatch)
    return made


def orders(harness: Harness) -> DeltaTable:
    return DeltaTable(str(harness.place / "lake/orders"))


def ids(harness: Harness) -> list[int]:
    return sorted(row["id"] for row in harness.rows("lake/orders"))


def foreign(harness: Harness, *numbers: int) -> None:
    """Another writer appends."""
    for number in numbers:
        write_deltalake(
            str(harness.place / "lake/orders"), pa.table({"id": [number]}), mode="append", schema_mode="merge"
        )


def checkpointed(harness: Harness, *, txns: bool = True, commits: bool = True) -> None:
    """A log checkpoint as one writes it that lets txns expire (`txns`), then a clean-up of the log (`commits`)."""
    table = orders(harness)
    table.create_checkpoint()
    version, log = table.version(), harness.place / "lake/orders/_delta_log"
    if not txns:
        path = log / f"{version:020}.checkpoint.parquet"
        content = pq.read_table(path)
        pq.write_table(content.filter(content["txn"].is_null()), path)
        (log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": content.num_rows}))
    for old in range(version if not commits else 0):
        (harness.place / "lake/orders" / version_path(old)).unlink()


def expiring(harness: Harness) -> None:
    """The owner lets txns of the table expire."""
    orders(harness).alter.set_table_properties({EXPIRING: "interval 1 days"}, raise_if_not_exists=False)


def cli(*arguments: Any) -> Any:
    found = CliRunner().invoke(app, [str(each) for each in arguments])
    assert found.exit_code == 0, (found.output, found.exception)
    return found


# ---- the property that makes txns expire ----


def test_nobody_sets_the_property_through_headrace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=EXPIRING):
        Table.get_or_create(str(tmp_path / "t"), {"id": "bigint"}, properties={EXPIRING: "interval 30 days"})
    table = Table.get_or_create(str(tmp_path / "t"), {"id": "bigint"})
    with pytest.raises(UsageError, match=EXPIRING):
        table.set_properties({EXPIRING: "interval 30 days"})


def test_a_table_with_the_property_is_refused_until_it_is_unset(harness: Harness) -> None:
    foreign(harness, 0)
    expiring(harness)
    with pytest.raises(TableFeature, match=EXPIRING) as stopped:
        harness.feed([{"id": 1}])
    (command,) = [part for part in stopped.value.hint.split("`") if part.startswith("headrace ")]
    found = [each for each in online(harness.spec) if EXPIRING in each.message]
    assert [each.severity for each in found] == ["error"]
    cli(*command.split()[1:], "--yes")
    assert not [each for each in online(harness.spec) if EXPIRING in each.message]
    harness.feed([])
    harness.feed([{"id": 2}])
    assert ids(harness)[-1] == 2


def test_the_property_is_met_while_the_pipeline_runs(harness: Harness) -> None:
    harness.feed([{"id": 1}])
    with armed(Point.AFTER_STAGING, lambda: expiring(harness)), pytest.raises(TableFeature, match=EXPIRING):
        harness.feed([{"id": 2}])


# ---- a txn that is gone ----


def test_a_batch_whose_txn_expired_is_not_committed_again(harness: Harness) -> None:
    """Its own commit is found in the log, behind commits of others."""
    harness.feed([{"id": 1}])
    with armed(Point.BEFORE_LEDGER_WRITE, "abandon"), pytest.raises(Abandoned):
        harness.feed([{"id": 2}, {"id": 3}])
    foreign(harness, *range(100, 105))
    orders(harness).optimize.compact()
    checkpointed(harness, txns=False)
    decide(harness.spec, [Decision.NEW_TABLE])
    harness.feed([])
    assert ids(harness) == [1, 2, 3, *range(100, 105)]
    harness.feed([{"id": 4}])
    assert ids(harness) == [1, 2, 3, 4, *range(100, 105)]


def test_a_first_batch_whose_txn_expired_is_not_committed_again(harness: Harness) -> None:
    """No ledger knows the table yet: the open batch alone tells that it may be there."""
    with armed(Point.BEFORE_LEDGER_WRITE, "abandon"), pytest.raises(Abandoned):
        harness.feed([{"id": 1}])
    foreign(harness, 100)
    orders(harness).optimize.compact()
    checkpointed(harness, txns=False)
    harness.feed([])
    assert ids(harness) == [1, 100]
    harness.feed([{"id": 2}])
    assert ids(harness) == [1, 2, 100]


def test_a_batch_that_is_not_in_the_table_is_committed_though_txns_expired(harness: Harness) -> None:
    harness.feed([{"id": 1}])
    harness.feed([{"id": 2}])
    with mock.patch.object(Pipeline, "_commit_one", side_effect=Abandoned), pytest.raises(Abandoned):
        harness.feed([{"id": 3}])
    checkpointed(harness, txns=False)
    with pytest.raises(TxnMismatch, match="--accept-new-table"):
        harness.feed([])
    decide(harness.spec, [Decision.NEW_TABLE])
    harness.feed([])
    assert ids(harness) == [1, 2, 3]


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_log_that_no_longer_tells_whether_the_batch_is_there(harness: Harness, rewritten: bool) -> None:
    """Its files tell as long as they are the table's; a person is asked once they were rewritten."""
    with armed(Point.BEFORE_LEDGER_WRITE, "abandon"), pytest.raises(Abandoned):
        harness.feed([{"id": 1}, {"id": 2}])
    foreign(harness, 100, 101)
    if rewritten:
        orders(harness).optimize.compact()
    checkpointed(harness, txns=False, commits=False)
    if rewritten:
        for _ in range(2):
            with pytest.raises(TxnMismatch, match="--accept-new-table") as stopped:
                harness.feed([])
        assert "orders/0: offsets 0 to 1" in stopped.value.message
        orders(harness).delete("id < 100")
        decide(harness.spec, [Decision.NEW_TABLE])
    harness.feed([])
    assert ids(harness) == [1, 2, 100, 101]


def test_a_known_table_without_its_txn_is_reported(harness: Harness) -> None:
    harness.feed([{"id": 1}])
    checkpointed(harness, txns=False)
    for _ in range(2):
        with pytest.raises(TxnMismatch, match="no txn of 'shop'"):
            harness.feed([])
    assert "txn" in decide(harness.spec, [Decision.NEW_TABLE])[0]
    harness.feed([{"id": 2}])
    assert ids(harness) == [1, 2]


# ---- RESTORE ----


def test_a_restore_behind_many_commits_is_found(harness: Harness) -> None:
    harness.feed([{"id": 1}])
    harness.feed([{"id": 2}])
    orders(harness).restore(0)
    foreign(harness, *range(1000, 1220))
    with pytest.raises(TableRestored, match="version 2"):
        harness.feed([])
    decide(harness.spec, [Decision.REFILLED_TABLE])
    harness.feed([])
    assert ids(harness) == [1, 2, *range(1000, 1220)]


def test_a_restore_that_the_log_no_longer_tells_is_asked_about(harness: Harness) -> None:
    harness.feed([{"id": 1}])
    harness.feed([{"id": 2}])
    orders(harness).restore(0)
    foreign(harness, 100)
    checkpointed(harness, commits=False)
    for _ in range(2):
        with pytest.raises(TableRestored, match="--table-restored=keep") as stopped:
            harness.feed([])
        assert "no longer reaches back" in stopped.value.message
    with pytest.raises(TableRestored, match="--table-restored=keep"):
        decide(harness.spec, [Decision.REFILLED_TABLE])
    decide(harness.spec, [Decision.RESTORED_TABLE])
    harness.feed([{"id": 3}])
    assert ids(harness) == [1, 3, 100]
    harness.feed([])


def test_versions_that_were_looked_at_are_not_looked_at_again(harness: Harness) -> None:
    """A start reads what is new since the last one, so a clean-up of older versions asks nobody."""
    harness.feed([{"id": 1}])
    foreign(harness, 100, 101)
    harness.feed([{"id": "a dead letter"}])
    foreign(harness, 102)
    log = harness.place / "lake/orders"
    checkpointed(harness)
    for old in range(3):
        (log / version_path(old)).unlink()
    harness.feed([{"id": 2}])
    assert ids(harness) == [1, 2, 100, 101, 102]


def test_a_table_that_was_set_back_by_a_copy_is_reported(harness: Harness) -> None:
    """No RESTORE is in its log: its newest versions are gone."""
    harness.feed([{"id": 1}])
    harness.feed([{"id": 2}])
    harness.feed([{"id": 3}])
    (harness.place / "lake/orders" / version_path(2)).unlink()
    for _ in range(2):
        with pytest.raises(TableRestored, match="was at version 2"):
            harness.feed([])
    decide(harness.spec, [Decision.RESTORED_TABLE])
    harness.feed([{"id": 4}])
    assert ids(harness) == [1, 2, 4]
