"""Who writes a table, and therefore who may change it. A table has one kind of writer.

A commit by Spark and one by put-if-absent may overwrite each other. So a table that Spark writes is only changed with
Spark, and an operation that conflicts with the appends of a pipeline holds the lease of that pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from time import sleep
from typing import TypeVar

from headrace.delta.features import WriterKind, append_blocker, declared_writer, rewrite_blocker, writer_of
from headrace.delta.followed_log import FollowedLog
from headrace.delta.log import LogWalk, newest_version
from headrace.delta.log_writer import Blocker, LogWriter
from headrace.delta.snapshot import TableState, load_state
from headrace.delta.txn import batch_number_of, batch_txn, pipeline_of
from headrace.errors import (
    CommitConflict,
    ConcurrentModification,
    LeaseHeld,
    OperationDisabled,
    SparkWriterRequired,
    TableChanged,
    TableNotFound,
    TableReplaced,
    TableRestored,
    UsageError,
)
from headrace.ledger.known_tables import KnownTables
from headrace.ledger.ledger import Ledger
from headrace.ledger.replays import Replays, writer
from headrace.recovery.file_origins import REPAIR
from headrace.retry import Retry
from headrace.storage import lease
from headrace.storage.lease import Lease
from headrace.storage.store import Store

T = TypeVar("T")
_RETRY, _ATTEMPTS = Retry(initial_interval=0.02, max_interval=1.0), 10
_APPEND_ONLY = "delta.appendOnly"
_PARENTS = 8  # parent folders of a table that are searched for the state of a pipeline
_LOOK_BACK = 20  # commits that are searched for the engine of the last writer


@dataclass(frozen=True, slots=True)
class WritingPipeline:
    """A pipeline that writes to a table, by the txns of the table."""

    name: str
    batch: int  # last batch in the table
    state: Store | None  # state folder; None if it was not found

    def holder(self) -> dict[str, object] | None:
        """The process that runs the pipeline; None if it is stopped."""
        return lease.holder(self.state) if self.state else None


class TableOwners:
    """The writers of one table, looked up on first access."""

    def __init__(
        self, store: Store, states: Mapping[str, str], direct_commit: bool = False, log: FollowedLog | None = None
    ) -> None:
        self._store, self._states, self._direct_commit = store, states, direct_commit
        self.log = log or FollowedLog(store)

    @cached_property
    def state(self) -> TableState:
        """State of the table at the first access; TableNotFound if it does not exist."""
        state = self.log.newest()
        if state is None:
            raise no_table(self._store)
        return state

    @cached_property
    def pipelines(self) -> tuple[WritingPipeline, ...]:
        """The pipelines that have a txn in the table."""
        txns = self.log.txns(self.state)
        names = {pipeline_of(name) for name in txns if batch_number_of({name: 0})}
        return tuple(
            WritingPipeline(name, txns.get(batch_txn(name), 0), self._state_folder(name)) for name in sorted(names)
        )

    def _state_folder(self, pipeline: str) -> Store | None:
        if pipeline in self._states:
            return Store(self._states[pipeline], self._store.profile)
        folders = (f"{parent}/_headrace/{pipeline}" for parent in _parents(self._store.uri))
        stores = (Store(folder, self._store.profile) for folder in folders)
        return next((store for store in stores if any(store.list(lease.FOLDER))), None)

    @cached_property
    def writer(self) -> WriterKind:
        """Kind of writer of the table."""
        states = [pipeline.state for pipeline in self.pipelines if pipeline.state]
        tables = [KnownTables.load(state).tables.get(self._store.uri) for state in states]
        kinds = {table.writer for table in tables if table is not None} | {declared_writer(self.state)} - {None}
        if kinds:
            return next((kind for kind in (WriterKind.MERGE, WriterKind.SPARK) if kind in kinds), WriterKind.DIRECT)
        kind = writer_of(self.state)
        return WriterKind.SPARK if kind == WriterKind.DIRECT and self.spark_reason() else kind

    @property
    def is_direct(self) -> bool:
        """Whether the table is written with direct commits."""
        return self.writer == WriterKind.DIRECT

    @property
    def only_spark_rewrites(self) -> bool:
        """Whether only Spark may change rows. Beside a pipeline with an in-process merge we may, too."""
        return not self.is_direct and (not self.pipelines or rewrite_blocker(self.state) is not None)

    def spark_reason(self) -> str | None:
        """Why only Spark may change a table that no pipeline writes; None if direct commits are safe."""
        if blocker := append_blocker(self.state):
            return blocker
        if self._direct_commit:
            return None
        engine = _last_engine(self._store, self.state.version)
        if engine is None:  # it may be Spark, so its commits could overwrite ours
            return "none of its last commits names an engine"
        return f"its newest commit is by {engine}" if engine.startswith("Apache-Spark") else None

    def beside_appends(self, operation: str) -> TableState:
        """State for an operation that allows concurrent appends; SparkWriterRequired if only Spark may change it."""
        if self.is_direct:
            return self.state
        for pipeline in self.pipelines:
            if holder := pipeline.holder():
                raise pipeline_is_running(self._store.uri, pipeline.name, operation, holder)
        reason = self.spark_reason() or "a pipeline appends to it with Spark"
        raise SparkWriterRequired(
            f"Only Spark may change {self._store.uri}: {reason}. {operation} without Spark could lose a commit.",
            hint="Use Spark; or specify `--direct-commit` if Spark will never write to the table again.",
        )

    def check_changeable(self, operation: str) -> None:
        """OperationDisabled if the table is append-only."""
        if self.state.properties.get(_APPEND_ONLY, "").lower() == "true":
            raise OperationDisabled(
                f"{self._store.uri} is append-only ({_APPEND_ONLY} is true): {operation} is disabled.",
                hint=f"Unset the property: `headrace table set-properties PATH --unset {_APPEND_ONLY}`.",
            )

    @contextmanager
    def exclusive(self, operation: str) -> Iterator[None]:
        """Hold the lease of every pipeline that writes the table; LeaseHeld if one is running."""
        with ExitStack() as leases:
            for pipeline in self.pipelines:
                if pipeline.state is None:
                    raise UsageError(
                        f"Cannot determine whether the pipeline '{pipeline.name}', which writes {self._store.uri}, is "
                        "running: its state directory is not at the default path.",
                        hint="Specify its spec (`--spec`), or `states` in Python.",
                    )
                try:
                    leases.enter_context(Lease.take(pipeline.state))
                except LeaseHeld as error:
                    raise pipeline_is_running(self._store.uri, pipeline.name, operation, error.facts) from None
            yield

    def staged_files(self) -> dict[str, str]:
        """Files that an open batch or replay has staged for the table: path → pipeline."""
        staged: dict[str, str] = {}
        for pipeline in self.pipelines:
            if pipeline.state is None:
                continue
            ledgers = Ledger.open(pipeline.state, pipeline.name), Replays.open(pipeline.state, writer(pipeline.name))
            for intent in filter(None, (ledger.open_batch() for ledger in ledgers)):
                files = (file for table in intent.tables for file in table.files)
                staged |= {file.path: pipeline.name for file in files if file.table == self._store.uri}
        return staged


def existing_table(store: Store) -> TableState:
    """The newest state of a table; TableNotFound if it does not exist."""
    state = load_state(store)
    if state is None:
        raise no_table(store)
    return state


def no_table(store: Store) -> TableNotFound:
    """The error for a path without a table."""
    return TableNotFound(
        f"No Delta table at {store.uri}.", hint="Run `headrace table list DIRECTORY` to list the tables of a directory."
    )


def retry_conflicts(store: Store, table_id: str, attempt: Callable[[TableState], T]) -> T:
    """Run an attempt on the newest state, and again after each conflict with another writer.

    ConcurrentModification after 10 attempts. TableReplaced if the path has another table than `table_id` meanwhile: the
    request was for the old one. Other errors, such as an unreachable store, are raised at once.
    """
    message = ""
    for wait in islice(_RETRY.intervals(), _ATTEMPTS):
        state = existing_table(store)
        if state.table_id != table_id:
            raise table_replaced(store)
        try:
            return attempt(state)
        except TableReplaced as error:
            raise table_replaced(store) from error
        except (CommitConflict, TableChanged, TableRestored) as conflict:
            message = conflict.message
            sleep(wait)
    version = newest_version(store) or 0
    raise ConcurrentModification(
        f"{store.uri}: all {_ATTEMPTS} attempts conflicted with other writers, last at version {version}: {message}",
        version=version,
        hint="Run the operation again when the other writers have finished.",
    )


def open_log(store: Store, state: TableState, blocker: Blocker = append_blocker) -> LogWriter:
    """Open the log of a table to commit to it; TableReplaced if the path has another table than `state` meanwhile."""
    log_writer = LogWriter.open(store, blocker=blocker)
    if log_writer.current_state().table_id != state.table_id:
        raise table_replaced(store)
    return log_writer


def table_replaced(store: Store) -> TableReplaced:
    """The error for a table that was dropped and created again during an operation."""
    return TableReplaced(
        f"{store.uri} was replaced by another table during the operation.",
        hint="Run the operation again to apply it to the new table.",
    )


def _parents(uri: str) -> Iterator[str]:
    """Parent folders, nearest first."""
    for _ in range(_PARENTS):
        uri = uri.rpartition("/")[0]
        if not uri or uri.endswith(":/"):
            return
        yield uri


def _last_engine(store: Store, version: int) -> str | None:
    """Engine of the newest commit that names one; None if none of the last commits does.

    Repairs are ignored: Headrace repairs tables of any writer. Older delta-rs names itself in `clientVersion` only.
    """
    for commit in LogWalk(store, version, max(-1, version - _LOOK_BACK)):
        engine = commit.info.get("engineInfo") or commit.info.get("clientVersion")
        if engine and commit.operation != REPAIR:
            return str(engine)
    return None


def pipeline_is_running(uri: str, pipeline: str, operation: str, holder: Mapping[str, object]) -> LeaseHeld:
    """The error for an operation that needs exclusive access while a pipeline is running."""
    host, pid = str(holder.get("host")), str(holder.get("pid"))
    return LeaseHeld(
        f"{operation} requires exclusive access to {uri}, but the pipeline '{pipeline}', which writes it, is running "
        f"on {host} as pid {pid}.",
        hint="Stop the pipeline, then run the operation again.",
        host=host,
        pid=pid,
        pipeline=pipeline,
    )
