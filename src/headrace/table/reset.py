"""Start a pipeline over: remove its state, its dead letters and its tables, so that it reads from its start again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.delta.log import LOG
from headrace.errors import UsageError
from headrace.ledger.known_tables import KnownTables
from headrace.pipeline import lease
from headrace.pipeline.lease import Lease
from headrace.spec import Spec
from headrace.storage.store import Profile, Store
from headrace.table.table import Table


@dataclass(frozen=True)
class Removal:
    """A folder to remove: what it is, and how large."""

    what: str  # "table", "dead letters" or "state"
    path: str
    files: int
    bytes: int
    rows: int | None = None

    def __str__(self) -> str:
        rows = "" if self.rows is None else f"{self.rows:,} rows, "
        return f"{self.what} {self.path}: {rows}{self.files:,} files, {self.bytes:,} bytes"


class Reset:
    """What a start over removes, found while the pipeline rests; nothing is removed before `apply`."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.profile = Profile(**spec.storage_profile())
        self.state = Store(spec.state_uri, self.profile)
        self.applied = False
        letters = spec.dead_letters_uri
        tables = [_removal("table", Table(uri, self.profile)) for uri in sorted(self._own_tables() - {letters})]
        dead = Table(letters, self.profile)
        self.tables = tuple(tables)
        self.removals = (
            *tables,
            *([_removal("dead letters", dead)] if dead.exists() else []),
            *self._state_removal(letters),
        )

    def _own_tables(self) -> set[str]:
        """The tables that carry this pipeline's txn: those the state knows, and those where the spec would write."""
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
                hint="Start over with a new pipeline name and a new table.",
            )
        return self.spec.pipeline in pipelines

    def _state_removal(self, letters: str) -> Iterator[Removal]:
        listed = [item for item in self.state.list() if not _is_lease(item.path)]  # the lease is ours right now
        found = [item for item in listed if not f"{self.state.uri}/{item.path}".startswith(f"{letters}/")]
        if found:
            yield Removal("state", self.state.uri, len(found), sum(item.size for item in found))

    def check(self, tables: bool) -> None:
        """UsageError where tables would stay that hold records which a start over reads again."""
        if self.tables and not tables:
            raise UsageError(
                f"{', '.join(each.path for each in self.tables)} hold records of '{self.spec.pipeline}': if they stay, "
                "a new start goes on after those records.",
                hint="Say --tables to delete them as well; to keep them, give the pipeline and its tables new names.",
            )

    def apply(self) -> None:
        """Remove all of it, the state last: a reset that is cut short can be run again."""
        for each in self.removals:
            store = Store(each.path, self.profile)
            paths = [item.path for item in store.list() if each.what != "state" or not _is_lease(item.path)]
            store.delete(sorted(paths, key=lambda path: path.startswith(f"{LOG}/")))  # a table's log last
        self.applied = True


def _removal(what: str, table: Table) -> Removal:
    found = list(table._store.list())
    if nested := [item.path for item in found if f"/{LOG}/" in item.path or item.path.startswith("_headrace/")]:
        raise UsageError(
            f"{table.path} holds more than one table: {min(nested).partition(f'/{LOG}/')[0]} is below it, too.",
            hint="Move that one away first.",
        )
    return Removal(what, table.path, len(found), sum(item.size for item in found), table.statistics().rows)


def _is_lease(path: str) -> bool:
    return path.startswith(f"{lease.FOLDER}/")


@contextmanager
def resting(spec: Spec) -> Iterator[Reset]:
    """A reset under the pipeline's own lease; LeaseHeld while it runs."""
    state = Store(spec.state_uri, Profile(**spec.storage_profile()))
    began_empty = not any(state.list())
    with Lease.take(state, ttl=spec.lease.ttl.total_seconds(), renew=spec.lease.renew.total_seconds()):
        reset = Reset(spec)
        yield reset
    if reset.applied or began_empty:
        state.delete([item.path for item in state.list()])
