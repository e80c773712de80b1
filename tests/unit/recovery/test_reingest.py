"""Rows that were lost with their files come back once, whatever else is in the table and whoever dies on the way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta import log, snapshot
from headrace.delta.actions import File, as_file
from headrace.delta.schema import SOURCE
from headrace.delta.staged_file import StagedFile
from headrace.errors import LeaseHeld, OperationDisabled, TableDamaged, TableRestored, UsageError
from headrace.faults import Abandoned, Point, armed
from headrace.pipeline import task
from headrace.recovery.file_origins import (
    FileOrigins,
    OffsetBounds,
    OriginCommit,
    file_origins,
    narrowed,
    offset_bounds_of,
)
from headrace.recovery.missing_rows import missing_rows
from headrace.recovery.reingest_plan import Reingest, SourceFacts, check_sole_writer, plan_reingest
from headrace.recovery.resume import Decision, decide
from headrace.source.base import Bounds
from headrace.source.ranges import Range, join_ranges, one_per_partition
from headrace.spec import Spec
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from headrace.table.ownership import existing_table
from headrace.table.reingest import ReingestPipeline
from headrace.write.intent import Intent
from services.in_process_pipeline import Harness
from services.plans import spec_of


@dataclass
class Frame:
    """What a source has read."""

    batches: list[pa.RecordBatch]

    def union(self, other: Frame) -> Frame:
        return Frame(self.batches + other.batches)


@dataclass
class Topic:
    """The harness's topic as a source."""

    harness: Harness
    earliest: int = 0
    topic_id: str = "id"
    asked: list[Range] = field(default_factory=list)

    def topics(self) -> dict[str, str]:
        return {self.harness.topic: self.topic_id}

    def bounds(self) -> dict[tuple[str, int], Bounds]:
        return {(self.harness.topic, 0): Bounds(self.earliest, len(self.harness.sent))}

    def read(self, spark: Any, ranges: Iterable[Range]) -> Frame:
        self.asked += ranges
        whole = self.harness.envelopes()
        parts = [whole.slice(each.start, each.until - each.start) for each in ranges]
        return Frame([batch for part in parts for batch in part.combine_chunks().to_batches()])

    def committed(self, position: dict[tuple[str, int], int]) -> None:
        """Nothing is released."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Broken:
    """A harness whose tables lose files."""

    harness: Harness
    topic: Topic

    def table(self, name: str = "alpha") -> Table:
        return Table(self.harness.folder / "lake" / name)

    def lose(self, *nth: int, name: str = "alpha") -> None:
        """Delete files that the table stands on, in the order in which they came."""
        table = self.table(name)
        there = sorted(
            snapshot.active_files(Store(table.path), table.resolve()).values(), key=lambda file: file.modified
        )
        for number in nth if there else ():
            (Path(table.path) / there[number % len(there)].path).unlink(missing_ok=True)

    def mend(self, name: str = "alpha", **more: Any) -> Reingest:
        found = self.table(name).repair(reingest=self.harness.spec, **more).reingest
        assert found is not None
        return found

    def offsets(self, *names: str) -> Counter[int]:
        return self.harness.offsets(*(names or ("alpha", "beta")))


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broken:
    return _broken(tmp_path, monkeypatch)


def _broken(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Broken:
    harness = Harness(folder, options)
    topic = Topic(harness)
    monkeypatch.setattr("headrace.pipeline.pipeline.open_source", lambda spec: topic)
    monkeypatch.setattr("headrace.pipeline.spark_session.SharedSession.get", lambda self: None)
    monkeypatch.setattr(ReingestPipeline, "stage", _stage)
    return Broken(harness, topic)


def _stage(self: ReingestPipeline, frame: Any, batch: int, now: Any) -> Any:
    """The tasks run right here."""
    manifest = task._manifest(self.task_input(batch), batch, now, frame.batches)
    task.raise_task_error([manifest])
    return [manifest]


def some(start: int, count: int, **more: Any) -> list[Any]:
    """Records of two kinds, every fifth of which is no JSON."""
    return [
        b"{" if number % 5 == 4 else {"id": number, "kind": ("alpha", "beta")[number % 2], **more}
        for number in range(start, start + count)
    ]


GOOD = [number for number in range(30) if number % 5 != 4]


def test_exactly_the_lost_rows_come_back(broken: Broken) -> None:
    for start in (0, 10, 20):
        broken.harness.feed(some(start, 10))
    broken.table().optimize()
    broken.harness.feed(some(30, 10))
    broken.lose(0)
    dead = len(broken.harness.dead())
    planned = broken.mend(dry_run=True)
    assert (planned.rows, planned.rows_restored, planned.ranges) == (12, 0, (Range("orders", 0, 0, 29, "id"),))
    assert broken.table().resolve() == 4
    done = broken.mend()
    assert (done.rows_restored, done.unrecoverable, done.unknown_origin, done.version) == (
        12,
        (),
        (),
        broken.table().resolve(),
    )
    assert broken.offsets() == Counter(number for number in range(40) if number % 5 != 4)
    assert len(broken.harness.dead()) == dead
    assert broken.mend() == Reingest(0, (), (), (), ())
    broken.harness.feed(some(40, 5))
    assert max(broken.offsets().values()) == 1
    row = broken.harness.rows("lake/_headrace/shop/ledger")
    booked = next(each for each in row if each["note"].startswith("reingest of"))
    assert (booked["routed"], booked["dead"], booked["ranges"], booked["written"]) == (12, 0, [], 12)
    assert booked["read"] == booked["routed"] + booked["dead"] + booked["filtered"] + booked["skipped"]


def test_lost_rows_come_back_after_a_compaction_by_delta_rs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which spells partition values, and orders their columns, in another way."""
    columns = [("id", "bigint"), ("kind", "string"), ("at", "timestamp"), ("x", "double"), ("f", "float")]
    table = {
        "path": f"{tmp_path}/lake/{{route}}",
        "columns": [{"name": name, "type": kind} for name, kind in columns],
        "partition_by": ["at", "x", "f"],
    }
    broken = _broken(tmp_path, monkeypatch, table=table)
    placed = {"at": "2024-01-01T00:00:00Z", "x": 1.0, "f": 0.1}
    for start in (0, 10):
        broken.harness.feed(some(start, 10, **placed))
    DeltaTable(broken.table().path).optimize.compact()
    broken.lose(0)
    broken.harness.feed(some(20, 10, **placed))
    assert broken.mend().rows_restored == 8
    assert broken.offsets() == Counter(GOOD)
    assert broken.mend().rows_restored == 0


