"""Compiled branch: decoders, transform, routing and route schemas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.decode.base import DecodeLimits, Decoder, NewField
from headrace.decode.decoders import decoder
from headrace.decode.inference import ColumnBudget, Structure, admitted, by_key, width
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.plan import explode as exploding
from headrace.plan.route_schema import RouteSchema, disagreement, knows_fields, payload_of, route_schema_of
from headrace.spec import Spec, TableSpec
from headrace.spec.route_id import RouteId
from headrace.transform.from_spec import transform_steps
from headrace.transform.steps import Transform

EVERY = "*"  # pseudo-route of branches with an SQL route, which is evaluated after decoding


class CompiledBranch:
    """Main branch of a pipeline, or one of its `branches`."""

    def __init__(
        self,
        name: str,
        spec: Spec,
        schemas: Mapping[str, RouteSchema | None] | None = None,
        existing: Mapping[str, pa.Schema] | None = None,
        assumes: bool = False,
        checks_names: bool = False,
    ) -> None:
        self.checks_names = checks_names  # whether to report names that the records do not have
        self.name, self.spec = name, spec
        self.explode = spec.explode
        limits = spec.limits
        self.limits = DecodeLimits(
            limits.record_bytes,
            limits.depth,
            limits.keys,
            limits.rows,
            limits.values,
            repeated_bytes=limits.repeated_bytes,
        )
        self.transform = Transform(transform_steps(spec), self.limits.repeated_bytes)
        self.routing = spec.routing()
        self.many = spec.decode.options.many or spec.explode is not None  # whether a record can have several rows
        self.copied_columns = self.transform.copied_columns()
        self.schemas: dict[str, RouteSchema | None] = dict(schemas or {})
        self.apart: set[Hashable] = set()  # groups of routes that cannot be decoded together
        self.strange: dict[
            str, set[exploding.FieldPath]
        ] = {}  # by route: fields of records that are neither kept nor exploded
        self.assumed: set[str] = set()  # routes with the declared schema, not yet confirmed by the driver
        self._assumes = assumes and spec.explode is None
        self._existing = dict(existing or {})
        self._learned: dict[str, Structure] = {}
        self._decoders: dict[tuple[Hashable, int], Decoder] = {}
        self._added: Counter[str] = Counter()  # by route: columns added by the current batch

    def route_id(self, route: str) -> RouteId:
        """Identity of a route of the branch."""
        return RouteId(self.name, route)

    @property
    def unrouted(self) -> str | None:
        """Table of dead letters without a route: None, or the path template of the branch."""
        return self.spec.table.path if self.name else None

    def rules(self, route: str) -> TableSpec:
        """Table options of a route."""
        return self.spec.table_for(RouteId("", "" if route == EVERY else route))

    def uri(self, route: str) -> str:
        """Table path of a route."""
        return self.spec.uri_of(RouteId("", "" if route == EVERY else route))

    def new_field(self, route: str, schema: RouteSchema) -> NewField:
        """Action for new fields; `evolve` for a table without columns."""
        return self.rules(route).contract.new_field if knows_fields(schema.payload, self.explode) else "evolve"

    def route_schema(self, route: str, **known: Any) -> RouteSchema:
        """Schema of a route from the spec, the table and inferred columns."""
        return self.bounded(route_schema_of(self.uri(route), self.rules(route), self.transform, self.explode, **known))

    def bounded(self, schema: RouteSchema, added: int = 0) -> RouteSchema:
        """Schema with the number of columns that the batch can still add."""
        from_danube = self.spec.source_kind == "danube"
        return replace(schema, room=self._room_beside(schema.table, added), from_danube=from_danube)

    def _room_beside(self, columns: Iterable[pa.Field], added: int = 0) -> int:
        limits = self.spec.limits
        return max(0, min(limits.new_columns - added, limits.columns - width(columns)))

    def admitted(
        self, route: str, schema: RouteSchema | None, existing: pa.Schema | None, structure: Structure
    ) -> tuple[Structure, int]:
        """New fields that become columns, and their number; the maximum if some fields exceed the limits.

        Records with the other fields become dead letters when the batch is decoded again.
        """
        if not structure:
            return structure, 0
        if schema is None:
            with disagreement(self.uri(route), existing is not None):
                payload = payload_of(self.rules(route), self.transform, existing, None, self.explode)
            room = ColumnBudget(self._room_beside(existing or ()))
        else:
            payload, room = schema.payload, ColumnBudget(schema.room)
        columns = payload if self.explode is None else exploding.countable_payload(self.explode, payload)
        before = room.left
        part = admitted(by_key(columns), structure, room)
        return part, before - room.left if room.enough else self.spec.limits.new_columns

    def begin(self) -> None:
        """Start a batch: reset the number of added columns."""
        for route in self._added:
            if (schema := self.schemas.get(route)) is not None:
                self.schemas[route] = self.bounded(schema)
        self._added.clear()

    def assume(self, route: str) -> None:
        """Assume that the table of a new route does not exist, if the spec declares its columns."""
        if not self._assumes or route in self.schemas or len(self.schemas) >= self.spec.limits.tables:
            return
        rules = self.rules(route)
        if rules.columns and rules.create != "never" and not rules.by_spark:
            self.schemas[route] = self.route_schema(route)
            self.assumed.add(route)

    def decoder(
        self, name: Hashable, payload: pa.Schema, new_field: NewField, schema: RouteSchema | None = None
    ) -> Decoder:
        """Cached decoder of a route or group of routes."""
        key = (name, self._room(schema))
        if key not in self._decoders:
            self._decoders[key] = self.fresh_decoder(payload, new_field, schema)
        return self._decoders[key]

    def fresh_decoder(self, payload: pa.Schema, new_field: NewField, schema: RouteSchema | None = None) -> Decoder:
        """New decoder for a payload."""
        options = self.spec.decode.options
        limits = replace(self.limits, new_columns=self._room(schema))
        return decoder(self.spec.format, payload, new_field=new_field, limits=limits, options=options)

    def _room(self, schema: RouteSchema | None) -> int:
        """Maximum new columns per record; unlimited for exploded records, whose fields are mostly not columns."""
        if self.explode is not None:
            return 2**31
        return self._room_beside(()) if schema is None else schema.room

    def learned(self, route: str) -> Structure:
        """Inferred schema of a route."""
        return self._learned.get(EVERY) or self._learned.get(route, {})

    def learn(self, discovered: Mapping[str, Structure]) -> None:
        """Merge inferred schemas; tables of an SQL route share their columns."""
        for route, inferred in discovered.items():
            structure, columns = self.admitted(route, self.schemas.get(route), self._existing.get(route), inferred)
            self._added[route] += columns
            earlier = self._learned.get(route)
            self._learned[route] = merge_structures(earlier, structure) if earlier else structure
        for route in self._learned if EVERY in self._learned else discovered:
            learned = self._learned.get(EVERY, self._learned[route])
            schema = self.route_schema(route, existing=self._existing.get(route), learned=learned)
            self.schemas[route] = self.bounded(schema, self._added[route])
            for key in [key for key in self._decoders if key[0] == route]:
                del self._decoders[key]
