"""A table in a pipeline's care: what it is now, which of its files are in order, and how files are exchanged.

Tables that are appended to by their logs are rewritten through these; those that Spark writes, by Spark, in the
session of the pipeline: a table has one kind of committer, whatever is done to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.delta.actions import File
from headrace.delta.log_errors import table_stop
from headrace.delta.log_writer import LogWriter
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.snapshot import TableState
from headrace.errors import TableGone
from headrace.maintain import log_cleanup
from headrace.maintain.file_listing import FileListing
from headrace.maintain.planner import Action, FileTargets
from headrace.spec.table import TableSpec
from headrace.stage.partitions import partition_folder
from headrace.stage.stager import FileLayout, file_layout_of
from headrace.storage.store import Store
from headrace.table.optimize import ENOUGH, Compaction, Optimized, can_order, ordered_name
from headrace.table.spark_files import SparkCompaction, SparkFileOperations
from headrace.write.spark_append import SparkAppendWriter

_SPENT = 0.2  # of a file's rows deleted by its vector: then it is worth a rewrite


class MaintainedTable(ABC):
    """One table in the pipeline's care."""

    def __init__(self, store: Store, state: TableState, rules: TableSpec | None) -> None:
        self.store, self.layout = store, _layout(state, store.uri, rules)
        self.wishes = self._wishes(state, rules)
        self._partition = PartitionKeys.of(state.schema, state.partition_by)
        self.picture = FileListing(store, self.wishes.matters)
        self.seen = -1  # the version of the last look

    def _wishes(self, state: TableState, rules: TableSpec | None) -> FileTargets:
        enough = (rules.min_file_size if rules else None) or int(ENOUGH * self.layout.target_file_bytes)
        columns = rules.z_order if rules is not None else ()
        order = columns if all(can_order(state, name) for name in columns) else ()  # once the table has all of them
        most = rules.max_file_size if rules is not None else None
        return FileTargets(self.layout.target_file_bytes, enough, order, most=most)

    def after(self, known: MaintainedTable | None) -> MaintainedTable:
        """This one, with what was seen of the table before, where that is of the same wishes."""
        if known is not None and known.wishes == self.wishes:
            self.picture, self.seen = known.picture, known.seen
        return self

    def partition(self, file: File) -> str:
        """The partition of a file as one text, however its values are spelled."""
        return partition_folder(self._partition(file.partition))

    @property
    @abstractmethod
    def state(self) -> TableState:
        """The table as the pipeline knows it."""

    @abstractmethod
    def in_order(self, file: File) -> bool:
        """Whether a file's rows are in the order that is wished for."""

    @abstractmethod
    def checkpoints_due(self) -> Iterator[Action]:
        """A log checkpoint, where nobody else writes it."""

    @abstractmethod
    def rewrite(self, action: Action, said: Mapping[str, str]) -> Optimized:
        """Exchange the files of an action."""

    @abstractmethod
    def note(self, metrics: Mapping[str, str], said: Mapping[str, str]) -> Mapping[str, Any]:
        """Let the table's history tell of a vacuum, where that needs no commit of Spark's."""


class LogMaintainedTable(MaintainedTable):
    """A table that is appended to by its log."""

    def __init__(self, tail: LogWriter, rules: TableSpec | None) -> None:
        self._tail = tail
        super().__init__(tail.store, tail.known(), rules)
        self._mark = f"part-{ordered_name(self.wishes.z_order)}-"

    @property
    def state(self) -> TableState:
        """As far as the log was followed."""
        return self._tail.known()

    def in_order(self, file: File) -> bool:
        """By its name, which survives log checkpoints by any writer."""
        return file.path.rpartition("/")[2].startswith(self._mark)

    def checkpoints_due(self) -> Iterator[Action]:
        """Where the commits of many runs have made none."""
        return log_cleanup.checkpoint_due(self.store, self.state)

    def rewrite(self, action: Action, said: Mapping[str, str]) -> Optimized:
        """Staged as a batch is, then exchanged in one commit."""
        compaction = Compaction(self._tail, self.layout, self.wishes.z_order if action.what == "z_order" else ())
        for files in action.bins:
            compaction.add(files)
        return compaction.commit(self.picture.version, {"targetSize": str(self.wishes.target)}, said)

    def note(self, metrics: Mapping[str, str], said: Mapping[str, str]) -> Mapping[str, Any]:
        """A version that changes nothing."""
        return {"version": self._tail.note("VACUUM END", metrics, said)}


class SparkMaintainedTable(MaintainedTable):
    """A table that Spark merges into, or appends to; `ordered` says until when each partition was put in order."""

    def __init__(
        self,
        table: SparkAppendWriter,
        store: Store,
        rules: TableSpec | None,
        spark: Any,  # its session
        ordered: Callable[[str, str], int],
    ) -> None:
        self._table, self._spark, self._ordered = table, spark, ordered
        super().__init__(store, self.state, rules)

    def _wishes(self, state: TableState, rules: TableSpec | None) -> FileTargets:
        clusters = "clustering" in state.protocol.writer_features
        wishes = super()._wishes(state, rules)
        return replace(wishes, spent=_SPENT, whole=True, clusters=clusters, z_order=() if clusters else wishes.z_order)

    @property
    def state(self) -> TableState:
        """As of the last batch, or of what was done last."""
        if self._table.state is None:
            raise table_stop(TableGone, "A table is gone that was there a moment ago.")
        return self._table.state

    def in_order(self, file: File) -> bool:
        """Spark says of a clustered file that it is; of one that was z-ordered, only its time tells."""
        if self.wishes.clusters:
            return file.clustered
        return file.modified <= self._ordered(self.store.uri, self.partition(file))

    def checkpoints_due(self) -> Iterator[Action]:
        """Spark writes its own."""
        return iter(())

    def rewrite(self, action: Action, said: Mapping[str, str]) -> Optimized:
        """One OPTIMIZE: of no larger files than were planned, in the same partitions."""
        files = [file for each in action.bins for file in each]
        small = [file.size for file in files if file.size < self.wishes.enough]
        wanted = SparkCompaction(
            self.wishes.target,
            max(small, default=-1) + 1,
            self.wishes.z_order if action.what == "z_order" else (),
            _SPENT,
            said,
        )
        done = SparkFileOperations(self.store, self._spark).pack(wanted, [each[0].partition for each in action.bins])
        self._table.follow()
        return done

    def note(self, metrics: Mapping[str, str], said: Mapping[str, str]) -> Mapping[str, Any]:
        """Nothing: a commit would be Spark's."""
        return {}


def _layout(state: TableState, uri: str, rules: TableSpec | None) -> FileLayout:
    """How the files of the table are: as the spec wants them, else as its properties do."""
    layout = file_layout_of(state, uri)
    if rules is None:
        return layout
    return replace(layout, target_file_bytes=rules.target_file_size, compression=rules.compression)
