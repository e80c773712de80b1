"""Compact small files into larger ones, or cluster rows by z-order; no row changes.

Files are written as a batch writes them, so their statistics never hide rows: delta-rs ignores NaN in its bounds, and a
reader that takes NaN for the largest number then skips such files. Concurrent appends are allowed: only a commit that
removes one of the files being rewritten is a conflict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File
from headrace.delta.log_writer import LogWriter
from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.partition_values import value_in
from headrace.delta.rows import read_rows
from headrace.delta.scan import Relation
from headrace.delta.snapshot import TableState, active_files
from headrace.errors import HeadraceError, PartitionNotFound, UsageError
from headrace.stage.layout import MIB, FileLayout, file_layout_of
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, open_log, retry_conflicts
from headrace.table.query import RowsInMemory
from headrace.write.row_edit import EditedRows, FileRewrite

_SORTED_TOGETHER = 512 * MIB  # of encoded files whose rows are clustered at once: they are in memory
_PER_COMMIT = 1024 * MIB  # of old files per commit, about
LARGE_ENOUGH = 0.75  # of the target size: such a file is not compacted
_NUMBER = "_number_"


@dataclass(frozen=True, slots=True)
class Optimized:
    """Result of a compaction or z-order."""

    version: int
    partitions: int
    files_removed: int
    files_added: int
    bytes_removed: int
    bytes_added: int
    z_order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionSizes:
    """Sizes in bytes: of the files to write, and of those that are rewritten."""

    target: int
    smallest: int  # smaller files are compacted
    largest: int | None = None  # larger files are split; None: never

    @classmethod
    def of(cls, target: int, smallest: int | None, largest: int | None) -> Self:
        """Sizes with their defaults; UsageError if files of the target size would be rewritten again and again."""
        if smallest is not None and smallest > target:
            raise UsageError(
                f"min_file_size is {smallest:,}, more than the target size of {target:,} bytes.",
                hint="Specify at most the target size.",
            )
        if largest is not None and largest < 2 * target:  # files end slightly above the target
            raise UsageError(
                f"max_file_size is {largest:,}, less than twice the target size of {target:,} bytes.",
                hint="Specify at least twice the target size.",
            )
        return cls(target, int(LARGE_ENOUGH * target) if smallest is None else smallest, largest)


@dataclass(frozen=True, slots=True)
class _Request:
    where: str | None
    sizes: CompactionSizes
    z_order: tuple[str, ...]

    def parameters(self) -> dict[str, str]:
        """operationParameters of the commit."""
        predicate = json.dumps([self.where] if self.where else [])
        return {"predicate": predicate, "zOrderBy": json.dumps(self.z_order), "targetSize": str(self.sizes.target)}


def optimize(
    store: Store,
    owners: TableOwners,
    where: str | None = None,
    target_size: int | None = None,
    z_order: Iterable[str] = (),
    min_file_size: int | None = None,
    max_file_size: int | None = None,
) -> Optimized:
    """Rewrite files in one or more commits. After a conflict the remaining files are planned again."""
    state = owners.beside_appends("optimize")
    sizes = CompactionSizes.of(target_size or file_layout_of(state).target_file_bytes, min_file_size, max_file_size)
    request = _Request(where, sizes, tuple(z_order))
    check_z_order(state, request.z_order)
    committed = no_files_optimized(state.version, request.z_order)  # by attempts that ended in a conflict

    def attempt(current: TableState) -> Optimized:
        nonlocal committed
        work = _Attempt(store, current, request)
        try:
            return sum_results(committed, work.run())
        except HeadraceError:
            committed = sum_results(committed, work.result)
            raise

    return retry_conflicts(store, state.table_id, attempt)


def no_files_optimized(version: int, z_order: tuple[str, ...] = ()) -> Optimized:
    """The result if there is nothing to do."""
    return Optimized(version, 0, 0, 0, 0, 0, z_order)


def sum_results(one: Optimized, two: Optimized) -> Optimized:
    """Combine the results of two commits."""
    return Optimized(
        max(one.version, two.version),
        one.partitions + two.partitions,
        one.files_removed + two.files_removed,
        one.files_added + two.files_added,
        one.bytes_removed + two.bytes_removed,
        one.bytes_added + two.bytes_added,
        one.z_order,
    )


def check_z_order(state: TableState, columns: tuple[str, ...]) -> None:
    """UsageError for a column that rows cannot be clustered by."""
    for name in columns:
        if can_order(state, name):
            continue
        if name not in state.schema.names or name in state.partition_by:
            raise UsageError(
                f"Cannot z-order by '{name}': it is a partition column or does not exist.",
                hint="Specify columns that are stored in the data files.",
            )
        raise UsageError(f"Cannot z-order by '{name}': its type is nested.", hint="Specify columns of plain types.")


def can_order(state: TableState, name: str) -> bool:
    """Whether rows can be clustered by a column: one in the data files, of a plain type."""
    in_files = name in state.schema.names and name not in state.partition_by
    return in_files and not pa.types.is_nested(state.schema.field(name).type)


class Compaction:
    """Rewrites files with the same rows: groups of files are added one by one, then replaced in one commit."""

    def __init__(self, log_writer: LogWriter, layout: FileLayout, z_order: tuple[str, ...] = ()) -> None:
        self._log_writer, self._layout, self._z_order = log_writer, layout, z_order
        self._partition = PartitionKeys.of(layout.schema, layout.partition_by)
        self._rewrite = self._new_rewrite()

    def _new_rewrite(self) -> FileRewrite:
        return FileRewrite(self._log_writer.store, self._layout, z_order_prefix(self._z_order) or "optimize")

    @property
    def bytes(self) -> int:
        """Size of the old files since the last commit."""
        return sum(file.size for file in self._rewrite.files)

    def add(self, files: Sequence[File]) -> None:
        """Rewrite some files of one partition."""
        store, layout = self._log_writer.store, self._layout
        pieces = (read_rows(store, file, layout.schema, layout.partition_by) for file in files)
        with self._rewrite.staging():
            self._rewrite.add(files, (EditedRows(rows) for rows in self._clustered(pieces)))

    def _clustered(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        if not self._z_order:
            yield from pieces
            return
        rows = pa.concat_tables(pieces)
        yield rows.take(_z_order(rows, self._z_order))

    def commit(self, since: int, parameters: Mapping[str, str], info: Mapping[str, Any]) -> Optimized:
        """Replace the files added so far; the old files were part of version `since`."""
        rewrite, files = self._rewrite, self._rewrite.files
        if not files:
            return no_files_optimized(since, self._z_order)
        with rewrite.staging():
            staged = rewrite.finish()
        version = rewrite.commit(self._log_writer, staged, since, parameters, info)
        self._rewrite = self._new_rewrite()
        partitions = {self._partition(file.partition) for file in files}
        sizes = sum(file.size for file in files), sum(file.size for file in staged)
        return Optimized(version, len(partitions), len(files), len(staged), *sizes)


class _Attempt:
    """One attempt, on the files of one version."""

    def __init__(self, store: Store, state: TableState, request: _Request) -> None:
        self._store, self._state, self._request = store, state, request
        layout = replace(file_layout_of(state, store.uri), target_file_bytes=request.sizes.target)
        self._compaction = Compaction(open_log(store, state), layout, request.z_order)
        self.result = no_files_optimized(state.version, request.z_order)

    def run(self) -> Optimized:
        """Rewrite group after group, with a commit for about 1 GiB of old files each."""
        files = [file for file in active_files(self._store, self._state.version).values() if not file.elsewhere]
        key = PartitionKeys.of(self._state.schema, self._state.partition_by)
        for group in _groups(files_where(self._store, self._state, files, self._request.where), self._request, key):
            self._compaction.add(group)
            if self._compaction.bytes >= _PER_COMMIT:
                self._commit()
        self._commit()
        return self.result

    def _commit(self) -> None:
        part = self._compaction.commit(self._state.version, self._request.parameters(), {"operation": "optimize"})
        self.result = sum_results(self.result, part)


def z_order_prefix(columns: Iterable[str]) -> str:
    """Prefix of the names of files that are clustered by these columns; empty for no columns."""
    text = json.dumps(list(columns))
    return f"z{hashlib.sha256(text.encode()).hexdigest()[:8]}" if text != "[]" else ""


def _groups(files: Iterable[File], request: _Request, key: PartitionKeys) -> Iterator[list[File]]:
    """Files of one partition that become one file or are clustered together, and single files that are split."""
    sizes = request.sizes
    partitions: dict[Partition, list[File]] = {}
    for file in files:
        partitions.setdefault(key(file.partition), []).append(file)
    for members in partitions.values():
        if request.z_order:
            yield from group_by_size(members, _SORTED_TOGETHER)
            continue
        small = [file for file in members if file.size < sizes.smallest]
        yield from (group for group in group_by_size(small, sizes.target) if len(group) > 1)
        if sizes.largest is not None:
            yield from ([file] for file in members if file.size > sizes.largest)


def group_by_size(files: Iterable[File], limit: int) -> Iterator[list[File]]:
    """Split files, in their order, into groups of at most `limit` bytes; a larger file is a group of its own."""
    group: list[File] = []
    for file in files:
        if group and sum(member.size for member in group) + file.size > limit:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def files_where(store: Store, state: TableState, files: list[File], where: str | None) -> list[File]:
    """The files of the partitions that match a condition; PartitionNotFound if no partition does."""
    if where is None:
        return files
    if not state.partition_by:
        raise UsageError(
            f"{store.uri} is not partitioned, so a condition cannot select partitions.", hint="Omit the condition."
        )
    key = PartitionKeys.of(state.schema, state.partition_by)
    partitions = {key(file.partition): file.partition for file in files}
    # One row per partition with its values and its number; the query returns the numbers of those that match.
    values = [
        pa.array([value_in(partition, item).as_py() for partition in partitions.values()], item.type)
        for item in key.columns
    ]
    schema = pa.schema([*key.columns, pa.field(_NUMBER, pa.int64())])
    rows = pa.table([*values, pa.array(range(len(partitions)), pa.int64())], schema=schema)
    matches = RowsInMemory(store=store, rows=Relation(schema, rows)).where(where).select(_NUMBER).arrow()
    selected = {list(partitions)[number] for number in matches[_NUMBER].to_pylist()}
    if not selected:
        raise PartitionNotFound(f"{store.uri}: no partition matches '{where}'.", partition=where)
    return [file for file in files if key(file.partition) in selected]


def _z_order(rows: pa.Table, columns: tuple[str, ...]) -> pa.Array:
    """Row numbers in the order of a z-curve, on which rows close in all columns are close.

    The position of a row interleaves the bits of its ranks. With ranks x = 0b10 and y = 0b11 (y is the second column)
    it is 0b1110: bit by bit y1 x1 y0 x0.
    """
    bits = 63 // len(columns)
    positions = np.zeros(len(rows), np.uint64)
    for index, name in enumerate(columns):
        ranks = _ranks(rows[name], bits)
        for bit in range(bits):
            value = (ranks >> np.uint64(bit)) & np.uint64(1)
            positions |= value << np.uint64(bit * len(columns) + index)
    return pa.array(np.argsort(positions, kind="stable"))


def _ranks(column: pa.ChunkedArray, bits: int) -> Any:
    """Ranks of the values, scaled to `bits` bits: a column of few values counts as much as one of many."""
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy()
    largest = (1 << min(bits, 52)) - 1
    return (ranks.astype(np.float64) / max(float(ranks.max(initial=1)), 1.0) * largest).astype(np.uint64)
