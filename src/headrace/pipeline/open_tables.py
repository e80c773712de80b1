"""Tables of a running pipeline, opened when they are first needed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from headrace.delta.log import newest_version
from headrace.delta.txn import foreign_txn
from headrace.errors import PipelineStopped
from headrace.pipeline.table_entry import OpenTable, TableOpener, check_row_identity
from headrace.plan.branch import CompiledBranch
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.storage.store import Profile, Store
from headrace.write.intent import TableIntent


class OpenTables:
    """Open tables by route, and those without one: dead letters, and tables that only an old intent names."""

    def __init__(self, spec: Spec, profile: Profile, branches: dict[str, CompiledBranch], opener: TableOpener) -> None:
        self.spec, self.branches = spec, branches
        self.by_route: dict[RouteId, OpenTable] = {}
        self._profile, self._opener = profile, opener
        self._unrouted: dict[str, OpenTable] = {}  # by URI
        self._by_uri: dict[str, OpenTable] = {}  # all of them: a batch looks up each of up to thousands of tables

    def __iter__(self) -> Iterator[OpenTable]:
        yield from self._unrouted.values()
        yield from self.by_route.values()

    @property
    def dead_letters(self) -> OpenTable:
        """The dead-letter table."""
        uri = Store(self.spec.dead_letters_uri, self._profile).uri
        return self._unrouted.get(uri) or self._add(self._open(None, uri, dead_letters=True))

    def open(self, route_id: RouteId) -> OpenTable:
        """The table of a route."""
        return self.by_route.get(route_id) or self._add(self._open(route_id, self.spec.uri_of(route_id)))

    def open_known(self) -> None:
        """Open the tables of earlier runs, so that their records need no discovery.

        A table that cannot be opened stops the pipeline only when a record is routed to it. But the tables of an SQL
        route share their columns, so all of those must open before the first record is decoded.
        """
        for uri in self._opener.ledger.known.tables:
            if (route_id := self.spec.route_of(uri)) is None:
                continue
            try:
                self.open(route_id)
            except PipelineStopped:
                if self.branches[route_id.branch].routing.by == "sql":
                    raise

    def of(self, table: TableIntent) -> OpenTable:
        """The table of an intent."""
        if table.path in self._by_uri:
            return self._by_uri[table.path]
        route_id = None if table.dead_letters else self.spec.route_of(table.path)
        by_spark = any(file.table != table.path for file in table.files)
        return self._add(self._open(route_id, table.path, dead_letters=table.dead_letters, by_spark=by_spark))

    def _add(self, entry: OpenTable) -> OpenTable:
        if entry.route_id is not None:
            self.by_route[entry.route_id] = entry
        else:
            self._unrouted[entry.store.uri] = entry
        self._by_uri.setdefault(entry.store.uri, entry)
        return entry

    def close(self, entry: OpenTable) -> None:
        """Open the table again, with its current txns, when it is next needed."""
        if entry.route_id is not None:
            self.by_route.pop(entry.route_id)
        else:
            self._unrouted.pop(entry.store.uri)
        self._by_uri.pop(entry.store.uri, None)

    def reopen_created(self) -> bool:
        """Open the tables again that another writer has created since; whether there are any."""
        created = [entry for entry in self if entry.writer.state is None and newest_version(entry.store) is not None]
        for entry in created:
            table = self._open(entry.route_id, entry.store.uri, dead_letters=entry.dead_letters)
            entry.writer, entry.table_id, entry.scanned = table.writer, table.table_id, table.scanned
            entry.floors, entry.foreign_versions = table.floors, table.foreign_versions
        return bool(created)

    def follow_logs(self) -> None:
        """Read the commits of other writers, so that the next start has fewer of them to scan."""
        for entry in self:
            if entry.writer.state is not None:
                entry.writer.follow()
                entry.scanned = entry.writer.state.version

    def _open(
        self, route_id: RouteId | None, uri: str, *, dead_letters: bool = False, by_spark: bool = False
    ) -> OpenTable:
        """Open a table; without a route, the spec has no rules for it. `by_spark`: its files are staged elsewhere."""
        branch = self.branches[route_id.branch if route_id else ""]
        rules, store = branch.rules(route_id.route if route_id else ""), Store(uri, self._profile)
        writer = self._opener.open(store, rules if route_id else None, by_spark)
        if route_id is not None:
            check_row_identity(uri, rules, self._opener.ledger.known.tables.get(uri))
        state = writer.state
        table_id, version = (str(uuid.uuid4()), -1) if state is None else (state.table_id, state.version)
        table = OpenTable(route_id, branch, store, rules, writer, table_id, dead_letters, scanned=version)
        if route_id is not None and self._opener.writer == self.spec.pipeline:  # a replay skips nothing
            self._take_over(table)
        return table

    def _take_over(self, entry: OpenTable) -> None:
        """Let a table skip the records that kafka-delta-ingest has written to it."""
        uri = entry.store.uri
        entry.taken_over = self._opener.taken_over(uri)
        entry.foreign = self._opener.foreign_txns(uri, entry.rules)
        entry.foreign.check_stopped(uri, entry.taken_over, entry.writer.state)
        offsets = entry.foreign.offsets(entry.writer.state)
        entry.foreign_versions = {foreign_txn(entry.foreign.app_id, each[1]): last for each, last in offsets.items()}
        lasts = {**entry.taken_over, **(offsets if entry.foreign.are_current else {})}
        position = self._opener.ledger.position()  # floors below it would only cost time
        entry.floors = {each: last for each, last in lasts.items() if last >= position.get(each, 0)}
