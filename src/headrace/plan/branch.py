"""One way of records to their tables, compiled: how they are read, changed and routed, and the shapes they fit."""

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

EVERY = "*"  # the one payload of a branch whose SQL route picks the table after the decode


class CompiledBranch:
    """A spec with one `table`: the pipeline's own way, or one of those it has `also`."""

    def __init__(
        self,
        name: str,
        spec: Spec,
        shapes: Mapping[str, RouteSchema | None] | None = None,
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
        self.many = spec.decode.options.many or spec.explode is not None  # whether a record may have many rows
        self.lends = self.transform.lends()
        self.shapes: dict[str, RouteSchema | None] = dict(shapes or {})
        self.apart: set[Hashable] = set()  # ways whose routes cannot be read together
        self.strange: dict[str, set[exploding.Way]] = {}  # by route: what its records have beside what is exploded
        self.assumed: set[str] = set()  # routes whose shape is only what the spec declares, and nobody's answer yet
        self._assumes = assumes and spec.explode is None
        self._existing = dict(existing or {})
        self._learned: dict[str, Structure] = {}
        self._decoders: dict[tuple[Hashable, int], Decoder] = {}
        self._added: Counter[str] = Counter()  # by route: columns that the batch at hand has brought

    def route_id(self, route: str) -> RouteId:
        """The identity of one of the branch's routes."""
        return RouteId(self.name, route)

    @property
    def unrouted(self) -> str | None:
        """What a letter calls the table of a record that has no route yet: nothing, or its branch's pattern."""
        return self.spec.table.path if self.name else None

    def rules(self, route: str) -> TableSpec:
        """The table options of a route."""
        return self.spec.table_for(RouteId("", "" if route == EVERY else route))

    def uri(self, route: str) -> str:
        """The table of a route."""
        return self.spec.uri_of(RouteId("", "" if route == EVERY else route))

    def new_field(self, route: str, shape: RouteSchema) -> NewField:
        """What the contract says to new fields; to a table that has no columns yet none of them is new."""
        return self.rules(route).contract.new_field if knows_fields(shape.payload, self.explode) else "evolve"

    def shape_of(self, route: str, **known: Any) -> RouteSchema:
        """The shape of a route's table, from what is known of it."""
        return self.bounded(route_schema_of(self.uri(route), self.rules(route), self.transform, self.explode, **known))

    def bounded(self, shape: RouteSchema, added: int = 0) -> RouteSchema:
        """The shape with the room that is left in a batch which has added so many columns."""
        return replace(shape, room=self._room_beside(shape.table, added))

    def _room_beside(self, columns: Iterable[pa.Field], added: int = 0) -> int:
        limits = self.spec.limits
        return max(0, min(limits.new_columns - added, limits.columns - width(columns)))

    def admitted(
        self, route: str, shape: RouteSchema | None, existing: pa.Schema | None, structure: Structure
    ) -> tuple[Structure, int]:
        """What of the new fields becomes columns, and how many; if some do not, all that the batch may add.

        The records with the others are dead letters when the batch is read again.
        """
        if not structure:
            return structure, 0
        if shape is None:
            with disagreement(self.uri(route), existing is not None):
                payload = payload_of(self.rules(route), self.transform, existing, None, self.explode)
            room = ColumnBudget(self._room_beside(existing or ()))
        else:
            payload, room = shape.payload, ColumnBudget(shape.room)
        known = payload if self.explode is None else exploding.admitting(self.explode, payload)
        before = room.left
        part = admitted(by_key(known), structure, room)
        return part, before - room.left if room.enough else self.spec.limits.new_columns

    def begin(self) -> None:
        """A new batch: it may add columns again."""
        for route in self._added:
            if (shape := self.shapes.get(route)) is not None:
                self.shapes[route] = self.bounded(shape)
        self._added.clear()

    def assume(self, route: str) -> None:
        """Take a new route's table for one that is yet to be made, if the spec says all about it."""
        if not self._assumes or route in self.shapes or len(self.shapes) >= self.spec.limits.tables:
            return
        rules = self.rules(route)
        if rules.columns and rules.create != "never" and not rules.by_spark:
            self.shapes[route] = self.shape_of(route)
            self.assumed.add(route)

    def decoder(
        self, name: Hashable, payload: pa.Schema, new_field: NewField, shape: RouteSchema | None = None
    ) -> Decoder:
        """One decoder per route or way, kept."""
        key = (name, self._room(shape))
        if key not in self._decoders:
            self._decoders[key] = self.fresh_decoder(payload, new_field, shape)
        return self._decoders[key]

    def fresh_decoder(self, payload: pa.Schema, new_field: NewField, shape: RouteSchema | None = None) -> Decoder:
        """A decoder of the spec's format for a payload."""
        options = self.spec.decode.options
        limits = replace(self.limits, new_columns=self._room(shape))
        return decoder(self.spec.format, payload, new_field=new_field, limits=limits, options=options)

    def _room(self, shape: RouteSchema | None) -> int:
        """New columns that one record may bring; where it is exploded, most of its fields are not the table's."""
        if self.explode is not None:
            return 2**31
        return self._room_beside(()) if shape is None else shape.room

    def learned(self, route: str) -> Structure:
        """What records have shown of a route."""
        return self._learned.get(EVERY) or self._learned.get(route, {})

    def learn(self, discovered: Mapping[str, Structure]) -> None:
        """Take up what records have shown; tables of an SQL route have their columns in common."""
        for route, seen in discovered.items():
            structure, columns = self.admitted(route, self.shapes.get(route), self._existing.get(route), seen)
            self._added[route] += columns
            known = self._learned.get(route)
            self._learned[route] = merge_structures(known, structure) if known else structure
        for route in self._learned if EVERY in self._learned else discovered:
            learned = self._learned.get(EVERY, self._learned[route])
            shape = self.shape_of(route, existing=self._existing.get(route), learned=learned)
            self.shapes[route] = self.bounded(shape, self._added[route])
            for key in [key for key in self._decoders if key[0] == route]:
                del self._decoders[key]
