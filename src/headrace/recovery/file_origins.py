"""Origins of the rows of lost files, from the table's own log.

A repair removes lost files from the log; a reingest restores their rows. Both are commits, so the log alone shows
which rows are still lost.
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
REPAIR = "FSCK"  # the operation name of delta-rs
_COPIES_ROWS = frozenset({"MERGE", "UPDATE", "DELETE"})  # operations that also rewrite unchanged rows


@dataclass(frozen=True, slots=True)
class OriginCommit:
    """A commit that wrote rows which are lost now."""

    version: int
    txns: Mapping[str, int]
    account: Mapping[str, Any]
    files: tuple[File, ...]  # of the commit that had the lost rows first, before any compaction

    @property
    def pipeline(self) -> str | None:
        """Name of the pipeline; None for a commit of another writer."""
        txn = batch_number_of(self.txns)
        return pipeline_of(txn[0]) if txn else None

    @property
    def batch(self) -> int | None:
        """Number of the batch, or of the replay."""
        txn = batch_number_of(self.txns)
        return txn[1] if txn else None

    @property
    def replayed(self) -> bool:
        """Whether its rows were replayed dead letters."""
        return self.pipeline is not None and batch_txn(self.pipeline) not in self.txns

    @property
    def ranges(self) -> tuple[Range, ...] | None:
        """Offset ranges of its records; None if the commit has none."""
        ranges = self.account.get("reread") or self.account.get("ranges")
        return None if ranges is None else tuple(Range(*part) for part in ranges)


@dataclass(frozen=True, slots=True)
class FileOrigins:
    """Lost files and the commits that wrote their rows."""

    lost: tuple[File, ...] = ()
    commits: tuple[OriginCommit, ...] = ()  # newest first
    unknown_origin: tuple[str, ...] = ()  # files that no commit of the log mentions any more


@dataclass
class _Search:
    """Backward search through the log.

    `targets` maps a file to the lost files that got its rows. Example: compaction c replaced a and b, and c is lost.
    The search starts with {c: {c}} and, at the commit of c, continues with {a: {c}, b: {c}}.
    """

    targets: dict[str, set[str]]
    lost: dict[str, File]
    through_changes: bool
    key: PartitionKeys
    restored: set[str] = field(default_factory=set)  # files whose rows a reingest has restored
    commits: list[OriginCommit] = field(default_factory=list)
    still_lost: set[str] = field(default_factory=set)  # lost files with rows that were not restored

    def add(self, path: str, lost: Iterable[str]) -> None:
        self.targets.setdefault(path, set()).update(lost)

    def visit(self, commit: Commit) -> None:
        """Go back one commit."""
        matches = [(file, self.targets.pop(file.path)) for file in commit.added if file.path in self.targets]
        for file, lost in matches:
            self.lost |= {file.path: file} if file.path in lost else {}
            for earlier in self._sources(file, commit):
                self.add(earlier.path, lost)
        # A path that the commit also removes has only a new deletion vector.
        excluded = self.restored | {file.path for file in commit.removed}
        first = [(file, lost) for file, lost in matches if file.changes_data and file.path not in excluded]
        if first:
            self.still_lost.update(*(lost for _, lost in first))
            files = tuple(file for file, _ in first)
            self.commits.append(OriginCommit(commit.version, commit.txns, commit.account, files))

    def _sources(self, file: File, commit: Commit) -> list[File]:
        """Files that may have had rows of this one before its commit."""
        if same := [removed for removed in commit.removed if removed.path == file.path]:
            return same
        if not file.changes_data:
            return [removed for removed in commit.removed if self._same_partition(removed, file)]
        if self.through_changes and commit.operation in _COPIES_ROWS:
            return list(commit.removed)  # a change may move a row to another partition
        return []

    def _same_partition(self, removed: File, file: File) -> bool:
        """Whether two files are of one partition; `remove` actions need not have partition values."""
        return not removed.partition or self.key(removed.partition) == self.key(file.partition)


def file_origins(
    store: Store,
    state: TableState,
    missing: Iterable[File],
    *,
    earlier_repairs: bool = False,
    through_changes: bool = False,
) -> FileOrigins:
    """Find the commits that wrote the rows of missing files, back through compactions.

    `earlier_repairs`: also files that earlier repairs removed and no reingest has restored. `through_changes`: also
    back through merges, updates and deletes, which a reingest must not undo.
    """
    lost = {file.path: file for file in missing}
    search = _Search(
        {path: {path} for path in lost}, lost, through_changes, PartitionKeys.of(state.schema, state.partition_by)
    )
    for commit in origins_of_active_files(store, state.version) if lost or earlier_repairs else ():
        if earlier_repairs:
            search.restored.update(commit.account.get("reingested", ()))
        if earlier_repairs and commit.operation == REPAIR:
            for file in commit.removed:
                search.add(file.path, {file.path})
        search.visit(commit)
        if not search.targets and not earlier_repairs:
            break
    unknown_origin = sorted(set(search.targets) - search.restored)
    still_lost = search.still_lost.union(*(search.targets[path] for path in unknown_origin))
    files = tuple(file for path, file in search.lost.items() if path in still_lost)
    return FileOrigins(files, tuple(search.commits), tuple(unknown_origin))


def origins_of_active_files(store: Store, version: int) -> Iterator[Commit]:
    """The commits that a version is based on, newest first: without RESTOREs and the commits that they undid."""
    newest = version
    for commit in LogWalk(store, version):
        if commit.version > newest:
            continue
        newest = commit.version - 1
        if commit.operation == "RESTORE":
            newest = _restored_version(store, commit)
        else:
            yield commit


def _restored_version(store: Store, restore: Commit) -> int:
    """The target version of a RESTORE; for one to a timestamp, which logs write differently, found by its files."""
    version = str((restore.info.get("operationParameters") or {}).get("version"))
    if version.isdigit():
        return int(version)
    target, files = set(active_files(store, restore.version)), set(active_files(store, restore.version - 1))
    walk = LogWalk(store, restore.version - 1)
    for commit in walk:
        if files == target:
            return commit.version
        files = files - {file.key for file in commit.added} | {file.key for file in commit.removed}
    # Before the oldest version of the log: then all of its versions are undone.
    return restore.version - 1 if walk.complete else walk.oldest - 1


# ---- offset bounds ----


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Minimum and maximum record positions of a file's rows, from its statistics; None if it has none."""

    topics: tuple[str, str] | None = None
    partitions: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None

    def contains(self, part: Range) -> bool:
        """Whether the file may have rows of a range."""
        return self.overlaps(
            OffsetBounds((part.topic, part.topic), (part.partition, part.partition), (part.start, part.until - 1))
        )

    def overlaps(self, other: OffsetBounds) -> bool:
        """Whether two files may have rows of the same record."""
        return (
            _overlap(self.topics, other.topics)
            and _overlap(self.partitions, other.partitions)
            and _overlap(self.offsets, other.offsets)
        )


def _overlap(one: tuple[T, T] | None, two: tuple[T, T] | None) -> bool:
    return one is None or two is None or (one[0] <= two[1] and two[0] <= one[1])


def offset_bounds_of(file: File) -> OffsetBounds:
    """Read the offset bounds from the statistics of a file."""
    stats = json.loads(file.stats or "{}")
    low, high = (stats.get(side, {}).get(SOURCE.name) or {} for side in ("minValues", "maxValues"))
    return OffsetBounds(*((low[name], high[name]) if name in low and name in high else None for name in POSITION))


POSITION = ("topic", "partition", "offset")


def narrowed(ranges: Iterable[Range], bounds: Iterable[OffsetBounds]) -> tuple[Range, ...]:
    """Narrow ranges to the offsets that may be in one of the bounds."""
    files, parts = tuple(bounds), []
    for part in ranges:
        spans = [file.offsets or (part.start, part.until - 1) for file in files if file.contains(part)]
        if spans:
            start, last = max(part.start, min(spans)[0]), min(part.until - 1, max(high for _, high in spans))
            parts.append(Range(part.topic, part.partition, start, last + 1, part.topic_id))
    return tuple(parts)
