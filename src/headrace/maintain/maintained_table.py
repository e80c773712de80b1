"""A table under maintenance: its state, its candidate files, and how they are rewritten.

Tables with direct commits are rewritten through their log writer. Tables that Spark writes are rewritten by Spark, in
the session of the pipeline: one kind of writer per table, also for maintenance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.delta.actions import File
from headrace.delta.log import commits_between
from headrace.delta.log_errors import table_stop
from headrace.delta.log_writer import LogWriter
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.snapshot import TableState, active_files
from headrace.errors import TableGone
from headrace.maintain import log_cleanup
from headrace.maintain.planner import Action, FileTargets
from headrace.spec.table import TableSpec
from headrace.stage.layout import file_layout_of
from headrace.stage.partitions import partition_folder
from headrace.storage.store import Store
from headrace.table.optimize import LARGE_ENOUGH, Compaction, Optimized, can_order, z_order_prefix
from headrace.table.spark_files import SparkCompaction, SparkFileOperations
from headrace.write.leased_writer import LeasedWriter

_MAX_DELETED = 0.2  # ratio of rows deleted by a vector from which a file is rewritten


class FileListing:
    """Active files of a table that a predicate selects, kept up to date from its log.

    Only candidates for a rewrite are in memory, so its size does not grow with the table.
    """

    def __init__(self, store: Store, selects: Callable[[File], bool]) -> None:
        self._store, self._selects = store, selects
        self._files: dict[tuple[str, str], File] = {}
        self.version = -1

    @property
    def files(self) -> Iterable[File]:
        """The selected files, as of `version`."""
        return self._files.values()

    def follow(self, version: int) -> None:
        """Read the log up to a version; from its checkpoint where commits in between were cleaned up."""
        commits = commits_between(self._store, self.version, version) if self.version >= 0 else None
        for commit in commits or ():
            for file in commit.removed:
                self._files.pop(file.key, None)
            self._add(commit.added)
        if commits is None:
            self._files = {}
            self._add(active_files(self._store, version).values())
        self.version = version

    def _add(self, files: Iterable[File]) -> None:
        self._files |= {file.key: replace(file, stats="") for file in files if self._selects(file)}


class MaintainedTable(ABC):
    """A table under maintenance."""

    def __init__(self, store: Store, state: TableState, rules: TableSpec | None) -> None:
        self.store, self.layout = store, file_layout_of(state, store.uri)
        if rules is not None:
            self.layout = replace(self.layout, target_file_bytes=rules.target_file_size, compression=rules.compression)
        self.targets = self._targets(state, rules)
        self._partition_key = PartitionKeys.of(state.schema, state.partition_by)
        self.listing = FileListing(store, self.targets.is_candidate)
        self.planned_version = -1

    def _targets(self, state: TableState, rules: TableSpec | None) -> FileTargets:
        target = self.layout.target_file_bytes
        if rules is None:
            return FileTargets(target, int(LARGE_ENOUGH * target))
        complete = all(can_order(state, name) for name in rules.z_order)  # whether the table has all columns yet
        return FileTargets(
            target,
            rules.min_file_size or int(LARGE_ENOUGH * target),
            rules.z_order if complete else (),
            max_size=rules.max_file_size,
        )

    def resume(self, earlier: MaintainedTable | None) -> MaintainedTable:
        """Take over the file listing of an earlier plan if the targets are the same."""
        if earlier is not None and earlier.targets == self.targets:
            self.listing, self.planned_version = earlier.listing, earlier.planned_version
        return self

    def partition_of(self, file: File) -> str:
        """One text per partition, however its values are written in the log."""
        return partition_folder(self._partition_key(file.partition))

    @property
    @abstractmethod
    def state(self) -> TableState:
        """The table state as the pipeline knows it."""

    @abstractmethod
    def is_ordered(self, file: File) -> bool:
        """Whether the rows of a file have the target order."""

    @abstractmethod
    def checkpoints_due(self) -> Iterator[Action]:
        """Plan a log checkpoint, unless another writer writes it."""

    @abstractmethod
    def rewrite(self, action: Action, info: Mapping[str, str]) -> Optimized:
        """Rewrite the files of an action in one commit."""

    @abstractmethod
    def record_vacuum(self, metrics: Mapping[str, str], info: Mapping[str, str]) -> Mapping[str, Any]:
        """Add a vacuum to the table's history, where that needs no commit by Spark."""


