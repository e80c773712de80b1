"""Merges by our own hands: the model's table, whatever the order, the files and the pieces; and when Spark is asked."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta import rows
from headrace.delta.actions import File
from headrace.delta.batch_commits import newest_part
from headrace.delta.features import rewrite_blocker
from headrace.delta.log import read_commit
from headrace.delta.scan import files_with_keys
from headrace.delta.snapshot import active_files, load_state
from headrace.engine import duck
from headrace.errors import CommitConflict, TableChanged, TableRestored, TxnMismatch
from headrace.spec.types import TIMESTAMP, parse_type
from headrace.stage.partitions import split_by_partition
from headrace.write import row_edit
from headrace.write.duckdb_merge import UpsertMerge
from headrace.write.intent import MergeRules, Scd2Columns
from headrace.write.upsert import MergeChoice, MergeEngine, choose_merge
from model.logs import cut, logs, shuffled
from model.merging import Change, Model
from model.states import history
from services.changes import SCHEMA, Merged, goes_in_once
from services.in_process_pipeline import no_spark
from services.staging import intent, opened

KEYED = MergeRules(("id",), tombstone_retention=3600)
BY_SEQUENCE = MergeRules(("id",), sequence="seq", tombstone_retention=3600)
PARTIAL = (
    MergeRules(("id",), partial=True, ignore_nulls=True, tombstone_retention=3600),
    MergeRules(("id",), partial=True, columns=("a",), tombstone_retention=3600),
    MergeRules(("id",), partial=True, columns=("b",), ignore_nulls=True, tombstone_retention=3600),
)
MARK = "headrace:shop"


class ByHand(Merged):
    """Whoever asks for Spark here is wrong."""

    def __init__(self, folder: Any, merging: MergeRules, **more: Any) -> None:
        super().__init__(None, folder, merging, **more)

    @property
    def spark(self) -> Any:
        return no_spark()

    @spark.setter
    def spark(self, _: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read two rows at a time."""
    monkeypatch.setattr(rows, "CHUNK_ROWS", 2)


