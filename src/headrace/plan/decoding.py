"""Decode the records of a branch, handle tombstones, and explode arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.decode.base import (
    UNTOLD,
    Decoded,
    Decoder,
    NewField,
    NewFieldFinder,
    Rejects,
    SchemaPredictor,
    TopicDecoder,
    fills_of,
)
from headrace.decode.inference import Structure
from headrace.decode.registry.client import Registered
from headrace.decode.sizes import row_bytes
from headrace.decode.widening import widened_types
from headrace.plan import explode as exploding
from headrace.plan.arrow import fill_columns, insert_null_rows, remaining_positions, take, values_of
from headrace.plan.batch_result import ResultBuilder
from headrace.plan.branch import CompiledBranch
from headrace.plan.decode_cache import merge_cached
from headrace.plan.route_schema import RouteSchema
from headrace.plan.source_rejects import REJECTING_SOURCES, source_rejects
from headrace.reasons import MISFITS, Reason
from headrace.spec.explode import Explode

_MAX_OTHER_FIELDS = 1_000  # fields beside the exploded array that a decoder knows
_SAMPLE = 64  # records decoded first to find such fields, which otherwise make decoding slow


class BranchDecoding:
    """Decoding of a batch for one branch."""

    def __init__(self, branch: CompiledBranch, builder: ResultBuilder) -> None:
        self.branch, self.builder, self.shared = branch, builder, builder.shared

    def read(self, route: str, schema: RouteSchema, records: pa.Table) -> Decoded:
        """Decode the records of a route."""
        new_field = self.branch.new_field(route, schema)
        if self.branch.explode is None:
            return self._light(self.together(route, schema, new_field, records), records)
        decoded = self._settled(self._listed(self.branch.explode, route, schema, new_field, records), records)
        return self._exploded(self.branch.explode, decoded, records)

    def together(self, key: Hashable, schema: RouteSchema, new_field: NewField, records: pa.Table) -> Decoded:
        """Decode records with the same payload, of one or several routes."""
        return self._settled(self._decoded(key, schema.payload, new_field, records, schema), records)

    def new_fields(
        self, key: Hashable, schema: RouteSchema, new_field: NewField, values: pa.BinaryArray, owner: np.ndarray
    ) -> dict[int, Structure] | None:
        """New fields by owner of good values, which were decoded together; None if the format cannot tell them."""
        decoder = self.branch.decoder(key, schema.payload, new_field, schema)
        return decoder.new_fields(values, owner) if isinstance(decoder, NewFieldFinder) else None

    def infer(self, route: str, records: pa.Table) -> Structure | None:
        """Infer the schema of records."""
        if self.branch.spec.source_kind in REJECTING_SOURCES:
            rejects = source_rejects(records)
            records = take(records, remaining_positions(len(records), rejects.columns.index))
        if self.branch.explode is None:
            return _decode(self.branch.decoder(f"{route}?", pa.schema([]), "evolve"), records).unknown
        # A cached decoder remembers earlier types: elements that conflicted before may now agree.
        fresh = self.branch.fresh_decoder(pa.schema([]), "evolve")
        return exploding.show_elements(self.branch.explode, _decode(fresh, records).unknown)

    def wider(self, route: str, schema: RouteSchema, records: pa.Table, rejects: Rejects) -> Structure | None:
        """Wider types that rejected values require; partition columns are not widened."""
        contract, renamed = self.branch.rules(route).contract, self.branch.transform.renamed
        if not contract.widens or not len(misfits := rejects.among(MISFITS)):
            return None
        explode = self.branch.explode

        def stays(name: str) -> bool:
            return renamed(name) in schema.partition_by or contract.wrong_type_of(name) != "widen"

        # The fields of elements are widened together or not at all.
        fixed = [item.name for item in schema.payload if any(map(stays, exploding.column_names(explode, item)))]
        values = values_of(records).take(pa.array(misfits))
        topics = _topics_of(records).take(pa.array(misfits))

        def decode(payload: pa.Schema, new_field: NewField, values: pa.BinaryArray) -> Decoded:
            key = (new_field, payload.serialize().to_pybytes())
            decoder = self.branch.decoder(key, payload, new_field, schema)
            if isinstance(decoder, TopicDecoder):
                return decoder.decode_of_topics(values, topics)
            return decoder.decode(values)

        wider_types = widened_types(schema.payload, self.branch.new_field(route, schema), values, decode, fixed)
        return wider_types if explode is None else exploding.show_elements(explode, wider_types)

    def decode_predicted(self, schema: RouteSchema, records: pa.Table) -> Decoded:
        """Decode records with a predicted schema."""
        key = schema.payload.serialize().to_pybytes()
        decoded = self.together(key, schema, "evolve", records)
        return decoded if self.branch.explode is None else self._exploded(self.branch.explode, decoded, records)

    def _decoded(
        self, key: Hashable, payload: pa.Schema, new_field: NewField, records: pa.Table, schema: RouteSchema
    ) -> Decoded:
        """Decode records, or only the rejects of the cached result of another branch."""
        decoder = self.branch.decoder(key, payload, new_field, schema)
        cached = self.shared.find(records, payload, self.branch.explode)
        if cached is None:
            decoded = self._decode(decoder, records)
            self.shared.keep(records, payload, decoded)
            return decoded
        return (
            merge_cached(cached, self._decode(decoder, records.take(pa.array(cached.rejects.columns.index))))
            if len(cached.rejects)
            else cached
        )

    def _decode(self, decoder: Decoder, records: pa.Table) -> Decoded:
        """Decode the records that the source has not rejected."""
        if self.branch.spec.source_kind not in REJECTING_SOURCES or not len(rejects := source_rejects(records)):
            return decode_records(decoder, records)
        positions = np.delete(np.arange(len(records)), rejects.columns.index)
        decoded = decode_records(decoder, take(records, positions))
        rejects.join(decoded.rejects, positions)
        return replace(decoded, index=pa.array(positions[decoded.index.to_numpy()]), rejects=rejects.in_order())

    # ---- tombstones ----

    def tombstones(self, rejects: Rejects, records: pa.Table) -> tuple[Rejects, list[int]]:
        """Rejects without tombstones, and the positions of tombstones; skipped ones are counted as filtered."""
        answer = self.branch.spec.tombstone
        if answer == "dead_letter" or not rejects.has(Reason.TOMBSTONE):
            return rejects, []
        nulls: list[int] = rejects.among([Reason.TOMBSTONE]).tolist()
        if answer == "skip":
            self.builder.record_outcomes.are_filtered(records, nulls)
        return rejects.without(Reason.TOMBSTONE), nulls

    def _settled(self, decoded: Decoded, records: pa.Table) -> Decoded:
        if self.branch.spec.decode.options.many:
            self._count_empty(decoded, records)
        rejects, nulls = self.tombstones(decoded.rejects, records)
        if not nulls or self.branch.spec.tombstone == "skip":
            return replace(decoded, rejects=rejects)
        rows, index = insert_null_rows(decoded.rows, decoded.index.to_numpy(), nulls)
        return replace(decoded, rows=rows, index=pa.array(index), rejects=rejects)

    def _count_empty(self, decoded: Decoded, records: pa.Table) -> None:
        """Count records without rows as filtered."""
        with_outcome = np.concatenate([decoded.index.to_numpy(), decoded.rejects.columns.index])
        self.builder.record_outcomes.are_filtered(records, np.setdiff1d(np.arange(len(records)), with_outcome))

    # ---- several rows per record ----

    def _light(self, decoded: Decoded, records: pa.Table) -> Decoded:
        """Reject records whose rows would repeat too many bytes of the record."""
        if not self.branch.many or not self.branch.copied_columns:
            return decoded
        repeated = self._copied_bytes(records)[decoded.index.to_numpy()]
        return exploding.reject_repeating(decoded, np.ones_like(repeated), repeated, self.branch.limits.repeated_bytes)

    def _copied_bytes(self, records: pa.Table) -> np.ndarray:
        """Bytes of each record that expressions copy to each of its rows."""
        sizes = (row_bytes(records[name]) for name in self.branch.copied_columns)
        return sum(sizes, np.zeros(len(records), np.int64))

    def _listed(
        self, explode: Explode, route: str, schema: RouteSchema, new_field: NewField, records: pa.Table
    ) -> Decoded:
        """Decode records with their array; other fields are added to the payload, which speeds up decoding."""
        is_known = route in self.branch.strange
        other_fields = self.branch.strange.setdefault(route, set())
        if new_field == "rescue" and not is_known and len(records) > _SAMPLE:
            self._listed(explode, route, schema, new_field, records.slice(0, _SAMPLE))
        payload = exploding.with_skipped_fields(exploding.with_array_text(explode, schema.payload), other_fields)

        def decode(payload: pa.Schema, new_field: NewField) -> Decoded:
            return self._decoded((new_field, payload.serialize().to_pybytes()), payload, new_field, records, schema)

        full = new_field == "evolve" and schema.room == 0
        decoded, more = list_column(explode, payload, "reject" if full else new_field, decode, full=full)
        if full:
            decoded = replace(decoded, rejects=_without_room(decoded.rejects))
        other_fields.update(sorted(more)[: max(0, _MAX_OTHER_FIELDS - len(other_fields))])
        return decoded

    def _exploded(self, explode: Explode, decoded: Decoded, records: pa.Table) -> Decoded:
        record = bool(self.branch.transform.queries())
        rows, empty = exploding.explode_records(
            explode, decoded, self.branch.limits, self._copied_bytes(records), record=record
        )
        self.builder.record_outcomes.are_filtered(records, empty)
        return rows


def decode_records(decoder: Decoder, records: pa.Table) -> Decoded:
    """Decode records; columns that come from the record itself are filled."""
    decoded = _decode(decoder, records)
    for column, source in fills_of(decoder).items():
        if column in decoded.rows.column_names:
            decoded = replace(decoded, rows=fill_columns(decoded.rows, column, records[source].take(decoded.index)))
    return decoded


def _decode(decoder: Decoder, records: pa.Table) -> Decoded:
    values = values_of(records)
    if isinstance(decoder, TopicDecoder):
        return decoder.decode_of_topics(values, _topics_of(records))
    return decoder.decode(values)


def _topics_of(records: pa.Table) -> pa.StringArray:
    topics = records.column("topic")
    return topics.chunk(0) if topics.num_chunks == 1 else pa.concat_arrays([*topics.chunks, pa.array([], topics.type)])


def list_column(
    explode: Explode,
    payload: pa.Schema,
    new_field: NewField,
    ask: Callable[[pa.Schema, NewField], Decoded],
    *,
    full: bool = False,
) -> tuple[Decoded, set[exploding.FieldPath]]:
    """Records with their list, and the ways to all else that they hold: nothing to the table, whatever its contract.

    Where new fields are rejected, `ask` first decodes without them, to see whether the elements have any at all. With
    `full` they are rejected only if they would be columns: a field that is null or empty is none.
    """
    rejects = new_field in ("reject", "stop")
    asked: NewField = "evolve" if full else "ignore" if rejects else new_field
    decoded = ask(payload, asked)
    unknown, more = exploding.show_elements(explode, decoded.unknown), exploding.other_fields(explode, decoded.unknown)
    if asked in ("ignore", "rescue"):
        more |= exploding.ignored_paths(explode, decoded.ignored)
    if unknown is not None and not exploding.added_columns(explode, payload, unknown):
        unknown = None
    has_new = unknown is not None or exploding.own_names(explode, decoded.ignored) or UNTOLD in decoded.ignored
    if rejects and has_new:
        strict = exploding.only_elements(explode, exploding.with_skipped_fields(payload, more))
        decoded, unknown = ask(strict, new_field), None
    return replace(decoded, unknown=unknown, ignored=exploding.own_names(explode, decoded.ignored)), more


def _without_room(rejects: Rejects) -> Rejects:
    """Rejects for new fields, with the column limit as the reason."""
    renamed = Rejects()
    for position, reason, detail in rejects:
        if reason is Reason.NEW_FIELD:
            name = detail.partition(": ")[0]
            reason, detail = Reason.TOO_WIDE, f"{name}: column limit reached (limits.new_columns, limits.columns)"
        renamed.add(position, reason, detail)
    return renamed


def predict_payload(branch: CompiledBranch, route: str, schema: RouteSchema, registered: Registered) -> Decoded:
    """Predicted result for a record with a registered schema."""

    def decode(payload: pa.Schema, new_field: NewField) -> Decoded:
        decoder = branch.fresh_decoder(payload, new_field)
        assert isinstance(decoder, SchemaPredictor)  # noqa: S101
        return decoder.predict(registered)[1]

    new_field = branch.rules(route).contract.new_field
    if branch.explode is None:
        return decode(schema.payload, new_field)
    return list_column(branch.explode, schema.payload, new_field, decode)[0]
