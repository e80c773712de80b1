"""New routes and new fields of records: tables to open, within the limits of the spec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from headrace.decode.inference import Structure
from headrace.errors import PipelineStopped
from headrace.pipeline.open_tables import OpenTables
from headrace.pipeline.route_schemas import RouteSchemas
from headrace.plan.branch import EVERY
from headrace.plan.inferred_columns import InferredColumns, inferred_columns
from headrace.plan.route_schema import RouteSchema
from headrace.spec.route_id import RouteId


class RouteDiscovery:
    """Routes and fields that tasks report because no route schema has them yet."""

    def __init__(self, tables: OpenTables, schemas: RouteSchemas) -> None:
        self._tables, self._schemas, self._limits = tables, schemas, tables.spec.limits
        self._predicted: set[RouteId] = set()  # routes that an SQL route may choose, opened before it is evaluated
        self._new: set[RouteId] = set()  # routes that the current batch is the first to have
        self._postponed: set[RouteId] = set()  # routes beyond the limit of a batch, allowed in the next one

    def begin_batch(self) -> None:
        """Allow new tables again."""
        for route_id in self._postponed:
            self._schemas.by_route.pop(route_id, None)
        self._postponed.clear()
        self._new.clear()

    def add(self, discovered: Mapping[RouteId, Structure]) -> None:
        """Open the tables of new routes, and take new fields into the schemas of their routes."""
        shared = {route_id.branch: structure for route_id, structure in discovered.items() if route_id.route == EVERY}
        for branch, structure in shared.items():
            self._schemas.add_shared_fields(branch, structure)
        for route_id, structure in discovered.items():
            if route_id.route == EVERY:
                continue
            if route_id.branch in shared:
                self._add_predicted(route_id, structure)
            else:
                self._add(route_id, structure)
        self._schemas.refresh()

    def close_unused(self, used: Iterable[RouteId]) -> None:
        """Close predicted tables that get no rows in this batch."""
        self._close(self._predicted - {*used})

    def new_columns(
        self, before: Mapping[RouteId, RouteSchema | None], discovered: Mapping[RouteId, Structure]
    ) -> Iterator[InferredColumns]:
        """Columns that tables get from records, compared with the schemas before."""
        for route_id, entry in self._tables.by_route.items():
            structure = discovered.get(entry.branch.route_id(EVERY)) or discovered.get(route_id)
            if structure:
                schema, existing = before.get(route_id), entry.existing
                names = schema.table.names if schema else existing.names if existing else ()
                after = self._schemas.by_route.get(route_id)
                columns = inferred_columns(names, after, structure, entry.branch.transform)
                yield from [columns] if columns else []

    def _add(self, route_id: RouteId, structure: Structure) -> None:
        """Open the table of a route, or reject its records where there are too many tables."""
        is_open = route_id in self._tables.by_route
        if not is_open and not self._has_room():
            self._close(self._predicted)  # the batch is read again: those that records are routed to come back
        if is_open or self._has_room():
            self._new |= set() if is_open else {route_id}
            self._schemas.add_fields(route_id, self._tables.open(route_id), structure)
        else:
            self._schemas.by_route[route_id] = None
            self._postponed |= {route_id} if self._below_limit() else set()

    def _add_predicted(self, route_id: RouteId, structure: Structure) -> None:
        """Open the table of a route that may be chosen; if that fails, the batch goes on without it."""
        if route_id not in self._tables.by_route and self._has_room():
            with suppress(PipelineStopped):
                self._add(route_id, structure)
                self._predicted.add(route_id)

    def _has_room(self) -> bool:
        return self._below_limit() and len(self._new) < self._limits.new_tables

    def _below_limit(self) -> bool:
        return len(self._tables.by_route) < self._limits.tables

    def _close(self, routes: Iterable[RouteId]) -> None:
        for route_id in set(routes):
            self._tables.close(self._tables.by_route[route_id])
            self._schemas.by_route.pop(route_id, None)
            self._new.discard(route_id)
        self._predicted.clear()
