"""Apply a branch to a batch of records: route, decode, transform, conform to the table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Decoded, Rejects, TypedDecoder
from headrace.decode.inference import Structure
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.decode.sizes import check_rows
from headrace.errors import HeadraceError, UsageError
from headrace.plan import outcomes
from headrace.plan import routing as route
from headrace.plan.arrow import append_null_columns, piece, remaining_positions, shared_records, spans, take, values_of
from headrace.plan.batch_result import ResultBuilder
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.changes import deletes_by_key, fit_changes
from headrace.plan.conform import fit
from headrace.plan.decoding import BranchDecoding
from headrace.plan.expectations import apply_expectations
from headrace.plan.rejects import enforce_contract
from headrace.plan.route_schema import RouteSchema, column_mismatch, predict_schema
from headrace.plan.unknown_names import unknown_names
from headrace.reasons import Reason
from headrace.spec import TableSpec
from headrace.transform.steps import Transformed, evaluate_expression

# Arrow tables without a column have no row count, so rows always have this one; Delta column names have no blank.
ROW = "a row"
_NO_POSITIONS = pa.array([], pa.int64())


class BranchRun:
    """Application of a branch to a batch; adds rows and dead letters to the result builder."""

    def __init__(self, branch: CompiledBranch, records: pa.Table, builder: ResultBuilder) -> None:
        self.branch, self.records, self.builder = branch, records, builder
        self.reading = BranchDecoding(branch, builder)
        self.record_outcomes = builder.record_outcomes

    def run(self) -> None:
        """Route records before decoding, because each route has its own columns; SQL routes are evaluated after it."""
        routing = self.branch.routing
        if routing.by in ("fixed", "sql"):
            self._one_route(EVERY if routing.by == "sql" else "", self.records)
            return
        records, peeked = self.records, None
        if routing.by in ("field", "type"):
            records, peeked = self._peek()
        routed = route.routes(routing, records, peeked)
        self.record_outcomes.are_filtered(records, routed.filtered.to_numpy())
        self._reject(records, routed.rejects, "route", self.branch.unrouted)
        self._by_group(records, route.split_by_route(routed.values))

    # ---- routing before decoding ----

    def _peek(self) -> tuple[pa.Table, pa.StringArray]:
        """Value of the routing field, or the type name, of each record, without decoding its columns."""
        values, decoder = values_of(self.records), self.branch.decoder("", pa.schema([]), "ignore")
        if self.branch.routing.by == "type":
            assert isinstance(decoder, TypedDecoder)  # noqa: S101 - checked by the rules of the spec
            peeked, rejects = decoder.types(values)
        else:
            peeked, rejects = decoder.peek(values, self.branch.routing.value or "")
        rejects, nulls = self.reading.tombstones(rejects, self.records)
        self._reject(self.records, rejects, "decode", self.branch.unrouted)
        skipped = nulls if self.branch.spec.tombstone == "skip" else []
        keep = remaining_positions(len(values), np.append(rejects.columns.index, skipped).astype(np.int64))
        return take(self.records, keep), peeked if keep is None else peeked.take(keep)

    def _by_group(self, records: pa.Table, parts: Mapping[str, pa.Int64Array]) -> None:
        """Decode routes with the same payload together: decoding few records costs nearly as much as many."""
        groups: dict[Hashable, list[str]] = {}
        for name in parts:
            self.branch.assume(name)
            if name in self.branch.assumed:
                self.builder.assumed.add(self.branch.route_id(name))
            groups.setdefault(self._group_key(name), []).append(name)
        records, at = _ordered(records, [parts[name] for names in groups.values() for name in names]), 0
        for group, names in groups.items():
            counts = [len(parts[name]) for name in names]
            group_records = piece(records, at, sum(counts))
            at += sum(counts)
            if len(names) > 1 and group not in self.branch.apart:
                if self._together(group, group_records, names, np.repeat(np.arange(len(names)), counts)):
                    continue
                self.branch.apart.add(group)  # not tried again: such a group usually keeps ignoring fields
            for name, start, count in zip(names, accumulate(counts, initial=0), counts, strict=False):
                self._one_route(name, piece(group_records, start, count))

    def _group_key(self, name: str) -> Hashable:
        """Key that routes decoded together have in common; new, rejected or merged routes are decoded alone."""
        schema = self.branch.schemas.get(name)
        rules = self.branch.rules(name)
        if schema is None or schema.floors or self.branch.many or rules.contract.widens or rules.merges:
            return name
        payload, targets = (each.serialize().to_pybytes() for each in (schema.payload, schema.targets))
        return payload, targets, schema.absent, self.branch.new_field(name, schema), schema.room

    # ---- several routes at once ----

    def _together(self, group: Hashable, records: pa.Table, names: list[str], owner: np.ndarray) -> bool:
        """Decode and transform several routes together; False if new fields must be attributed to a route.

        The records are ordered by route; `owner` has the position of its route in `names`.
        """
        schema = self._schema(names[0])
        new_field = self.branch.new_field(names[0], schema)
        decoded = self.reading.together(group, schema, new_field, records)
        index = decoded.index.to_numpy()
        if decoded.ignored:
            return False
        if decoded.unknown:
            values = values_of(take(records, index))
            structures = self.reading.new_fields(group, schema, new_field, values, owner[index])
            if structures is None:
                return False
            for number, structure in structures.items():
                self._report_new(names[number], structure, records)
        self._reject_each(records, decoded.rejects, "decode", names, owner)
        if not self.builder.discovered:
            self._transform_each(schema, decoded.rows, take(records, index), names, owner[index])
        return True

    def _transform_each(
        self, schema: RouteSchema, rows: pa.Table, records: pa.Table, names: list[str], owner: np.ndarray
    ) -> None:
        self._check_names(names, rows)
        transformed = self._stepped(schema, rows, records)
        self._reject_each(records, transformed.rejects, "transform", names, owner)
        records, owner = take(records, transformed.index), owner[transformed.index.to_numpy()]
        if self._fit_alike(names):
            self._fit_each(self._schema(names[0]), transformed.rows, records, names, owner)
            return
        for number, span in spans(owner):
            self._fit(names[number], self._schema(names[number]), transformed.rows.slice(*span), records.slice(*span))

    def _fit_alike(self, names: list[str]) -> bool:
        """Whether the tables of the routes have the same columns, and no expectations."""
        first, *others = (self._schema(name) for name in names)
        expected = (first.table, first.partition_by, first.derived, first.constraints)
        same = all(
            (route_schema.table, route_schema.partition_by, route_schema.derived, route_schema.constraints) == expected
            for route_schema in others
        )
        return same and not any(self.branch.rules(name).expectations for name in names)

    def _fit_each(
        self, schema: RouteSchema, rows: pa.Table, records: pa.Table, names: list[str], owner: np.ndarray
    ) -> None:
        table, keep, rejects = fit(rows, records, schema)
        self._reject_each(records, rejects, "stage", names, owner)
        records, owner = take(records, keep), owner if keep is None else owner[keep.to_numpy()]
        for number, span in spans(owner):
            self.builder.add(self.branch.route_id(names[number]), table.slice(*span), records.slice(*span))

    def _reject_each(self, records: pa.Table, rejects: Rejects, step: str, names: list[str], owner: np.ndarray) -> None:
        for number, (start, count) in spans(owner[rejects.columns.index]):
            route_rejects = rejects.at(np.arange(start, start + count))
            rules = self.branch.rules(names[number]) if step != "transform" else None
            self._reject(records, route_rejects, step, self._schema(names[number]).uri, rules)

    def _schema(self, name: str) -> RouteSchema:
        schema = self.branch.schemas[name]
        assert schema is not None  # noqa: S101
        return schema

    # ---- one route ----

    def _one_route(self, name: str, records: pa.Table) -> None:
        if name not in self.branch.schemas:
            self._report_new(name, self.reading.infer(name, records) or {}, records)
            return
        schema = self.branch.schemas[name]
        if schema is None:
            self._reject_table(records, name)
            return
        records = self._skip_present(records, schema)
        if self._meets_elements(name, schema, records):
            return
        decoded = self._delete_by_key(name, schema, records, self.reading.read(name, schema, records))
        unknown = decoded.unknown
        if wider := self.reading.wider(name, schema, records, decoded.rejects):
            unknown = merge_structures(unknown or {}, wider)
        if unknown:
            self._report_new(name, unknown, records)
        self.builder.ignore(schema.uri, decoded.ignored)
        self._reject(records, decoded.rejects, "decode", self._uri(name, schema), self.branch.rules(name))
        if self.branch.explode is not None and len(decoded.rejects) < len(records):
            self._check_names([name], records)  # a missing array produces no rows, but must be reported
        if not self.builder.discovered:
            self._transform(name, schema, decoded.rows, self._of_rows(records, decoded.index))

    def _delete_by_key(self, name: str, schema: RouteSchema, records: pa.Table, decoded: Decoded) -> Decoded:
        """Delete by record key for tombstones, if the table is merged and `tombstone` is not set.

        Not for SCD2: a tombstone has no sequence value.
        """
        merge, decode = self.branch.rules(name).merges, self.branch.spec.decode
        if merge is None or merge.scd2 or name == EVERY or decode.tombstone:
            return decoded
        if not decoded.rejects.has(Reason.TOMBSTONE):
            return decoded
        tombstones = records.take(pa.array(decoded.rejects.among([Reason.TOMBSTONE])))
        table, index, rejects = deletes_by_key(tombstones, schema, merge, decode.options)
        self._reject(tombstones, rejects, "decode", schema.uri)
        self.builder.add(self.branch.route_id(name), table, tombstones.take(index))
        return replace(decoded, rejects=decoded.rejects.without(Reason.TOMBSTONE))

    def _meets_elements(self, name: str, schema: RouteSchema, records: pa.Table) -> bool:
        """Whether records are the first to show the element type of the exploded array."""
        explode = self.branch.explode
        if explode is None or explode.column in schema.payload.names or not schema.room:
            return False
        inferred = self.reading.infer(name, records)
        if inferred is None or explode.column not in inferred["fields"]:
            return False
        self._report_new(name, inferred, records)
        return True

    def _uri(self, name: str, schema: RouteSchema) -> str | None:
        """Table of a record; an SQL route selects it after the transform."""
        return self.branch.unrouted if name == EVERY else schema.uri

    def _of_rows(self, records: pa.Table, index: pa.Int64Array) -> pa.Table:
        """Record of each row; rows of the same record share it."""
        return shared_records(records, index) if self.branch.many else take(records, index)

    def _report_new(self, name: str, structure: Structure, records: pa.Table) -> None:
        """Report a new route or new fields; the driver responds with a schema."""
        self.builder.discovered[self.branch.route_id(name)] = structure
        if name == EVERY:
            self._predict_tables(structure, records)

    def _predict_tables(self, structure: Structure, records: pa.Table) -> None:
        """Predict the tables that an SQL route selects with the new fields, so that one response covers both.

        Other tasks may see other types and select another table; unused predictions are discarded.
        """
        prediction = BranchRun(self.branch, records, self.builder.blank())
        with suppress(HeadraceError):  # a real error is raised again when the batch is applied
            schema = predict_schema(
                self.branch.schemas.get(EVERY), structure, self.branch.transform, self.branch.explode
            )
            decoded = prediction.reading.decode_predicted(schema, records)
            prediction._transform(EVERY, schema, decoded.rows, prediction._of_rows(records, decoded.index))
        for name in prediction.builder.discovered:
            self.builder.discovered.setdefault(name, {})

    def _reject_table(self, records: pa.Table, name: str) -> None:
        limits = self.branch.spec.limits
        detail = (
            f"table '{name}' exceeds the limit of {limits.tables} tables, or of {limits.new_tables} "
            "new tables per batch"
        )
        rejects = Rejects()
        rejects.add_all(np.arange(len(records)), Reason.TOO_MANY_TABLES, detail)
        self._reject(records, rejects, "route", self.branch.uri(name))

    def _skip_present(self, records: pa.Table, schema: RouteSchema) -> pa.Table:
        """Remove records that the table already has, according to its txn."""
        if not schema.floors:
            return records
        present = np.zeros(len(records), bool)
        topics, partitions = records.column("topic"), records.column("partition")
        for (topic, partition), last_offset in schema.floors.items():
            same = pc.and_(pc.equal(topics, topic), pc.equal(partitions, partition))
            until = pc.less_equal(records.column("offset"), last_offset)
            present |= pc.and_(same, until).to_numpy()
        self.record_outcomes.are_present(records, present)
        return records.filter(pa.array(~present))

    # ---- transform and SQL routes ----

    def _check_names(self, names: Iterable[str], rows: pa.Table) -> None:
        """Report names in the spec that rows of these routes do not have."""
        for name in names if self.branch.checks_names and len(rows) else ():
            unknown = unknown_names(self.branch, name, self._schema(name), self.records, rows)
            earlier = self.builder.unknown.get(self.branch.route_id(name))
            self.builder.unknown[self.branch.route_id(name)] = unknown if earlier is None else unknown & earlier

    def _transform(self, name: str, schema: RouteSchema, rows: pa.Table, records: pa.Table) -> None:
        if schema is self.branch.schemas.get(name):
            self._check_names([name], rows)
        transformed = self._stepped(schema, rows, records)
        rejected = self._reject(records, transformed.rejects, "transform", self._uri(name, schema))
        rows, records = self._whole(transformed.rows, take(records, transformed.index), rejected)
        if name != EVERY:
            self._fit(name, schema, rows, records)
            return
        for target, part, part_records in self._by_sql(rows, records):
            self._into(target, part, part_records)

    def _stepped(self, schema: RouteSchema, rows: pa.Table, records: pa.Table) -> Transformed:
        inputs = append_null_columns(rows, (*schema.absent, ROW), len(records))
        transformed = self.branch.transform.apply(inputs, records, self.builder.now, schema.targets)
        self.record_outcomes.are_filtered(records, transformed.filtered.to_numpy())
        check_rows(transformed.rows, outcomes.record_numbers(records))
        return transformed

    def _by_sql(self, rows: pa.Table, records: pa.Table) -> list[tuple[str, pa.Table, pa.Table]]:
        """Evaluate the SQL route over the transformed rows; a record without a route has no rows."""
        try:
            names, rejects = evaluate_expression(self.branch.routing.value or "", rows, records, self.builder.now)
        except UsageError as error:
            raise column_mismatch(f"{self.branch.spec.table.path}, route.by.sql", error) from None
        rejected = self._reject(records, rejects, "route", self.branch.unrouted)
        if (keep := remaining_positions(len(rows), rejects.columns.index)) is not None:
            keep = outcomes.without_rejects(records, rejected) if self.branch.many else keep
            rows, records, names = rows.take(keep), records.take(keep), names.take(keep)
        routed = route.routes(self.branch.routing, records, names)
        self.record_outcomes.are_filtered(records, routed.filtered.to_numpy())
        rejected = self._reject(records, routed.rejects, "route", self.branch.unrouted)
        parts = route.split_by_route(routed.values).items()
        return [(name, *self._whole(take(rows, at), take(records, at), rejected)) for name, at in parts]

    def _into(self, name: str, rows: pa.Table, records: pa.Table) -> None:
        if name not in self.branch.schemas:
            self.builder.discovered.setdefault(self.branch.route_id(name), {})
            return
        schema = self.branch.schemas[name]
        if schema is None:
            self._reject_table(records, name)
            return
        self._check_names([name], rows)
        self._fit(name, schema, rows, records)

    # ---- rows and dead letters ----

    def _fit(self, name: str, schema: RouteSchema, rows: pa.Table, records: pa.Table) -> None:
        rules = self.branch.rules(name)
        if rules.expectations:
            rows, records = self._expect(schema.uri, rules, rows, records)
        if rules.merges is None:
            table, keep, rejects = fit(rows, records, schema)
            kept_records = take(records, keep)
        else:
            table, index, rejects = fit_changes(rows, records, schema, rules.merges, self.builder.now)
            kept_records = records.take(index)
        rejected = self._reject(records, rejects, "stage", schema.uri, rules)
        table, records = self._whole(table, kept_records, rejected)
        self.builder.add(self.branch.route_id(name), table, records)

    def _expect(self, uri: str, rules: TableSpec, rows: pa.Table, records: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Apply expectations; returns the remaining rows."""
        result = apply_expectations(rules.expectations, rows, records, self.builder.now, uri)
        self.builder.miss(uri, result.violations)
        self.record_outcomes.are_filtered(records, result.dropped)
        rejected = self._reject(records, result.rejects, "expect", uri)
        keep = pa.array(np.flatnonzero(result.keep))
        return self._whole(take(rows, keep), take(records, keep), rejected)

    def _whole(self, rows: pa.Table, records: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Remove all rows of rejected records: a record is written completely or not at all."""
        return outcomes.without_records(rows, records, rejected) if self.branch.many else (rows, records)

    def _reject(
        self, records: pa.Table, rejects: Rejects, step: str, table: str | None, rules: TableSpec | None = None
    ) -> pa.Table:
        """Add one dead letter per record; returns the rejected records."""
        if not len(rejects):
            return records.slice(0, 0)
        if self.branch.many:
            rejects = outcomes.first_rejects(records, rejects)
        if rules is not None:
            enforce_contract(rejects, rules, table or "")
        return self.builder.reject(self.branch.spec, records, rejects, step, table)


def _ordered(records: pa.Table, parts: list[pa.Int64Array]) -> pa.Table:
    """Records ordered by part, so that each part is a slice: `take` of a chunked column copies all of it every time."""
    return take(records, parts[0]) if len(parts) == 1 else records.take(pa.concat_arrays([*parts, _NO_POSITIONS]))
