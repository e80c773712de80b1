"""Who writes a table, and so who may change it: one kind of committer per table, held by every operation.

A commit by Spark and one by put-if-absent may overwrite each other. So a table that Spark writes is left to Spark; and
what cannot be done beside the appends of a pipeline is done under that pipeline's own lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

from headrace.delta.features import WriterKind, append_blocker, rewrite_blocker, writer_of
from headrace.delta.log import LogWalk, newest_version
from headrace.delta.snapshot import TableState, all_txns, load_state
from headrace.delta.txn import batch_number_of, batch_txn, pipeline_of
from headrace.errors import (
    ConcurrentModification,
    Conflict,
    LeaseHeld,
    OperationDisabled,
    TableChanged,
    TableNotFound,
    TableReplaced,
    TableRestored,
    UsageError,
    WrittenBySpark,
)
from headrace.ledger.known_tables import KnownTables
from headrace.ledger.ledger import Ledger
from headrace.ledger.replays import Replays, writer
from headrace.pipeline import lease
from headrace.pipeline.lease import Lease
from headrace.recovery.file_origins import REPAIR
from headrace.retry import Retry
from headrace.storage.store import Store

T = TypeVar("T")
_PAUSES, _TRIES = Retry(initial_interval=0.02, max_interval=1.0), 10
_APPEND_ONLY = "delta.appendOnly"
_LEVELS = 8  # folders above a table in which the state of a pipeline is looked for
_LOOK_BACK = 20  # commits in which the engine of a table's writer is looked for


@dataclass(frozen=True, slots=True)
class WritingPipeline:
    """A pipeline that writes to a table, as the table's marks tell."""

    name: str
    batch: int  # the last one in the table
    state: Store | None  # its state folder; None where it was not found

    def holder(self) -> dict[str, object] | None:
        """Who runs it now."""
        return lease.holder(self.state) if self.state else None


class TableOwners:
    """Everybody who is known to write to one table; looked up when it is first asked for."""

    def __init__(self, store: Store, states: Mapping[str, str], direct_commit: bool = False) -> None:
        self._store, self._states, self._direct_commit = store, states, direct_commit

    @cached_property
    def state(self) -> TableState:
        """The table as it was found; TableNotFound where there is none."""
        return existing_table(self._store)

    @cached_property
    def pipelines(self) -> tuple[WritingPipeline, ...]:
        """The pipelines whose marks the table carries."""
        marks = all_txns(self._store, self.state.version)
        names = {pipeline_of(name) for name in marks if batch_number_of({name: 0})}
        return tuple(
            WritingPipeline(name, marks.get(batch_txn(name), 0), self._state_of(name)) for name in sorted(names)
        )

    def _state_of(self, pipeline: str) -> Store | None:
        if pipeline in self._states:
            return Store(self._states[pipeline], self._store.profile)
        places = (Store(f"{above}/_headrace/{pipeline}", self._store.profile) for above in _above(self._store.uri))
        return next((place for place in places if any(place.list(lease.FOLDER))), None)

    @cached_property
    def writer(self) -> WriterKind:
        """The kind of writer that the table is written by, for good."""
        known = [KnownTables.load(each.state).tables.get(self._store.uri) for each in self.pipelines if each.state]
        kinds = {each.writer for each in known if each is not None}
        if kinds:
            return next((kind for kind in (WriterKind.MERGE, WriterKind.SPARK) if kind in kinds), WriterKind.DIRECT)
        stated = writer_of(self.state)
        return WriterKind.SPARK if stated == WriterKind.DIRECT and self.why_spark() else stated

    @property
    def is_direct(self) -> bool:
        """Whether staged files are committed to the table as they are."""
        return self.writer == WriterKind.DIRECT

    @property
    def only_spark_rewrites(self) -> bool:
        """Whether rows are changed by Spark alone. A pipeline that merges does so itself, so we may, while it rests."""
        return not self.is_direct and (not self.pipelines or rewrite_blocker(self.state) is not None)

    def why_spark(self) -> str | None:
        """What tells that only Spark may change the table, where no pipeline does; None when nothing does."""
        if objection := append_blocker(self.state):
            return objection
        if self._direct_commit:
            return None
        engine = _engine(self._store, self.state.version)
        return f"its newest commit is by {engine}" if engine.startswith("Apache-Spark") else None

    def beside_appends(self, operation: str) -> TableState:
        """Whether an operation that goes along with appends may be done here, without Spark; the state to do it on."""
        if not self.is_direct:
            self._refuse_running(operation)
            why = self.why_spark() or "a pipeline appends to it by Spark"
            raise WrittenBySpark(
                f"{self._store.uri} is left to Spark: {why}. {operation} without Spark could lose a commit.",
                hint="Use Spark for it; or, when Spark will never write to it again, say so (`--direct-commit`).",
            )
        return self.state

    def check_changeable(self, operation: str) -> None:
        """OperationDisabled where a table only takes rows."""
        if self.state.properties.get(_APPEND_ONLY, "").lower() == "true":
            raise OperationDisabled(
                f"{self._store.uri} only takes rows ({_APPEND_ONLY} is true): {operation} would change some.",
                hint=f"Take the property away: `headrace table set-properties PATH --unset {_APPEND_ONLY}`.",
            )

    @contextmanager
    def resting(self, operation: str) -> Iterator[None]:
        """Hold the lease of every pipeline that writes the table, for what no commit of theirs may come between."""
        with ExitStack() as held:
            for each in self.pipelines:
                if each.state is None:
                    raise UsageError(
                        f"{self._store.uri} is written by the pipeline '{each.name}', and its state folder is not "
                        f"where it is by default: whether it runs cannot be told.",
                        hint="Give its spec (`--spec`), or `states` in Python.",
                    )
                held.enter_context(_leased(each.state, each.name, self._store.uri, operation))
            yield

    def _refuse_running(self, operation: str) -> None:
        for each in self.pipelines:
            if holder := each.holder():
                raise held_by(self._store.uri, each.name, operation, holder)

    def begun(self) -> dict[str, str]:
        """Files that a batch or a replay plan has staged for the table and not committed: path → pipeline."""
        staged: dict[str, str] = {}
        for each in self.pipelines:
            if each.state is None:
                continue
            for ledger in (Ledger.open(each.state, each.name), Replays.open(each.state, writer(each.name))):
                intent = ledger.open_batch()
                for table in intent.tables if intent else ():
                    staged |= {file.path: each.name for file in table.files if file.table == self._store.uri}
        return staged


