"""Start a pipeline over: delete its state, its dead letters and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.ledger.audit import AUDIT
from headrace.ledger.known_tables import KnownTables
from headrace.source.spool.layout import SPOOL
from headrace.spec import Spec
from headrace.storage import lease
from headrace.storage.lease import Lease
from headrace.storage.store import Profile, Store
from headrace.table.create_drop import check_not_nested, log_last
from headrace.table.table import Table


@dataclass(frozen=True)
class Removal:
    """A folder to delete, with its size."""

    what: str  # "table", "dead letters" or "state"
    path: str
    files: int
    bytes: int
    rows: int | None = None


class Reset:
    """The folders that a reset deletes; nothing is deleted before `apply`."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.profile = Profile(**spec.storage_profile())
        self.state = Store(spec.state_uri, self.profile)
        self.applied = False
        dead_letters = Table(spec.dead_letters_uri, self.profile)
        tables = sorted(self._own_tables() - {dead_letters.path})
        self.tables = tuple(_removal("table", Table(uri, self.profile)) for uri in tables)
        self.removals = (
            *self.tables,
            *([_removal("dead letters", dead_letters)] if dead_letters.exists() else []),
            *self._state_removal(dead_letters.path),
        )

    def _own_tables(self) -> set[str]:
        """Tables with a txn of this pipeline, among those in its state and those that the spec would write."""
        candidates = set(KnownTables.load(self.state).tables)
        for branch in self.spec.branch_specs().values():
            routed = "{route}" in branch.table.path
            candidates |= set(Table.list_tables(branch.base_uri, self.profile)) if routed else {branch.table.path}
        return {uri for uri in candidates if self._is_ours(uri)}

    def _is_ours(self, uri: str) -> bool:
        table = Table(uri, self.profile)
        if not table.exists():
            return False
        pipelines = table.metadata().pipelines
        if self.spec.pipeline in pipelines and len(pipelines) > 1:
            others = ", ".join(sorted(set(pipelines) - {self.spec.pipeline}))
            raise UsageError(
                f"{uri} is also written by {others}.",
                hint="Rename the pipeline and its tables to start over.",
            )
        return self.spec.pipeline in pipelines

    def _state_removal(self, dead_letters: str) -> Iterator[Removal]:
        """The files of the state, except the dead letters in it, the spool, and the lease that this process holds."""
        files = [
            item
            for item in self.state.list()
            if not _is_kept(item.path) and not f"{self.state.uri}/{item.path}".startswith(f"{dead_letters}/")
        ]
        if files:
            yield Removal("state", self.state.uri, len(files), sum(item.size for item in files))

    def check(self, tables: bool) -> None:
        """UsageError if there are tables and they are not to be deleted: a new start would skip their records."""
        if self.tables and not tables:
            raise UsageError(
                f"Tables contain records of '{self.spec.pipeline}', and a new start would continue after them: "
                f"{', '.join(table.path for table in self.tables)}.",
                hint="Specify --tables to delete the tables, too; to keep them, rename the pipeline and its tables.",
            )

    def apply(self) -> None:
        """Delete the folders, the state last: an interrupted reset can be run again."""
        for removal in self.removals:
            store = Store(removal.path, self.profile)
            paths = [item.path for item in store.list() if removal.what != "state" or not _is_kept(item.path)]
            store.delete(log_last(paths))
        self.applied = True


def _removal(what: str, table: Table) -> Removal:
    files = list(table._store.list())
    check_not_nested(table._store, files)
    return Removal(what, table.path, len(files), sum(item.size for item in files), table.statistics().rows)


def _is_kept(path: str) -> bool:
    """Whether a file of the state is of the lease, the audit log, or the spool: nobody could send its records again."""
    return path.startswith((f"{lease.FOLDER}/", f"{AUDIT}/", f"{SPOOL}/"))


@contextmanager
def open_reset(spec: Spec) -> Iterator[Reset]:
    """Plan a reset while holding the lease of the pipeline; LeaseHeld if it is running."""
    state = Store(spec.state_uri, Profile(**spec.storage_profile()))
    was_empty = not any(state.list())
    with Lease.take(state, ttl=spec.lease.ttl.total_seconds(), renew=spec.lease.renew.total_seconds()):
        reset = Reset(spec)
        yield reset
    if reset.applied or was_empty:
        state.delete([item.path for item in state.list() if not item.path.startswith((f"{AUDIT}/", f"{SPOOL}/"))])