class LogMaintainedTable(MaintainedTable):
    """A table with direct commits."""

    def __init__(self, log_writer: LogWriter, rules: TableSpec | None) -> None:
        self._log_writer = log_writer
        super().__init__(log_writer.store, log_writer.current_state(), rules)
        self._ordered_prefix = f"part-{z_order_prefix(self.targets.z_order)}-"

    @property
    def state(self) -> TableState:
        """As of the last version that the log writer has read."""
        return self._log_writer.current_state()

    def is_ordered(self, file: File) -> bool:
        """By its name, which every writer keeps in log checkpoints."""
        return file.path.rpartition("/")[2].startswith(self._ordered_prefix)

    def checkpoints_due(self) -> Iterator[Action]:
        """Where the commits of many runs have written none."""
        return log_cleanup.checkpoint_due(self.store, self.state)

    def rewrite(self, action: Action, info: Mapping[str, str]) -> Optimized:
        """Stage the new files, then replace the old ones in one commit."""
        z_order = self.targets.z_order if action.operation == "z_order" else ()
        compaction = Compaction(self._log_writer, self.layout, z_order)
        for files in action.bins:
            compaction.add(files)
        return compaction.commit(self.listing.version, {"targetSize": str(self.targets.target)}, info)

    def record_vacuum(self, metrics: Mapping[str, str], info: Mapping[str, str]) -> Mapping[str, Any]:
        """Commit a version without changes."""
        return {"version": self._log_writer.note("VACUUM END", metrics, info)}


class SparkMaintainedTable(MaintainedTable):
    """A table that Spark appends to or merges into; `ordered_until` has the z-ordered partitions of the journal."""

    def __init__(
        self,
        writer: LeasedWriter,
        store: Store,
        rules: TableSpec | None,
        spark: Any,  # its session
        ordered_until: Callable[[str, str], int],
    ) -> None:
        self._writer, self._spark, self._ordered_until = writer, spark, ordered_until
        super().__init__(store, self.state, rules)

    def _targets(self, state: TableState, rules: TableSpec | None) -> FileTargets:
        clusters = "clustering" in state.protocol.writer_features
        targets = super()._targets(state, rules)
        z_order = () if clusters else targets.z_order
        return replace(targets, max_deleted=_MAX_DELETED, whole_partitions=True, clusters=clusters, z_order=z_order)

    @property
    def state(self) -> TableState:
        """As of the last batch or maintenance action."""
        if self._writer.state is None:
            raise table_stop(TableGone, "The table was deleted during maintenance.")
        return self._writer.state

    def is_ordered(self, file: File) -> bool:
        """The log flags clustered files; z-ordered files are recognised by their modification time."""
        if self.targets.clusters:
            return file.clustered
        return file.modified <= self._ordered_until(self.store.uri, self.partition_of(file))

    def checkpoints_due(self) -> Iterator[Action]:
        """Spark writes its own."""
        return iter(())

    def rewrite(self, action: Action, info: Mapping[str, str]) -> Optimized:
        """Run one OPTIMIZE on the partitions of the action, limited to files no larger than those planned."""
        small = [file.size for files in action.bins for file in files if file.size < self.targets.min_size]
        compaction = SparkCompaction(
            self.targets.target,
            max(small, default=-1) + 1,
            self.targets.z_order if action.operation == "z_order" else (),
            _MAX_DELETED,
            info,
        )
        partitions = [files[0].partition for files in action.bins]
        result = SparkFileOperations(self.store, self._spark).optimize_once(compaction, partitions)
        self._writer.follow()
        return result

    def record_vacuum(self, metrics: Mapping[str, str], info: Mapping[str, str]) -> Mapping[str, Any]:
        """Record nothing: a commit would have to be Spark's."""
        return {}