def existing_table(store: Store) -> TableState:
    """The newest state of a table; TableNotFound where there is none."""
    state = load_state(store)
    if state is None:
        raise TableNotFound(f"There is no Delta table at {store.uri}.", hint="`headrace table list FOLDER` names some.")
    return state


def amid_others(store: Store, attempt: Callable[[], T]) -> T:
    """Run an attempt, again with fresh state after each conflict with another writer.

    ConcurrentModification after 10 attempts. Other errors, such as an unreachable store, are raised at once.
    """
    message = ""
    for wait in islice(_PAUSES.intervals(), _TRIES):
        try:
            return attempt()
        except (Conflict, TableChanged, TableReplaced, TableRestored) as conflict:
            message = conflict.message
            time.sleep(wait)
    version = newest_version(store) or 0
    raise ConcurrentModification(
        f"{store.uri}: all {_TRIES} attempts conflicted with other writers, last at version {version}: {message}",
        version=version,
        hint="Run the operation again when the other writers have finished.",
    )


def _above(uri: str) -> Iterator[str]:
    """The folders that a place is in, the nearest first."""
    for _ in range(_LEVELS):
        uri = uri.rpartition("/")[0]
        if not uri or uri.endswith(":/"):
            return
        yield uri


def _engine(store: Store, version: int) -> str:
    """Who made the newest commit that says so; a repair does not make a table its own."""
    commits = (each for each in LogWalk(store, version, max(-1, version - _LOOK_BACK)) if each.operation != REPAIR)
    return next((str(each.info["engineInfo"]) for each in commits if each.info.get("engineInfo")), "")


@contextmanager
def _leased(state: Store, pipeline: str, uri: str, operation: str) -> Iterator[None]:
    try:
        taken = Lease.take(state)
    except LeaseHeld as held:
        raise held_by(uri, pipeline, operation, held.facts) from None
    with taken:
        yield


def held_by(uri: str, pipeline: str, operation: str, holder: Mapping[str, object]) -> LeaseHeld:
    """Somebody runs a pipeline that must rest while a table is worked on."""
    host, pid = str(holder.get("host")), str(holder.get("pid"))
    return LeaseHeld(
        f"{uri} is written by the pipeline '{pipeline}', which runs on {host} as pid {pid}; "
        f"{operation} needs the table to itself.",
        hint="Stop the pipeline first, then try again.",
        host=host,
        pid=pid,
        pipeline=pipeline,
    )
