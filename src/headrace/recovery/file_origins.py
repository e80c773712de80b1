"""Where the rows of files that are gone had come from, as a table's own log tells it.

A repair takes such files out of the log; what they held is lost until somebody puts it back. Both are commits, so the
log tells at any time which rows are still lost, and no note beside it can disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.delta.actions import Commit, File
from headrace.delta.log import LogWalk
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.schema import SOURCE
from headrace.delta.snapshot import TableState, active_files
from headrace.delta.txn import batch_number_of, batch_txn, pipeline_of
from headrace.source.ranges import Range
from headrace.storage.store import Store

T = TypeVar("T", str, int)
REPAIR = "FSCK"  # as delta-rs calls it too
_CARRY_OVER = frozenset({"MERGE", "UPDATE", "DELETE"})  # write rows that they do not change anew, beside those they do


@dataclass(frozen=True, slots=True)
class OriginCommit:
    """A commit that had brought rows which are gone."""

    version: int
    txns: Mapping[str, int]
    account: Mapping[str, Any]
    files: tuple[File, ...]  # that it had added and that held them first, before any compaction

    @property
    def pipeline(self) -> str | None:
        """Whose commit it was; None where it was no pipeline's."""
        mark = batch_number_of(self.txns)
        return pipeline_of(mark[0]) if mark else None

    @property
    def batch(self) -> int | None:
        """The number of the batch, or of the replay plan."""
        mark = batch_number_of(self.txns)
        return mark[1] if mark else None

    @property
    def replayed(self) -> bool:
        """Whether its rows were dead letters before."""
        return self.pipeline is not None and batch_txn(self.pipeline) not in self.txns

    @property
    def ranges(self) -> tuple[Range, ...] | None:
        """What its records were read from; None where its commit does not tell."""
        told = self.account.get("reread") or self.account.get("ranges")
        return None if told is None else tuple(Range(*each) for each in told)


@dataclass(frozen=True, slots=True)
class FileOrigins:
    """What became of rows that are gone."""

    gone: tuple[File, ...] = ()  # the files that held them last
    brought: tuple[OriginCommit, ...] = ()  # newest first
    untold: tuple[str, ...] = ()  # files that no commit of the log tells any more


@dataclass
class _Search:
    """What is looked for on the way back: files, and for each which of the missing ones held its rows last."""

    wanted: dict[str, set[str]]
    gone: dict[str, File]
    through: bool
    key: PartitionKeys
    mended: set[str] = field(default_factory=set)
    brought: list[OriginCommit] = field(default_factory=list)
    held: set[str] = field(default_factory=set)  # the missing files of which something is lost still

    def want(self, path: str, last: Iterable[str]) -> None:
        self.wanted.setdefault(path, set()).update(last)

    def meet(self, commit: Commit) -> None:
        """Go one commit back."""
        found = [(file, self.wanted.pop(file.path)) for file in commit.added if file.path in self.wanted]
        for file, last in found:
            self.gone |= {file.path: file} if file.path in last else {}
            for old in self._held_before(file, commit):
                self.want(old.path, last)
        known = self.mended | {old.path for old in commit.removed}  # of those, only the vector is another
        first = [(file, last) for file, last in found if file.changes_data and file.path not in known]
        if first:
            self.held.update(*(last for _, last in first))
            self.brought.append(
                OriginCommit(commit.version, commit.txns, commit.account, tuple(file for file, _ in first))
            )

    def _held_before(self, file: File, commit: Commit) -> list[File]:
        """The files that may have held rows of this one until its commit."""
        if same := [old for old in commit.removed if old.path == file.path]:
            return same
        if not file.changes_data:
            return [old for old in commit.removed if self._shares(old, file)]
        if self.through and commit.operation in _CARRY_OVER:
            return list(commit.removed)  # a change may move a row into another partition
        return []

    def _shares(self, old: File, file: File) -> bool:
        """Whether two files are of one partition; of a removed one, a log need not tell."""
        return not old.partition or self.key(old.partition) == self.key(file.partition)


