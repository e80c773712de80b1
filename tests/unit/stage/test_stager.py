"""Rows become few, good files: named, split, bounded and readable by others."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.delta.staged_file import StagedFile
from headrace.errors import StorageUnreachable, TooManyPartitions, UsageError
from headrace.stage.layout import MIB, FileLayout
from headrace.stage.partitions import (
    check_partition_count,
    check_partitioning,
    partition_folder,
    split_by_partition,
    unstorable,
)
from headrace.stage.stager import Stager
from headrace.storage.store import Store

SCHEMA = pa.schema([("day", pa.string()), ("n", pa.int64()), ("text", pa.string())])


def rows_of(days: list[str | None], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.table({"day": days, "n": range(len(days)), "text": [f"row {n}" for n in range(len(days))]}, schema=schema)


@pytest.fixture
def stager() -> Stager:
    return Stager(Store, "7-0")


def stage(layout: FileLayout, *pieces: pa.Table, **limits: int) -> tuple[StagedFile, ...]:
    made = Stager(Store, "7-0", **limits)
    for piece in pieces:
        made.add(layout, piece)
    return made.finish()


def read(file: StagedFile) -> pa.Table:
    return pq.ParquetFile(Path(file.table) / file.path).read()


def test_a_table_gets_one_file_with_all_its_rows_in_order(tmp_path: Path, stager: Stager) -> None:
    layout = FileLayout(str(tmp_path), SCHEMA)
    rows = rows_of(["a"] * 1000)
    for start in range(0, 1000, 100):
        stager.add(layout, rows.slice(start, 100))
    (file,) = stager.finish()
    assert read(file).equals(rows)
    assert (file.rows, file.size) == (1000, (tmp_path / file.path).stat().st_size)
    assert file.path.startswith("part-7-0-00000-")
    assert file.path.endswith(".c000.snappy.parquet")
    assert pq.ParquetFile(tmp_path / file.path).num_row_groups == 1


def test_chunks_of_any_size_become_the_same_rows_in_order(tmp_path: Path) -> None:
    rows = rows_of([f"{number % 3}" for number in range(40_000)])
    pieces = [rows.slice(0, 20_000), rows.slice(20_000, 7), rows.slice(20_007)]
    for by in ((), ("day",)):
        large, small = (
            stage(FileLayout(str(tmp_path), SCHEMA, by), *group)
            for group in (pieces, [rows.slice(start, 100) for start in range(0, 40_000, 100)])
        )
        assert [file.stats for file in large] == [file.stats for file in small]
        assert [read(file) for file in large] == [read(file) for file in small]
    assert pa.concat_tables(read(file) for file in stage(FileLayout(str(tmp_path), SCHEMA), *pieces)).equals(rows)


def test_nothing_added_stages_nothing(tmp_path: Path, stager: Stager) -> None:
    stager.add(FileLayout(str(tmp_path), SCHEMA), SCHEMA.empty_table())
    assert stager.finish() == ()
    assert list(tmp_path.iterdir()) == []


def test_partition_columns_are_in_the_folder_and_not_in_the_file(tmp_path: Path) -> None:
    files = stage(FileLayout(str(tmp_path), SCHEMA, ("day",)), rows_of(["b", "a", "b", None]))
    by_value = {file.partition[0][1]: file for file in files}
    assert by_value.keys() == {"a", "b", None}
    assert read(by_value["b"]).column("n").to_pylist() == [0, 2]
    assert read(by_value["b"]).column_names == ["n", "text"]
    assert by_value["b"].path.startswith("day=b/part-")
    assert by_value[None].path.startswith("day=__HIVE_DEFAULT_PARTITION__/part-")
    assert all((tmp_path / file.path).is_file() for file in files)


@pytest.mark.parametrize(
    ("kind", "value", "spelled"),
    [
        (pa.string(), "a b/c=ü%", "a b/c=ü%"),
        (pa.int8(), -5, "-5"),
        (pa.int64(), 2**63 - 1, "9223372036854775807"),
        (pa.bool_(), True, "true"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), float("inf"), "Infinity"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.float64(), float("nan"), "NaN"),
        (pa.decimal128(38, 10), Decimal("1E-8"), "0.0000000100"),
        (pa.decimal128(38, 0), Decimal(10**37), "1" + "0" * 37),
        (pa.date32(), date(1, 1, 1), "0001-01-01"),
        (pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 1, 2, 3, 4, UTC), "2024-02-29T01:02:03.000004Z"),
        (pa.timestamp("us"), datetime(1969, 12, 31, 23), "1969-12-31 23:00:00.000000"),
    ],
)
def test_partition_values_are_spelled_as_delta_does(kind: pa.DataType, value: object, spelled: str) -> None:
    rows = pa.table({"p": pa.array([value, None], kind), "n": [1, 2]})
    assert [partition for partition, _ in split_by_partition(rows, ("p",))] == [(("p", spelled),), (("p", None),)]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.string(), "é" * 125, ""),
        (pa.string(), "/" * 83, "/" * 84),
        (pa.string(), "null", "__HIVE_DEFAULT_PARTITION__"),
        (pa.string(), "\x00", "é" * 126),
        (pa.date32(), -719_162, -719_163),
        (pa.timestamp("us", "UTC"), 253_402_300_799_999_999, 253_402_300_800_000_000),
        (pa.int64(), 0, None),
    ],
)
def test_values_that_readers_would_change_are_named(kind: pa.DataType, good: object, bad: object) -> None:
    values = pa.array([good, bad, None], kind)
    assert unstorable("day", values).to_pylist() == [False, bad is not None, False]
    assert unstorable("day", pa.chunked_array([values])).to_pylist() == [False, bad is not None, False]


def test_a_value_that_cannot_be_stored_does_not_get_past_the_split() -> None:
    with pytest.raises(ValueError, match="day"):
        list(split_by_partition(rows_of(["a", ""]), ("day",)))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a b", "day=a b"),
        ("a/b", "day=a%2Fb"),
        ("..", "day=.."),
        ("50%", "day=50%25"),
        ("\"#'*:=?\\{[]^", "day=%22%23%27%2A%3A%3D%3F%5C%7B%5B%5D%5E"),
        ("ü😀", "day=ü😀"),
        ("\x00\x01\n\x7f", "day=%00%01%0A%7F"),
    ],
)
def test_folders_are_escaped_as_spark_does(value: str, name: str) -> None:
    assert partition_folder((("day", value),)) == name


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from([None, 1, 2])), min_size=1))
def test_splitting_keeps_every_row_its_value_and_its_order(values: list[tuple[str | None, int | None]]) -> None:
    texts, numbers = zip(*values, strict=True)
    rows = pa.table({"n": range(len(values)), "a": pa.array(texts, pa.string()), "b": pa.array(numbers, pa.int32())})
    found = {partition: piece.column("n").to_pylist() for partition, piece in split_by_partition(rows, ("a", "b"))}
    expected: dict[object, list[int]] = {}
    for place, (text, number) in enumerate(values):
        key = (("a", text), ("b", None if number is None else str(number)))
        expected.setdefault(key, []).append(place)
    assert found == expected


def test_more_partition_values_than_the_limit_stop_the_batch(tmp_path: Path) -> None:
    layout = FileLayout(str(tmp_path), SCHEMA, ("day",))
    with pytest.raises(TooManyPartitions, match=rf"{tmp_path}: one batch has 11 .* limit is 10"):
        stage(layout, rows_of([f"d{n}" for n in range(11)]), partition_values=10)


def test_the_limit_counts_a_batch_not_a_task(tmp_path: Path) -> None:
    layout = FileLayout(str(tmp_path), SCHEMA, ("day",))
    files = [file for day in "abc" for file in stage(layout, rows_of([day]))]
    check_partition_count(files, 3)
    with pytest.raises(TooManyPartitions, match="has 3"):
        check_partition_count(files, 2)


@pytest.mark.parametrize(
    ("partition_by", "said"),
    [
        (("nope",), "unknown column"),
        (("n", "n"), "duplicate column"),
        (("list",), "cannot be part"),
        (("bin",), "cannot be part"),
        (("n", "list", "bin"), "cannot"),
    ],
)
def test_partitioning_that_cannot_work_is_refused(partition_by: tuple[str, ...], said: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("list", pa.list_(pa.int32())), ("bin", pa.binary())])
    with pytest.raises(UsageError, match=said):
        check_partitioning(schema, partition_by)


def test_partitioning_by_every_column_is_refused() -> None:
    with pytest.raises(UsageError, match="all columns"):
        check_partitioning(SCHEMA, ("day", "n", "text"))
    check_partitioning(SCHEMA, ("day",))


def test_rows_of_another_schema_are_a_fault_of_ours(tmp_path: Path, stager: Stager) -> None:
    layout = FileLayout(str(tmp_path), SCHEMA)
    for other in (
        rows_of(["a"]).select(["n", "day", "text"]),
        rows_of(["a"]).rename_columns(["Day", "n", "text"]),
        rows_of(["a"]).cast(SCHEMA.set(1, pa.field("n", pa.int32()))),
    ):
        with pytest.raises(AssertionError):
            stager.add(layout, other)


def wide(count: int, seed: int) -> pa.Table:
    random_bytes = random.Random(seed)
    return pa.table(
        {
            "day": pa.array(["d"] * count),
            "n": pa.array(range(count), pa.int64()),
            "text": [random_bytes.randbytes(100).hex() for _ in range(count)],
        },
        schema=SCHEMA,
    )


@pytest.mark.parametrize("repeat", [1, 40])
def test_every_file_but_the_last_is_about_the_target(tmp_path: Path, repeat: int) -> None:
    # 40 times the same rows compress far better: the size of a row group must follow.
    target = MIB
    layout = FileLayout(str(tmp_path), SCHEMA, target_file_bytes=target)
    pieces = [pa.concat_tables([wide(2_000 // repeat, seed)] * repeat) for seed in range(40)]
    files = stage(layout, *pieces, group_bytes=4 * MIB)
    sizes = [file.size for file in files]
    assert sum(file.rows for file in files) == 80_000
    assert all(0.5 * target <= size <= 1.5 * target for size in sizes[:-1]), sizes
    assert sizes[-1] <= 1.5 * target


def test_memory_is_bounded_by_closing_the_largest(tmp_path: Path) -> None:
    layouts = [FileLayout(str(tmp_path / name), SCHEMA) for name in ("large", "small")]
    made = Stager(Store, "1-0", memory_bytes=4 * MIB)
    highest = 0
    for seed in range(20):
        made.add(layouts[0], wide(4_000, seed))
        made.add(layouts[1], wide(400, seed))
        highest = max(highest, made.memory)
    files = made.finish()
    assert highest <= 5 * MIB
    assert sum(file.rows for file in files) == 20 * 4_400
    rows_in_order = [n for file in files if "large" in file.table for n in read(file).column("n").to_pylist()]
    assert rows_in_order == [*range(4_000)] * 20
    assert len([file for file in files if "small" in file.table]) == 1


def test_open_files_are_bounded_by_closing_the_largest(tmp_path: Path) -> None:
    layouts = [FileLayout(str(tmp_path / str(n)), SCHEMA, target_file_bytes=64 * MIB) for n in range(6)]
    made = Stager(Store, "1-0", open_writers=2, group_bytes=MIB)
    for seed in range(3):
        for layout in layouts:
            made.add(layout, wide(8_000, seed))
            assert made.open_files <= 2
    files = made.finish()
    assert sum(file.rows for file in files) == 3 * 6 * 8_000


def test_abandoned_files_are_gone(tmp_path: Path, stager: Stager) -> None:
    layout = FileLayout(str(tmp_path), SCHEMA, ("day",))
    stager.add(layout, rows_of(["a", "b"]))
    assert len(stager.finish()) == 2
    stager.abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class Faulty(Store):
    """A store whose third upload does not get through."""

    puts = 0

    def put(self, path: str, data: bytes) -> str:
        Faulty.puts += 1
        if Faulty.puts == 3:
            raise StorageUnreachable("the wire is cut")
        return super().put(path, data)


def test_an_upload_that_fails_is_reported_and_the_others_can_be_abandoned(tmp_path: Path) -> None:
    made = Stager(Faulty, "1-0")
    made.add(FileLayout(str(tmp_path), SCHEMA, ("day",)), rows_of([*"abcde"]))
    with pytest.raises(StorageUnreachable):
        made.finish()
    made.abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("codec", "suffix", "inside"),
    [
        ("snappy", ".snappy", "SNAPPY"),
        ("zstd", ".zstd", "ZSTD"),
        ("gzip", ".gz", "GZIP"),
        ("lz4", ".lz4raw", "LZ4_RAW"),
        ("none", "", "UNCOMPRESSED"),
    ],
)
def test_codecs_are_those_other_readers_know(tmp_path: Path, codec: str, suffix: str, inside: str) -> None:
    (file,) = stage(FileLayout(str(tmp_path), SCHEMA, compression=codec), rows_of(["a"] * 50))
    assert file.path.endswith(f".c000{suffix}.parquet")
    where = str(tmp_path / file.path)
    seen = duckdb.sql(f"SELECT DISTINCT compression FROM parquet_metadata('{where}')").fetchall()
    assert seen == [(inside,)]
    assert duckdb.sql(f"SELECT count(*), sum(n) FROM '{where}'").fetchall() == [(50, 1225)]


def test_files_speak_plain_parquet(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.field("element", pa.string()))),
            ("map", pa.map_(pa.string(), pa.int32())),
            ("price", pa.decimal128(9, 2)),
            ("ms", pa.float64()),
        ]
    )
    rows = pa.table(
        {
            "at": [datetime(2024, 1, 1, tzinfo=UTC)],
            "tags": [["a", None]],
            "map": [[("k", 1)]],
            "price": [Decimal("1.50")],
            "ms": [float("nan")],
        },
        schema=schema,
    )
    (file,) = stage(FileLayout(str(tmp_path), schema), rows)
    footer = pq.ParquetFile(tmp_path / file.path).metadata
    group = footer.row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert [*columns] == ["at", "tags.list.element", "map.key_value.key", "map.key_value.value", "price", "ms"]
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(footer.schema)
    assert columns["price"].physical_type == "INT32"
    assert columns["ms"].statistics is None  # readers would miss the NaN outside of its bounds
    assert footer.metadata is None


def test_ids_get_no_dictionary_and_words_do(tmp_path: Path) -> None:
    rows = pa.table({"id": range(5_000), "word": [f"w{n % 7}" for n in range(5_000)], "none": [None] * 5_000})
    rows = rows.cast(pa.schema([("id", pa.int64()), ("word", pa.string()), ("none", pa.string())]))
    (file,) = stage(FileLayout(str(tmp_path), rows.schema), rows)
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    assert "RLE_DICTIONARY" not in group.column(0).encodings
    assert "RLE_DICTIONARY" in group.column(1).encodings


def test_statistics_travel_with_the_file(tmp_path: Path) -> None:
    (file,) = stage(FileLayout(str(tmp_path), SCHEMA, ("day",)), rows_of(["a", "a"]))
    assert json.loads(file.stats) == {
        "numRecords": 2,
        "minValues": {"n": 0, "text": "row 0"},
        "maxValues": {"n": 1, "text": "row 1"},
        "nullCount": {"n": 0, "text": 0},
    }


def test_a_stager_needs_only_a_way_to_a_store(tmp_path: Path) -> None:
    asked: list[str] = []

    def store_for(uri: str) -> Store:
        asked.append(uri)
        return Store(uri)

    maker: Callable[[str], Store] = store_for
    made = Stager(maker, "1-0")
    made.add(FileLayout(str(tmp_path), SCHEMA), rows_of(["a"]))
    made.finish()
    assert set(asked) == {str(tmp_path)}
