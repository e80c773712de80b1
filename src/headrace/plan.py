"""A spec compiled into a pure function over Arrow batches: route, decode, transform, fit. No Spark in here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import fates, route
from headrace.batch import Counts
from headrace.decode import Decoded, Limits, Rejects, decoder, fills_of
from headrace.decode.contract import NewField
from headrace.decode.framing import schema_ids
from headrace.decode.structure import Structure
from headrace.decode.structure import merge as merge_structures
from headrace.decode.widen import wider
from headrace.errors import ContractBroken, HeadraceError, UsageError
from headrace.expectations import judged
from headrace.fit import fit
from headrace.reasons import MISFITS, Reason
from headrace.shape import Shape, columns_disagree, foreseen, shape_of
from headrace.spec import Spec, TableSpec
from headrace.tables.schema import DEAD_LETTERS, ENVELOPE, RESCUED
from headrace.transform import LetterColumns, Transform, Transformed, evaluate

EVERY = "*"  # the one payload of a pipeline whose SQL route picks the table after the decode
ROW = (
    "a row"  # Arrow counts no rows without a column, so each has this one (no column of a table: Delta takes no blank)
)


@dataclass(frozen=True)
class Applied:
    """What a batch of envelopes becomes."""

    tables: Mapping[str, pa.Table]  # rows per route, each with its shape's table schema
    letters: pa.Table  # dead letters, in the columns of their table
    counts: Counts
    discovered: Mapping[str, Structure] = field(default_factory=dict)  # what no shape knows yet, per route
    origins: Mapping[str, np.ndarray] = field(default_factory=dict)  # per route, the record of each row, where traced
    dead: np.ndarray = field(default_factory=lambda: np.array([], np.int64))  # the record of each letter, where traced


class Plan:
    """The compiled spec. Give it shapes, or let it learn them from the first batch it sees."""

    def __init__(
        self,
        spec: Spec,
        shapes: Mapping[str, Shape | None] | None = None,
        *,
        existing: Mapping[str, pa.Schema] | None = None,
        traces: bool = False,  # whether rows and letters tell which record of the batch they are of
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.spec = spec
        self.transform = Transform(spec.steps())
        self.letter_columns = LetterColumns(
            (each.set or {}, each.jmespath or {}) for each in spec.dead_letters.transform
        )
        self.routing = spec.routing()
        self.limits = Limits(spec.limits.record_bytes, spec.limits.depth, spec.limits.keys, spec.limits.rows)
        self.many = spec.decode.options.many  # whether a record may have many rows
        self.shapes: dict[str, Shape | None] = dict(shapes or {})
        self.now = now
        self.traces = traces
        self._learns = shapes is None
        self._existing = dict(existing or {})
        self._learned: dict[str, Structure] = {}
        self._decoders: dict[Hashable, Any] = {}
        self.apart: set[Hashable] = set()  # ways whose routes cannot be read together

    def apply(self, envelopes: pa.Table | pa.RecordBatch) -> Applied:
        """Rows per route, dead letters, and the account of every record."""
        table = _as_envelopes(envelopes)
        applied = _Application(self, table).run()
        while applied.discovered and self._learns:
            self._learn(applied.discovered)
            applied = _Application(self, table).run()
        return applied

    def decoder(self, name: Hashable, payload: pa.Schema, new_field: NewField) -> Any:
        """One decoder per route or way, kept."""
        if name not in self._decoders:
            self._decoders[name] = decoder(
                self.spec.format, payload, new_field=new_field, limits=self.limits, options=self.spec.decode.options
            )
        return self._decoders[name]

    def _learn(self, discovered: Mapping[str, Structure]) -> None:
        for name, structure in discovered.items():
            known = self._learned.get(name)
            self._learned[name] = merge_structures(known, structure) if known else structure
        for name in self._learned if EVERY in self._learned else discovered:
            self._decoders.pop(name, None)
            self.shapes[name] = self._learned_shape(name)

    def _learned_shape(self, name: str) -> Shape:
        """From what the route's records have shown; tables of an SQL route have their columns in common."""
        route = "" if name == EVERY else name
        return shape_of(
            self.spec.uri_of(route),
            self.spec.table_for(route),
            self.transform,
            existing=self._existing.get(name),
            learned=self._learned.get(EVERY, self._learned[name]),
        )


