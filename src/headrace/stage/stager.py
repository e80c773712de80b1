"""Stage: rows become Parquet files in each table's own storage, which no commit names yet."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from headrace.decode import sizes
from headrace.delta.partition_keys import Partition
from headrace.delta.properties import SUFFIXES
from headrace.delta.snapshot import TableState
from headrace.delta.staged_file import StagedFile
from headrace.errors import HeadraceError
from headrace.stage.parquet import OpenFile, dictionary_columns
from headrace.stage.partitions import check_count, partition_folder, split_by_partition
from headrace.stage.statistics import Leaf, leaves
from headrace.storage.store import Store

MIB = 1024 * 1024
GROUP_BYTES = 64 * MIB  # Arrow memory of one row group
GROUP_ROWS = 1_000_000
HELD_BYTES = 256 * MIB  # of all tables of one task, rows and encoded bytes together
UPLOADS = 8  # at once
ENOUGH_ROWS = 1000  # to say of others which columns repeat their values
MIN_RATIO = 0.01  # of encoded to Arrow bytes; below it a row group grows no further
_TARGET, _INDEXED, _CODEC = (
    "delta.targetFileSize",
    "delta.dataSkippingNumIndexedCols",
    "delta.parquet.compression.codec",
)


@dataclass(frozen=True)
class FileLayout:
    """How one table wants its files."""

    path: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    target_file_bytes: int = 128 * MIB
    stats_columns: int = 32

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns inside the files: all but the partition columns."""
        return pa.schema([item for item in self.schema if item.name not in self.partition_by])

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """What the files' statistics speak of."""
        return leaves(self.file_schema, self.stats_columns)


def file_layout_of(state: TableState, uri: str = "") -> FileLayout:
    """How a table that is there wants its files, as its properties tell."""
    said = state.properties
    codec = said.get(_CODEC, "snappy").lower()
    return FileLayout(
        uri,
        state.schema,
        state.partition_by,
        codec if codec in SUFFIXES else "snappy",
        int(said[_TARGET]) if said.get(_TARGET, "").isdecimal() else 128 * MIB,
        int(said.get(_INDEXED, "32")) if said.get(_INDEXED, "32").lstrip("-").isdecimal() else 32,
    )


