"""Plan maintenance from file sizes and times alone; nothing is read or written here.

Files are compacted with others of about their size, as in a log-structured merge tree. So a row is rewritten once per
size tier, not each time its partition grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.delta.actions import File
from headrace.spec.maintenance import MaintenanceSpec
from headrace.table.optimize import group_by_size

Operation = Literal["plan", "compact", "z_order", "cluster", "vacuum", "checkpoint", "clean_log"]


@dataclass(frozen=True, slots=True)
class FileTargets:
    """Target size and order of the files of a table. Sizes in bytes."""

    target: int
    min_size: int  # smaller files are compacted
    z_order: tuple[str, ...] = ()
    clusters: bool = False  # whether the table has clustering columns
    max_size: int | None = None  # larger files are split
    whole_partitions: bool = False  # whether only a whole partition can be ordered
    max_deleted: float | None = None  # ratio of rows deleted by a vector; None: files with vectors are not rewritten

    def is_candidate(self, file: File) -> bool:
        """Whether a file may be rewritten at some time."""
        if file.elsewhere or (file.vector is not None and self.max_deleted is None):
            return False
        return self.ordered or file.size < self.min_size or self.has_deleted_rows(file) or self.is_large(file)

    @property
    def ordered(self) -> bool:
        """Whether rows have an order."""
        return self.clusters or bool(self.z_order)

    def is_large(self, file: File) -> bool:
        """Whether a file must be split."""
        return self.max_size is not None and file.size > self.max_size

    def has_deleted_rows(self, file: File) -> bool:
        """Whether enough rows of a file are deleted to rewrite it."""
        if file.vector is None or self.max_deleted is None or not file.num_records:
            return False
        return file.vector.rows / file.num_records >= self.max_deleted


@dataclass(frozen=True, slots=True)
class Action:
    """One maintenance operation on one table."""

    operation: Operation
    table: str
    reason: str
    files: int  # that it removes
    bytes: int
    bins: tuple[tuple[File, ...], ...] = ()  # to rewrite, each within one partition
    paths: tuple[str, ...] = ()  # to delete
    idle: bool = False  # whether all its partitions are

    def to_dict(self) -> dict[str, Any]:
        """The action as events and `status` show it."""
        return {
            "operation": self.operation,
            "table": self.table,
            "reason": self.reason,
            "files": self.files,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class _Bin:
    files: tuple[File, ...]
    reason: str
    newest: int  # when its partition last got a file; milliseconds
    idle: bool
    operation: Operation = "compact"
    partition: str = ""

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def plan_rewrites(
    table: str,
    files: Iterable[File],
    targets: FileTargets,
    rules: MaintenanceSpec,
    now: float,
    is_ordered: Callable[[File], bool],
    partition_of: Callable[[File], str],
) -> list[Action]:
    """Plan the rewrites of a table: idle partitions first, each action within `max_bytes_per_run`.

    `partition_of` returns one text per partition, however its values are written in the log.
    """
    partitions: dict[str, list[File]] = {}
    for file in files:
        partitions.setdefault(partition_of(file), []).append(file)
    bins = [
        replace(each, partition=partition)
        for partition, members in partitions.items()
        for each in _bins_of_partition(members, targets, rules, now, is_ordered)
    ]
    bins.sort(key=lambda each: (not each.idle, each.newest))
    return [_action(table, group) for group in _commits(bins, rules.max_bytes_per_run)]


def _bins_of_partition(
    files: Sequence[File],
    targets: FileTargets,
    rules: MaintenanceSpec,
    now: float,
    is_ordered: Callable[[File], bool],
) -> Iterator[_Bin]:
    newest = max(file.modified for file in files)
    idle = now - newest / 1000 >= rules.idle_after.total_seconds()
    if reason := _order_reason(files, targets, idle, is_ordered):
        for members in [files] if targets.whole_partitions else group_by_size(files, rules.max_bytes_per_run):
            yield _Bin(tuple(members), reason, newest, idle, "cluster" if targets.clusters else "z_order")
        return
    if deleted := [file for file in files if targets.has_deleted_rows(file)]:
        yield _Bin(tuple(deleted), "deleted rows", newest, idle)
        return
    for file in files:
        if targets.is_large(file) and not targets.ordered:
            yield _Bin((file,), "large files", newest, idle)
    if idle and targets.ordered:  # the partition is ordered; compaction would end that
        return
    small = sorted((file for file in files if file.size < targets.min_size), key=lambda file: file.size)
    members, reason = (small, "idle") if idle else (_full_tiers(small, rules.min_input_files), "small files")
    for group in group_by_size(members, targets.target):
        if len(group) > 1:
            yield _Bin(tuple(group), reason, newest, idle)


def _order_reason(files: Sequence[File], targets: FileTargets, idle: bool, is_ordered: Callable[[File], bool]) -> str:
    """Why a partition must be ordered; empty if it need not be."""
    if not targets.ordered:
        return ""
    unordered = sum(file.size for file in files if not is_ordered(file))
    ordered = sum(file.size for file in files) - unordered
    if unordered and idle:
        return "idle and unordered"
    # Half of the ordered bytes: so each row is ordered a few times at most, however large the partition gets.
    return "a third is unordered" if unordered >= max(targets.target, ordered / 2) else ""


def _full_tiers(files: Sequence[File], min_files: int) -> Sequence[File]:
    """The files, sorted by size, up to the largest size tier that has `min_files` of them.

    Tier n has files of min_files**n bytes and more, so `min_files` files of a tier make one of a higher tier. With
    min_files=10: nine files of 2 kB and ten of 40 kB are tiers 3 and 4; tier 4 is full, so all nineteen are compacted.
    """
    tiers = [int(math.log(max(file.size, 1), min_files)) for file in files]
    full = [tier for tier in set(tiers) if tiers.count(tier) >= min_files]
    return [file for file, tier in zip(files, tiers, strict=True) if tier <= max(full)] if full else ()


def _commits(bins: Iterable[_Bin], max_bytes: int) -> Iterator[list[_Bin]]:
    """Group bins into commits."""
    group: list[_Bin] = []
    for each in bins:
        if group and (group[0].operation != each.operation or sum(one.bytes for one in group) + each.bytes > max_bytes):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _action(table: str, bins: Sequence[_Bin]) -> Action:
    partitions = len({each.partition for each in bins})
    reasons = ", ".join(dict.fromkeys(each.reason for each in bins))
    count = sum(len(each.files) for each in bins)
    return Action(
        bins[0].operation,
        table,
        f"{reasons}: {count:,} files in {partitions:,} partition{'s' if partitions > 1 else ''}",
        count,
        sum(each.bytes for each in bins),
        tuple(each.files for each in bins),
        idle=all(each.idle for each in bins),
    )
