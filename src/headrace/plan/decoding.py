"""Read a branch's records: decode them, settle those without a value, and explode the list they are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.decode.base import UNTOLD, Decoded, Decoder, NewField, Rejects, SchemaPredictor, fills_of
from headrace.decode.inference import Structure
from headrace.decode.registry.client import Registered
from headrace.decode.sizes import row_bytes
from headrace.decode.widening import widened_types
from headrace.plan import explode as exploding
from headrace.plan.arrow import fill_columns, values_of, with_blanks
from headrace.plan.batch_result import ResultBuilder
from headrace.plan.branch import CompiledBranch
from headrace.plan.decode_cache import completed
from headrace.plan.route_schema import RouteSchema
from headrace.reasons import MISFITS, Reason
from headrace.spec.explode import Explode

_STRANGE = 1_000  # fields beside the exploded list that a decoder is told of
_SAMPLE = 64  # records that are read first to learn of such fields, where each record with one is read one by one


class BranchDecoding:
    """How the records of one batch are read for one branch."""

    def __init__(self, branch: CompiledBranch, gathering: ResultBuilder) -> None:
        self.branch, self.gathering, self.shared = branch, gathering, gathering.shared

    def read(self, route: str, shape: RouteSchema, envelopes: pa.Table) -> Decoded:
        """The rows of a route's records before the transform."""
        new_field = self.branch.new_field(route, shape)
        if self.branch.explode is None:
            return self._light(self.together(route, shape, new_field, envelopes), envelopes)
        found = self._settled(self._listed(self.branch.explode, route, shape, new_field, envelopes), envelopes)
        return self._exploded(self.branch.explode, found, envelopes)

    def together(self, way: Hashable, shape: RouteSchema, new_field: NewField, envelopes: pa.Table) -> Decoded:
        """The rows of records that are read alike, of one route or several."""
        return self._settled(self._decoded(way, shape.payload, new_field, envelopes, shape), envelopes)

    def look(self, route: str, envelopes: pa.Table) -> Structure | None:
        """What records show to one who knows nothing of them."""
        if self.branch.explode is None:
            return self.branch.decoder(f"{route}?", pa.schema([]), "evolve").decode(values_of(envelopes)).unknown
        # Such a decoder remembers what it has seen; but elements that disagreed before may agree now.
        fresh = self.branch.fresh_decoder(pa.schema([]), "evolve")
        return exploding.show_elements(self.branch.explode, fresh.decode(values_of(envelopes)).unknown)

    def wider(self, route: str, shape: RouteSchema, envelopes: pa.Table, rejects: Rejects) -> Structure | None:
        """The wider types that values ask for which do not fit; a partition's column keeps its own."""
        misfits = [at for at, reason in zip(rejects.index, rejects.reason, strict=True) if reason in MISFITS]
        contract, renamed = self.branch.rules(route).contract, self.branch.transform.renamed
        if not misfits or not contract.widens:
            return None
        explode = self.branch.explode

        def stays(name: str) -> bool:
            return renamed(name) in shape.partition_by or contract.wrong_type_of(name) != "widen"

        # The types of elements widen together or not at all: what misfits ask for is told by fields of the record.
        fixed = [item.name for item in shape.payload if any(map(stays, exploding.column_names(explode, item)))]
        values = values_of(envelopes).take(pa.array(misfits))

        def decode(payload: pa.Schema, new_field: NewField, values: pa.BinaryArray) -> Decoded:
            key = (new_field, payload.serialize().to_pybytes())
            return self.branch.decoder(key, payload, new_field, shape).decode(values)

        asked = widened_types(shape.payload, self.branch.new_field(route, shape), values, decode, fixed)
        return asked if explode is None else exploding.show_elements(explode, asked)

    def foresee(self, shape: RouteSchema, envelopes: pa.Table) -> Decoded:
        """The rows that there would be, if the shape were the one."""
        key = shape.payload.serialize().to_pybytes()
        found = self.together(key, shape, "evolve", envelopes)
        return found if self.branch.explode is None else self._exploded(self.branch.explode, found, envelopes)

    def _decoded(
        self, key: Hashable, payload: pa.Schema, new_field: NewField, envelopes: pa.Table, shape: RouteSchema
    ) -> Decoded:
        """By a decoder, unless another branch has done it already; then only what was rejected there."""
        decoder = self.branch.decoder(key, payload, new_field, shape)
        lent = self.shared.find(envelopes, payload, self.branch.explode)
        if lent is None:
            found = decode_records(decoder, envelopes)
            self.shared.keep(envelopes, payload, found)
            return found
        return (
            completed(lent, decode_records(decoder, envelopes.take(lent.rejects.index))) if lent.rejects.index else lent
        )

    # ---- values that are null ----

    def tombstones(self, rejects: Rejects, envelopes: pa.Table) -> tuple[Rejects, list[int]]:
        """What is rejected whatever the spec says of null values, and where those are; skipped ones are counted."""
        answer = self.branch.spec.tombstone
        if answer == "dead_letter" or Reason.TOMBSTONE not in rejects.reason:
            return rejects, []
        others, nulls = Rejects(), []
        for position, reason, detail in zip(rejects.index, rejects.reason, rejects.detail, strict=True):
            if reason is Reason.TOMBSTONE:
                nulls.append(position)
            else:
                others.add(position, reason, detail)
        if answer == "skip":
            self.gathering.fates.are_filtered(envelopes, nulls)
        return others, nulls

    def _settled(self, found: Decoded, envelopes: pa.Table) -> Decoded:
        if self.branch.spec.decode.options.many:
            self._note_empty(found, envelopes)
        rejects, nulls = self.tombstones(found.rejects, envelopes)
        if not nulls or self.branch.spec.tombstone == "skip":
            return replace(found, rejects=rejects)
        rows, index = with_blanks(found.rows, found.index.to_numpy(), nulls)
        return replace(found, rows=rows, index=pa.array(index), rejects=rejects)

    def _note_empty(self, found: Decoded, envelopes: pa.Table) -> None:
        """A value that may hold many rows may also hold none."""
        met = np.concatenate([found.index.to_numpy(), np.array(found.rejects.index, np.int64)])
        self.gathering.fates.are_filtered(envelopes, np.setdiff1d(np.arange(len(envelopes)), met))

    # ---- many rows of one record ----

    def _light(self, found: Decoded, envelopes: pa.Table) -> Decoded:
        """Without the records whose rows would take too much from beside the value."""
        if not self.branch.many or not self.branch.lends:
            return found
        repeated = self._lent(envelopes)[found.index.to_numpy()]
        return exploding.repeating(found, np.ones_like(repeated), repeated, self.branch.limits.repeated_bytes)

    def _lent(self, envelopes: pa.Table) -> np.ndarray:
        """Bytes of each record that expressions give to every row of it."""
        sizes = (row_bytes(envelopes[name]) for name in self.branch.lends)
        return sum(sizes, np.zeros(len(envelopes), np.int64))

    def _listed(
        self, explode: Explode, route: str, shape: RouteSchema, new_field: NewField, envelopes: pa.Table
    ) -> Decoded:
        """Records with their list; what is strange to the branch is learned: no decoder shall wonder about it again."""
        met = route in self.branch.strange
        strange = self.branch.strange.setdefault(route, set())
        if new_field == "rescue" and not met and len(envelopes) > _SAMPLE:
            self._listed(explode, route, shape, new_field, envelopes.slice(0, _SAMPLE))
        payload = exploding.knowing(exploding.explain_explode(explode, shape.payload), strange)

        def ask(payload: pa.Schema, new_field: NewField) -> Decoded:
            return self._decoded((new_field, payload.serialize().to_pybytes()), payload, new_field, envelopes, shape)

        full = new_field == "evolve" and shape.room == 0
        found, more = list_column(explode, payload, "reject" if full else new_field, ask, full=full)
        if full:
            found = replace(found, rejects=_without_room(found.rejects))
        strange.update(sorted(more)[: max(0, _STRANGE - len(strange))])
        return found

    def _exploded(self, explode: Explode, found: Decoded, envelopes: pa.Table) -> Decoded:
        record = bool(self.branch.transform.queries())
        made, empty = exploding.exploded(explode, found, self.branch.limits, self._lent(envelopes), record=record)
        self.gathering.fates.are_filtered(envelopes, empty)
        return made


