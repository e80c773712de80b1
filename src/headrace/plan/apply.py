"""Apply a branch to a batch of records: route, decode, transform, conform to the table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

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
from headrace.plan.arrow import append_null_columns, remaining_positions, shared_records, spans, take, values_of
from headrace.plan.batch_result import ResultBuilder
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.changes import deletes_by_key, fit_changes
from headrace.plan.conform import fit
from headrace.plan.decoding import BranchDecoding
from headrace.plan.expectations import apply_expectations
from headrace.plan.rejects import enforce_contract
from headrace.plan.route_schema import RouteSchema, columns_disagree, predict_schema
from headrace.plan.unknown_names import unknown_names
from headrace.reasons import Reason
from headrace.spec import TableSpec
from headrace.transform.steps import Transformed, evaluate_expression

# Arrow tables without a column have no row count, so rows always have this one; Delta column names have no blank.
ROW = "a row"


class BranchRun:
    """Application of a branch to a batch; adds rows and dead letters to the result builder."""

    def __init__(self, branch: CompiledBranch, envelopes: pa.Table, builder: ResultBuilder) -> None:
        self.branch, self.envelopes, self.builder = branch, envelopes, builder
        self.reading = BranchDecoding(branch, builder)
        self.record_outcomes = builder.record_outcomes

    def run(self) -> None:
        """Route records before decoding, because each route has its own columns; SQL routes are evaluated after it."""
        routing = self.branch.routing
        if routing.by in ("fixed", "sql"):
            self._one_type(EVERY if routing.by == "sql" else "", self.envelopes)
            return
        envelopes, peeked = self.envelopes, None
        if routing.by in ("field", "type"):
            envelopes, peeked = self._peek()
        routed = route.routes(routing, envelopes, peeked)
        self.record_outcomes.are_filtered(envelopes, routed.filtered.to_numpy())
        self._reject(envelopes, routed.rejects, "route", self.branch.unrouted)
        self._by_way(envelopes, route.split_by_route(routed.values))

    # ---- routing before decoding ----

    def _peek(self) -> tuple[pa.Table, pa.StringArray]:
        """Value of the routing field, or the type name, of each record, without decoding its columns."""
        values, decoder = values_of(self.envelopes), self.branch.decoder("", pa.schema([]), "ignore")
        if self.branch.routing.by == "type":
            assert isinstance(decoder, TypedDecoder)  # noqa: S101 - checked by the rules of the spec
            peeked, rejects = decoder.types(values)
        else:
            peeked, rejects = decoder.peek(values, self.branch.routing.value or "")
        rejects, nulls = self.reading.tombstones(rejects, self.envelopes)
        self._reject(self.envelopes, rejects, "decode", self.branch.unrouted)
        skipped = nulls if self.branch.spec.tombstone == "skip" else []
        keep = remaining_positions(len(values), rejects.index + skipped)
        return take(self.envelopes, keep), peeked if keep is None else peeked.take(keep)

    def _by_way(self, envelopes: pa.Table, parts: Mapping[str, pa.Int64Array]) -> None:
        """Decode routes with the same payload together: decoding few records costs nearly as much as many."""
        ways: dict[Hashable, list[str]] = {}
        for name in parts:
            self.branch.assume(name)
            if name in self.branch.assumed:
                self.builder.assumed.add(self.branch.route_id(name))
            ways.setdefault(self._way(name), []).append(name)
        for way, names in ways.items():
            if len(names) > 1 and way not in self.branch.apart:
                if self._together(envelopes, {name: parts[name] for name in names}):
                    continue
                self.branch.apart.add(way)  # not tried again: such a group usually keeps ignoring fields
            for name in names:
                self._one_type(name, take(envelopes, parts[name]))

    def _way(self, name: str) -> Hashable:
        """Key that routes decoded together have in common; new, rejected or merged routes are decoded alone."""
        shape = self.branch.shapes.get(name)
        rules = self.branch.rules(name)
        if shape is None or shape.floors or self.branch.many or rules.contract.widens or rules.merges:
            return name
        payload, targets = (schema.serialize().to_pybytes() for schema in (shape.payload, shape.targets))
        return payload, targets, shape.absent, self.branch.new_field(name, shape), shape.room

    # ---- several routes at once ----

    def _together(self, envelopes: pa.Table, parts: Mapping[str, pa.Int64Array]) -> bool:
        """Decode and transform several routes together; False if new fields must be attributed to a route."""
        names, owner = list(parts), np.repeat(np.arange(len(parts)), [len(each) for each in parts.values()])
        envelopes = envelopes.take(pa.concat_arrays(parts.values()))  # ordered by route: each route is a slice
        shape = self._shape(names[0])
        found = self.reading.together(self._way(names[0]), shape, self.branch.new_field(names[0], shape), envelopes)
        if found.unknown or found.ignored:
            return False
        self._reject_each(envelopes, found.rejects, "decode", names, owner)
        if not self.builder.discovered:
            index = found.index.to_numpy()
            self._transform_each(shape, found.rows, take(envelopes, index), names, owner[index])
        return True

    def _transform_each(
        self, shape: RouteSchema, rows: pa.Table, envelopes: pa.Table, names: list[str], owner: np.ndarray
    ) -> None:
        self._check_names(names, rows)
        done = self._stepped(shape, rows, envelopes)
        self._reject_each(envelopes, done.rejects, "transform", names, owner)
        envelopes, owner = take(envelopes, done.index), owner[done.index.to_numpy()]
        if self._fit_alike(names):
            self._fit_each(self._shape(names[0]), done.rows, envelopes, names, owner)
            return
        for nth, at in spans(owner):
            self._fit(names[nth], self._shape(names[nth]), done.rows.slice(*at), envelopes.slice(*at))

    def _fit_alike(self, names: list[str]) -> bool:
        """Whether the tables of the routes have the same columns, and no expectations."""
        first, *others = (self._shape(name) for name in names)
        alike = (first.table, first.partition_by, first.derived, first.constraints)
        same = all((each.table, each.partition_by, each.derived, each.constraints) == alike for each in others)
        return same and not any(self.branch.rules(name).expectations for name in names)

    def _fit_each(
        self, shape: RouteSchema, rows: pa.Table, envelopes: pa.Table, names: list[str], owner: np.ndarray
    ) -> None:
        table, keep, rejects = fit(rows, envelopes, shape)
        self._reject_each(envelopes, rejects, "stage", names, owner)
        envelopes, owner = take(envelopes, keep), owner if keep is None else owner[keep.to_numpy()]
        for nth, at in spans(owner):
            self.builder.add(self.branch.route_id(names[nth]), table.slice(*at), envelopes.slice(*at))

    def _reject_each(
        self, envelopes: pa.Table, rejects: Rejects, step: str, names: list[str], owner: np.ndarray
    ) -> None:
        for nth, (start, count) in spans(owner[rejects.index]) if rejects.index else ():
            at = slice(start, start + count)
            theirs = Rejects(rejects.index[at], rejects.reason[at], rejects.detail[at])
            rules = self.branch.rules(names[nth]) if step != "transform" else None
            self._reject(envelopes, theirs, step, self._shape(names[nth]).uri, rules)

    def _shape(self, name: str) -> RouteSchema:
        shape = self.branch.shapes[name]
        assert shape is not None  # noqa: S101
        return shape

    # ---- one route ----

    def _one_type(self, name: str, envelopes: pa.Table) -> None:
        if name not in self.branch.shapes:
            self._note(name, self.reading.look(name, envelopes) or {}, envelopes)
            return
        shape = self.branch.shapes[name]
        if shape is None:
            self._refuse(envelopes, name)
            return
        envelopes = self._hold(envelopes, shape)
        if self._meets_elements(name, shape, envelopes):
            return
        found = self._delete_by_key(name, shape, envelopes, self.reading.read(name, shape, envelopes))
        unknown = found.unknown
        if asked := self.reading.wider(name, shape, envelopes, found.rejects):
            unknown = merge_structures(unknown or {}, asked)
        if unknown:
            self._note(name, unknown, envelopes)
        self.builder.ignore(shape.uri, found.ignored)
        self._reject(envelopes, found.rejects, "decode", self._uri(name, shape), self.branch.rules(name))
        if self.branch.explode is not None and len(found.rejects) < len(envelopes):
            self._check_names([name], envelopes)  # a missing array produces no rows, but must be reported
        if not self.builder.discovered:
            self._transform(name, shape, found.rows, self._of_rows(envelopes, found.index))

    def _delete_by_key(self, name: str, shape: RouteSchema, envelopes: pa.Table, found: Decoded) -> Decoded:
        """Delete by record key for tombstones, if the table is merged and `tombstone` is not set.

        Not for SCD2: a tombstone has no sequence value.
        """
        merge, decode = self.branch.rules(name).merges, self.branch.spec.decode
        if merge is None or merge.scd2 or name == EVERY or decode.tombstone:
            return found
        if Reason.TOMBSTONE not in found.rejects.reason:
            return found
        nulls = [at for at, reason, _ in found.rejects if reason is Reason.TOMBSTONE]
        theirs = envelopes.take(nulls)
        table, index, rejects = deletes_by_key(theirs, shape, merge, decode.options)
        self._reject(theirs, rejects, "decode", shape.uri)
        self.builder.add(self.branch.route_id(name), table, theirs.take(index))
        return replace(found, rejects=found.rejects.without(Reason.TOMBSTONE))

    def _meets_elements(self, name: str, shape: RouteSchema, envelopes: pa.Table) -> bool:
        """Whether records are the first to show the element type of the exploded array."""
        explode = self.branch.explode
        if explode is None or explode.column in shape.payload.names or not shape.room:
            return False
        found = self.reading.look(name, envelopes)
        if found is None or explode.column not in found["fields"]:
            return False
        self._note(name, found, envelopes)
        return True

    def _uri(self, name: str, shape: RouteSchema) -> str | None:
        """Table of a record; an SQL route selects it after the transform."""
        return self.branch.unrouted if name == EVERY else shape.uri

    def _of_rows(self, envelopes: pa.Table, index: pa.Int64Array) -> pa.Table:
        """Record of each row; rows of the same record share it."""
        return shared_records(envelopes, index) if self.branch.many else take(envelopes, index)

    def _note(self, name: str, structure: Structure, envelopes: pa.Table) -> None:
        """Report a new route or new fields; the driver responds with a schema."""
        self.builder.discovered[self.branch.route_id(name)] = structure
        if name == EVERY:
            self._foresee(structure, envelopes)

    def _foresee(self, structure: Structure, envelopes: pa.Table) -> None:
        """Predict the tables that an SQL route selects with the new fields, so that one response covers both.

        Other tasks may see other types and select another table; unused predictions are discarded.
        """
        trial = BranchRun(self.branch, envelopes, self.builder.blank())
        with suppress(HeadraceError):  # a real error is raised again when the batch is applied
            shape = predict_schema(self.branch.shapes.get(EVERY), structure, self.branch.transform, self.branch.explode)
            found = trial.reading.foresee(shape, envelopes)
            trial._transform(EVERY, shape, found.rows, trial._of_rows(envelopes, found.index))
        for name in trial.builder.discovered:
            self.builder.discovered.setdefault(name, {})

    def _refuse(self, envelopes: pa.Table, name: str) -> None:
        limits = self.branch.spec.limits
        detail = (
            f"table '{name}' exceeds the limit of {limits.tables} tables, or of {limits.new_tables} "
            "new tables per batch"
        )
        everyone = list(range(len(envelopes)))
        reasons = [Reason.TOO_MANY_TABLES] * len(everyone)
        rejects = Rejects(everyone, reasons, [detail] * len(everyone))
        self._reject(envelopes, rejects, "route", self.branch.uri(name))

    def _hold(self, envelopes: pa.Table, shape: RouteSchema) -> pa.Table:
        """Remove records that the table already has, according to its txn."""
        if not shape.floors:
            return envelopes
        there = np.zeros(len(envelopes), bool)
        topics, partitions = envelopes.column("topic"), envelopes.column("partition")
        for (topic, partition), floor in shape.floors.items():
            same = pc.and_(pc.equal(topics, topic), pc.equal(partitions, partition))
            below = pc.less_equal(envelopes.column("offset"), floor)
            there |= pc.and_(same, below).to_numpy()
        self.record_outcomes.are_present(envelopes, there)
        return envelopes.filter(pa.array(~there))

    # ---- transform and SQL routes ----

    def _check_names(self, names: Iterable[str], rows: pa.Table) -> None:
        """Report names in the spec that rows of these routes do not have."""
        for name in names if self.branch.checks_names and len(rows) else ():
            unknown = unknown_names(self.branch, name, self._shape(name), self.envelopes)
            known = self.builder.unknown.get(self.branch.route_id(name))
            self.builder.unknown[self.branch.route_id(name)] = unknown if known is None else unknown & known

    def _transform(self, name: str, shape: RouteSchema, rows: pa.Table, envelopes: pa.Table) -> None:
        if shape is self.branch.shapes.get(name):
            self._check_names([name], rows)
        done = self._stepped(shape, rows, envelopes)
        rejected = self._reject(envelopes, done.rejects, "transform", self._uri(name, shape))
        rows, envelopes = self._whole(done.rows, take(envelopes, done.index), rejected)
        if name != EVERY:
            self._fit(name, shape, rows, envelopes)
            return
        for target, part, theirs in self._by_sql(rows, envelopes):
            self._into(target, part, theirs)

    def _stepped(self, shape: RouteSchema, rows: pa.Table, envelopes: pa.Table) -> Transformed:
        given = append_null_columns(rows, (*shape.absent, ROW), len(envelopes))
        done = self.branch.transform.apply(given, envelopes, self.builder.now, shape.targets)
        self.record_outcomes.are_filtered(envelopes, done.filtered.to_numpy())
        check_rows(done.rows, outcomes.record_numbers(envelopes))
        return done

    def _by_sql(self, rows: pa.Table, envelopes: pa.Table) -> list[tuple[str, pa.Table, pa.Table]]:
        """Evaluate the SQL route over the transformed rows; a record without a route has no rows."""
        try:
            names, rejects = evaluate_expression(self.branch.routing.value or "", rows, envelopes, self.builder.now)
        except UsageError as error:
            raise columns_disagree(f"{self.branch.spec.table.path}, route.by.sql", error) from None
        rejected = self._reject(envelopes, rejects, "route", self.branch.unrouted)
        if (keep := remaining_positions(len(rows), rejects.index)) is not None:
            keep = outcomes.without_rejects(envelopes, rejected) if self.branch.many else keep
            rows, envelopes, names = rows.take(keep), envelopes.take(keep), names.take(keep)
        routed = route.routes(self.branch.routing, envelopes, names)
        self.record_outcomes.are_filtered(envelopes, routed.filtered.to_numpy())
        rejected = self._reject(envelopes, routed.rejects, "route", self.branch.unrouted)
        parts = route.split_by_route(routed.values).items()
        return [(each, *self._whole(take(rows, at), take(envelopes, at), rejected)) for each, at in parts]

    def _into(self, name: str, rows: pa.Table, envelopes: pa.Table) -> None:
        if name not in self.branch.shapes:
            self.builder.discovered.setdefault(self.branch.route_id(name), {})
            return
        shape = self.branch.shapes[name]
        if shape is None:
            self._refuse(envelopes, name)
            return
        self._check_names([name], rows)
        self._fit(name, shape, rows, envelopes)

    # ---- rows and dead letters ----

    def _fit(self, name: str, shape: RouteSchema, rows: pa.Table, envelopes: pa.Table) -> None:
        rules = self.branch.rules(name)
        if rules.expectations:
            rows, envelopes = self._expect(shape.uri, rules, rows, envelopes)
        if rules.merges is None:
            table, keep, rejects = fit(rows, envelopes, shape)
            kept = take(envelopes, keep)
        else:
            table, index, rejects = fit_changes(rows, envelopes, shape, rules.merges, self.builder.now)
            kept = envelopes.take(index)
        rejected = self._reject(envelopes, rejects, "stage", shape.uri, rules)
        table, envelopes = self._whole(table, kept, rejected)
        self.builder.add(self.branch.route_id(name), table, envelopes)

    def _expect(self, uri: str, rules: TableSpec, rows: pa.Table, envelopes: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Apply expectations; returns the remaining rows."""
        found = apply_expectations(rules.expectations, rows, envelopes, self.builder.now, uri)
        self.builder.miss(uri, found.violations)
        self.record_outcomes.are_filtered(envelopes, found.dropped)
        rejected = self._reject(envelopes, found.rejects, "expect", uri)
        keep = pa.array(np.flatnonzero(found.keep))
        return self._whole(take(rows, keep), take(envelopes, keep), rejected)

    def _whole(self, rows: pa.Table, envelopes: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Remove all rows of rejected records: a record is written completely or not at all."""
        return outcomes.without_records(rows, envelopes, rejected) if self.branch.many else (rows, envelopes)

    def _reject(
        self, envelopes: pa.Table, rejects: Rejects, step: str, table: str | None, rules: TableSpec | None = None
    ) -> pa.Table:
        """Add one dead letter per record; returns the rejected records."""
        if not rejects.index:
            return envelopes.slice(0, 0)
        if self.branch.many:
            rejects = outcomes.first_rejects(envelopes, rejects)
        if rules is not None:
            enforce_contract(rejects, rules, table or "")
        return self.builder.reject(envelopes, rejects, step, table)
