"""Rows that deletion vectors delete: in no query, no change, no double; their files stay while a version needs them."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta.actions import DeletionVector
from headrace.delta.deletion_vectors import bitmap, deleted_rows
from headrace.delta.log_writer import LogWriter
from headrace.delta.rows import read_rows
from headrace.delta.schema import SOURCE, to_delta
from headrace.delta.snapshot import active_files
from headrace.errors import ChangeDataUnavailable, TableDamaged, TableFeature
from headrace.pipeline.deduplicate import _stored_keys
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners
from headrace.table.vacuum import unused_files
from services.staging import SCHEMA, staged
from services.vectors import encoded, vectored, z85

FEED = {"delta.enableChangeDataFeed": "true"}


# ---- bitmaps ----


def test_a_vector_that_is_not_of_our_making():
    """The one that Delta's kernel is tested with."""
    told = DeletionVector("i", "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", None, 6)
    assert deleted_rows(Store("/nowhere"), told).tolist() == [3, 4, 7, 11, 18, 29]


spans = st.tuples(st.integers(0, 1 << 34), st.integers(1, 9000)).map(lambda span: set(range(span[0], sum(span))))
rows = st.one_of(st.sets(st.integers(0, 1 << 34)), st.lists(spans, max_size=3).map(lambda all: set().union(*all)))


@settings(max_examples=60, deadline=None)
@given(rows, st.sets(st.integers(0, 1 << 16)), st.booleans())
def test_every_form_of_a_bitmap_is_read(wanted: set[int], runs: set[int], turned: bool):
    assert bitmap(encoded(wanted, lambda key: (key in runs) != turned)).tolist() == sorted(wanted)


@pytest.mark.parametrize("data", [b"", b"\1\2\3\4" * 9, encoded(range(9))[:-3]])
def test_what_is_no_bitmap_is_damage(data: bytes, tmp_path: Path):
    store = Store(str(tmp_path))
    (tmp_path / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin").write_bytes(b"\1" + data)
    with pytest.raises(TableDamaged, match=r"d2c639aa.*is corrupt"):
        deleted_rows(store, DeletionVector("u", "^-aqEH.-t@S}K{vb[*k^", 1, 9))
    with pytest.raises(TableDamaged, match="is missing"):
        deleted_rows(store, DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 1, 9))
    with pytest.raises(TableFeature, match="outside of the table"):
        deleted_rows(store, DeletionVector("p", "s3://elsewhere/x.bin", 1, 9))


def test_spoiled_bits_and_order_are_damage():
    """A container whose head counts other numbers than it holds, and one whose numbers do not ascend."""
    bits = bytearray(encoded(range(5_000)))
    bits[-1] ^= 0x80
    numbers = bytearray(encoded([1, 2, 3]))
    numbers[-6:] = struct.pack("<3H", 1, 3, 2)
    for data, rows in ((bits, 5_001), (numbers, 3)):
        inline = DeletionVector("i", z85(bytes(data) + b"\0" * (-len(data) % 4)), None, rows)
        with pytest.raises(TableDamaged, match="is corrupt"):
            deleted_rows(Store("/nowhere"), inline)


@pytest.mark.parametrize("row", [10, 1 << 33, (1 << 64) - 1])
def test_a_row_that_the_file_does_not_have_is_damage(row: int, store: Store):
    vectored(store, [2, row], inline=True)
    (file,) = active_files(store, 1).values()
    with pytest.raises(TableDamaged, match=f"deletes row {row:,} of a file of 10 rows"):
        read_rows(store, file, SCHEMA, ())


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("row", [10, (1 << 64) - 1])
def test_a_query_names_a_vector_beyond_its_file(row: int, inline: bool, store: Store):
    """delta-rs ignores such a row, runs out of memory or panics."""
    vectored(store, [2, row], inline=inline)
    with pytest.raises(TableDamaged, match=f"deletes row {row:,} of a file of 10 rows"):
        Table(store.uri).query().records()


# ---- tables ----


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "t"))
    LogWriter.open(made).create(to_delta(SCHEMA), (), FEED, str(uuid.uuid4()), [staged(made, list(range(10)))], {}, {})
    return made


def ids(found: list[dict[str, object]]) -> list[object]:
    return sorted(str(each["id"]) for each in found)


def test_deleted_rows_are_nowhere(store: Store):
    vectored(store, [2, 5])
    vectored(store, [2, 5, 7], inline=True)
    vectored(store, None)
    vectored(store, [2, 5, 8])
    table = Table(store.uri)
    assert ids(table.query().records()) == list("0134679")
    assert ids(table.query().at(version=2).where("id > 2").records()) == list("34689")
    size = table.statistics()
    assert (size.rows, size.deletion_vectors, size.deleted_rows) == (7, 1, 3)
    assert [each.rows_after for each in table.history()] == [7, 0, 7, 8, 10]
    assert table.repair(dry_run=True).intact
    told = [(row["_commit_version"], row["_change_type"], row["id"]) for row in table.changes(1).records()]
    assert sorted(told) == [
        (1, "delete", 2),
        (1, "delete", 5),
        (2, "delete", 7),
        *((3, "delete", each) for each in (0, 1, 3, 4, 6, 8, 9)),
        *((4, "insert", each) for each in (0, 1, 3, 4, 6, 7, 9)),
    ]


def test_without_change_data_rows_that_went_are_unknown(tmp_path: Path):
    store = Store(str(tmp_path / "t"))
    LogWriter.open(store).create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [1, 2, 3])], {}, {})
    vectored(store, [0])
    vectored(store, None)
    vectored(store, [1])
    with pytest.raises(ChangeDataUnavailable, match="version 1"):
        Table(store.uri).changes(0).records()
    assert ids(Table(store.uri).changes(3).records()) == ["1", "3"]


def test_such_a_table_is_spark_s_and_anybody_vacuums_it(store: Store):
    vectored(store, [2])
    vectored(store, [2, 5])
    vectored(store, [2, 5, 6])
    table = Table(store.uri)
    assert table.metadata().writer == "spark"
    assert (table.repair().missing, table.checkpoint()) == ((), table.resolve())
    first, second, third = (_vector(store, at) for at in (1, 2, 3))
    assert table.vacuum(dry_run=True, force=True).files == ()
    aged = unused_files(store, TableOwners(store, {}), timedelta(hours=1), datetime.now(UTC) + timedelta(hours=2))
    assert set(aged.files) == {first, second}
    assert set(table.vacuum("0s", force=True).files) == {first, second}
    assert ids(table.query().records()) == list("0134789")
    Path(store.uri, third).unlink()
    assert [each.why for each in table.repair(dry_run=True).vectors] == [f"its deletion vector {third} is missing"]


def _vector(store: Store, version: int) -> str:
    (file,) = active_files(store, version).values()
    assert file.vector is not None
    assert file.vector.path is not None
    return file.vector.path


def test_a_row_that_was_deleted_is_no_duplicate(tmp_path: Path):
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.int64()), SOURCE])
    table = Table.get_or_create(tmp_path / "t", schema)
    said = {"topic": "t", "partition": 0, "offset": 0, "timestamp": "2026-01-01T00:00:00Z"}
    table.bulk_insert([{"id": each, "_source": said} for each in range(4)])
    store = Store(table.path)
    vectored(store, [1, 3])
    (known,) = _stored_keys(store, 2, ["id"], schema, 0)
    assert known["id"].to_pylist() == [0, 2]