def decode_records(decoder: Decoder, envelopes: pa.Table) -> Decoded:
    """Rows and rejects, with what the decoder asks to be taken from the record itself."""
    found = decoder.decode(values_of(envelopes))
    for column, source in fills_of(decoder).items():
        if column in found.rows.column_names:
            found = replace(found, rows=fill_columns(found.rows, column, envelopes[source].take(found.index)))
    return found


def list_column(
    explode: Explode,
    payload: pa.Schema,
    new_field: NewField,
    ask: Callable[[pa.Schema, NewField], Decoded],
    *,
    full: bool = False,
) -> tuple[Decoded, set[exploding.Way]]:
    """Records with their list, and the ways to all else that they hold: nothing to the table, whatever its contract.

    Where new fields are rejected, `ask` first decodes without them, to see whether the elements have any at all. With
    `full` they are rejected only if they would be columns: a field that is null or empty is none.
    """
    rejects = new_field in ("reject", "stop")
    asked: NewField = "evolve" if full else "ignore" if rejects else new_field
    found = ask(payload, asked)
    unknown, more = exploding.show_elements(explode, found.unknown), exploding.strange(explode, found.unknown)
    if asked in ("ignore", "rescue"):
        more |= exploding.passed_over(explode, found.ignored)
    if unknown is not None and not exploding.added_columns(explode, payload, unknown):
        unknown = None
    has_new = unknown is not None or exploding.own_names(explode, found.ignored) or UNTOLD in found.ignored
    if rejects and has_new:
        strict = exploding.only_elements(explode, exploding.knowing(payload, more))
        found, unknown = ask(strict, new_field), None
    return replace(found, unknown=unknown, ignored=exploding.own_names(explode, found.ignored)), more


def _without_room(rejects: Rejects) -> Rejects:
    """Records with new fields, where these might be columns if there were not too many of them."""
    made = Rejects()
    for position, reason, detail in rejects:
        if reason is Reason.NEW_FIELD:
            name = detail.partition(": ")[0]
            reason, detail = Reason.TOO_WIDE, f"{name}: column limit reached (limits.new_columns, limits.columns)"
        made.add(position, reason, detail)
    return made


def predict_payload(branch: CompiledBranch, route: str, shape: RouteSchema, schema: Registered) -> Decoded:
    """What would become of a record of a registry's schema."""

    def ask(payload: pa.Schema, new_field: NewField) -> Decoded:
        decoder = branch.fresh_decoder(payload, new_field)
        assert isinstance(decoder, SchemaPredictor)  # noqa: S101
        return decoder.predict(schema)[1]

    new_field = branch.rules(route).contract.new_field
    if branch.explode is None:
        return ask(shape.payload, new_field)
    return list_column(branch.explode, shape.payload, new_field, ask)[0]
