"""The rows of one data file: all of them in the columns of its table, or some columns as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem, SubTreeFileSystem

from headrace.errors import StorageUnreachable, TableDamaged
from headrace.storage import NotThere, Store
from headrace.tables.files import File
from headrace.tables.partition_values import value_in
from headrace.tables.vectors import living

INT96 = "us"  # as what times in Spark's old form are read; nanoseconds do not reach far enough
PIECE = 1 << 18  # rows held at once


def rows_of(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> pa.Table:
    """The rows of one file that are not deleted, in the columns of its table; one that it lacks is NULL."""
    return living(store, file, held_in(store, file, schema, partition_by))


def held_in(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> pa.Table:
    """All rows of one file, also those that its vector deletes."""
    try:
        held = pq.ParquetFile(pa.BufferReader(store.get(file.path)), coerce_int96_timestamp_unit=INT96).read()
    except NotThere:
        raise _gone(store, file) from None
    return _in_columns(held, len(held), file, schema, set(partition_by))


def _in_columns(held: pa.Table, count: int, file: File, schema: pa.Schema, by: Collection[str]) -> pa.Table:
    """Rows of a file in other columns: its partition values among them, NULL where it lacks one."""
    columns = [
        pa.repeat(value_in(file.partition, item), count)
        if item.name in by
        else (held[item.name].cast(item.type) if item.name in held.column_names else pa.nulls(count, item.type))
        for item in schema
    ]
    return pa.table(columns, schema=schema)


def filesystem(store: Store) -> FileSystem:
    """A table's folder as Arrow opens files in it. Its own: one that is written in Python waits for DuckDB for ever."""
    if store.local:
        return SubTreeFileSystem(store.root, LocalFileSystem())
    return SubTreeFileSystem(f"{store.bucket}/{store.root}", S3FileSystem(**store.profile.arrow_options()))


def pieces_of(store: Store, file: File, schema: pa.Schema, partition_by: Iterable[str]) -> Iterator[pa.Table]:
    """The rows of one file that are not deleted, in these of its table's columns, some at a time."""
    if file.vector is not None:
        yield rows_of(store, file, schema, partition_by)
        return
    by = set(partition_by)
    with _reading(store, file):
        content = _opened(filesystem(store), file)
        names = [name for name in schema.names if name not in by and name in content.schema_arrow.names]
        for batch in content.iter_batches(PIECE, columns=names):
            yield _in_columns(pa.table(batch.columns, names), len(batch), file, schema, by)


class Columns:
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
    """Arrow's failures under our names."""
    try:
        yield
    except FileNotFoundError:
        raise _gone(store, file) from None
    except pa.ArrowInvalid as error:
        raise TableDamaged(
            f"{store.uri}: the file {file.path} is no whole Parquet file: {str(error).splitlines()[0][:200]}",
            next="Delete it, and `headrace table repair PATH` takes it out of the log.",
        ) from error
    except OSError as error:
        raise StorageUnreachable(f"{store.uri}: {file.path}: {str(error).splitlines()[0][:300]}") from error


def _gone(store: Store, file: File) -> TableDamaged:
    return TableDamaged(
        f"{store.uri}: the file {file.path} is gone: vacuumed, or deleted by something else.",
        next="`headrace table repair PATH --dry-run` tells what is missing.",
    )