def test_rows_restored_and_lost_again_comes_back_again(broken: Broken) -> None:
    for start in (0, 10):
        broken.harness.feed(some(start, 10))
    broken.lose(1)
    broken.table().repair()
    assert broken.mend().rows_restored == 4, "an earlier repair's"
    broken.lose(1)
    assert broken.mend().rows_restored == 4
    broken.lose(0, 1)
    assert broken.mend().rows_restored == 8
    assert broken.offsets() == Counter(number for number in range(20) if number % 5 != 4)


def test_rows_that_a_person_deleted_stay_deleted(broken: Broken) -> None:
    for start in (0, 10):
        broken.harness.feed(some(start, 10))
    broken.table().delete("id = 2")
    broken.lose(0)
    assert broken.mend().rows_restored == 4
    assert broken.offsets("alpha")[2] == 0
    broken.table().delete("id = 12")
    done = broken.mend()
    assert (done.rows_restored, done.ranges) == (0, ())


def test_rows_of_a_person_and_of_replays_are_named(broken: Broken) -> None:
    broken.harness.feed(some(0, 5))
    broken.table().bulk_insert([{"id": 99, "kind": "alpha"}])
    broken.lose(0, 1)
    done = broken.mend()
    assert done.rows_restored == 2
    assert [each.why for each in done.unrecoverable] == ["not written by a pipeline"]
    assert broken.mend(dry_run=True).unrecoverable == done.unrecoverable