def merged(merging: MergeRules, batches: Sequence[Sequence[Change]], **more: Any) -> dict[int, tuple[int | None, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        made = ByHand(folder, merging, **more)
        for number, batch in enumerate(batches, 1):
            made.batch(batch, number)
        return made.rows()


# ---- the same table as the log in order ----


@settings(max_examples=25, deadline=None)
@given(shuffled(sequences=True))
def test_any_order_duplicates_and_batches_end_in_the_table_of_the_log_in_order(given_: Any) -> None:
    log, batches = given_
    in_order = sorted(log, key=lambda each: each.sequence)
    assert merged(BY_SEQUENCE, batches) == Model(BY_SEQUENCE).take(in_order).table()


@settings(max_examples=15, deadline=None)
@given(shuffled(sequences=False))
def test_without_a_sequence_the_order_is_the_place_in_the_topic(given_: Any) -> None:
    log, batches = given_
    assert merged(KEYED, batches) == Model(KEYED).take(sorted(log, key=lambda each: each.place)).table()


@pytest.mark.parametrize("merging", [BY_SEQUENCE, KEYED], ids=["sequence", "place"])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_null_values_and_truncates_end_what_lies_before_them(merging: MergeRules, data: st.DataObject) -> None:
    log = data.draw(logs(("put", "put", "put", "delete", "truncate"), merging.sequence is not None, silent=True))
    assert merged(merging, data.draw(cut(log))) == Model(merging).take(log).table()


@pytest.mark.parametrize("merging", PARTIAL, ids=["ignore nulls", "columns", "both"])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_partial_changes_leave_what_they_do_not_bring(merging: MergeRules, data: st.DataObject) -> None:
    log = data.draw(logs(("put", "put", "put", "delete", "truncate"), False))
    placed = [Change(**{**vars(each), "partition": (each.key or 0) % 2, "offset": at}) for at, each in enumerate(log)]
    assert merged(merging, data.draw(cut(placed))) == Model(merging).take(placed).table()


@settings(max_examples=10, deadline=None)
@given(shuffled(sequences=True))
def test_rows_move_between_partitions_and_the_change_data_tells_all_of_it(given_: Any) -> None:
    log, batches = given_
    with tempfile.TemporaryDirectory() as folder:
        feed = {"delta.enableChangeDataFeed": "true"}
        made = ByHand(folder, BY_SEQUENCE, partition_by=("a",), properties=feed)
        for number, batch in enumerate(batches, 1):
            made.batch(batch, number)
        wanted = Model(BY_SEQUENCE).take(sorted(log, key=lambda each: each.sequence)).table()
        assert made.rows() == wanted
        held: dict[int, tuple[Any, ...]] = {}
        steps = {"delete": 0, "update_preimage": 0, "insert": 1, "update_postimage": 1}
        changed = Table(made.table.uri).changes(0).records()
        for row in sorted(changed, key=lambda each: (each["_commit_version"], steps[each["_change_type"]])):
            values = (row["seq"], row["a"], row["b"])
            if steps[row["_change_type"]]:
                held[row["id"]] = values
            else:
                assert held.pop(row["id"]) == values
        assert held == wanted


KEPT = ("valid_from", "valid_to", "current")
HISTORY = pa.schema([*SCHEMA, *((name, pa.int64()) for name in KEPT[:2]), ("current", pa.bool_())])
EVERY = MergeRules(("id",), sequence="seq", tombstone_retention=3600, scd2=Scd2Columns(*KEPT))
TRACKED = MergeRules(("id",), sequence="seq", tombstone_retention=3600, scd2=Scd2Columns(*KEPT, track=("a",)))


@pytest.mark.parametrize(("merging", "track"), [(EVERY, ()), (TRACKED, (0,))], ids=["every change", "tracked"])
@settings(max_examples=20, deadline=None)
@given(shuffled(sequences=True))
def test_a_history_has_every_state_of_every_key(merging: MergeRules, track: tuple[int, ...], given_: Any) -> None:
    log, batches = given_
    with tempfile.TemporaryDirectory() as folder:
        made = ByHand(folder, merging, schema=HISTORY, partition_by=("current",))
        for number, batch in enumerate(batches, 1):
            made.batch(batch, number)
        told = [(r["id"], r["valid_from"], r["valid_to"], r["seq"], (r["a"], r["b"])) for r in made.read()]
    assert sorted(told) == history(log, track)


# ---- which files are read ----

PLACED = MergeRules(("a", "id"), tombstone_retention=3600)


@pytest.mark.parametrize("kind", ["string", "date", "timestamp", "decimal(10,2)", "int"])
def test_only_the_partitions_that_the_keys_name_are_read(tmp_path: Path, kind: str) -> None:
    """Not those between the lowest and the highest of them: files of such a partition are gone, and nobody asks."""
    values = {
        "string": ["a", "m", "z"],
        "date": [date(2024, 1, 1), date(2024, 6, 1), date(2025, 1, 1)],
        "timestamp": [datetime(year, 1, 1, tzinfo=UTC) for year in (2023, 2024, 2025)],
        "decimal(10,2)": [Decimal("-1.50"), Decimal("0.00"), Decimal("2.25")],
        "int": [1, 2, 3],
    }[kind]
    schema = SCHEMA.set(2, pa.field("a", parse_type(kind)))
    made = ByHand(tmp_path, PLACED, schema=schema, partition_by=("a",))
    for number in range(1, 4):
        made.more = {"a": [values[number - 1]] * 2}
        made.batch([Change("put", key, 1, (1, 1), offset=number * 10 + key) for key in range(2)], number)
    stands = active_files(made.table, 3).values()
    (gone,) = [file for file in stands if file.partition["a"] == split_text(schema, values[1])]
    (tmp_path / "t" / gone.path).unlink()
    made.more = {"a": [values[0], values[2]]}
    done = made.batch([Change("put", 0, 2, (2, 2), offset=50), Change("put", 1, 2, (2, 2), offset=51)], 4)
    assert (done.inserted, done.updated) == (0, 2)
    assert {file.path for file in stands} & {file.path for file in active_files(made.table, 4).values()} == {gone.path}


def split_text(schema: pa.Schema, value: Any) -> str | None:
    """A value of the column `a` as its partition has it."""
    ((((_, text),), _),) = split_by_partition(
        pa.table({"a": pa.array([value], schema.field("a").type), "n": [1]}), ("a",)
    )
    return text


@pytest.mark.parametrize("bound", ['"+12024-01-01"', "7", '"soon"', "true", "null"])
def test_bounds_that_cannot_be_read_exclude_no_file(tmp_path: Path, bound: str) -> None:
    """Other programs write them, too."""
    kinds = {"at": TIMESTAMP, "day": pa.date32(), "flag": pa.bool_(), "n": pa.int8(), "t": pa.string()}
    schema = pa.schema([("id", pa.int64()), *kinds.items()])
    sides = ",".join(f'"{name}":{bound}' for name in kinds)
    stats = f'{{"numRecords":1,"minValues":{{{sides}}},"maxValues":{{{sides}}},"nullCount":{{}}}}'
    file = File("x", "x", {}, 1, 1, stats=stats)
    for name in ("at", "day", "flag"):
        values = {"at": datetime(2024, 1, 1, tzinfo=UTC), "day": date(2024, 1, 1), "flag": False}
        keys = pa.table({name: pa.array([values[name]], kinds[name])})
        expected = [] if (name, bound) == ("flag", "true") else [file]
        assert files_with_keys([file], keys, schema, ()) == expected


def test_files_of_another_table_are_left_to_spark(tmp_path: Path) -> None:
    """A shallow clone has such: only Spark reads and replaces them."""
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", 1, 1, (1, 1))], 1)
    (file,) = active_files(made.table, 1).values()
    (tmp_path / "other").mkdir()
    (tmp_path / "t" / file.path).rename(tmp_path / "other" / file.path)
    log = tmp_path / "t/_delta_log" / f"{1:020}.json"
    log.write_text(log.read_text().replace(file.path, f"file://{tmp_path}/other/{file.path}"))
    with pytest.raises(AssertionError, match="JVM"):
        made.batch([Change("put", 1, 2, (2, 2), offset=2)], 2)


# ---- once ----


def test_a_batch_goes_in_once_and_a_zombie_never(tmp_path: Path) -> None:
    goes_in_once(ByHand(tmp_path, BY_SEQUENCE))


def test_a_batch_that_changes_nothing_is_marked_and_writes_no_file(tmp_path: Path) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", 1, 5, (5, 5))], 1)
    before = set(tmp_path.glob("t/*.parquet"))
    late = made.batch([Change("put", 1, 4, (4, 4), offset=1), Change("delete", 7, 1, offset=2)], 2)
    assert (late.inserted, late.updated, late.deleted) == (0, 0, 0)
    assert opened(made.table).transaction_version(MARK) == 2
    assert set(tmp_path.glob("t/*.parquet")) == before
    part = newest_part(made.table, late.version, MARK)
    assert part is not None
    assert (part.rows, part.txns) == (2, {MARK: 2, f"{MARK}:orders:0": 19})


def test_who_comes_between_is_met_with_fresh_state_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", key, 1, (1, 1), offset=key) for key in range(5)], 1)
    part, driver = made.part([Change("put", key, 2, (2, 2), offset=100 + key) for key in range(5)], 2), made.open()
    whole = row_edit.EditAttempt._stage

    def slow(work: Any) -> Any:
        done = whole(work)
        monkeypatch.setattr(row_edit.EditAttempt, "_stage", whole)
        made.open("other").commit(made.part([Change("put", 9, 1, (9, 9))], 1), intent(1, "other"))
        return done

    monkeypatch.setattr(row_edit.EditAttempt, "_stage", slow)
    with pytest.raises(CommitConflict, match="meanwhile"):
        driver.commit(part, intent(2))
    state = load_state(made.table)
    assert state is not None
    named = {added.path for version in range(state.version + 1) for added in read_commit(made.table, version).added}  # type: ignore[union-attr]
    assert {path.name for path in tmp_path.glob("t/*.parquet")} == named, "what was staged in vain is deleted"
    assert driver.commit(part, intent(2)).updated == 5
    assert {row[0] for key, row in made.rows().items() if key < 9} == {2}


def test_stored_deletes_that_are_gone_stop_it(tmp_path: Path) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", 1, 1, (1, 1)), Change("delete", 2, 1, offset=1)], 1)
    made.batch([Change("put", 3, 1, (1, 1), offset=2)], 2)
    (tmp_path / "state" / "tombstones").rename(tmp_path / "elsewhere")
    with pytest.raises(TxnMismatch, match="tombstones"):
        made.batch([Change("put", 2, 0, (0, 0), offset=3)], 3)


# ---- what it reads and writes ----


def test_files_outside_the_keys_of_a_batch_are_not_even_read(tmp_path: Path) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    for number in (1, 2):
        made.batch([Change("put", number * 1000 + at, 1, (at, at), offset=number) for at in range(3)], number)
    for file in pa.table(opened(made.table).get_add_actions(flatten=True)).to_pylist():
        if file["max.id"] < 2000:
            (Path(made.table.root) / file["path"]).unlink()
    assert made.batch([Change("put", 2001, 2, (7, 7), offset=3)], 3).updated == 1


def test_columns_that_others_have_added_keep_their_values(tmp_path: Path) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", key, 1, (1, 1), offset=key) for key in (1, 2)], 1)
    table = Table(made.table.uri, states={"shop": made.state.uri})
    wider = pa.schema([*SCHEMA, pa.field("note", pa.string())])
    made.open().evolve(wider)
    whole, made.schema = made.schema, wider
    made.batch([Change("put", 1, 2, (2, 2), offset=3)], 2)
    made.schema = whole
    assert table.metadata().schema.names == wider.names
    made.batch([Change("put", 2, 3, (3, 3), offset=4), Change("put", 3, 1, (1, 1), offset=5)], 3)
    assert {row["id"]: (row["a"], row["note"]) for row in made.read()} == {1: (2, None), 2: (3, None), 3: (1, None)}


def test_a_column_that_takes_no_null_is_named(tmp_path: Path) -> None:
    strict = SCHEMA.set(SCHEMA.get_field_index("a"), pa.field("a", pa.int64(), nullable=False))
    made = ByHand(tmp_path, BY_SEQUENCE, schema=strict)
    made.batch([Change("put", 1, 1, (1, 1))], 1)
    with pytest.raises(TableChanged, match="column a is NOT NULL"):
        made.batch([Change("put", 1, 2, (None, 2), offset=1)], 2)
    assert made.rows() == {1: (1, 1, 1)}


def test_checkpoints_of_the_log_are_written_on_the_way(tmp_path: Path) -> None:
    from headrace.delta.checkpoints import SHARED

    made = ByHand(tmp_path, BY_SEQUENCE, properties={"delta.checkpointInterval": "3"})
    for number in range(1, 5):
        made.batch([Change("put", number, 1, (1, 1), offset=number)], number)
    assert SHARED.wait(10)
    assert list(Path(made.table.root).glob("_delta_log/*.checkpoint.parquet"))


ODD = {
    "double": [-0.0, float("inf"), 1e-300],
    "decimal(38,10)": [Decimal("-1234567890123456789012345678.0123456789"), Decimal(0), None],
    "timestamp": [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC), None],
    "timestamp_ntz": [datetime(1582, 10, 10), datetime.max, None],
    "date": [date(1, 1, 1), date(9999, 12, 31), None],
    "binary": [b"\x00\xff", b"", None],
    "string": ["\U0010ffff", "", "x'\"\\"],
    "array<struct<a:int,b:string>>": [[{"a": 1, "b": None}, None], [], None],
    "map<string,array<int>>": [[("k", [1, None]), ("j", None)], [], None],
    "struct<a:struct<b:boolean>>": [{"a": {"b": True}}, {"a": None}, None],
    "tinyint": [-128, 127, None],
}
TYPES = pa.schema([*SCHEMA, *((f"c{at}", parse_type(kind)) for at, kind in enumerate(ODD))])


@pytest.mark.parametrize("merging", [BY_SEQUENCE, *PARTIAL[:1]], ids=["whole", "partial"])
def test_values_of_every_kind_are_what_they_were(merging: MergeRules, tmp_path: Path) -> None:
    made = ByHand(tmp_path, merging, schema=TYPES)
    names, held = [f"c{at}" for at in range(len(ODD))], dict[tuple[int, str], Any]()
    for batch in range(3):
        rows = [
            {name: values[(batch + key) % 3] for name, values in zip(names, ODD.values(), strict=True)}
            for key in range(3)
        ]
        brought = pa.Table.from_pylist(rows, pa.schema([TYPES.field(name) for name in names]))
        made.more = {name: brought[name] for name in names}
        made.batch([Change("put", key, batch, (1, 1), offset=batch * 3 + key) for key in range(3)], batch + 1)
        for key, row in enumerate(rows):
            held |= {(key, name): value for name, value in row.items() if value is not None or not merging.partial}
        found = {(row["id"], name): row[name] for row in made.read() for name in names}
        assert found == {place: held.get(place) for place in found}
        assert [str(found[key, "c0"]) for key in range(3)] == [str(held[key, "c0"]) for key in range(3)], "-0.0 is"


def test_a_log_that_was_cleaned_past_the_last_look_stops_it_and_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    driver = made.open()
    driver.commit(made.part([Change("put", 1, 1, (1, 1))], 1), intent(1))
    made.batch([Change("put", 2, 1, (1, 1), offset=1)], 2)
    made.batch([Change("put", 3, 1, (1, 1), offset=2)], 3)
    assert Table(made.table.uri).checkpoint() == 3
    for version in range(3):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    part = made.part([Change("put", 1, 2, (2, 2), offset=3)], 4)
    with pytest.raises(TableRestored, match="no longer reaches"):
        driver.commit(part, intent(4))
    assert made.open().commit(part, intent(4)).updated == 1
    assert made.rows() == {1: (2, 2, 2), 2: (1, 1, 1), 3: (1, 1, 1)}


# ---- when Spark is asked ----


@pytest.mark.parametrize(
    ("properties", "in_process_bytes"),
    [
        ({}, 0),
        ({"delta.enableDeletionVectors": "true"}, 1_000_000),
        ({"delta.constraints.c": "a > 0"}, 1_000_000),
        ({"delta.appendOnly": "true"}, 1_000_000),
    ],
    ids=["never small", "vectors", "constraint", "append only"],
)
def test_some_tables_are_left_to_spark(properties: dict[str, str], in_process_bytes: int, tmp_path: Path) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE, properties=properties)
    made.in_process_bytes = in_process_bytes
    with pytest.raises(AssertionError, match="a JVM was asked for"):
        made.batch([Change("put", 1, 1, (1, 1))], 1)