@dataclass(slots=True, eq=False)
class _Part:
    """One partition value of one table: rows that wait, and the file open for it."""

    table: _Gathered
    partition: Partition
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    file: OpenFile | None = None

    @property
    def held(self) -> int:
        """Memory that closing the part gives back."""
        return self.waiting_bytes + (self.file.size if self.file else 0)

    def wait(self, rows: pa.Table, size: int) -> None:
        """Keep rows for a later row group."""
        self.waiting.append(rows)
        self.waiting_bytes += size

    def next_group(self, limit: int) -> tuple[pa.Table, int]:
        """The first waiting rows, about `limit` bytes of them, in the order they came; and their size."""
        rows = _whole(self.waiting)
        count = min(GROUP_ROWS, max(1, rows.num_rows * limit // max(self.waiting_bytes, 1)))
        if count >= rows.num_rows:
            size, self.waiting, self.waiting_bytes = self.waiting_bytes, [], 0
            return rows, size
        size = self.waiting_bytes * count // rows.num_rows
        self.waiting, self.waiting_bytes = [rows.slice(count)], self.waiting_bytes - size
        return rows.slice(0, count), size


@dataclass(slots=True, eq=False)
class _Gathered:
    """What a task holds for one table: rows as they came, then parts by partition value."""

    layout: FileLayout
    most_bytes: int = GROUP_BYTES
    rows: list[pa.Table] = field(default_factory=list)
    rows_bytes: int = 0
    parts: dict[Partition, _Part] = field(default_factory=dict)
    seen: set[Partition] = field(default_factory=set)
    ratio: float = 1.0  # encoded bytes per byte of Arrow memory, as met last

    @property
    def group_bytes(self) -> int:
        """Arrow memory of a row group: one adds at most a quarter of the target to a file, so none outgrows it far."""
        return min(self.most_bytes, max(1, int(self.layout.target_file_bytes / 4 / self.ratio)))

    def add(self, rows: pa.Table, size: int) -> None:
        """Keep rows as they are; they are split later, many at once."""
        self.rows.append(rows)
        self.rows_bytes += size

    def spread(self, limit: int) -> None:
        """Split the rows kept so far among the parts."""
        if not self.rows:
            return
        rows, size = _whole(self.rows), self.rows_bytes
        self.rows, self.rows_bytes = [], 0
        for partition, piece in split_by_partition(rows, self.layout.partition_by):
            self.seen.add(partition)
            part = self.parts.setdefault(partition, _Part(self, partition))
            part.wait(piece, size * piece.num_rows // rows.num_rows)
        check_count(self.layout.path, len(self.seen), limit)

    def new_file(self, dictionary: list[str]) -> OpenFile:
        """A file whose columns have dictionaries as named."""
        return OpenFile(self.layout.file_schema, self.layout.leaves, self.layout.compression, dictionary)


class Stager:
    """Turns one task's rows into few, good files; everything it uploads is reported or can be abandoned."""

    def __init__(
        self,
        store_for: Callable[[str], Store],
        name: str,
        *,
        open_writers: int = 256,
        partition_values: int = 1000,
        held_bytes: int = HELD_BYTES,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        self._store_for = store_for
        self._name = name
        self._open_writers = open_writers
        self._partition_values = partition_values
        self._held_bytes = held_bytes
        self._group_bytes = group_bytes
        self._tables: dict[str, _Gathered] = {}
        self._dictionaries: dict[pa.Schema, list[str]] = {}
        self._arrived = 0  # bytes since the last look at the limits
        self._files: list[StagedFile] = []
        self._uploads: list[Future[str]] = []
        self._pool = ThreadPoolExecutor(UPLOADS, thread_name_prefix="headrace-stage")

    @property
    def held(self) -> int:
        """Bytes in memory: rows that wait and files that grow."""
        return sum(table.rows_bytes for table in self._tables.values()) + sum(part.held for part in self._parts())

    @property
    def opened(self) -> int:
        """Files that are growing."""
        return sum(part.file is not None for part in self._parts())

    def add(self, layout: FileLayout, rows: pa.Table) -> None:
        """Take rows of one table; their schema must be the layout's."""
        table = self._tables.setdefault(layout.path, _Gathered(layout, self._group_bytes))
        _check_fits(table.layout, layout, rows)
        if rows.num_rows == 0:
            return
        size = rows.nbytes
        table.add(rows, size)
        self._arrived += size
        if table.rows_bytes >= self._group_bytes:
            self._write_full_groups(table)
        if self._arrived >= min(self._group_bytes, self._held_bytes) // 4:
            self._arrived = 0
            self._keep_within_limits()
        self._settle()

    def finish(self) -> tuple[StagedFile, ...]:
        """Close and upload everything; the files, in the order they were closed."""
        for table in self._tables.values():
            table.spread(self._partition_values)
            for part in list(table.parts.values()):
                self._close(part)
        self._settle()
        self._pool.shutdown()
        return tuple(self._files)

    def abandon(self) -> None:
        """Delete what was uploaded, as far as the store lets us; nothing refers to it."""
        self._tables.clear()
        self._pool.shutdown(cancel_futures=True)
        delete_staged(self._files, self._store_for)
        self._files.clear()

    def _write_full_groups(self, table: _Gathered) -> None:
        table.spread(self._partition_values)
        for part in list(table.parts.values()):
            while part.waiting_bytes >= table.group_bytes:
                self._write_group(part)

    def _write_group(self, part: _Part) -> None:
        """One row group out of the waiting rows; a file that has reached its target is closed."""
        table = part.table
        rows, size = part.next_group(table.group_bytes)
        part.file = part.file or table.new_file(self._dictionary(rows))
        before = part.file.size
        part.file.write(rows)
        table.ratio = max(MIN_RATIO, (part.file.size - before) / max(size, 1))
        if part.file.size >= table.layout.target_file_bytes:
            self._upload(part)

    def _dictionary(self, rows: pa.Table) -> list[str]:
        """Columns with a dictionary; tables with the same columns are taken to be alike, for the look costs time."""
        if rows.schema not in self._dictionaries:
            found = dictionary_columns(rows)
            if rows.num_rows < ENOUGH_ROWS:
                return found
            self._dictionaries[rows.schema] = found
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
        self._files.append(file)  # before the upload: one that fails may still have left something
        self._uploads.append(self._pool.submit(self._store_for(file.table).put, path, data))

    def _settle(self) -> None:
        """Wait for the uploads under way; their bytes are memory too."""
        while self._uploads:
            self._uploads.pop().result()

    def _path(self, layout: FileLayout, partition: Partition) -> str:
        suffix = SUFFIXES[layout.compression]
        name = f"part-{self._name}-{len(self._files):05d}-{uuid.uuid4()}.c000{suffix}.parquet"
        return "/".join(filter(None, (partition_folder(partition), name)))

    def _keep_within_limits(self) -> None:
        """Encode what is ready, then close the largest until open files and memory are within their limits."""
        if self.held > self._held_bytes:
            for table in self._tables.values():
                self._write_full_groups(table)
        while self.held > self._held_bytes:
            self._close(_largest(self._parts()))
        while self.opened > self._open_writers:
            self._close(_largest(part for part in self._parts() if part.file))

    def _parts(self) -> Iterator[_Part]:
        return (part for table in self._tables.values() for part in table.parts.values())


def _whole(pieces: list[pa.Table]) -> pa.Table:
    """One table of one chunk a column, unless that might overflow: encoding many small chunks costs double."""
    whole = pa.concat_tables(pieces)
    return whole if len(pieces) == 1 or whole.nbytes > sizes.CAPACITY else whole.combine_chunks()


def _largest(parts: Iterable[_Part]) -> _Part:
    return max(parts, key=lambda part: part.held)


def _check_fits(known: FileLayout, layout: FileLayout, rows: pa.Table) -> None:
    if known is not layout and known != layout:
        raise AssertionError(f"{layout.path}: a table has one layout in a batch")
    if not rows.schema.equals(layout.schema):
        raise AssertionError(f"{layout.path}: rows are {rows.schema}, the table is {layout.schema}")


def delete_staged(files: Iterable[StagedFile], store_for: Callable[[str], Store]) -> None:
    """Delete staged files that no commit will name; one that cannot be deleted only takes up space."""
    paths: dict[str, list[str]] = {}
    for file in files:
        paths.setdefault(file.table, []).append(file.path)
    for uri, staged in paths.items():
        with contextlib.suppress(HeadraceError):
            store_for(uri).delete(staged)