def test_another_spec_is_asked_for(broken: Broken) -> None:
    broken.harness.feed(some(0, 5))
    before = dict(broken.harness.options)
    broken.harness.options["transform"] = [{"set": {"more": "id + 1"}}]
    broken.harness.feed(some(5, 5))
    broken.lose(0, 1)
    (first,) = broken.mend().unrecoverable
    assert first.batch == 1
    assert "another spec" in first.why
    assert broken.offsets("alpha") == Counter([6, 8])
    broken.harness.options = before
    assert broken.mend().rows_restored == 2
    assert broken.offsets("alpha") == Counter([0, 2, 6, 8])


def test_what_the_broker_no_longer_holds_is_named_and_the_rest_comes_back(broken: Broken) -> None:
    for start in (0, 10):
        broken.harness.feed(some(start, 10))
    broken.lose(0, 1)
    broken.topic.earliest = 6
    done = broken.mend()
    assert [(each.batch, each.ranges[0].start, each.ranges[0].until) for each in done.unrecoverable] == [(1, 0, 6)]
    assert "has offsets 6 to 19" in done.unrecoverable[0].why
    assert broken.offsets("alpha") == Counter([6, 8, 10, 12, 16, 18])


def test_a_recreated_topic_is_not_taken_for_the_one_that_was_read(broken: Broken) -> None:
    broken.harness.feed(some(0, 5))
    broken.lose(0)
    broken.topic.topic_id = "other"
    done = broken.mend()
    assert (done.rows_restored, done.ranges) == (0, ())
    assert "recreated" in done.unrecoverable[0].why


@pytest.mark.parametrize(
    "point",
    [Point.BEFORE_STAGING, Point.DURING_STAGING, Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE],
)
@pytest.mark.parametrize("next_is", ["repair", "batch"])
def test_who_dies_on_the_way_loses_and_duplicates_nothing(broken: Broken, point: Point, next_is: str) -> None:
    for start in (0, 10):
        broken.harness.feed(some(start, 10))
    broken.lose(0)
    with armed(point, "abandon"), pytest.raises(Abandoned):
        broken.mend()
    if next_is == "batch":
        broken.harness.feed(some(20, 10))
    else:
        assert broken.mend(dry_run=True).rows is not None
    broken.mend()
    expected = range(30) if next_is == "batch" else range(20)
    assert broken.offsets() == Counter(number for number in expected if number % 5 != 4)
    assert sorted(row["offset"] for row in broken.harness.dead()) == [n for n in expected if n % 5 == 4]


def test_a_reingest_whose_staged_files_are_gone_is_given_up_and_asked_again(broken: Broken) -> None:
    for start in (0, 10):
        broken.harness.feed(some(start, 10))
    broken.lose(0)
    state = broken.harness.folder / "lake/_headrace/shop/intents"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReingestPipeline, "settle", _give_up)
        with pytest.raises(Abandoned):
            broken.mend()
    begun = Intent.from_json(max(state.iterdir()).read_text())
    assert begun.reingested
    assert Intent.from_json(begun.to_json()) == begun
    Store(broken.table().path).delete([item.path for table in begun.tables for item in table.files])
    broken.harness.feed(some(20, 10))
    broken.mend()
    assert broken.offsets() == Counter(GOOD)


def _give_up(self: ReingestPipeline, intent: Intent) -> None:
    raise Abandoned


def test_a_running_pipeline_keeps_it_away(broken: Broken) -> None:
    broken.harness.feed(some(0, 5))
    broken.lose(0)
    with Lease.take(Store(broken.harness.spec.state_uri)), pytest.raises(LeaseHeld, match="'shop'"):
        broken.mend()
    assert broken.table().resolve() == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"mode": "upsert", "merge": {"keys": ["id"]}}, "another `pipeline` name"),
        ({"mode": "overwrite"}, "overwrites it"),
        ({"source": False}, "no column _source"),
    ],
)
def test_tables_whose_lost_rows_cannot_be_determined_are_refused(
    broken: Broken, table: dict[str, Any], said: str
) -> None:
    path = broken.harness.spec.table.path
    if "source" in table:
        broken.harness.options["table"] = {"path": path, **table}
    broken.harness.feed(some(0, 5))
    broken.harness.options["table"] = {"path": path, **table}
    with pytest.raises(OperationDisabled, match=said):
        broken.mend()
    with pytest.raises(OperationDisabled, match="the dead-letter table"):
        Table(broken.harness.spec.dead_letters_uri).repair(reingest=broken.harness.spec)
    with pytest.raises(UsageError, match="no pipelines write"):
        Table(broken.harness.spec.dead_letters_uri).repair(reingest=broken.harness.write_spec())