def test_a_merge_that_touches_much_is_left_to_spark(tmp_path: Path) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", key, 1, (1, 1), offset=key) for key in range(20_000)], 1)
    made.batch([Change("put", 99_999, 1, (1, 1), offset=20_001)], 2)
    made.in_process_bytes = max(file.size for file in active_files(made.table, 2).values()) - 1
    made.batch([Change("put", 99_999, 2, (2, 2), offset=20_002)], 3)
    with pytest.raises(AssertionError, match="a JVM was asked for"):
        made.batch([Change("put", 7, 2, (2, 2), offset=20_003)], 4)
    assert made.rows()[7] == (1, 1, 1)


def test_what_does_not_fit_into_memory_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", 1, 1, (1, 1))], 1)

    def too_large(*_: Any) -> Any:
        raise duck.TooLarge("out of memory")

    monkeypatch.setattr(UpsertMerge, "inserts", too_large)
    before = set(tmp_path.glob("t/*.parquet"))
    with pytest.raises(AssertionError, match="a JVM was asked for"):
        made.batch([Change("put", 1, 2, (2, 2), offset=1)], 2)
    assert set(tmp_path.glob("t/*.parquet")) == before, "what was staged in vain is deleted"


def test_the_choice_of_the_merge_engine_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", key, 1, (1, 1), offset=key) for key in range(5)], 1)
    state = load_state(made.table)
    assert state is not None
    (file,) = active_files(made.table, state.version).values()

    def reason(limit: int, files: Any, state: Any = state) -> tuple[str, str]:
        choice = choose_merge(state, limit, 1_000, lambda: files)
        return choice.engine.value, choice.reason

    def fail() -> Any:
        raise AssertionError("the changes were read")

    assert reason(10**9, [file]) == ("in-process", f"it touches {file.size:,} bytes of files")
    assert reason(8_000, [replace(file, size=8_001)]) == (
        "spark",
        "it touches 8,001 bytes of files (8,000 are allowed)",
    )
    assert reason(10**9, [replace(file, path="s3://other/file.parquet")])[0] == "spark"
    assert choose_merge(state, 7_999, 1_000, fail).reason == (
        "1,000 bytes of changes do not fit into memory (999 are allowed)"
    )
    blocked = replace(state, metadata=replace(state.metadata, properties={"delta.appendOnly": "true"}))
    assert choose_merge(blocked, 10**9, 1_000, fail) == MergeChoice(MergeEngine.SPARK, rewrite_blocker(blocked) or "")


def test_a_merge_that_runs_out_of_memory_names_it_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ByHand(tmp_path, BY_SEQUENCE)
    made.batch([Change("put", 1, 1, (1, 1))], 1)

    def too_large(*_: Any) -> Any:
        raise duck.TooLarge("out of memory")

    monkeypatch.setattr(UpsertMerge, "inserts", too_large)
    writer = made.open()
    with pytest.raises(AssertionError, match="a JVM was asked for"):
        writer.commit(made.part([Change("put", 1, 2, (2, 2), offset=1)], 2), intent(2))
    assert writer.merge.choice == MergeChoice(MergeEngine.SPARK, "DuckDB ran out of memory")
