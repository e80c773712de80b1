"""What a plan makes of dead letters: rows for the tables they were meant for, and an outcome for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.dead_letters.reader import envelopes_of
from headrace.decode.inference import Structure
from headrace.delta.schema import DEAD_LETTERS
from headrace.ledger.replays import LETTER, OUTCOMES, ReplayOutcome
from headrace.plan.accounting import Counts
from headrace.plan.batch_result import BatchResult
from headrace.plan.plan import Plan
from headrace.reasons import Reason
from headrace.spec import Spec
from headrace.spec.route_id import RouteId


@dataclass(frozen=True)
class Evaluation:
    """What became of some letters."""

    tables: Mapping[RouteId, pa.Table]  # rows per route
    outcomes: pa.Table  # one row a letter, in their order
    letters: pa.Table  # new ones: of tables that refuse a record which another table has taken now
    counts: Counts
    discovered: Mapping[RouteId, Structure] = field(default_factory=dict)
    origins: Mapping[RouteId, np.ndarray] = field(default_factory=dict)  # per route, the letter of each row


def evaluate_dead_letters(plan: Plan, letters: pa.Table, number: int, at: datetime) -> Evaluation:
    """Take letters through the plan; a letter of a table goes only there, one of no table is routed anew.

    A branch sees the letters of its own tables alone. Those of no table, and of tables that the spec has no more, are
    the pipeline's own: a branch says in a letter where a record was to go.
    """
    applied = plan.apply(envelopes_of(letters), _meant(plan.spec, letters.column("table")))
    return _judged(plan, letters, applied, number, at)


def judge_in_parts(plan: Plan, letters: pa.Table, number: int, at: datetime) -> Iterator[Evaluation]:
    """The same with given shapes, in as many parts as memory asks for."""
    start = 0
    for applied in plan.parts(envelopes_of(letters), _meant(plan.spec, letters.column("table"))):
        yield _judged(plan, letters.slice(start, applied.counts.read), applied, number, at)
        start += applied.counts.read


def _judged(plan: Plan, letters: pa.Table, applied: BatchResult, number: int, at: datetime) -> Evaluation:
    if applied.discovered:
        return Evaluation({}, OUTCOMES.empty_table(), DEAD_LETTERS.empty_table(), Counts(), applied.discovered)
    return _Judgement(plan, letters, applied).spoken(number, at)


def _meant(spec: Spec, tables: pa.ChunkedArray) -> dict[str, np.ndarray]:
    """The letters of each branch."""
    few = tables.combine_chunks().dictionary_encode(null_encoding="encode")
    patterns = {branch.table.path: name for name, branch in spec.branch_specs().items()}
    branches = [
        patterns.get(uri) or (spec.route_of(uri or "") or RouteId()).branch for uri in few.dictionary.to_pylist()
    ]
    of = np.array(branches, object)[few.indices.to_numpy()]
    return {name: np.flatnonzero(of == name) for name in patterns.values()}


class _Judgement:
    """The fate of every letter of one page."""

    def __init__(self, plan: Plan, letters: pa.Table, applied: BatchResult) -> None:
        self.plan, self.letters, self.applied = plan, letters, applied
        patterns = [branch.table.path for branch in plan.spec.branch_specs().values() if branch.route.kind != "fixed"]
        open_ = pc.is_in(letters.column("table"), value_set=pa.array(patterns, pa.string()))
        self.table = pc.if_else(open_, pa.scalar(None, pa.string()), letters.column("table"))  # NULL: any of its branch
        self.patterns = frozenset(patterns)
        self.meant = self.table.to_pylist()
        self.into: dict[int, list[str]] = {}
        self.refused: dict[int, tuple[str, str]] = {}
        self.elsewhere: set[int] = set()  # the spec has another table for the record now
        self.tables: dict[RouteId, pa.Table] = {}
        self.origins: dict[RouteId, np.ndarray] = {}

    def spoken(self, number: int, at: datetime) -> Evaluation:
        for name, rows in self.applied.tables.items():
            self._take(name, rows)
        fresh = self._reject()
        said = [self._outcome(nth) for nth in range(len(self.letters))]
        return Evaluation(
            self.tables, self._outcomes(said, number, at), fresh, self._counts(said), origins=self.origins
        )

    def _take(self, name: RouteId, rows: pa.Table) -> None:
        """Keep the rows of letters that are meant for this table, or for any."""
        uri, origin = self.plan.spec.uri_of(name), self.applied.origins[name]
        meant = self.table.take(pa.array(origin))
        keep = pc.fill_null(pc.equal(meant, uri), True).to_numpy()
        self.elsewhere.update(origin[~keep].tolist())
        self.tables[name], self.origins[name] = rows.filter(pa.array(keep)), origin[keep]
        for nth in np.unique(origin[keep]).tolist():
            self.into.setdefault(nth, []).append(uri)

    def _reject(self) -> pa.Table:
        """Learn why the others stay dead; answers the letters that are new."""
        found, fresh = self.applied.letters, []
        said = zip(*(found.column(name).to_pylist() for name in ("table", "reason", "detail")), strict=True)
        for position, (nth, (table, reason, detail)) in enumerate(zip(self.applied.dead.tolist(), said, strict=True)):
            if not {None, *self.patterns} & {table, self.meant[nth]} and table != self.meant[nth]:
                self.elsewhere.add(nth)
            elif nth not in self.into:
                self.refused.setdefault(nth, (reason, detail))
            elif self.meant[nth] is None:
                fresh.append(position)
        return found.take(pa.array(fresh, pa.int64()))

    def _outcome(self, nth: int) -> tuple[ReplayOutcome, list[str] | None, str | None, str | None]:
        if nth in self.into:
            return ReplayOutcome.REPLAYED, self.into[nth], None, None
        if nth in self.refused:
            return ReplayOutcome.STILL_DEAD, None, *self.refused[nth]
        if nth in self.elsewhere:
            detail = f"the spec no longer sends the record to {self.meant[nth]}"
            return ReplayOutcome.STILL_DEAD, None, Reason.UNROUTED.value, detail[:512]
        return ReplayOutcome.FILTERED, None, None, None

    def _outcomes(self, said: list[Any], number: int, at: datetime) -> pa.Table:
        outcome, into, reason, detail = zip(*said, strict=True) if said else ((), (), (), ())
        count = len(said)
        made = {
            "plan": [number] * count,
            "outcome": [each.value for each in outcome],
            "into": into,
            "reason": reason,
            "detail": detail,
            "spec": [self.plan.spec.digest] * count,
            "at": [at] * count,
        }
        columns = [self.letters.column(name) for name in LETTER]
        columns += [pa.array(values, OUTCOMES.field(name).type) for name, values in made.items()]
        return pa.table(columns, schema=OUTCOMES)

    def _counts(self, said: list[Any]) -> Counts:
        outcomes = [each[0] for each in said]
        reasons: dict[str, int] = {}
        for _, _, reason, _ in said:
            if reason is not None:
                reasons[reason] = reasons.get(reason, 0) + 1
        return Counts(
            read=len(said),
            routed=outcomes.count(ReplayOutcome.REPLAYED),
            dead=outcomes.count(ReplayOutcome.STILL_DEAD),
            filtered=outcomes.count(ReplayOutcome.FILTERED),
            value_bytes=self.applied.counts.value_bytes,
            reasons=reasons,
            ignored=self.applied.counts.ignored,
        )
