"""Read the rows of one data file, in the columns of its table or as they are in the file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from headrace.delta.actions import File
from headrace.delta.deletion_vectors import without_deleted
from headrace.delta.partition_values import value_in
from headrace.errors import HeadraceError, StorageUnreachable, TableDamaged, first_line
from headrace.storage.base import NotFound
from headrace.storage.store import Store

INT96 = "us"  # unit for timestamps in the old INT96 format; nanoseconds end in the year 2262
CHUNK_ROWS = 1 << 18
MISSING = "is missing; it was vacuumed or deleted"  # in a message, by which a query recognizes the error


def read_rows(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> pa.Table:
    """Read the rows of a file that are not deleted, in the columns of its table; a missing column is NULL."""
    return without_deleted(store, file, all_rows(store, file, schema, partition_by))


def all_rows(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> pa.Table:
    """Read all rows of a file, also deleted ones."""
    with _reading(store, file):
        rows = _parquet(store.get(file.path)).read()
    return _in_columns(rows, len(rows), file, schema, set(partition_by))


def _in_columns(rows: pa.Table, count: int, file: File, schema: pa.Schema, by: Collection[str]) -> pa.Table:
    """Rows of a file in the columns of a schema, with partition values, and NULL for missing columns."""
    columns = [
        pa.repeat(value_in(file.partition, item), count) if item.name in by else _column(rows, count, file, item)
        for item in schema
    ]
    return pa.table(columns, schema=schema)


def _column(rows: pa.Table, count: int, file: File, item: pa.Field) -> pa.Array:
    if item.name not in rows.column_names:
        return pa.nulls(count, item.type)
    try:
        return rows[item.name].cast(item.type)
    except pa.ArrowException as error:
        raise TableDamaged(
            f"The column {item.name} is {rows[item.name].type} in the file {file.path} and {item.type} in the table: "
            f"{first_line(error)}",
            hint="Rewrite the file with the program that wrote it; its rows are intact.",
        ) from error


def filesystem(store: Store) -> FileSystem:
    """Arrow's own file system for a table's folder: one written in Python would deadlock with DuckDB."""
    if store.bucket is None:
        return SubTreeFileSystem(store.root, LocalFileSystem())
    return SubTreeFileSystem(f"{store.bucket.name}/{store.root}", store.access.arrow_filesystem(store.bucket))


def row_chunks(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> Iterator[pa.Table]:
    """Read the rows of a file that are not deleted in chunks, in these columns of its table."""
    if file.vector is not None:
        yield read_rows(store, file, schema, partition_by)
        return
    by = set(partition_by)
    for batch in _batches(store, file, [name for name in schema.names if name not in by]):
        yield _in_columns(pa.Table.from_batches([batch]), len(batch), file, schema, by)


def _batches(store: Store, file: File, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Read the columns that the file has. Errors of the consumer of the rows are not errors of the file."""
    with _reading(store, file):
        content = _opened(filesystem(store), file)
        columns = [name for name in names if name in content.schema_arrow.names]
        batches = content.iter_batches(CHUNK_ROWS, columns=columns)
    while True:
        with _reading(store, file):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


class ColumnReader:
    """Reads some columns of a table's files; fetches only their bytes."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self._store, self._names, self._system = store, list(names), filesystem(store)

    def of(self, file: File) -> tuple[pa.Table, int]:
        """The columns that a file has, and its number of rows."""
        with _reading(self._store, file):
            content = _opened(self._system, file)
            return content.read(self._names), content.metadata.num_rows

    def live_rows(self, file: File) -> pa.Table:
        """The columns that a file has, without deleted rows."""
        rows, _ = self.of(file)
        return without_deleted(self._store, file, rows)


def _opened(system: FileSystem, file: File) -> pq.ParquetFile:
    return pq.ParquetFile(file.path, filesystem=system, pre_buffer=True, coerce_int96_timestamp_unit=INT96)


@contextmanager
def _reading(store: Store, file: File) -> Iterator[None]:
    """Raise Arrow's errors as errors of Headrace. Only reads are inside, so that no other error looks like damage."""
    try:
        yield
    except (FileNotFoundError, NotFound):
        raise _gone(store, file) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(store, file, error) from error


def _unreadable(store: Store, file: File, error: Exception) -> HeadraceError:
    """The error for a failed read: the bytes of the file tell whether it is damaged or the storage failed."""
    if (damage := file_damage(store, file)) is None:
        return StorageUnreachable(f"{store.uri}: {file.path}: {first_line(error)}")
    if damage.certain:
        return TableDamaged(
            f"{store.uri}: the file {file.path} is not a complete Parquet file: {damage.reason}",
            hint="Delete it, then run `headrace table repair PATH` to remove it from the log.",
        )
    return TableDamaged(
        f"{store.uri}: the file {file.path} cannot be read: {damage.reason}",
        hint="Read it with another program, such as Spark, and write its rows again. If no program can read it, delete "
        "it, then run `headrace table repair PATH` to remove it from the log.",
    )


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """Why a file cannot be read; `certain` if no program can: its footer is missing or truncated."""

    reason: str
    certain: bool


def file_damage(store: Store, file: File) -> UnreadableFile | None:
    """Check a data file by its bytes; None if it can be read. Raises the error of the storage if that fails."""
    try:
        data = store.get(file.path)
    except NotFound:
        raise _gone(store, file) from None
    try:
        pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowInvalid, OSError) as error:
        return UnreadableFile(first_line(error), certain=True)
    try:
        for _ in _parquet(data).iter_batches(CHUNK_ROWS):
            pass
    except (pa.ArrowException, OSError) as error:
        return UnreadableFile(first_line(error), certain=False)
    return None


def _parquet(data: bytes) -> pq.ParquetFile:
    """Open a file in Arrow's own memory: its threads may refer to it when the interpreter ends (`read_parquet`)."""
    buffer = pa.BufferOutputStream()
    buffer.write(data)
    return pq.ParquetFile(buffer.getvalue(), coerce_int96_timestamp_unit=INT96)


def _gone(store: Store, file: File) -> TableDamaged:
    return TableDamaged(
        f"{store.uri}: the file {file.path} {MISSING}.",
        hint="`headrace table repair PATH --dry-run` lists the missing files.",
    )
