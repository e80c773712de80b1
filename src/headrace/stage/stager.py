"""The stager: writes the rows of a task as Parquet files in each table's storage; no commit refers to them yet."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.decode import sizes
from headrace.delta.partition_keys import Partition
from headrace.delta.properties import SUFFIXES
from headrace.delta.staged_file import StagedFile
from headrace.errors import HeadraceError
from headrace.stage.layout import MIB, FileLayout
from headrace.stage.parquet import OpenFile, dictionary_columns
from headrace.stage.partitions import check_count, partition_folder, split_by_partition
from headrace.storage.store import Store

GROUP_BYTES = 64 * MIB  # Arrow memory of one row group
GROUP_ROWS = 1_000_000
MEMORY_BYTES = 256 * MIB  # of all tables of one task, rows and encoded bytes together
UPLOADS = 8  # in parallel
ENOUGH_ROWS = 1000  # to decide for later files which columns repeat their values
LARGE_CHUNK = 8192  # rows, on average
MIN_RATIO = 0.01  # of encoded to Arrow bytes; limits the size of a row group


@dataclass(slots=True, eq=False)
class _Part:
    """One partition of a table: waiting rows, and its open file."""

    table: _Buffer
    partition: Partition
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    file: OpenFile | None = None

    @property
    def memory(self) -> int:
        """Bytes that closing the file frees."""
        return self.waiting_bytes + (self.file.size if self.file else 0)

    def wait(self, rows: pa.Table, size: int) -> None:
        """Buffer rows for a later row group."""
        self.waiting.append(rows)
        self.waiting_bytes += size

    def next_group(self, limit: int) -> tuple[pa.Table, int]:
        """The first waiting rows, about `limit` bytes, and their size."""
        rows = _combined(self.waiting)
        count = min(GROUP_ROWS, max(1, rows.num_rows * limit // max(self.waiting_bytes, 1)))
        if count >= rows.num_rows:
            size, self.waiting, self.waiting_bytes = self.waiting_bytes, [], 0
            return rows, size
        size = self.waiting_bytes * count // rows.num_rows
        self.waiting, self.waiting_bytes = [rows.slice(count)], self.waiting_bytes - size
        return rows.slice(0, count), size


@dataclass(slots=True, eq=False)
class _Buffer:
    """The buffer of one table: rows as they arrive, then split by partition."""

    layout: FileLayout
    most_bytes: int = GROUP_BYTES
    rows: list[pa.Table] = field(default_factory=list)
    rows_bytes: int = 0
    parts: dict[Partition, _Part] = field(default_factory=dict)
    partitions: set[Partition] = field(default_factory=set)  # of all rows so far
    ratio: float = 1.0  # encoded bytes per byte of Arrow memory in the last row group

    @property
    def group_bytes(self) -> int:
        """Arrow memory of a row group: a quarter of the target file size, so that no file becomes much larger."""
        return min(self.most_bytes, max(1, int(self.layout.target_file_bytes / 4 / self.ratio)))

    def add(self, rows: pa.Table, size: int) -> None:
        """Buffer rows; they are split later, many at once."""
        self.rows.append(rows)
        self.rows_bytes += size

    def spread(self, limit: int) -> None:
        """Split the buffered rows by partition."""
        if not self.rows:
            return
        rows, size = _combined(self.rows), self.rows_bytes
        self.rows, self.rows_bytes = [], 0
        for partition, piece in split_by_partition(rows, self.layout.partition_by):
            self.partitions.add(partition)
            part = self.parts.setdefault(partition, _Part(self, partition))
            part.wait(piece, size * piece.num_rows // rows.num_rows)
        check_count(self.layout.path, len(self.partitions), limit)

    def new_file(self, dictionary: list[str]) -> OpenFile:
        """Open a file with dictionaries for these columns."""
        return OpenFile(self.layout.file_schema, self.layout.leaves, self.layout.compression, dictionary)


class Stager:
    """Writes the rows of one task to few files; `finish` returns all of them, `abandon` deletes them."""

    def __init__(
        self,
        store_for: Callable[[str], Store],
        name: str,
        *,
        open_writers: int = 256,
        partition_values: int = 1000,
        memory_bytes: int = MEMORY_BYTES,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        self._store_for = store_for
        self._name = name
        self._open_writers = open_writers
        self._partition_values = partition_values
        self._memory_bytes = memory_bytes
        self._group_bytes = group_bytes
        self._tables: dict[str, _Buffer] = {}
        self._dictionaries: dict[pa.Schema, list[str]] = {}
        self._unchecked_bytes = 0  # bytes since the last look at the limits
        self._files: list[StagedFile] = []
        self._uploads: list[Future[str]] = []
        self._pool = ThreadPoolExecutor(UPLOADS, thread_name_prefix="headrace-stage")

    @property
    def memory(self) -> int:
        """Bytes in memory: waiting rows and open files."""
        return sum(table.rows_bytes for table in self._tables.values()) + sum(part.memory for part in self._parts())

    @property
    def open_files(self) -> int:
        """The number of open files."""
        return sum(part.file is not None for part in self._parts())

    def add(self, layout: FileLayout, rows: pa.Table) -> None:
        """Add rows of one table; their schema must be that of the layout."""
        table = self._tables.setdefault(layout.path, _Buffer(layout, self._group_bytes))
        _check_fits(table.layout, layout, rows)
        if rows.num_rows == 0:
            return
        size = rows.nbytes
        table.add(rows, size)
        self._unchecked_bytes += size
        if table.rows_bytes >= self._group_bytes:
            self._write_full_groups(table)
        if self._unchecked_bytes >= min(self._group_bytes, self._memory_bytes) // 4:
            self._unchecked_bytes = 0
            self._enforce_limits()
        self._wait_for_uploads()

    def finish(self) -> tuple[StagedFile, ...]:
        """Close and upload all files; returns them in the order of closing."""
        for table in self._tables.values():
            table.spread(self._partition_values)
            for part in list(table.parts.values()):
                self._close(part)
        self._wait_for_uploads()
        self._pool.shutdown()
        return tuple(self._files)

    def abandon(self) -> None:
        """Delete the uploaded files if possible; nothing refers to them."""
        self._tables.clear()
        self._pool.shutdown(cancel_futures=True)
        delete_staged(self._files, self._store_for)
        self._files.clear()

    def _write_full_groups(self, table: _Buffer) -> None:
        table.spread(self._partition_values)
        for part in list(table.parts.values()):
            while part.waiting_bytes >= table.group_bytes:
                self._write_group(part)

    def _write_group(self, part: _Part) -> None:
        """Write one row group of the waiting rows; close the file if it has reached its target size."""
        table = part.table
        rows, size = part.next_group(table.group_bytes)
        part.file = part.file or table.new_file(self._dictionary(rows))
        before = part.file.size
        part.file.write(rows)
        table.ratio = max(MIN_RATIO, (part.file.size - before) / max(size, 1))
        if part.file.size >= table.layout.target_file_bytes:
            self._upload(part)

    def _dictionary(self, rows: pa.Table) -> list[str]:
        """Columns with a dictionary; decided once per schema, because sampling takes time."""
        if rows.schema not in self._dictionaries:
            columns = dictionary_columns(rows)
            if rows.num_rows < ENOUGH_ROWS:
                return columns
            self._dictionaries[rows.schema] = columns
        return self._dictionaries[rows.schema]

    def _close(self, part: _Part) -> None:
        while part.waiting:
            self._write_group(part)
        self._upload(part)
        del part.table.parts[part.partition]

    def _upload(self, part: _Part) -> None:
        if part.file is None:
            return
        data, rows, stats = part.file.close()
        part.file = None
        layout = part.table.layout
        path = self._path(layout, part.partition)
        file = StagedFile(layout.path, path, part.partition, data.nbytes, rows, stats)
        self._files.append(file)  # before the upload: a failed upload may still have created the object
        self._uploads.append(self._pool.submit(self._store_for(file.table).put, path, data))

    def _wait_for_uploads(self) -> None:
        """Wait for uploads in progress, as their content is in memory."""
        while self._uploads:
            self._uploads.pop().result()

    def _path(self, layout: FileLayout, partition: Partition) -> str:
        suffix = SUFFIXES[layout.compression]
        name = f"part-{self._name}-{len(self._files):05d}-{uuid.uuid4()}.c000{suffix}.parquet"
        return "/".join(filter(None, (partition_folder(partition), name)))

    def _enforce_limits(self) -> None:
        """Write full row groups, then close the largest files until open files and memory are within their limits."""
        if self.memory > self._memory_bytes:
            for table in self._tables.values():
                self._write_full_groups(table)
        while self.memory > self._memory_bytes:
            self._close(_largest(self._parts()))
        while self.open_files > self._open_writers:
            self._close(_largest(part for part in self._parts() if part.file))

    def _parts(self) -> Iterator[_Part]:
        return (part for table in self._tables.values() for part in table.parts.values())


def _combined(pieces: list[pa.Table]) -> pa.Table:
    """Combine small chunks: encoding many of them takes twice the time.

    Not combined are chunks of a column that might overflow, and large ones, which are encoded as fast as they are: a
    copy of all rows of a rewrite takes 14 to 23 % of its CPU time.
    """
    rows = pa.concat_tables(pieces)
    chunks = max((column.num_chunks for column in rows.columns), default=1)
    is_large = rows.num_rows >= chunks * LARGE_CHUNK or rows.nbytes > sizes.CAPACITY
    return rows if len(pieces) == 1 or is_large else rows.combine_chunks()


def _largest(parts: Iterable[_Part]) -> _Part:
    return max(parts, key=lambda part: part.memory)


def _check_fits(first: FileLayout, layout: FileLayout, rows: pa.Table) -> None:
    if first is not layout and first != layout:
        raise AssertionError(f"{layout.path}: the layout of a table must not change within a batch")
    if not rows.schema.equals(layout.schema):
        raise AssertionError(f"{layout.path}: the schema of rows is {rows.schema}, that of the table {layout.schema}")


def delete_staged(files: Iterable[StagedFile], store_for: Callable[[str], Store]) -> None:
    """Delete staged files that no commit will refer to; one that cannot be deleted only takes up space."""
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(file.table, []).append(file.path)
    for uri, staged in paths.items():
        with contextlib.suppress(HeadraceError):
            store_for(uri).delete(staged)
