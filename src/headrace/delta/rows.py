"""The rows of one data file: all of them in the columns of its table, or some columns as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

from headrace.delta.actions import File
from headrace.delta.deletion_vectors import living
from headrace.delta.partition_values import value_in
from headrace.errors import HeadraceError, StorageUnreachable, TableDamaged
from headrace.storage.base import NotThere
from headrace.storage.store import Store

INT96 = "us"  # as what times in Spark's old form are read; nanoseconds do not reach far enough
PIECE = 1 << 18  # rows held at once


def read_rows(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> pa.Table:
    """The rows of one file that are not deleted, in the columns of its table; one that it lacks is NULL."""
    return living(store, file, held_in(store, file, schema, partition_by))


def held_in(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> pa.Table:
    """All rows of one file, also those that its vector deletes."""
    with _reading(store, file):
        held = _parquet(store.get(file.path)).read()
    return _in_columns(held, len(held), file, schema, set(partition_by))


def _in_columns(held: pa.Table, count: int, file: File, schema: pa.Schema, by: Collection[str]) -> pa.Table:
    """Rows of a file in other columns: its partition values among them, NULL where it lacks one."""
    columns = [
        pa.repeat(value_in(file.partition, item), count) if item.name in by else _column(held, count, file, item)
        for item in schema
    ]
    return pa.table(columns, schema=schema)


def _column(held: pa.Table, count: int, file: File, item: pa.Field) -> pa.Array:
    if item.name not in held.column_names:
        return pa.nulls(count, item.type)
    try:
        return held[item.name].cast(item.type)
    except pa.ArrowException as error:
        raise TableDamaged(
            f"The file {file.path} has the column {item.name} as {held[item.name].type}, the table as {item.type}: "
            f"{_first_line(error)}",
            hint="Rewrite the file with the program that wrote it; its rows are whole.",
        ) from error


def filesystem(store: Store) -> FileSystem:
    """A table's folder as Arrow opens files in it. Its own: one that is written in Python waits for DuckDB for ever."""
    if store.local:
        return SubTreeFileSystem(store.root, LocalFileSystem())
    return SubTreeFileSystem(f"{store.bucket}/{store.root}", S3FileSystem(**store.profile.arrow_options()))


def pieces_of(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> Iterator[pa.Table]:
    """The rows of one file that are not deleted, in these of its table's columns, some at a time."""
    if file.vector is not None:
        yield read_rows(store, file, schema, partition_by)
        return
    by = set(partition_by)
    for batch in _batches(store, file, [name for name in schema.names if name not in by]):
        yield _in_columns(pa.Table.from_batches([batch]), len(batch), file, schema, by)


def _batches(store: Store, file: File, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Those of the columns that the file has; whoever takes the rows may fail by itself, and is not blamed on it."""
    with _reading(store, file):
        content = _opened(filesystem(store), file)
        there = [name for name in names if name in content.schema_arrow.names]
        batches = content.iter_batches(PIECE, columns=there)
    while True:
        with _reading(store, file):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


class ColumnReader:
    """Some columns of a table's files; only their bytes are fetched."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self._store, self._names, self._system = store, list(names), filesystem(store)

    def of(self, file: File) -> tuple[pa.Table, int]:
        """Those of the columns that a file was written with, and how many rows it has."""
        with _reading(self._store, file):
            content = _opened(self._system, file)
            return content.read(self._names), content.metadata.num_rows

    def living(self, file: File) -> pa.Table:
        """The same without rows that the file's vector deletes."""
        held, _ = self.of(file)
        return living(self._store, file, held)


def _opened(system: FileSystem, file: File) -> pq.ParquetFile:
    return pq.ParquetFile(file.path, filesystem=system, pre_buffer=True, coerce_int96_timestamp_unit=INT96)


@contextmanager
def _reading(store: Store, file: File) -> Iterator[None]:
    """Arrow's failures under our names; only reading is inside, so that nothing else is taken for damage."""
    try:
        yield
    except (FileNotFoundError, NotThere):
        raise _gone(store, file) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(store, file, error) from error


def _unreadable(store: Store, file: File, error: Exception) -> HeadraceError:
    """What a failure to read a file means: its own bytes tell whether it is damaged, or the store has failed."""
    if (found := file_damage(store, file)) is None:
        return StorageUnreachable(f"{store.uri}: {file.path}: {_first_line(error)}")
    if found.certain:
        return TableDamaged(
            f"{store.uri}: the file {file.path} is no whole Parquet file: {found.why}",
            hint="Delete it, and `headrace table repair PATH` takes it out of the log.",
        )
    return TableDamaged(
        f"{store.uri}: the file {file.path} cannot be read: {found.why}",
        hint="Read it with another program, as Spark, and write its rows anew. If none can read it, delete it, and "
        "`headrace table repair PATH` takes it out of the log.",
    )


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """Why a file cannot be read; `certain` where nobody could: its footer is missing or cut."""

    why: str
    certain: bool


def file_damage(store: Store, file: File) -> UnreadableFile | None:
    """What is wrong with a data file, by its bytes alone; None where it can be read. A failing store is an error."""
    try:
        data = store.get(file.path)
    except NotThere:
        raise _gone(store, file) from None
    try:
        pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowInvalid, OSError) as error:
        return UnreadableFile(_first_line(error), certain=True)
    try:
        for _ in _parquet(data).iter_batches(PIECE):
            pass
    except (pa.ArrowException, OSError) as error:
        return UnreadableFile(_first_line(error), certain=False)
    return None


def _parquet(data: bytes) -> pq.ParquetFile:
    """A file in memory of Arrow's own: its threads may hold it when the interpreter ends (see `parquet.rows_in`)."""
    held = pa.BufferOutputStream()
    held.write(data)
    return pq.ParquetFile(held.getvalue(), coerce_int96_timestamp_unit=INT96)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def _gone(store: Store, file: File) -> TableDamaged:
    return TableDamaged(
        f"{store.uri}: the file {file.path} is gone: vacuumed, or deleted by something else.",
        hint="`headrace table repair PATH --dry-run` tells what is missing.",
    )
