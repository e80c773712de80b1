"""Many small files become few large ones, or files whose rows are near in some columns; no row changes.

Files are written as a batch writes them, so that their statistics hide nothing: delta-rs ignores NaN in its bounds, and
then a reader that takes NaN for the largest number misses such rows. Appends may go on meanwhile: only who takes away
the very files that are being rewritten comes in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from headrace.stage.stager import MIB, FileLayout, file_layout_of
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, amid_others, existing_table
from headrace.table.query import RowsInMemory
from headrace.write.row_edit import EditedRows, FileRewrite

_TOGETHER = 512 * MIB  # of encoded files that are ordered together: they are in memory
_COMMIT = 1024 * MIB  # of files that one commit rewrites, about
ENOUGH = 0.75  # of the target size; a file of that size is left as it is
_NUMBER = "_number_"

Bin = list[File]


@dataclass(frozen=True, slots=True)
class Optimized:
    """What a compaction or z-order did."""

    version: int
    partitions: int
    files_removed: int
    files_added: int
    bytes_removed: int
    bytes_added: int
    z_order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be done to which partitions."""

    where: str | None
    target: int
    z_order: tuple[str, ...]

    def parameters(self) -> dict[str, str]:
        """operationParameters of the commit."""
        predicate = json.dumps([self.where] if self.where else [])
        return {"predicate": predicate, "zOrderBy": json.dumps(self.z_order), "targetSize": str(self.target)}


def optimize(
    store: Store,
    writers: TableOwners,
    where: str | None = None,
    target_size: int | None = None,
    z_order: Iterable[str] = (),
) -> Optimized:
    """Rewrite what is worth it, in one commit or a few; what others come between is planned anew."""
    state = writers.beside_appends("optimize")
    wanted = _Wanted(where, target_size or file_layout_of(state).target_file_bytes, tuple(z_order))
    check_order_columns(state, wanted.z_order)
    committed = nothing(state.version, wanted.z_order)  # by attempts that a conflict ended

    def attempt() -> Optimized:
        nonlocal committed
        work = _Work(store, existing_table(store), wanted)
        try:
            return sum_results(committed, work.run())
        except HeadraceError:
            committed = sum_results(committed, work.result)
            raise

    return amid_others(store, attempt)


def nothing(version: int, z_order: tuple[str, ...] = ()) -> Optimized:
    """What a compaction did that found nothing to do."""
    return Optimized(version, 0, 0, 0, 0, 0, z_order)


def sum_results(one: Optimized, two: Optimized) -> Optimized:
    """What two of them did together."""
    return Optimized(
        max(one.version, two.version),
        one.partitions + two.partitions,
        one.files_removed + two.files_removed,
        one.files_added + two.files_added,
        one.bytes_removed + two.bytes_removed,
        one.bytes_added + two.bytes_added,
        one.z_order,
    )


def check_order_columns(state: TableState, columns: tuple[str, ...]) -> None:
    """Whether rows can be ordered by these columns; UsageError where not."""
    for name in columns:
        if can_order(state, name):
            continue
        if name not in state.schema.names or name in state.partition_by:
            raise UsageError(f"z-order by '{name}': it is no column of the files.", hint="Name columns that are.")
        raise UsageError(f"z-order by '{name}': it is nested and has no order.", hint="Name plain columns.")


def can_order(state: TableState, name: str) -> bool:
    """Whether rows can be ordered by a column: one of the files, with plain values."""
    inside = name in state.schema.names and name not in state.partition_by
    return inside and not pa.types.is_nested(state.schema.field(name).type)


