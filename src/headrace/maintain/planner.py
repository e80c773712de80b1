"""What is to be done to a table, and why: decided from facts alone, before anything is touched.

Files are joined with others of about their size, as in a log-structured tree: so a row is rewritten once for each step
in size, not each time its partition grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.delta.actions import File
from headrace.spec.maintenance import MaintenanceSpec
from headrace.table.optimize import fill_bins

What = Literal["look", "compact", "z_order", "cluster", "vacuum", "checkpoint", "clean_log"]


@dataclass(frozen=True, slots=True)
class FileTargets:
    """How large the files of a table are to be, and how ordered."""

    target: int
    enough: int  # bytes; a file of that size is left as it is
    z_order: tuple[str, ...] = ()
    clusters: bool = False  # whether the table itself says by which columns
    most: int | None = None  # bytes; a larger file is divided
    whole: bool = False  # whether a partition can only be put in order as a whole
    spent: float | None = None  # the share of rows deleted by vectors from which a file is; None: vectors are let be

    def matters(self, file: File) -> bool:
        """Whether a file may ever be rewritten."""
        if file.elsewhere or (file.vector is not None and self.spent is None):
            return False
        return self.ordered or file.size < self.enough or self.is_spent(file) or self.is_large(file)

    @property
    def ordered(self) -> bool:
        """Whether rows are to be in an order."""
        return self.clusters or bool(self.z_order)

    def is_large(self, file: File) -> bool:
        """Whether a file is to be divided."""
        return self.most is not None and file.size > self.most

    def is_spent(self, file: File) -> bool:
        """Whether so many of a file's rows are deleted that it is worth a rewrite."""
        if file.vector is None or self.spent is None or not file.held:
            return False
        return file.vector.rows / file.held >= self.spent


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do to one table."""

    what: What
    table: str
    why: str
    files: int  # that it takes away
    bytes: int
    bins: tuple[tuple[File, ...], ...] = ()  # to be rewritten, each within one partition
    paths: tuple[str, ...] = ()  # to be deleted
    cold: bool = False

    def told(self) -> dict[str, Any]:
        """As people and programs read it."""
        return {
            "operation": self.what,
            "table": self.table,
            "reason": self.why,
            "files": self.files,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class _Bin:
    files: tuple[File, ...]
    why: str
    newest: int  # when its partition last got a file; milliseconds
    cold: bool
    what: What = "compact"
    partition: str = ""

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def rewrites(
    table: str,
    stands: Iterable[File],
    wishes: FileTargets,
    rules: MaintenanceSpec,
    now: float,
    in_order: Callable[[File], bool],
    key: Callable[[File], str],
) -> list[Action]:
    """The rewrites that a table is worth: cold partitions first, each action within its bytes.

    `key` names the partition of a file: one text, however its values are spelled.
    """
    parts: dict[str, list[File]] = {}
    for file in stands:
        parts.setdefault(key(file), []).append(file)
    bins = [
        replace(each, partition=partition)
        for partition, part in parts.items()
        for each in _of_partition(part, wishes, rules, now, in_order)
    ]
    bins.sort(key=lambda each: (not each.cold, each.newest))
    return [_action(table, group) for group in _grouped(bins, rules.max_bytes_per_run)]


def _of_partition(
    part: Sequence[File], wishes: FileTargets, rules: MaintenanceSpec, now: float, in_order: Callable[[File], bool]
) -> Iterator[_Bin]:
    newest = max(file.modified for file in part)
    cold = now - newest / 1000 >= rules.idle_after.total_seconds()
    if why := _disorder(part, wishes, cold, in_order):
        for held in [part] if wishes.whole else fill_bins(part, rules.max_bytes_per_run):
            yield _Bin(tuple(held), why, newest, cold, "cluster" if wishes.clusters else "z_order")
        return
    if spent := [file for file in part if wishes.is_spent(file)]:
        yield _Bin(tuple(spent), "deleted rows", newest, cold)
        return
    for file in part:
        if wishes.is_large(file) and not wishes.ordered:
            yield _Bin((file,), "large files", newest, cold)
    if cold and wishes.ordered:  # all of it is in order; to join what is left would end that
        return
    small = sorted((file for file in part if file.size < wishes.enough), key=lambda file: file.size)
    chosen, why = (small, "cold") if cold else (_indebted(small, rules.min_input_files), "small files")
    for held in fill_bins(chosen, wishes.target):
        if len(held) > 1:
            yield _Bin(tuple(held), why, newest, cold)


def _disorder(part: Sequence[File], wishes: FileTargets, cold: bool, in_order: Callable[[File], bool]) -> str:
    """Why a partition is to be ordered; empty when it is not."""
    if not wishes.ordered:
        return ""
    without = sum(file.size for file in part if not in_order(file))
    within = sum(file.size for file in part) - without
    if without and cold:
        return "cold and not in order"
    # By half of what is in order: then each row is ordered a few times at most, however long the partition grows.
    return "a third is not in order" if without >= max(wishes.target, within / 2) else ""


def _indebted(small: Sequence[File], debt: int) -> Sequence[File]:
    """The files, given by size, up to the largest step in size that has enough of them."""
    counts: dict[int, int] = {}
    for file in small:
        counts[_step(file, debt)] = counts.get(_step(file, debt), 0) + 1
    full = [step for step, count in counts.items() if count >= debt]
    return [file for file in small if _step(file, debt) <= max(full)] if full else ()


def _step(file: File, debt: int) -> int:
    """So many files of one step make one of the next, or a higher one."""
    return int(math.log(max(file.size, 1), debt))


def _grouped(bins: Iterable[_Bin], most: int) -> Iterator[list[_Bin]]:
    """Bins that go into one commit."""
    held: list[_Bin] = []
    for each in bins:
        if held and (held[0].what != each.what or sum(one.bytes for one in held) + each.bytes > most):
            yield held
            held = []
        held.append(each)
    if held:
        yield held


def _action(table: str, bins: Sequence[_Bin]) -> Action:
    partitions = len({each.partition for each in bins})
    causes = ", ".join(dict.fromkeys(each.why for each in bins))
    count = sum(len(each.files) for each in bins)
    why = f"{causes}: {count:,} files in {partitions:,} partition{'s' if partitions > 1 else ''}"
    return Action(
        bins[0].what,
        table,
        why,
        count,
        sum(each.bytes for each in bins),
        tuple(each.files for each in bins),
        cold=all(each.cold for each in bins),
    )
