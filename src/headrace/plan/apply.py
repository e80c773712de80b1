"""One run of a branch over one batch of envelopes: route, read, transform, fit."""

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
from headrace.plan.arrow import lent, spans, take, values_of, with_nulls, without
from headrace.plan.batch_result import ResultBuilder
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.changes import deletes_by_key, fit_changes
from headrace.plan.conform import fit
from headrace.plan.decoding import BranchDecoding
from headrace.plan.expectations import apply_expectations
from headrace.plan.rejects import hold_to_contract
from headrace.plan.route_schema import RouteSchema, columns_disagree, predict_schema
from headrace.plan.unknown_names import unknown_names
from headrace.reasons import Reason
from headrace.spec import TableSpec
from headrace.transform.steps import Transformed, evaluate_expression

ROW = (
    "a row"  # Arrow counts no rows without a column, so each has this one (no column of a table: Delta takes no blank)
)


class BranchRun:
    """One branch and one batch; what comes of it goes into the gathering."""

    def __init__(self, branch: CompiledBranch, envelopes: pa.Table, gathering: ResultBuilder) -> None:
        self.branch, self.envelopes, self.gathering = branch, envelopes, gathering
        self.reading = BranchDecoding(branch, gathering)
        self.fates = gathering.fates

    def run(self) -> None:
        """The type of a record first, because each type has its own columns."""
        routing = self.branch.routing
        if routing.by in ("fixed", "sql"):
            self._one_type(EVERY if routing.by == "sql" else "", self.envelopes)
            return
        envelopes, peeked = self.envelopes, None
        if routing.by in ("field", "type"):
            envelopes, peeked = self._peek()
        routed = route.routes(routing, envelopes, peeked)
        self.fates.are_filtered(envelopes, routed.filtered.to_numpy())
        self._reject(envelopes, routed.rejects, "route", self.branch.unrouted)
        self._by_way(envelopes, route.split_by_route(routed.values))

    # ---- route, before anything is read ----

    def _peek(self) -> tuple[pa.Table, pa.StringArray]:
        """The field or the type that a record's route is, before any column is read."""
        values, decoder = values_of(self.envelopes), self.branch.decoder("", pa.schema([]), "ignore")
        if self.branch.routing.by == "type":
            assert isinstance(decoder, TypedDecoder)  # noqa: S101 - the spec's check has seen to it
            peeked, rejects = decoder.types(values)
        else:
            peeked, rejects = decoder.peek(values, self.branch.routing.value or "")
        rejects, nulls = self.reading.tombstones(rejects, self.envelopes)
        self._reject(self.envelopes, rejects, "decode", self.branch.unrouted)
        skipped = nulls if self.branch.spec.tombstone == "skip" else []
        keep = without(len(values), rejects.index + skipped)
        return take(self.envelopes, keep), peeked if keep is None else peeked.take(keep)

    def _by_way(self, envelopes: pa.Table, parts: Mapping[str, pa.Int64Array]) -> None:
        """Routes whose records are read alike are read together: to decode a few costs nearly what many do."""
        ways: dict[Hashable, list[str]] = {}
        for name in parts:
            self.branch.assume(name)
            if name in self.branch.assumed:
                self.gathering.assumed.add(self.branch.route_id(name))
            ways.setdefault(self._way(name), []).append(name)
        for way, names in ways.items():
            if len(names) > 1 and way not in self.branch.apart:
                if self._together(envelopes, {name: parts[name] for name in names}):
                    continue
                self.branch.apart.add(way)  # not tried again: what a way ignores, it mostly goes on ignoring
            for name in names:
                self._one_type(name, take(envelopes, parts[name]))

    def _way(self, name: str) -> Hashable:
        """What routes must have in common; one that is unknown, refused or held back is read alone."""
        shape = self.branch.shapes.get(name)
        rules = self.branch.rules(name)
        if shape is None or shape.floors or self.branch.many or rules.contract.widens or rules.merges:
            return name
        payload, targets = (schema.serialize().to_pybytes() for schema in (shape.payload, shape.targets))
        return payload, targets, shape.absent, self.branch.new_field(name, shape), shape.room

    # ---- several routes at once ----

    def _together(self, envelopes: pa.Table, parts: Mapping[str, pa.Int64Array]) -> bool:
        """Decode and transform several routes as one; False when their new fields must be told apart."""
        names, owner = list(parts), np.repeat(np.arange(len(parts)), [len(each) for each in parts.values()])
        envelopes = envelopes.take(pa.concat_arrays(parts.values()))  # route by route: each is a slice from here on
        shape = self._shape(names[0])
        found = self.reading.together(self._way(names[0]), shape, self.branch.new_field(names[0], shape), envelopes)
        if found.unknown or found.ignored:
            return False
        self._reject_each(envelopes, found.rejects, "decode", names, owner)
        if not self.gathering.discovered:
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
        """Whether the tables of routes that are read alike have the same columns, too, and expect nothing more."""
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
            self.gathering.add(self.branch.route_id(names[nth]), table.slice(*at), envelopes.slice(*at))

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
        self.gathering.ignore(shape.uri, found.ignored)
        self._reject(envelopes, found.rejects, "decode", self._uri(name, shape), self.branch.rules(name))
        if self.branch.explode is not None and len(found.rejects) < len(envelopes):
            self._check_names([name], envelopes)  # a list that no record has makes no row
        if not self.gathering.discovered:
            self._transform(name, shape, found.rows, self._of_rows(envelopes, found.index))

    def _delete_by_key(self, name: str, shape: RouteSchema, envelopes: pa.Table, found: Decoded) -> Decoded:
        """Null values delete by their key where the table merges and the spec does not say otherwise.

        Not from a history: they do not say when the row ended.
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
        self.gathering.add(self.branch.route_id(name), table, theirs.take(index))
        return replace(found, rejects=found.rejects.without(Reason.TOMBSTONE))

    def _meets_elements(self, name: str, shape: RouteSchema, envelopes: pa.Table) -> bool:
        """Whether records show for the first time what the elements are that a branch explodes."""
        explode = self.branch.explode
        if explode is None or explode.column in shape.payload.names or not shape.room:
            return False
        found = self.reading.look(name, envelopes)
        if found is None or explode.column not in found["fields"]:
            return False
        self._note(name, found, envelopes)
        return True

    def _uri(self, name: str, shape: RouteSchema) -> str | None:
        """The table that a record was meant for; an SQL route picks it only after decode and transform."""
        return self.branch.unrouted if name == EVERY else shape.uri

    def _of_rows(self, envelopes: pa.Table, index: pa.Int64Array) -> pa.Table:
        """The envelope of each row; a record with many rows lends its own to each."""
        return lent(envelopes, index) if self.branch.many else take(envelopes, index)

    def _note(self, name: str, structure: Structure, envelopes: pa.Table) -> None:
        """A route or a field nobody has met: say which fields its records bring; the driver answers with a shape."""
        self.gathering.discovered[self.branch.route_id(name)] = structure
        if name == EVERY:
            self._foresee(structure, envelopes)

    def _foresee(self, structure: Structure, envelopes: pa.Table) -> None:
        """Which tables an SQL route will ask for once the new fields are known, so that one answer serves for both.

        Others may see other types and then another table: what was foreseen in vain is forgotten again.
        """
        trial = BranchRun(self.branch, envelopes, self.gathering.blank())
        with suppress(HeadraceError):  # if it is more than a passing guess, the next run stops by it
            shape = predict_schema(self.branch.shapes.get(EVERY), structure, self.branch.transform, self.branch.explode)
            found = trial.reading.foresee(shape, envelopes)
            trial._transform(EVERY, shape, found.rows, trial._of_rows(envelopes, found.index))
        for name in trial.gathering.discovered:
            self.gathering.discovered.setdefault(name, {})

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
        """Leave out what the table's marks say it already has."""
        if not shape.floors:
            return envelopes
        there = np.zeros(len(envelopes), bool)
        topics, partitions = envelopes.column("topic"), envelopes.column("partition")
        for (topic, partition), floor in shape.floors.items():
            same = pc.and_(pc.equal(topics, topic), pc.equal(partitions, partition))
            below = pc.less_equal(envelopes.column("offset"), floor)
            there |= pc.and_(same, below).to_numpy()
        self.fates.are_present(envelopes, there)
        return envelopes.filter(pa.array(~there))

    # ---- transform, and the route that SQL picks ----

    def _check_names(self, names: Iterable[str], rows: pa.Table) -> None:
        """Report what the spec names and rows of these routes do not have."""
        for name in names if self.branch.checks_names and len(rows) else ():
            unknown = unknown_names(self.branch, name, self._shape(name), self.envelopes)
            known = self.gathering.unknown.get(self.branch.route_id(name))
            self.gathering.unknown[self.branch.route_id(name)] = unknown if known is None else unknown & known

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
        given = with_nulls(rows, (*shape.absent, ROW), len(envelopes))
        done = self.branch.transform.apply(given, envelopes, self.gathering.now, shape.targets)
        self.fates.are_filtered(envelopes, done.filtered.to_numpy())
        check_rows(done.rows, outcomes.records(envelopes))
        return done

    def _by_sql(self, rows: pa.Table, envelopes: pa.Table) -> list[tuple[str, pa.Table, pa.Table]]:
        """The table's name as an expression over the transformed row; a record that has none has no row anywhere."""
        try:
            names, rejects = evaluate_expression(self.branch.routing.value or "", rows, envelopes, self.gathering.now)
        except UsageError as error:
            raise columns_disagree(f"{self.branch.spec.table.path}, route.by.sql", error) from None
        rejected = self._reject(envelopes, rejects, "route", self.branch.unrouted)
        if (keep := without(len(rows), rejects.index)) is not None:
            keep = outcomes.others(envelopes, rejected) if self.branch.many else keep
            rows, envelopes, names = rows.take(keep), envelopes.take(keep), names.take(keep)
        routed = route.routes(self.branch.routing, envelopes, names)
        self.fates.are_filtered(envelopes, routed.filtered.to_numpy())
        rejected = self._reject(envelopes, routed.rejects, "route", self.branch.unrouted)
        parts = route.split_by_route(routed.values).items()
        return [(each, *self._whole(take(rows, at), take(envelopes, at), rejected)) for each, at in parts]

    def _into(self, name: str, rows: pa.Table, envelopes: pa.Table) -> None:
        if name not in self.branch.shapes:
            self.gathering.discovered.setdefault(self.branch.route_id(name), {})
            return
        shape = self.branch.shapes[name]
        if shape is None:
            self._refuse(envelopes, name)
            return
        self._check_names([name], rows)
        self._fit(name, shape, rows, envelopes)

    # ---- rows, or letters ----

    def _fit(self, name: str, shape: RouteSchema, rows: pa.Table, envelopes: pa.Table) -> None:
        rules = self.branch.rules(name)
        if rules.expectations:
            rows, envelopes = self._expect(shape.uri, rules, rows, envelopes)
        if rules.merges is None:
            table, keep, rejects = fit(rows, envelopes, shape)
            kept = take(envelopes, keep)
        else:
            table, index, rejects = fit_changes(rows, envelopes, shape, rules.merges, self.gathering.now)
            kept = envelopes.take(index)
        rejected = self._reject(envelopes, rejects, "stage", shape.uri, rules)
        table, envelopes = self._whole(table, kept, rejected)
        self.gathering.add(self.branch.route_id(name), table, envelopes)

    def _expect(self, uri: str, rules: TableSpec, rows: pa.Table, envelopes: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Rows without those that an expectation takes away."""
        found = apply_expectations(rules.expectations, rows, envelopes, self.gathering.now, uri)
        self.gathering.miss(uri, found.violations)
        self.fates.are_filtered(envelopes, found.dropped)
        rejected = self._reject(envelopes, found.rejects, "expect", uri)
        keep = pa.array(np.flatnonzero(found.keep))
        return self._whole(take(rows, keep), take(envelopes, keep), rejected)

    def _whole(self, rows: pa.Table, envelopes: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Where a record has many rows and one is rejected, its others of the table are not rows either."""
        return outcomes.without_records(rows, envelopes, rejected) if self.branch.many else (rows, envelopes)

    def _reject(
        self, envelopes: pa.Table, rejects: Rejects, step: str, table: str | None, rules: TableSpec | None = None
    ) -> pa.Table:
        """Write letters, one a record; the envelopes they are of."""
        if not rejects.index:
            return envelopes.slice(0, 0)
        if self.branch.many:
            rejects = outcomes.one_for_each(envelopes, rejects)
        if rules is not None:
            hold_to_contract(rejects, rules, table or "")
        return self.gathering.reject(envelopes, rejects, step, table)