class Compaction:
    """Rewrites files with the same rows: bins are added one by one, then exchanged in one commit."""

    def __init__(self, log_writer: LogWriter, layout: FileLayout, z_order: tuple[str, ...] = ()) -> None:
        self._log_writer, self._layout, self._z_order = log_writer, layout, z_order
        self._partition = PartitionKeys.of(layout.schema, layout.partition_by)
        self._rewrite = self._begin()

    def _begin(self) -> FileRewrite:
        return FileRewrite(self._log_writer.store, self._layout, ordered_name(self._z_order) or "optimize")

    @property
    def bytes(self) -> int:
        """Size of the old files since the last commit."""
        return sum(file.size for file in self._rewrite.files)

    def add(self, files: Sequence[File]) -> None:
        """Rewrite some files of one partition."""
        store, layout = self._log_writer.store, self._layout
        pieces = (read_rows(store, file, layout.schema, layout.partition_by) for file in files)
        with self._rewrite.staging():
            self._rewrite.add(files, (EditedRows(rows) for rows in self._ordered(pieces)))

    def _ordered(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        if not self._z_order:
            yield from pieces
            return
        rows = pa.concat_tables(pieces)
        yield rows.take(_curve(rows, self._z_order))

    def commit(self, since: int, parameters: Mapping[str, str], info: Mapping[str, Any]) -> Optimized:
        """Exchange the files added so far; the old files were part of version `since`."""
        rewrite, files = self._rewrite, self._rewrite.files
        if not files:
            return nothing(since, self._z_order)
        with rewrite.staging():
            staged = rewrite.finish()
        version = rewrite.commit(self._log_writer, staged, since, parameters, info)
        self._rewrite = self._begin()
        partitions = {self._partition(file.partition) for file in files}
        sizes = sum(file.size for file in files), sum(file.size for file in staged)
        return Optimized(version, len(partitions), len(files), len(staged), *sizes)


class _Work:
    """One attempt at all of it, on the files of one version."""

    def __init__(self, store: Store, state: TableState, wanted: _Wanted) -> None:
        self._store, self._state, self._wanted = store, state, wanted
        layout = replace(file_layout_of(state, store.uri), target_file_bytes=wanted.target)
        self._compaction = Compaction(LogWriter.open(store), layout, wanted.z_order)
        self.result = nothing(state.version, wanted.z_order)

    def run(self) -> Optimized:
        """Rewrite bin after bin, with a commit for about 1 GiB of old files each."""
        table_files = [file for file in active_files(self._store, self._state.version).values() if not file.elsewhere]
        key = PartitionKeys.of(self._state.schema, self._state.partition_by)
        for each in _bins(chosen(self._store, self._state, table_files, self._wanted.where), self._wanted, key):
            self._compaction.add(each)
            if self._compaction.bytes >= _COMMIT:
                self._commit()
        self._commit()
        return self.result

    def _commit(self) -> None:
        part = self._compaction.commit(self._state.version, self._wanted.parameters(), {"operation": "optimize"})
        self.result = sum_results(self.result, part)


def ordered_name(z_order: Iterable[str]) -> str:
    """What the names of files begin with whose rows are ordered by these columns; empty for none."""
    text = json.dumps(list(z_order))
    return f"z{hashlib.sha256(text.encode()).hexdigest()[:8]}" if text != "[]" else ""


def _bins(stands: Iterable[File], wanted: _Wanted, key: PartitionKeys) -> Iterator[Bin]:
    """Files of one partition each that are to become one, or are to be ordered together."""
    parts: dict[Partition, Bin] = {}
    for file in stands:
        parts.setdefault(key(file.partition), []).append(file)
    for part in parts.values():
        if wanted.z_order:
            yield from fill_bins(part, _TOGETHER)
        else:
            small = [file for file in part if file.size < ENOUGH * wanted.target]
            yield from (each for each in fill_bins(small, wanted.target) if len(each) > 1)


def fill_bins(part: Iterable[File], most: int) -> Iterator[Bin]:
    """The files in their order, in bins of about so many bytes."""
    held: Bin = []
    for file in part:
        if held and sum(each.size for each in held) + file.size > most:
            yield held
            held = []
        held.append(file)
    if held:
        yield held


def chosen(store: Store, state: TableState, stands: list[File], where: str | None) -> list[File]:
    """The files of the partitions that fulfil a condition; PartitionNotFound when there are none."""
    if where is None:
        return stands
    if not state.partition_by:
        raise UsageError("The table has no partitions to choose from.", hint="Leave the condition out.")
    key = PartitionKeys.of(state.schema, state.partition_by)
    partitions = {key(file.partition): file.partition for file in stands}
    values = [
        pa.array([value_in(each, item).as_py() for each in partitions.values()], item.type) for item in key.columns
    ]
    numbered = pa.schema([*key.columns, pa.field(_NUMBER, pa.int64())])
    there = pa.table([*values, pa.array(range(len(partitions)), pa.int64())], schema=numbered)
    asked = RowsInMemory(store=store, given=Relation(there.schema, there)).where(where).select(_NUMBER)
    meant = {list(partitions)[number] for number in asked.arrow()[_NUMBER].to_pylist()}
    if not meant:
        raise PartitionNotFound(f"{store.uri}: no partition fulfils '{where}'.", partition=where)
    return [file for file in stands if key(file.partition) in meant]


def _curve(rows: pa.Table, columns: tuple[str, ...]) -> pa.Array:
    """The places of the rows along a curve on which rows near in all columns are near."""
    bits = 63 // len(columns)
    places = np.zeros(len(rows), np.uint64)
    for at, name in enumerate(columns):
        ranks = _ranks(rows[name], bits)
        for bit in range(bits):
            taken = (ranks >> np.uint64(bit)) & np.uint64(1)
            places |= taken << np.uint64(bit * len(columns) + at)
    return pa.array(np.argsort(places, kind="stable"))


def _ranks(column: pa.ChunkedArray, bits: int) -> Any:
    """Each value's rank, spread over so many bits: columns count alike, however many values they have."""
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy()
    spread = (1 << min(bits, 52)) - 1
    return (ranks.astype(np.float64) / max(float(ranks.max(initial=1)), 1.0) * spread).astype(np.uint64)