def test_more_rows_than_were_lost_are_not_restored(broken: Broken) -> None:
    """A file without statistics of places, and a row of the same batch that a person deleted."""
    broken.harness.feed(some(0, 10))
    broken.harness.feed(some(10, 10))
    table = broken.table()
    table.delete("id = 2")
    log_folder = Path(table.path) / "_delta_log"
    found = log.read_commit(Store(table.path), 1)
    assert found is not None
    (Path(table.path) / found.added[0].path).unlink()
    text = (log_folder / f"{1:020}.json").read_text()
    (log_folder / f"{1:020}.json").write_text(text.replace('\\"numRecords\\":4', '\\"numRecords\\":2'))
    with pytest.raises(TableDamaged, match="had 2 rows, and 4 rows"):
        broken.mend()
    assert broken.offsets("alpha") == Counter([0, 6, 8])


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["feed", "feed", "optimize", "lose", "repair", "mend", "die"]), max_size=12), st.data())
def test_whatever_happens_in_between(tmp_path_factory: pytest.TempPathFactory, steps: list[str], data: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        broken = _broken(tmp_path_factory.mktemp("lake"), patch)
        broken.harness.feed(some(0, 6))
        for step in steps:
            start = len(broken.harness.sent)
            if step == "feed":
                broken.harness.feed(some(start, data.draw(st.integers(1, 8))))
            elif step == "optimize" and broken.table().repair(dry_run=True).intact:
                broken.table().optimize()
            elif step == "lose":
                broken.lose(data.draw(st.integers(0, 5)))
            elif step == "repair":
                broken.table().repair()
            elif step == "mend":
                broken.mend()
            elif step == "die":
                point = data.draw(st.sampled_from([Point.AFTER_STAGING, Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE]))
                with armed(point, "abandon"):
                    _survive(broken)
        broken.mend()
        assert broken.offsets() == Counter(n for n in range(len(broken.harness.sent)) if n % 5 != 4)


def _survive(broken: Broken) -> None:
    try:
        broken.mend()
    except Abandoned:
        return


# ---- what can be read again ----


def brought(batch: int, spec: Spec, *ranges: Range, **more: Any) -> OriginCommit:
    told = [[each.topic, each.partition, each.start, each.until] for each in ranges]
    account = {"spec": spec.digest, "ranges": told}
    return OriginCommit(batch, {f"headrace:{spec.pipeline}": batch}, account | more, (file("f"),))


def file(path: str, rows: int | None = 3, **source: tuple[Any, Any]) -> File:
    sides = {side: {"_source": {name: at[nth] for name, at in source.items()}} for nth, side in enumerate(SIDES)}
    return File(path, path, {}, 1, rows, stats=json.dumps(sides))


SIDES = ("minValues", "maxValues")
FACTS = SourceFacts({"t": "a"}, {"t": "a"}, {"t": 1}, {("t", 0): Bounds(5, 100), ("t", 1): Bounds(0, 40)})


def test_only_what_a_lost_file_can_have_held_is_read() -> None:
    spec = spec_of()
    held = file("m", 7, topic=("t", "t"), partition=(0, 0), offset=(12, 19))
    each = brought(3, spec, Range("t", 0, 10, 30), Range("t", 1, 10, 30))
    found = plan_reingest(spec, FileOrigins((held,), (each,)), FACTS)
    assert found.ranges == (Range("t", 0, 12, 20, "a"),)
    assert (found.rows, found.unrecoverable) == (7, ())


@pytest.mark.parametrize(
    ("change", "facts", "why"),
    [
        ({"txns": {}}, {}, "not written by a pipeline"),
        ({"txns": {"headrace:other": 3}}, {}, "written by 'other'"),
        ({"txns": {"headrace:web:replay": 3}}, {}, "dead letters by replay 3"),
        ({"account": {}}, {}, "another spec"),
        ({}, {"known": {"t": "b"}}, "recreated"),
        ({}, {"since": {"t": 4}}, "recreated"),
        ({}, {"bounds": {}}, "partition does not exist"),
        ({}, {"bounds": {("t", 0): Bounds(60, 100)}}, "has offsets 60 to 99"),
        ({}, {"bounds": {("t", 0): Bounds(60, 60)}}, "is empty"),
    ],
)
def test_what_cannot_be_read_again_says_why(change: dict[str, Any], facts: dict[str, Any], why: str) -> None:
    spec = spec_of()
    each = replace(brought(3, spec, Range("t", 0, 10, 30)), **change)
    found = plan_reingest(spec, FileOrigins((file("m"),), (each,)), replace(FACTS, **facts))
    assert (found.ranges, found.files) == ((), ())
    assert why in found.unrecoverable[0].why


def test_ranges_are_read_once_each_and_no_two_of_a_partition_at_a_time() -> None:
    ranges = (
        Range("t", 0, 5, 10),
        Range("t", 0, 0, 5),
        Range("t", 1, 0, 5),
        Range("t", 0, 20, 30),
        Range("t", 0, 22, 25),
    )
    once = join_ranges(ranges)
    assert once == (Range("t", 0, 0, 10), Range("t", 0, 20, 30), Range("t", 1, 0, 5))
    assert list(one_per_partition(once)) == [(once[0], once[2]), (once[1],)]
    assert narrowed(once, [OffsetBounds(("s", "u"), (0, 0), (8, 21))]) == (Range("t", 0, 8, 10), Range("t", 0, 20, 22))
    assert narrowed(once, [OffsetBounds(), OffsetBounds(("x", "x"))]) == once


def test_a_restore_to_a_time_is_followed_by_the_files(broken: Broken) -> None:
    """By delta-rs, which writes no version into the log; what was put back since is lost again."""
    for start in (0, 10):
        broken.harness.feed(some(start, 10))
    broken.lose(1)
    broken.mend()
    path = broken.table().path
    repaired = log.read_commit(Store(path), 2)
    assert repaired is not None
    DeltaTable(path).restore(datetime.fromtimestamp(repaired.timestamp / 1000, UTC))
    assert log.read_commit(Store(path), 4).info["operationParameters"].get("version") is None  # type: ignore[union-attr]
    told = file_origins(Store(path), existing_table(Store(path)), (), earlier_repairs=True)
    assert [each.batch for each in told.commits] == [2]


def test_what_a_restore_has_undone_is_no_trace(broken: Broken) -> None:
    for start in (0, 10):
        broken.harness.feed(some(start, 10))
    broken.lose(1)
    broken.mend()
    table = broken.table()
    assert [each.operation for each in table.history(3)] == ["STREAMING UPDATE", "FSCK", "STREAMING UPDATE"]
    table.restore(version=2)
    told = file_origins(Store(table.path), existing_table(Store(table.path)), (), earlier_repairs=True)
    assert [each.batch for each in told.commits] == [2]
    with pytest.raises(TableRestored):
        broken.mend()
    (said,) = decide(broken.harness.spec, [Decision.REFILLED_TABLE])
    assert "0 undone rows" in said, "what was put back is lost, not undone"
    assert broken.mend().rows_restored == 4
    assert broken.offsets() == Counter(number for number in range(20) if number % 5 != 4)


def test_two_pipelines_that_bring_the_same_records_are_not_distinguished() -> None:
    marks = {"headrace:web": 3, "headrace:web:t:0": 9, "headrace:other": 1, "headrace:other:t:1": 5}
    check_sole_writer(spec_of(), "lake/web", marks, [Range("u", 0, 1, 2)])
    check_sole_writer(spec_of(), "lake/web", {"headrace:web": 3, "headrace:web:t:0": 9}, [Range("t", 0, 1, 2)])
    with pytest.raises(OperationDisabled, match="'other'"):
        check_sole_writer(spec_of(), "lake/web", marks, [Range("t", 0, 1, 2)])


# ---- which rows are there ----

COLUMNS = pa.schema([pa.field("n", pa.int64()), SOURCE, pa.field("at", pa.timestamp("us", "UTC")), ("x", pa.float64())])
BY = ("at", "x")
OTHERS = {"x": "1", "at": "2024-01-01 00:00:00.000000"}  # the partition as delta-rs writes it


def staged(store: Store, rows: list[tuple[int, int]]) -> StagedFile:
    """Rows with a value, of a record each."""
    stager = Stager(lambda uri: Store(uri), "x")
    placed = {"at": datetime(2024, 1, 1, tzinfo=UTC), "x": 1.0}
    made = [{"n": n, "_source": {"topic": "t", "partition": 0, "offset": at}, **placed} for n, at in rows]
    stager.add(FileLayout(store.uri, COLUMNS, BY), pa.Table.from_pylist(made, COLUMNS))
    return stager.finish()[0]


RECORDS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, st.data())
def test_records_of_many_rows_that_lie_in_several_files(tmp_path: Path, records: list[list[int]], data: Any) -> None:
    """However rows were cut into files, what is left and what comes back together are all rows, once each."""
    store, layout = Store(str(tmp_path / "t")), FileLayout(str(tmp_path / "t"), COLUMNS, BY)
    rows = [(n, at) for at, values in enumerate(records) for n in values]
    cut, end = sorted((data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))))
    parts = [part for part in (rows[:cut], rows[cut:end], rows[end:]) if part]
    there = [as_file(staged(store, part)) for part in parts]
    there = [replace(each, partition=OTHERS) if data.draw(st.booleans()) else each for each in there]
    lost = there.pop(data.draw(st.integers(0, len(there) - 1)))
    left = [row for each in there for row in values(store, each)]
    middle = data.draw(st.integers(0, len(rows)))
    made = [staged(store, part) for part in (rows[:middle], rows[middle:]) if part]
    kept, old, count = missing_rows(store, layout, made, [lost], there, 1)
    back = [row for each in kept for row in values(store, as_file(each))]
    assert Counter(left) + Counter(back) == Counter(rows)
    assert count == len({at for _, at in back})
    assert {*made} == {*old, *(each for each in kept if each in made)}
    assert offset_bounds_of(lost).offsets == (
        min(at for _, at in values(store, lost)),
        max(at for _, at in values(store, lost)),
    )


def values(store: Store, each: File) -> list[tuple[int, int]]:
    found = pq.ParquetFile(f"{store.uri}/{each.path}").read().to_pylist()
    return [(row["n"], row["_source"]["offset"]) for row in found]


def test_records_that_make_other_rows_than_before_are_not_duplicated(tmp_path: Path) -> None:
    """Two rows of one record, of which one is lost; both are others now, as those with the time of their batch."""
    store, layout = Store(str(tmp_path / "t")), FileLayout(str(tmp_path / "t"), COLUMNS, BY)
    there, lost = (as_file(staged(store, [(n, 0)])) for n in (1, 2))
    with pytest.raises(TableDamaged, match=r"1 rows of the record .* are missing, but 2 of"):
        missing_rows(store, layout, [staged(store, [(8, 0), (9, 0)])], [lost], [there], 1)
    kept, _, _ = missing_rows(store, layout, [staged(store, [(1, 0), (9, 0)])], [lost], [there], 1)
    assert [row for each in kept for row in values(store, as_file(each))] == [(9, 0)]


def test_nothing_made_is_nothing_lost(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "t"))
    assert missing_rows(store, FileLayout(store.uri, COLUMNS), [], [file("m")], [], 1) == ([], [], 0)
