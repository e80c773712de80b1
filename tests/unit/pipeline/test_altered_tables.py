"""A pipeline that merges, and others who alter its table or write to it meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from headrace.delta.snapshot import load_state
from headrace.errors import CommitConflict, PipelineStopped, TableChanged, TableGone, TableReplaced, TableRestored
from headrace.recovery.resume import Decision, decide
from headrace.recovery.startup import StartupRecovery
from headrace.write.leased_writer import LeasedWriter
from headrace.write.row_edit import EditAttempt
from services.in_process_pipeline import Harness, InProcess, ingest, no_spark, ranges_of

COLUMNS = [{"name": name, "type": kind} for name, kind in (("id", "bigint"), ("seq", "bigint"), ("name", "string"))]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    merge = {"keys": ["id"], "sequence_by": "seq"}
    table = {"path": f"{tmp_path}/lake/orders", "columns": COLUMNS, "mode": "upsert", "merge": merge}
    return Harness(tmp_path, {"route": {"by": "fixed"}, "table": table})


def row(key: int, seq: int) -> dict[str, Any]:
    return {"id": key, "seq": seq, "name": f"{seq}"}


def rows(harness: Harness) -> dict[int, int]:
    return {row["id"]: row["seq"] for row in harness.rows("lake/orders")}


@contextmanager
def running(harness: Harness) -> Iterator[Callable[[Any], None]]:
    """A pipeline that stays open from batch to batch."""
    pipeline = InProcess(harness.spec, no_spark, recovery=StartupRecovery())

    def feed(*values: Any) -> None:
        start = len(harness.sent)
        harness.send(values)
        records = harness.envelopes(start)
        pipeline.one_batch(records.combine_chunks().to_batches()[0], ranges_of(records))

    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        yield feed


def _restored(path: str) -> None:
    DeltaTable(path).restore(1)


def _gone(path: str) -> None:
    shutil.rmtree(path)


def _replaced(path: str) -> None:
    _gone(path)
    for _ in range(4):
        write_deltalake(path, pa.table({"id": [9], "seq": [9], "name": ["x"]}), mode="append")


def _dropped(path: str) -> None:
    write_deltalake(path, pa.table({"id": [9], "seq": [9]}), mode="overwrite", schema_mode="overwrite")


def _retyped(path: str) -> None:
    there = DeltaTable(path).to_pyarrow_table()
    text = there.set_column(1, "seq", there["seq"].cast(pa.string()))
    write_deltalake(path, text, mode="overwrite", schema_mode="overwrite")


def _grown(path: str) -> None:
    DeltaTable(path).alter.add_columns([Field("note", PrimitiveType("string"))])


def _appended(path: str) -> None:
    write_deltalake(path, pa.table({"id": [9], "seq": [9], "name": ["theirs"]}), mode="append", schema_mode="merge")


ALTERED: dict[str, tuple[Callable[[str], None], type[PipelineStopped], str]] = {
    "restored": (_restored, TableRestored, "--table-restored=refill"),
    "gone": (_gone, TableGone, "--accept-new-table"),
    "replaced": (_replaced, TableReplaced, "--accept-new-table"),
    "dropped": (_dropped, TableChanged, "--accept-new-table"),
    "retyped": (_retyped, TableChanged, "--accept-new-table"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_merged_table_that_is_altered_stops_it_by_name_again_and_again(harness: Harness, name: str) -> None:
    alter, named, command = ALTERED[name]
    with running(harness) as feed:
        feed(row(1, 1))
        feed(row(2, 1))
        alter(f"{harness.folder}/lake/orders")
        with pytest.raises(named) as stopped:
            feed(row(3, 1))
    assert command in stopped.value.hint
    with pytest.raises(named):
        ingest(harness.spec, harness.envelopes(len(harness.sent)))


@pytest.mark.parametrize("alter", [_grown, _appended], ids=["a column", "rows"])
def test_what_others_add_is_gone_along_with(harness: Harness, alter: Callable[[str], None]) -> None:
    with running(harness) as feed:
        feed(row(1, 1), row(2, 1))
        alter(f"{harness.folder}/lake/orders")
        feed(row(1, 2), {"id": 9, "seq": 10, "name": "ours"})
    assert rows(harness) == {1: 2, 2: 1, 9: 10}


@pytest.mark.parametrize(
    ("decision", "left"), [(Decision.RESTORED_TABLE, {1: 1, 3: 1}), (Decision.REFILLED_TABLE, {1: 1, 2: 1, 3: 1})]
)
@pytest.mark.parametrize("when", ["before", "beside", "unseen"])
def test_the_command_goes_on_after_a_restore(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, when: str, decision: Decision, left: dict[int, int]
) -> None:
    restore = _once(lambda: _restored(f"{harness.folder}/lake/orders"))
    with running(harness) as feed:
        feed(row(1, 1))
        feed(row(2, 1))
        if when == "before":
            restore()
        with monkeypatch.context() as patch:
            patch.setattr(*_BESIDE[when](restore))
            with nullcontext() if when == "unseen" else pytest.raises(TableRestored):
                feed(row(3, 1))
    with pytest.raises(TableRestored):
        ingest(harness.spec, harness.envelopes(len(harness.sent)))
    harness.serve(monkeypatch)
    assert any("restored in version" in line for line in decide(harness.spec, [decision]))
    ingest(harness.spec, harness.envelopes(len(harness.sent)))
    assert rows(harness) == left


def _once(work: Callable[[], None]) -> Callable[[], None]:
    left = [work]
    return lambda: left.pop()() if left else None


def _staging(restore: Callable[[], None]) -> tuple[Any, str, Any]:
    """While the merge writes its files."""
    stage = EditAttempt._stage
    return EditAttempt, "_stage", lambda editing: (stage(editing), restore())[0]


def _reading(restore: Callable[[], None]) -> tuple[Any, str, Any]:
    """Before a merge that looks at the newest version by itself, as Spark's does, and lands on top of it."""
    write = LeasedWriter._write

    def unseen(writer: LeasedWriter, table: Any, intent: Any) -> None:
        merge = writer.merge.run

        def on_newest(table: Any, rules: Any, intent: Any, _: Any, account: Any) -> None:
            restore()
            writer.state = load_state(writer._store, [writer._txn])
            merge(table, rules, intent, writer.state, account)

        with mock.patch.object(writer.merge, "run", on_newest):
            write(writer, table, intent)

    return LeasedWriter, "_write", unseen


_BESIDE = {"before": _staging, "beside": _staging, "unseen": _reading}


@pytest.mark.parametrize("times", [4, 5])
def test_others_that_are_always_first_are_met_five_times(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Each time, somebody rewrites the file that the merge is about to replace."""
    harness.feed([row(1, 1), row(2, 1)])
    left, stage = iter(range(times)), EditAttempt._stage

    def beside(editing: EditAttempt) -> Any:
        made = stage(editing)
        if next(left, None) is not None:
            DeltaTable(f"{harness.folder}/lake/orders").update(updates={"name": "'theirs'"}, predicate="id = 2")
        return made

    monkeypatch.setattr(EditAttempt, "_stage", beside)
    if times < 5:
        harness.feed([row(1, 2)])
    else:
        with pytest.raises(CommitConflict):
            harness.feed([row(1, 2)])
        assert rows(harness) == {1: 1, 2: 1}
        ingest(
            harness.spec, harness.envelopes(len(harness.sent))
        )  # the batch was decided: whoever starts next finishes it
    assert rows(harness) == {1: 2, 2: 1}
    assert next(left, None) is None
