"""Schemas of a running pipeline's routes: what tasks decode into, and what tables evolve to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import replace

import pyarrow as pa

from headrace import faults
from headrace.decode.inference import Structure, merge_inferred, structure_for
from headrace.decode.payload_field import payload_field
from headrace.errors import ColumnMismatch, TableChanged, UnknownColumn
from headrace.pipeline.open_tables import OpenTables
from headrace.pipeline.table_entry import OpenTable
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.explode import without_conflict
from headrace.plan.route_schema import RouteSchema, columns_of_route, disagreement, payload_of, route_schema_of
from headrace.plan.unknown_names import Reports, unknown_everywhere
from headrace.spec.route_id import RouteId
from headrace.transform.sql.constraints import constraints_of


class RouteSchemas:
    """The schema of every route; None for a route beyond the limit of tables."""

    def __init__(self, tables: OpenTables) -> None:
        self._tables = tables
        self.by_route: dict[RouteId, RouteSchema | None] = {}
        self._shared: dict[str, Structure] = {}  # by branch with an SQL route: fields of the payload its tables share
        self._added: Counter[RouteId] = Counter()  # columns that the current batch adds

    def refresh(self) -> None:
        """Compute the schemas again, from the tables, the spec and the fields of records."""
        for name, branch in self._tables.branches.items():
            if branch.routing.by == "sql":
                self._refresh_shared(name, branch)
        for entry in self._tables.by_route.values():
            inferred = entry.inferred is not None or entry.branch.name in self._shared
            if entry.existing is not None or entry.rules.columns or inferred:  # else the first records tell the columns
                self.refresh_table(entry)

    def refresh_table(self, entry: OpenTable) -> None:
        """Compute the schema of one route again, because its table has changed."""
        if entry.route_id is not None:
            self.by_route[entry.route_id] = entry.branch.bounded(self._schema(entry), self._added[entry.route_id])

    def of(self, entry: OpenTable) -> RouteSchema | None:
        """The schema of a table's route; None where it has none."""
        return self.by_route.get(entry.route_id) if entry.route_id is not None else None

    def add_fields(self, route_id: RouteId, entry: OpenTable, structure: Structure) -> None:
        """Take the new fields of a route's records, as far as the limits of the batch allow."""
        admitted = self._admitted(route_id, entry.existing, structure)
        entry.inferred = admitted if entry.inferred is None else merge_inferred(entry.inferred, admitted)

    def add_shared_fields(self, branch: str, structure: Structure) -> None:
        """Take the new fields of a branch with an SQL route: its tables share them."""
        admitted, known = self._admitted(RouteId(branch, EVERY), None, structure), self._shared.get(branch)
        self._shared[branch] = admitted if known is None else merge_inferred(known, admitted)

    def begin_batch(self) -> None:
        """Let the next batch add columns again, and forget array elements whose types disagreed in the last one."""
        changed = bool(self._added)
        self._added.clear()
        for entry in self._tables:
            if entry.branch.explode is not None and entry.inferred is not None:
                inferred = without_conflict(entry.branch.explode, entry.inferred)
                changed |= inferred is not entry.inferred
                entry.inferred = inferred
        if changed:
            self.refresh()

    def evolve_tables(self, batch: int) -> None:
        """Add the columns that existing tables lack: those of records and those the spec declares."""
        for entry in self._tables.by_route.values():
            self._evolve(entry, batch)

    def are_declared(self, routes: Iterable[RouteId]) -> bool:
        """Whether the schemas of these routes are what the spec alone declares, for files committed directly."""
        return all(self._is_declared(route_id) for route_id in routes)

    def check_names(self, reports: Reports, ledger_names: Set[str]) -> None:
        """UnknownColumn where the spec names a column that no table, no record and no earlier batch has."""
        if names := unknown_everywhere(reports, self._tables.branches, self.by_route, ledger_names):
            raise UnknownColumn(
                f"{self._tables.spec.pipeline}: {'; '.join(map(str, names))}.",
                hint="Correct the name, or list it in allow_missing if it may be absent; then run again.",
            )

    def read_only_fields(self, entry: OpenTable) -> set[str]:
        """Fields that expressions read and the table does not store: only the ledger tells that records have them."""
        schema = self.of(entry)
        if schema is None:
            return set()
        return {*schema.payload.names} & {*entry.branch.transform.inputs()} - {*schema.table.names}

    def _admitted(self, route_id: RouteId, existing: pa.Schema | None, structure: Structure) -> Structure:
        branch = self._tables.branches[route_id.branch]
        part, columns = branch.admitted(route_id.route, self.by_route.get(route_id), existing, structure)
        if columns:
            self._added[route_id] += columns
        return part

    def _is_declared(self, route_id: RouteId) -> bool:
        entry = self._tables.by_route.get(route_id)
        declared = self._tables.branches[route_id.branch].route_schema(route_id.route)
        return entry is not None and entry.writer.commits_directly and self.by_route[route_id] == declared

    def _schema(self, entry: OpenTable) -> RouteSchema:
        state, existing = entry.writer.state, entry.existing
        generated = () if state is None or existing is None else set(state.schema.names) - set(existing.names)
        schema = route_schema_of(
            entry.store.uri,
            entry.rules,
            entry.branch.transform,
            entry.branch.explode,
            existing=existing,
            learned=self._inferred(entry),
            floors=entry.floors,
            partition_by=tuple(name for name in entry.partition_by if name not in generated),
            generated=generated,
        )
        return replace(schema, constraints=constraints_of(entry.store.uri, state, entry.rules))

    def _inferred(self, entry: OpenTable) -> Structure | None:
        """Fields of the route's records; a new table of an SQL route gets those of the payload that routes it."""
        if entry.branch.routing.by != "sql":
            return entry.inferred
        shared = self.by_route.get(entry.branch.route_id(EVERY))
        if entry.existing is None and shared is not None:
            return structure_for(item for item in shared.payload if payload_field(item).is_column)
        return self._shared.get(entry.branch.name)

    def _refresh_shared(self, name: str, branch: CompiledBranch) -> None:
        """One payload for all tables of an SQL route: their columns and the fields of records."""
        rules, explode = branch.rules(EVERY), branch.explode
        columns: dict[str, pa.Field] = {}
        for entry in self._tables.by_route.values():
            if entry.branch is branch and entry.existing is not None:
                with disagreement(entry.store.uri, has_data=True):
                    payload = payload_of(rules, branch.transform, entry.existing, None, explode)
                columns |= {item.name: item for item in columns_of_route(payload, explode)}
        inferred, route_id = self._shared.get(name), RouteId(name, EVERY)
        if columns or inferred is not None or rules.columns:
            existing = pa.schema(list(columns.values())) if columns else None
            schema = branch.route_schema(EVERY, existing=existing, learned=inferred)
            self.by_route[route_id] = branch.bounded(schema, self._added[route_id])

    def _evolve(self, entry: OpenTable, batch: int) -> None:
        schema, existing = self.of(entry), entry.existing
        if schema is None or existing is None or schema.table == existing:
            return
        if entry.rules.create == "never":
            _check_declared(entry, existing)
        try:
            entry.writer.evolve(schema.table)
        except TableChanged:
            if entry.existing == existing:
                raise
            self.refresh_table(entry)  # another writer was first to add such a column: records must fit it
            return self._evolve(entry, batch)
        faults.reach(faults.Point.AFTER_SCHEMA_CHANGE, batch=batch)
        self.refresh_table(entry)


def _check_declared(entry: OpenTable, existing: pa.Schema) -> None:
    if absent := [column.name for column in entry.rules.columns if column.name not in existing.names]:
        raise ColumnMismatch(
            f"{entry.store.uri} lacks the declared {', '.join(map(repr, absent))}, and the spec has create: never.",
            hint="Add it to the table or remove it from the spec, then run again.",
        )