def file_origins(
    store: Store, state: TableState, missing: Iterable[File], *, forgotten: bool = False, through: bool = False
) -> FileOrigins:
    """The commits that brought what is missing, back through compactions.

    `forgotten`: also what earlier repairs took out of the log and nobody has put back. `through`: also back through
    merges, updates and deletes, which what is read again must not undo.
    """
    known = {file.path: file for file in missing}
    key = PartitionKeys.of(state.schema, state.partition_by)
    search = _Search({path: {path} for path in known}, known, through, key)
    for commit in origins_of_active_files(store, state.version) if known or forgotten else ():
        if forgotten:
            search.mended.update(commit.account.get("reingested", ()))
        if forgotten and commit.operation == REPAIR:
            for file in commit.removed:
                search.want(file.path, {file.path})
        search.meet(commit)
        if not search.wanted and not forgotten:
            break
    untold = sorted(set(search.wanted) - search.mended)
    held = search.held.union(*(search.wanted[path] for path in untold))
    return FileOrigins(
        tuple(file for path, file in search.gone.items() if path in held), tuple(search.brought), tuple(untold)
    )


def origins_of_active_files(store: Store, version: int) -> Iterator[Commit]:
    """The commits that a version stands on, newest first: without a RESTORE, and without what it has undone."""
    stands = version
    for commit in LogWalk(store, version):
        if commit.version > stands:
            continue
        stands = commit.version - 1
        if commit.operation == "RESTORE":
            stands = _restored_to(store, commit)
        else:
            yield commit


def _restored_to(store: Store, restore: Commit) -> int:
    """The version that a RESTORE went back to; of one to a time, which writers spell in their own ways, files tell."""
    version = str((restore.info.get("operationParameters") or {}).get("version"))
    if version.isdigit():
        return int(version)
    wanted, there = set(active_files(store, restore.version)), set(active_files(store, restore.version - 1))
    walk = LogWalk(store, restore.version - 1)
    for commit in walk:
        if there == wanted:
            return commit.version
        there = there - {file.key for file in commit.added} | {file.key for file in commit.removed}
    # Before the versions that the log still has: then all of those are undone.
    return restore.version - 1 if walk.complete else walk.oldest - 1


# ---- where rows can be ----


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Between which places all rows of a file came from, as its statistics tell; None: they do not."""

    topics: tuple[str, str] | None = None
    partitions: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None

    def meets(self, each: Range) -> bool:
        """Whether a record of the range may have become a row of the file."""
        return (
            _cross(self.topics, (each.topic, each.topic))
            and _cross(self.partitions, (each.partition, each.partition))
            and _cross(self.offsets, (each.start, each.until - 1))
        )

    def crosses(self, other: OffsetBounds) -> bool:
        """Whether two files may have rows of the same record."""
        return (
            _cross(self.topics, other.topics)
            and _cross(self.partitions, other.partitions)
            and _cross(self.offsets, other.offsets)
        )


def _cross(one: tuple[T, T] | None, two: tuple[T, T] | None) -> bool:
    return one is None or two is None or (one[0] <= two[1] and two[0] <= one[1])


def offset_bounds_of(file: File) -> OffsetBounds:
    """The box of a file."""
    stats = json.loads(file.stats or "{}")
    low, high = (stats.get(side, {}).get(SOURCE.name) or {} for side in ("minValues", "maxValues"))
    told = [(low[name], high[name]) if name in low and name in high else None for name in _PLACE]
    return OffsetBounds(*told)


_PLACE = ("topic", "partition", "offset")


def narrowed(ranges: Iterable[Range], boxes: Iterable[OffsetBounds]) -> tuple[Range, ...]:
    """What of the ranges may be in one of the boxes."""
    known, found = tuple(boxes), []
    for each in ranges:
        met = [box.offsets or (each.start, each.until - 1) for box in known if box.meets(each)]
        if met:
            start, last = max(each.start, min(low for low, _ in met)), min(each.until - 1, max(high for _, high in met))
            found.append(Range(each.topic, each.partition, start, last + 1, each.topic_id))
    return tuple(found)
