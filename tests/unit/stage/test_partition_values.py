"""Partition values are compared by column and type: however Spark, delta-rs or Headrace has spelled them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta import rows
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.partition_values import partition_value
from headrace.delta.rows import ColumnReader, read_rows, row_chunks
from headrace.delta.schema import RECORD_SCHEMA
from headrace.delta.snapshot import active_files, load_state
from headrace.errors import StorageUnreachable, TableDamaged, TableFeature, UsageError
from headrace.ledger.known_tables import FullRefresh, KnownTables
from headrace.plan.conform import fit
from headrace.plan.route_schema import RouteSchema
from headrace.reasons import Reason
from headrace.spec.types import parse_type
from headrace.stage.partitions import check_partitioning, partition_folder, partition_text_of, split_by_partition
from headrace.storage.store import Store
from headrace.table import repair
from headrace.table.stats import sum_files
from services.in_process_pipeline import Harness
from services.maintenance import Clock, Keeping

ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")

# ---- every type in every spelling ----


def _times(at: datetime) -> Iterator[str]:
    """By Spark, without and with an ISO form; by delta-rs; by Headrace."""
    text, micros = at.replace(tzinfo=None).isoformat(" ", "seconds"), f"{at.microsecond:06}"
    yield text + (f".{micros}".rstrip("0") if at.microsecond else "")
    yield f"{text}.{micros}"
    yield f"{text}.{micros}000"
    yield f"{text.replace(' ', 'T')}.{micros}Z"
    if at.tzinfo is not None:
        yield at.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(" ", "microseconds")


def _floats(value: float) -> Iterator[str]:
    if math.isnan(value):
        yield from ("NaN", "nan", "NAN")
    elif math.isinf(value):
        yield from ("Infinity", "inf", "+inf") if value > 0 else ("-Infinity", "-inf")
    else:
        yield repr(value)
        yield repr(value).replace("e+", "E").replace("e", "E")  # Java
        yield np.format_float_positional(value, trim="-")  # Rust: never an exponent
        yield np.format_float_scientific(value)


def _singles(value: float) -> Iterator[str]:
    single = np.float32(value)
    yield from _floats(float(single))
    if math.isfinite(value):
        yield str(single)  # the shortest text that a float has
        yield np.format_float_positional(single, trim="-")


def _decimals(value: Decimal) -> Iterator[str]:
    text = f"{value:f}"
    yield text
    yield text.rstrip("0").rstrip(".") if "." in text else text
    yield f"{text}{'' if '.' in text else '.'}000"
    yield f"{value:E}"


TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Any]] = {
    "timestamp": (ZONED, st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.just(UTC)), _times),
    "timestamp_ntz": (LOCAL, st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)), _times),
    "double": (pa.float64(), st.floats(), _floats),
    "float": (pa.float32(), st.floats(width=32), _singles),
    "decimal": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10, allow_nan=False), _decimals),
    "date": (pa.date32(), st.dates(), lambda day: (day.isoformat(), f"{day} 00:00:00")),
    "boolean": (pa.bool_(), st.booleans(), lambda each: (str(each), str(each).lower(), str(each).upper())),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1), lambda each: (str(each), f"{each:+}", f"{each:025}")),
    "tinyint": (pa.int8(), st.integers(-128, 127), lambda each: (str(each),)),
    "string": (pa.string(), st.text(min_size=1), lambda each: (each,)),
    "binary": (
        pa.binary(),
        st.binary(min_size=1),
        lambda each: ("".join(f"\\u{b:04X}" for b in each), "".join(f"\\u{b:04x}" for b in each)),
    ),
}


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_value_is_the_same_in_every_spelling_and_no_other(name: str, data: st.DataObject) -> None:
    kind, values, spellings = TYPES[name]
    one, two = data.draw(values), data.draw(values)
    key = PartitionKeys.of(pa.schema([pa.field("z", pa.string()), pa.field("v", kind)]), ("v", "z"))
    texts = (*spellings(one), *spellings(two))
    keys = [{key({"z": "q", "v": text}), key({"v": text, "z": "q"})} for text in texts]
    one, two = (repr(pa.scalar(each, kind).as_py()) for each in (one, two))  # -0.0 is another value than 0.0
    assert len(set.union(*keys)) == len({one, two})
    assert {repr(partition_value(text, pa.field("v", kind)).as_py()) for text in texts} == {one, two}


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("string", "binary")])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_headrace_writes_is_its_own_key(name: str, data: st.DataObject) -> None:
    kind, values, spellings = TYPES[name]
    value = data.draw(values)
    rows = pa.table({"v": pa.array([value], kind), "n": [1]})
    ((partition, _),) = split_by_partition(rows, ("v",))
    key = PartitionKeys.of(rows.schema, ("v",))
    assert {key({"v": text}) for text in spellings(value)} == {partition}
    assert {partition_text_of("v", text, kind) for text in spellings(value)} == {partition[0][1]}


@pytest.mark.parametrize("name", TYPES)
def test_null_is_null_in_both_spellings(name: str) -> None:
    key = PartitionKeys.of(pa.schema([pa.field("v", TYPES[name][0])]), ("v",))
    assert key({"v": None}) == key({"v": ""}) == key({}) == (("v", None),)


def test_a_renamed_column_is_found_under_its_name_in_the_log() -> None:
    item = pa.field("day", pa.date32(), metadata={"delta.columnMapping.physicalName": "col-1"})
    assert PartitionKeys.of(pa.schema([item]), ("day",))({"col-1": "2024-01-01"}) == (("day", "2024-01-01"),)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timestamp", "yesterday"),
        ("timestamp", "2024-01-01 00:00:00.0000001"),
        ("timestamp_ntz", "2024-01-01 00:00:00+02:00"),
        ("double", "1_0"),
        ("double", "1e400"),
        ("tinyint", "128"),
        ("bigint", "0x10"),
        ("decimal(38,0)", "340282366920938463463374607431768211457"),
        ("decimal(4,2)", "1.234"),
        ("date", "2024-01-01 01:00:00"),
        ("date", "2024-02-30"),
        ("boolean", "2"),
    ],
)
def test_a_text_that_is_no_value_of_its_column_is_named(kind: str, text: str) -> None:
    item = pa.field("v", parse_type(kind))
    with pytest.raises(TableDamaged, match="for column v") as told:
        partition_value(text, item)
    assert f"'{text}'" in told.value.message
    with pytest.raises(ValueError, match=r".*"):
        partition_text_of("v", text, item.type)


# ---- a compaction by delta-rs ----

# Several partitions each: delta-rs writes the columns of about half of them in the other order.
PAIRS = {
    "timestamp and double": ("timestamp", "double", [(f"2024-01-0{n}T00:00:00Z", n / 1) for n in range(1, 8)]),
    "timestamp_ntz and float": ("timestamp_ntz", "float", [("2024-01-01T00:00:00.5", n / 10) for n in range(7)]),
    "date and decimal": ("date", "decimal(20,4)", [(f"2024-01-0{n}", n + 0.5) for n in range(1, 8)]),
    "boolean and double": ("boolean", "double", [(n % 2 == 0, 1e10 * n) for n in range(7)]),
}
pairs = pytest.mark.parametrize("pair", PAIRS)


def _table(path: Path, pair: str, **more: Any) -> dict[str, Any]:
    one, two, _ = PAIRS[pair]
    columns = [{"name": "id", "type": "bigint"}, {"name": "a", "type": one}, {"name": "b", "type": two}]
    return {"path": str(path), "columns": columns, "partition_by": ["a", "b"], **more}


def _records(pair: str, start: int) -> list[dict[str, Any]]:
    return [{"id": start + at, "a": a, "b": b} for at, (a, b) in enumerate(PAIRS[pair][2])]


def _compacted(path: Path) -> None:
    """By delta-rs, in its own spelling."""
    done = DeltaTable(path).optimize.compact()
    assert done["numFilesAdded"] == 7
    assert len(active_files(Store(str(path)), DeltaTable(path).version())) == 7


def _ids(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table(columns=["id"])["id"].to_pylist())


@pairs
def test_overwritten_partitions_hold_no_rows_of_before(tmp_path: Path, pair: str) -> None:
    path = tmp_path / "lake/web"
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": _table(path, pair, mode="overwrite_partitions")})
    state = Store(harness.spec.state_uri)
    KnownTables.load(state).store_full_refresh(FullRefresh(1, open=True))
    harness.feed(_records(pair, 0))
    harness.feed(_records(pair, 10))
    _compacted(path)
    KnownTables.load(state).store_full_refresh(FullRefresh(2, open=True))
    harness.feed(_records(pair, 20)[:4])
    kept = [each + start for start in (0, 10) for each in (4, 5, 6)]
    assert _ids(path) == [*kept, 20, 21, 22, 23]
    harness.feed(_records(pair, 30))
    assert _ids(path) == [20, 21, 22, 23, *range(30, 37)]


@pairs
def test_maintenance_joins_files_of_one_partition_however_they_are_spelled(tmp_path: Path, pair: str) -> None:
    rules = {"every": "1s", "idle_after": "1h", "min_input_files": 2}
    with Keeping(
        tmp_path, Clock(time.time()), table=_table(tmp_path / "lake/web", pair), maintenance=rules
    ).open() as run:
        for start in (0, 10):
            run.records(_records(pair, start))
        _compacted(run.place)
        run.records(_records(pair, 20))
        run.clock.now += 4000
        run.pipeline.maintain(at_end=True)
        assert [each["reason"] for each in run.done("compact") if each["table"] == str(run.place)] == [
            "idle: 14 files in 7 partitions"
        ]
        assert run.files() == 7
        run.clock.now += 4000
        run.pipeline.maintain(at_end=True)
        assert len([each for each in run.done("compact") if each["table"] == str(run.place)]) == 1, "for good"
    assert run.ids() == [start + at for start in (0, 10, 20) for at in range(7)]


@pairs
def test_tables_are_optimized_queried_and_changed_by_partition(tmp_path: Path, pair: str) -> None:
    path = tmp_path / "lake/web"
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": _table(path, pair)})
    harness.feed(_records(pair, 0))
    harness.feed(_records(pair, 10))
    _compacted(path)
    harness.feed(_records(pair, 20))
    table = Table(path)
    assert sorted(row["id"] for row in table.query().records()) == _ids(path)
    assert table.statistics().partitions == 7
    state = load_state(Store(table.path))
    assert state is not None
    key = PartitionKeys.of(state.schema, state.partition_by)
    assert sum_files(Store(table.path), state.version, 1, key).partitions == 7
    folder = "a={}/b={}".format(*PAIRS[pair][2][3])
    assert sorted(row["id"] for row in table.query().within(folder).records()) == [3, 13, 23]
    done = table.optimize(where=f"b = {PAIRS[pair][2][3][1]!r}")
    assert (done.partitions, done.files_removed, done.files_added) == (1, 2, 1)
    done = table.optimize()
    assert (done.partitions, done.files_removed, done.files_added) == (6, 12, 6)
    harness.feed(_records(pair, 30))
    _compacted(path)
    assert table.delete("true", partition=folder).rows == 4
    assert table.update("id > 20", {"id": "id + 100"}).rows == 11
    left = {start + at for start in (0, 10, 20, 30) for at in range(7) if at != 3}
    assert _ids(path) == sorted(each + 100 if each > 20 else each for each in left)


@pairs
def test_changes_are_merged_after_a_compaction_by_delta_rs(tmp_path: Path, pair: str) -> None:
    path = tmp_path / "lake/web"
    rules = _table(path, pair, mode="upsert", merge={"keys": ["id"], "sequence_by": "n"})
    rules["columns"].append({"name": "n", "type": "bigint"})
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": rules})
    for start in (0, 10):
        harness.feed({**each, "n": 1} for each in _records(pair, start))
    _compacted(path)
    moved = [{**old, "a": new["a"], "b": new["b"]} for old, new in pairwise(_records(pair, 10))]
    harness.feed({**each, "n": 2} for each in moved)
    rows = {row["id"]: (str(row["a"]), str(row["b"]), row["n"]) for row in harness.rows("lake/web")}
    assert len(rows) == len(harness.rows("lake/web")) == 14
    assert rows[10][:2] == rows[1][:2]
    assert {key for key, row in rows.items() if row[2] == 2} == set(range(10, 16))


def test_duplicates_are_told_by_a_partition_column_that_delta_rs_has_spelled(tmp_path: Path) -> None:
    path = tmp_path / "lake/web"
    rules = _table(path, "timestamp and double", deduplicate={"keys": ["a"], "within": "1h"})
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": rules})
    harness.feed(_records("timestamp and double", 0))
    Table(path).update("id = 1", {"id": 1})  # two commits, so that there is something to compact
    DeltaTable(path).optimize.z_order(["id"])
    harness.feed(_records("timestamp and double", 10))
    assert _ids(path) == list(range(7))


def test_duplicates_cannot_be_determined_from_files_of_another_table(tmp_path: Path) -> None:
    """Of a shallow clone: to go on would store again what those files have."""
    path = tmp_path / "lake/web"
    rules = _table(path, "date and decimal", deduplicate={"keys": ["id"], "within": "1h"}, partition_by=[])
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": rules})
    harness.feed(_records("date and decimal", 0))
    log = path / "_delta_log" / f"{0:020}.json"
    (tmp_path / "other").mkdir()
    (file,) = path.glob("*.parquet")
    file.rename(tmp_path / "other" / file.name)
    log.write_text(log.read_text().replace(file.name, f"file://{tmp_path}/other/{file.name}"))
    with pytest.raises(TableFeature, match="shallow clone"):
        harness.feed(_records("date and decimal", 0))


# ---- what is taken for damage ----


@pytest.fixture
def lake(tmp_path: Path) -> tuple[Table, Path]:
    """A table of one file."""
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "x": "double"}, ["x"])
    table.bulk_insert([{"id": n, "x": 1.0} for n in range(1000)])
    return table, next((tmp_path / "t").rglob("x=*/*.parquet"))


def _readers(table: Table, **partition: str) -> list[Callable[[], Any]]:
    """Every way to read rows of a file."""
    state = load_state(Store(table.path))
    assert state is not None
    (file,) = active_files(Store(table.path), state.version).values()
    file = replace(file, partition={**file.partition, **partition})
    place = (Store(table.path), file, state.schema, state.partition_by)
    return [
        lambda: read_rows(*place),
        lambda: list(row_chunks(*place)),
        lambda: ColumnReader(place[0], ["id"]).of(file),
    ]


def test_a_partition_value_that_cannot_be_read_is_no_damage_of_a_file(lake: tuple[Table, Path]) -> None:
    for read in _readers(lake[0], x="one")[:2]:
        with pytest.raises(TableDamaged, match="Invalid partition value in the log: 'one' for column x") as told:
            read()
        assert "Delete" not in str(told.value)


def test_a_file_of_other_types_is_no_damage_of_it(lake: tuple[Table, Path]) -> None:
    table, path = lake
    pq.write_table(pa.table({"id": ["one", "two"]}), path)
    for read in _readers(table)[:2]:
        with pytest.raises(TableDamaged, match=r"column id is string in the file .* and int64 in the table") as told:
            read()
        assert "Delete" not in str(told.value)


@pytest.mark.parametrize("harm", ["cut", "zeros", "empty"])
def test_only_a_file_that_nobody_can_read_is_to_be_deleted_and_that_helps(lake: tuple[Table, Path], harm: str) -> None:
    table, path = lake
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-10], "zeros": bytes(len(data)), "empty": b""}[harm])
    for read in _readers(table):
        with pytest.raises(TableDamaged, match="not a complete Parquet file") as told:
            read()
        assert told.value.hint is not None
        assert told.value.hint.startswith("Delete it")
    path.unlink()
    assert table.repair().version is not None
    assert table.query().count() == 0


def test_a_file_with_a_spoiled_page_is_tried_elsewhere_first(lake: tuple[Table, Path]) -> None:
    table, path = lake
    data = bytearray(path.read_bytes())
    data[40:400] = bytes(360)
    path.write_bytes(data)
    for read in _readers(table):
        with pytest.raises(TableDamaged, match="cannot be read") as told:
            read()
        assert told.value.hint is not None
        assert told.value.hint.startswith("Read it with another program")
    assert next(each.why for each in table.repair(dry_run=True, deep=True).unreadable).startswith("it cannot be read")


def test_a_store_that_fails_is_no_damage_of_a_file(lake: tuple[Table, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = lake

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("AWS Error NETWORK_CONNECTION during HeadObject operation")

    monkeypatch.setattr(rows, "_opened", fails)
    for read in _readers(table)[1:]:
        with pytest.raises(StorageUnreachable, match="NETWORK_CONNECTION"):
            read()
    monkeypatch.setattr(repair, "pq", SimpleNamespace(ParquetFile=fails))
    with pytest.raises(StorageUnreachable, match="NETWORK_CONNECTION"):
        table.repair(dry_run=True)


# ---- paths that a store cannot hold ----


def _paths(uri: str, rows: list[tuple[str | None, ...]]) -> tuple[list[int], list[int]]:
    """The lengths of the keys of rows that fit, and of those that do not."""
    names = [f"p{at}" for at in range(len(rows[0]))]
    table = pa.table({"id": [1] * len(rows), **dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))})
    schema = pa.schema([pa.field("id", pa.int64()), *(pa.field(name, pa.string()) for name in names)])
    envelopes = pa.table([pa.nulls(len(rows), item.type) for item in RECORD_SCHEMA], schema=RECORD_SCHEMA)
    _, _, rejects = fit(table.cast(schema), envelopes, RouteSchema(uri, schema, schema, tuple(names)))
    assert set(rejects.reason) <= {Reason.BAD_PARTITION}
    root = uri.partition("://")[2].partition("/")[2] or uri
    sizes = [len(f"{root}/{partition_folder(tuple(zip(names, row, strict=True)))}/".encode()) for row in rows]
    return (
        [size for at, size in enumerate(sizes) if at not in rejects.index],
        [size for at, size in enumerate(sizes) if at in rejects.index],
    )


VALUES = st.text("aé/😀", min_size=1, max_size=70) | st.none()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[VALUES] * 6), min_size=1, max_size=8))
def test_keys_of_s3_have_at_most_1024_bytes(rows: list[tuple[str | None, ...]]) -> None:
    """With room for the name of the file; what is well within them is not refused."""
    names = 110  # bytes of `_change_data/` and a file's name, at least
    rows = [tuple(each if each is None or len(each.encode()) < 80 else each[:20] for each in row) for row in rows]
    fits, beyond = _paths("s3://bucket/lake/web", rows)
    assert all(size + names <= 1024 for size in fits)
    assert all(size + 128 > 1024 for size in beyond)


def test_a_key_of_s3_is_refused_by_the_byte() -> None:
    rows = [("a" * 250, "b" * 250, "c" * 250, "d" * size) for size in range(1, 200)]
    fits, beyond = _paths("s3://bucket/lake/web", rows)
    assert max(fits) == min(beyond) - 1 == 1024 - 128
    assert _paths("/lake/web", rows)[1] == []


def test_a_record_whose_path_is_too_long_for_the_disk_is_a_dead_letter(tmp_path: Path) -> None:
    names = [f"p{at:02}" for at in range(16)]
    columns = [{"name": "id", "type": "bigint"}, *({"name": name, "type": "string"} for name in names)]
    table = {"path": str(tmp_path / "lake/web"), "columns": columns, "partition_by": names}
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": table})
    whole = {"id": 1, **dict.fromkeys(names, "x" * 248)}
    harness.feed([whole, {"id": 2, **dict.fromkeys(names, "x")}, {**whole, "id": 3, "p00": "x" * 300}])
    assert [row["id"] for row in harness.rows("lake/web")] == [2]
    assert [(row["offset"], row["reason"]) for row in harness.dead()] == [(0, "bad_partition"), (2, "bad_partition")]
    assert "too long for the storage" in harness.dead()[0]["detail"]


def test_a_partition_column_needs_room_for_its_values_in_a_folder() -> None:
    schema = pa.schema([pa.field("n" * 200, pa.int64()), pa.field("id", pa.int64())])
    with pytest.raises(UsageError, match="too long for a directory"):
        check_partitioning(schema, ("n" * 200,))