class _Application:
    """One run of the plan over one batch of envelopes."""

    def __init__(self, plan: Plan, envelopes: pa.Table) -> None:
        self.plan = plan
        self.envelopes = fates.numbered(envelopes) if plan.many or plan.traces else envelopes
        self.fates = fates.Fates.of(self.envelopes) if plan.many else None
        self.origins: dict[str, list[np.ndarray]] = {}
        self.dead: list[np.ndarray] = []
        self.now = plan.now()
        self.tables: dict[str, list[pa.Table]] = {}
        self.letters: list[pa.Table] = []
        self.discovered: dict[str, Structure] = {}
        self.routed = self.filtered = self.held = 0
        self.reasons: dict[str, int] = {}
        self.ignored: dict[str, int] = {}
        self.unmet: dict[str, int] = {}
        self.rescued = 0

    def run(self) -> Applied:
        if len(self.envelopes):
            self._by_route()
        letters = pa.concat_tables(self.letters) if self.letters else DEAD_LETTERS.empty_table()
        letters = self.plan.letter_columns.add(letters, self.now)
        routed, dead, filtered = self._account(len(letters))
        counts = Counts(
            read=len(self.envelopes),
            routed=routed,
            dead=dead,
            filtered=filtered,
            held=self.held,
            value_bytes=self.envelopes.column("value").nbytes if len(self.envelopes) else 0,
            reasons=self.reasons,
            ignored=self.ignored,
            unmet=self.unmet,
            rescued=self.rescued,
        )
        tables = {name: pa.concat_tables(parts) for name, parts in self.tables.items()}
        origins = {name: np.concatenate(parts) for name, parts in self.origins.items()}
        rejected = np.concatenate(self.dead) if self.dead else np.array([], np.int64)
        return Applied(tables, letters, counts, self.discovered, origins, rejected)

    def _account(self, letters: int) -> tuple[int, int, int]:
        """Records routed, dead and filtered."""
        if self.fates is None:
            return self.routed, letters, self.filtered
        routed, dead = self.fates.routed, self.fates.dead
        return routed, dead, len(self.envelopes) - routed - dead - self.held

    def _by_route(self) -> None:
        """The type of a record first, because each type has its own columns."""
        routing = self.plan.routing
        if routing.by in ("fixed", "sql"):
            self._one_type(EVERY if routing.by == "sql" else "", self.envelopes)
            return
        envelopes, peeked = self.envelopes, None
        if routing.by in ("field", "type"):
            envelopes, peeked = self._peek()
        routed = route.routes(routing, envelopes, peeked)
        self.filtered += len(routed.filtered)
        self._reject(envelopes, routed.rejects, "route", None)
        self._by_way(envelopes, route.split(routed.values))

    def _peek(self) -> tuple[pa.Table, pa.StringArray]:
        """The field or the type that a record's route is, before any column is read."""
        values, decoder = _values(self.envelopes), self.plan.decoder("", pa.schema([]), "ignore")
        if self.plan.routing.by == "type":
            peeked, rejects = decoder.types(values)
        else:
            peeked, rejects = decoder.peek(values, self.plan.routing.value or "")
        rejects, nulls = self._tombstones(rejects)
        self._reject(self.envelopes, rejects, "decode", None)
        skipped = nulls if self.plan.spec.tombstone == "skip" else []
        keep = _without(len(values), rejects.index + skipped)
        return _take(self.envelopes, keep), peeked if keep is None else peeked.take(keep)

    def _by_way(self, envelopes: pa.Table, parts: Mapping[str, pa.Int64Array]) -> None:
        """Routes whose records are read alike are read together: to decode a few costs nearly what many do."""
        ways: dict[Hashable, list[str]] = {}
        for name in parts:
            ways.setdefault(self._way(name), []).append(name)
        for way, names in ways.items():
            if len(names) > 1 and way not in self.plan.apart:
                if self._together(envelopes, {name: parts[name] for name in names}):
                    continue
                self.plan.apart.add(way)  # not tried again: what a way ignores, it mostly goes on ignoring
            for name in names:
                self._one_type(name, _take(envelopes, parts[name]))

    def _way(self, name: str) -> Hashable:
        """What routes must have in common; one that is unknown, refused or held back is read alone."""
        shape = self.plan.shapes.get(name)
        if shape is None or shape.floors or self.plan.many or self._rules(name).contract.widens:
            return name
        payload, targets = (schema.serialize().to_pybytes() for schema in (shape.payload, shape.targets))
        return payload, targets, shape.absent, self._new_field(name, shape)

    def _new_field(self, name: str, shape: Shape) -> NewField:
        # A table whose records were all bad so far has no columns yet; to the contract none of them is new.
        return self._rules(name).contract.new_field if shape.knows_fields else "evolve"

    def _rules(self, name: str) -> TableSpec:
        return self.plan.spec.table_for("" if name == EVERY else name)

    def _together(self, envelopes: pa.Table, parts: Mapping[str, pa.Int64Array]) -> bool:
        """Decode and transform several routes as one; False when their new fields must be told apart."""
        names, owner = list(parts), np.full(len(envelopes), -1)
        for nth, index in enumerate(parts.values()):
            owner[index.to_numpy()] = nth
        at = np.flatnonzero(owner >= 0)
        envelopes, owner = _take(envelopes, at), owner[at]
        shape = self._shape(names[0])
        decoder = self.plan.decoder(self._way(names[0]), shape.payload, self._new_field(names[0], shape))
        found = self._decoded(decoder, envelopes)
        if found.unknown or found.ignored:
            return False
        found = self._settle_tombstones(found)
        self._reject_each(envelopes, found.rejects, "decode", names, owner)
        if not self.discovered:
            index = found.index.to_numpy()
            self._transform_each(shape, found.rows, _take(envelopes, index), names, owner[index])
        return True

    def _transform_each(
        self, shape: Shape, rows: pa.Table, envelopes: pa.Table, names: list[str], owner: np.ndarray
    ) -> None:
        done = self._stepped(shape, rows, envelopes)
        self._reject_each(envelopes, done.rejects, "transform", names, owner)
        envelopes, owner = _take(envelopes, done.index), owner[done.index.to_numpy()]
        for nth, index in _by_owner(owner):
            name = names[nth]
            self._fit(name, self._shape(name), self._rules(name), _take(done.rows, index), _take(envelopes, index))

    def _reject_each(
        self, envelopes: pa.Table, rejects: Rejects, step: str, names: list[str], owner: np.ndarray
    ) -> None:
        for nth, index in _by_owner(owner[rejects.index]) if rejects.index else ():
            theirs = Rejects(
                *([column[at] for at in index] for column in (rejects.index, rejects.reason, rejects.detail))
            )
            rules = self._rules(names[nth]) if step == "decode" else None
            self._reject(envelopes, theirs, step, self._shape(names[nth]).uri, rules)

    def _shape(self, name: str) -> Shape:
        shape = self.plan.shapes[name]
        assert shape is not None  # noqa: S101
        return shape

    def _one_type(self, name: str, envelopes: pa.Table) -> None:
        if name not in self.plan.shapes:
            self._discover(name, envelopes)
            return
        shape = self.plan.shapes[name]
        if shape is None:
            self._refuse(envelopes, name)
            return
        rules = self._rules(name)
        envelopes = self._hold(envelopes, shape)
        found = self._decoded(self.plan.decoder(name, shape.payload, self._new_field(name, shape)), envelopes)
        found = self._settle_tombstones(found)
        unknown = found.unknown
        if asked := self._wider(name, shape, envelopes, found.rejects):
            unknown = merge_structures(unknown or {}, asked)
        if unknown:
            self._note(name, unknown, envelopes)
        _count(self.ignored, shape.uri, found.ignored)
        self._reject(envelopes, found.rejects, "decode", _uri(name, shape), rules)
        if not self.discovered:
            self._transform(name, shape, rules, found.rows, self._of_rows(envelopes, found.index))

    def _wider(self, name: str, shape: Shape, envelopes: pa.Table, rejects: Rejects) -> Structure | None:
        """The wider types that values ask for which do not fit; a partition's column keeps its own."""
        misfits = [at for at, reason in zip(rejects.index, rejects.reason, strict=True) if reason in MISFITS]
        if not misfits or not self._rules(name).contract.widens:
            return None
        fixed = [item.name for item in shape.payload if self.plan.transform.renamed(item.name) in shape.partition_by]
        values = _values(envelopes).take(pa.array(misfits))
        return wider(shape.payload, self._new_field(name, shape), values, self._decoded_as, fixed)

    def _decoded_as(self, payload: pa.Schema, new_field: NewField, values: pa.BinaryArray) -> Decoded:
        decoder = self.plan.decoder((payload.serialize().to_pybytes(), new_field), payload, new_field)
        found: Decoded = decoder.decode(values)
        return found

    def _decoded(self, decoder: Any, envelopes: pa.Table) -> Decoded:
        """Rows and rejects, with what the decoder asks to be taken from the record itself."""
        found: Decoded = decoder.decode(_values(envelopes))
        for column, source in fills_of(decoder).items():
            if column in found.rows.column_names:
                found = replace(found, rows=_filled(found.rows, column, envelopes[source].take(found.index)))
        return found

    def _of_rows(self, envelopes: pa.Table, index: pa.Int64Array) -> pa.Table:
        """The envelope of each row; a record with many rows lends its own to each."""
        return _take(envelopes, index) if self.fates is None else envelopes.take(index)

    def _discover(self, name: str, envelopes: pa.Table) -> None:
        """A route nobody has met: say which fields its records bring; the driver answers with a shape."""
        found = self.plan.decoder(f"{name}?", pa.schema([]), "evolve").decode(_values(envelopes))
        self._note(name, found.unknown or {}, envelopes)

    def _note(self, name: str, structure: Structure, envelopes: pa.Table) -> None:
        self.discovered[name] = structure
        if name == EVERY:
            self._foresee(structure, envelopes)

    def _foresee(self, structure: Structure, envelopes: pa.Table) -> None:
        """Which tables an SQL route will ask for once the new fields are known, so that one answer serves for both.

        Others may see other types and then another table: what was foreseen in vain is forgotten again.
        """
        trial = _Application(self.plan, envelopes)
        shape = foreseen(self.plan.shapes.get(EVERY), structure, self.plan.transform)
        with suppress(HeadraceError):  # if it is more than a passing guess, the next run stops by it
            decoder = self.plan.decoder(shape.payload.serialize().to_pybytes(), shape.payload, "evolve")
            found = trial._settle_tombstones(decoder.decode(_values(envelopes)))
            trial._transform(EVERY, shape, self._rules(EVERY), found.rows, trial._of_rows(envelopes, found.index))
        for name in trial.discovered:
            self.discovered.setdefault(name, {})

    def _refuse(self, envelopes: pa.Table, name: str) -> None:
        limit = self.plan.spec.limits.tables
        detail = f"'{name}' would be a table beyond the limit of {limit}"
        everyone = list(range(len(envelopes)))
        reasons = [Reason.TOO_MANY_TABLES] * len(everyone)
        rejects = Rejects(everyone, reasons, [detail] * len(everyone))
        self._reject(envelopes, rejects, "route", self.plan.spec.uri_of(name))

    def _hold(self, envelopes: pa.Table, shape: Shape) -> pa.Table:
        """Leave out what the table's marks say it already has."""
        if not shape.floors:
            return envelopes
        there = np.zeros(len(envelopes), bool)
        topics, partitions = envelopes.column("topic"), envelopes.column("partition")
        for (topic, partition), floor in shape.floors.items():
            same = pc.and_(pc.equal(topics, topic), pc.equal(partitions, partition))
            below = pc.less_equal(envelopes.column("offset"), floor)
            there |= pc.and_(same, below).to_numpy()
        self.held += int(there.sum())
        return envelopes.filter(pa.array(~there))

    def _tombstones(self, rejects: Rejects) -> tuple[Rejects, list[int]]:
        """What is rejected whatever the spec says of null values, and where those are; skipped ones are counted."""
        answer = self.plan.spec.tombstone
        if answer == "dead_letter" or Reason.TOMBSTONE not in rejects.reason:
            return rejects, []
        others, nulls = Rejects(), []
        for position, reason, detail in zip(rejects.index, rejects.reason, rejects.detail, strict=True):
            if reason is Reason.TOMBSTONE:
                nulls.append(position)
            else:
                others.add(position, reason, detail)
        if answer == "skip":
            self.filtered += len(nulls)
        return others, nulls

    def _settle_tombstones(self, found: Decoded) -> Decoded:
        rejects, nulls = self._tombstones(found.rejects)
        if not nulls or self.plan.spec.tombstone == "skip":
            return replace(found, rejects=rejects)
        empty = pa.table([pa.nulls(len(nulls), item.type) for item in found.rows.schema], schema=found.rows.schema)
        index = np.concatenate([found.index.to_numpy(), np.array(nulls, np.int64)])
        order = np.argsort(index, kind="stable")
        rows = pa.concat_tables([found.rows, empty])
        rows = rows.take(pa.array(order)) if rows.column_names else rows
        return replace(found, rows=rows, index=pa.array(index[order]), rejects=rejects)

    def _transform(self, name: str, shape: Shape, rules: TableSpec, rows: pa.Table, envelopes: pa.Table) -> None:
        given = _with_nulls(rows, (*shape.absent, ROW), len(envelopes))
        done = self.plan.transform.apply(given, envelopes, self.now, shape.targets)
        self.filtered += len(done.filtered)
        rejected = self._reject(envelopes, done.rejects, "transform", _uri(name, shape))
        rows, envelopes = self._whole(done.rows, _take(envelopes, done.index), rejected)
        if name != EVERY:
            self._fit(name, shape, rules, rows, envelopes)
            return
        for target, part, theirs in self._by_sql(rows, envelopes):
            self._into(target, part, theirs)

    def _stepped(self, shape: Shape, rows: pa.Table, envelopes: pa.Table) -> Transformed:
        for absent in shape.absent:
            rows = rows.append_column(absent, pa.nulls(len(rows)))
        done = self.plan.transform.apply(rows, envelopes, self.now, shape.targets)
        self.filtered += len(done.filtered)
        return done

    def _by_sql(self, rows: pa.Table, envelopes: pa.Table) -> list[tuple[str, pa.Table, pa.Table]]:
        """The table's name as an expression over the transformed row; a record that has none has no row anywhere."""
        try:
            names, rejects = evaluate(self.plan.routing.value or "", rows, envelopes, self.now)
        except UsageError as error:
            raise columns_disagree(f"{self.plan.spec.table.path}, route.by.sql", error) from None
        rejected = self._reject(envelopes, rejects, "route", None)
        if (keep := _without(len(rows), rejects.index)) is not None:
            keep = keep if self.fates is None else fates.others(envelopes, rejected)
            rows, envelopes, names = rows.take(keep), envelopes.take(keep), names.take(keep)
        routed = route.routes(self.plan.routing, envelopes, names)
        self.filtered += len(routed.filtered)
        rejected = self._reject(envelopes, routed.rejects, "route", None)
        parts = route.split(routed.values).items()
        return [(each, *self._whole(_take(rows, at), _take(envelopes, at), rejected)) for each, at in parts]

    def _into(self, name: str, rows: pa.Table, envelopes: pa.Table) -> None:
        if name not in self.plan.shapes:
            self.discovered.setdefault(name, {})
            return
        shape = self.plan.shapes[name]
        if shape is None:
            self._refuse(envelopes, name)
            return
        self._fit(name, shape, self.plan.spec.table_for(name), rows, envelopes)

    def _fit(self, name: str, shape: Shape, rules: TableSpec, rows: pa.Table, envelopes: pa.Table) -> None:
        if rules.expectations:
            rows, envelopes = self._expect(shape.uri, rules, rows, envelopes)
        table, keep, rejects = fit(rows, envelopes, shape)
        rejected = self._reject(envelopes, rejects, "stage", shape.uri, rules)
        envelopes = _take(envelopes, keep)
        if self.fates is not None:
            table, envelopes = self._whole(table, envelopes, rejected)
            self.fates.has_row(envelopes)
        if len(table):
            self.tables.setdefault(name, []).append(table)
            if self.plan.traces:
                self.origins.setdefault(name, []).append(fates.records(envelopes))
            self.routed += len(table)
            self.rescued += len(table) - table[RESCUED.name].null_count if RESCUED.name in table.column_names else 0

    def _expect(self, uri: str, rules: TableSpec, rows: pa.Table, envelopes: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Rows without those that an expectation takes away."""
        found = judged(rules.expectations, rows, envelopes, self.now, uri)
        _count(self.unmet, uri, found.unmet)
        self.filtered += found.dropped
        rejected = self._reject(envelopes, found.rejects, "expect", uri)
        keep = pa.array(np.flatnonzero(found.keep))
        return self._whole(_take(rows, keep), _take(envelopes, keep), rejected)

    def _whole(self, rows: pa.Table, envelopes: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Where a record has many rows and one is rejected, its others of the table are not rows either."""
        return (rows, envelopes) if self.fates is None else fates.without(rows, envelopes, rejected)

    def _reject(
        self, envelopes: pa.Table, rejects: Rejects, step: str, table: str | None, rules: TableSpec | None = None
    ) -> pa.Table:
        """Write letters; the envelopes they are of."""
        if not rejects.index:
            return envelopes.slice(0, 0)
        if self.fates is not None:
            rejects = fates.one_for_each(envelopes, rejects)
        if rules is not None:
            _hold_to_contract(rejects, rules, table or "")
        for reason in rejects.reason:
            self.reasons[reason.value] = self.reasons.get(reason.value, 0) + 1
        rejected = envelopes.take(rejects.index)
        if self.fates is not None:
            self.fates.has_letter(rejected)
        if self.plan.traces:
            self.dead.append(fates.records(rejected))
        self.letters.append(_letters(self.plan.spec, rejected, rejects, step, table, self.now))
        return rejected


def _uri(name: str, shape: Shape) -> str | None:
    """The table that a record was meant for; an SQL route picks it only after decode and transform."""
    return None if name == EVERY else shape.uri


def _count(counts: dict[str, int], uri: str, more: Mapping[str, int]) -> None:
    for name, count in more.items():
        key = f"{uri}: {name}"
        counts[key] = counts.get(key, 0) + count


def _by_owner(owner: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Ascending positions of every owner that has any."""
    order = np.argsort(owner, kind="stable")
    starts = np.flatnonzero(np.diff(owner[order], prepend=-1))
    return [(int(owner[part[0]]), part) for part in np.split(order, starts[1:])] if len(order) else []


def _hold_to_contract(rejects: Rejects, rules: TableSpec, table: str) -> None:
    """A contract may ask for a stop where the default is a letter."""
    for reason, detail in zip(rejects.reason, rejects.detail, strict=True):
        wrong = reason in MISFITS and rules.contract.wrong_type == "stop"
        if wrong or (reason is Reason.MISSING and rules.contract.missing == "stop"):
            raise ContractBroken(
                f"{table}: {detail} ({reason.value}), and the contract says stop.",
                next="Mend the producer or change table.contract, then run again: the record is read anew.",
            )


def _letters(
    spec: Spec, envelopes: pa.Table, rejects: Rejects, step: str, table: str | None, now: datetime
) -> pa.Table:
    count = len(envelopes)
    carried = [envelopes.column(name) for name in DEAD_LETTERS.names[:7]]
    rest = [
        pa.array([table] * count, pa.string()),
        pa.array([step] * count),
        pa.array([reason.value for reason in rejects.reason]),
        pa.array([detail[:512] for detail in rejects.detail]),
        schema_ids(_values(envelopes)) if spec.decode.options.framed else pa.nulls(count, pa.int32()),
        pa.array([spec.pipeline] * count),
        pa.array([spec.digest] * count),
        pa.array([now] * count, DEAD_LETTERS.field("rejected_at").type),
        pa.array([now.date()] * count),
    ]
    return pa.table([*carried, *rest], schema=DEAD_LETTERS)


def _as_envelopes(given: pa.Table | pa.RecordBatch) -> pa.Table:
    table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
    return table if table.schema == ENVELOPE else table.select(ENVELOPE.names).cast(ENVELOPE)


def _values(envelopes: pa.Table) -> pa.BinaryArray:
    values = envelopes.column("value")
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.array([], values.type)])


def _take(table: pa.Table, index: Any) -> pa.Table:
    """The rows at `index`; the table itself when that is all of them (positions are ascending)."""
    if index is None or len(index) == len(table):
        return table
    return table.take(index if isinstance(index, pa.Array) else pa.array(index, pa.int64()))


def _filled(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    """Rows whose NULLs of one column are filled."""
    at = rows.schema.get_field_index(name)
    item = rows.schema.field(at)
    return rows.set_column(at, item, pc.coalesce(rows[name], values.cast(item.type)))


def _with_nulls(rows: pa.Table, names: Iterable[str], count: int) -> pa.Table:
    fields = [pa.field(name, pa.null()) for name in names]
    nulls = [pa.nulls(count)] * len(fields)
    return pa.Table.from_arrays([*rows.columns, *nulls], schema=pa.schema([*rows.schema, *fields]))


def _without(length: int, gone: list[int]) -> pa.Int64Array | None:
    return pa.array(np.delete(np.arange(length), gone), pa.int64()) if gone else None
