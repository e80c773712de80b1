"""Evaluate dead letters with a plan: rows for their target tables, and an outcome for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.inference import Structure
from headrace.delta.schema import DEAD_LETTERS
from headrace.ledger.replays import DEAD_LETTER_KEY, OUTCOMES, ReplayOutcome
from headrace.plan.accounting import Counts
from headrace.plan.batch_result import BatchResult
from headrace.plan.plan import Plan
from headrace.reasons import Reason
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.transform.dead_letter_columns import records_of_dead_letters


@dataclass(frozen=True)
class Evaluation:
    """Rows and outcomes of dead letters."""

    tables: Mapping[RouteId, pa.Table]  # rows per route
    outcomes: pa.Table  # one row per dead letter, in their order
    dead_letters: pa.Table  # new ones: of tables that reject a record which another table accepts now
    counts: Counts
    discovered: Mapping[RouteId, Structure] = field(default_factory=dict)
    origins: Mapping[RouteId, np.ndarray] = field(default_factory=dict)  # per route, the dead letter of each row


def evaluate_dead_letters(plan: Plan, dead_letters: pa.Table, number: int, at: datetime) -> Evaluation:
    """Apply the plan; a dead letter of a table goes only there, one of no table is routed again.

    A branch gets the dead letters of its own tables alone. Those of no table, and of tables that the spec no longer
    has, go to the main branch: a branch always records the target table in a dead letter.
    """
    result = plan.apply(records_of_dead_letters(dead_letters), _by_branch(plan.spec, dead_letters))
    return _evaluated(plan, dead_letters, result, number, at)


def evaluate_in_parts(plan: Plan, dead_letters: pa.Table, number: int, at: datetime) -> Iterator[Evaluation]:
    """Apply a plan with known route schemas, in as many parts as memory needs."""
    start = 0
    branches = _by_branch(plan.spec, dead_letters)
    for result in plan.parts(records_of_dead_letters(dead_letters), branches):
        yield _evaluated(plan, dead_letters.slice(start, result.counts.read), result, number, at)
        start += result.counts.read


def _evaluated(plan: Plan, dead_letters: pa.Table, result: BatchResult, number: int, at: datetime) -> Evaluation:
    if result.discovered:
        return Evaluation({}, OUTCOMES.empty_table(), DEAD_LETTERS.empty_table(), Counts(), result.discovered)
    return _PageEvaluation(plan, dead_letters, result).evaluation(number, at)


def _by_branch(spec: Spec, dead_letters: pa.Table) -> dict[str, np.ndarray]:
    """Positions of the dead letters of each branch."""
    outputs = spec.branch_specs()
    patterns = {branch.table.path: name for name, branch in outputs.items()}
    by_topic = {"", *(entry.name for entry in spec.topics)}  # of these, the topic of a record selects one

    @cache
    def branch_of(uri: str | None, topic: str) -> str:
        branch = patterns.get(uri or "") or (spec.route_of(uri or "") or RouteId()).branch
        if branch not in by_topic:
            return branch
        entry = spec.entry_of(topic)
        return "" if entry is None else entry.name

    pairs = zip(dead_letters["table"].to_pylist(), dead_letters["topic"].to_pylist(), strict=True)
    branches = np.array([branch_of(*pair) for pair in pairs], object)
    return {name: np.flatnonzero(branches == name) for name in outputs}


class _PageEvaluation:
    """The outcome of every dead letter of one page."""

    def __init__(self, plan: Plan, dead_letters: pa.Table, result: BatchResult) -> None:
        self.plan, self.dead_letters, self.result = plan, dead_letters, result
        patterns = [branch.table.path for branch in plan.spec.branch_specs().values() if branch.route.kind != "fixed"]
        unrouted = pc.is_in(dead_letters.column("table"), value_set=pa.array(patterns, pa.string()))
        # NULL: any table of the branch
        self.targets = pc.if_else(unrouted, pa.scalar(None, pa.string()), dead_letters.column("table"))
        self.patterns = frozenset(patterns)
        self.target_of = self.targets.to_pylist()
        self.into: dict[int, list[str]] = {}
        self.rejected: dict[int, tuple[str, str]] = {}
        self.elsewhere: set[int] = set()  # the spec now routes the record to another table
        self.tables: dict[RouteId, pa.Table] = {}
        self.origins: dict[RouteId, np.ndarray] = {}

    def evaluation(self, number: int, at: datetime) -> Evaluation:
        for route, rows in self.result.tables.items():
            self._accept(route, rows)
        new = self._reject()
        outcomes = [self._outcome(position) for position in range(len(self.dead_letters))]
        table, counts = self._outcome_table(outcomes, number, at), self._counts(outcomes)
        return Evaluation(self.tables, table, new, counts, origins=self.origins)

    def _accept(self, route: RouteId, rows: pa.Table) -> None:
        """Keep the rows of dead letters whose target is this table, or any."""
        uri, origin = self.plan.spec.uri_of(route), self.result.origins[route]
        keep = pc.fill_null(pc.equal(self.targets.take(pa.array(origin)), uri), True).to_numpy()
        self.elsewhere.update(origin[~keep].tolist())
        self.tables[route], self.origins[route] = rows.filter(pa.array(keep)), origin[keep]
        for position in np.unique(origin[keep]).tolist():
            self.into.setdefault(position, []).append(uri)

    def _reject(self) -> pa.Table:
        """Collect the reasons of records that are rejected again; returns the dead letters that are new."""
        rejects, new = self.result.dead_letters, []
        rows = zip(*(rejects.column(name).to_pylist() for name in ("table", "reason", "detail")), strict=True)
        for nth, (position, (table, reason, detail)) in enumerate(zip(self.result.dead.tolist(), rows, strict=True)):
            target = self.target_of[position]
            if not {None, *self.patterns} & {table, target} and table != target:
                self.elsewhere.add(position)
            elif position not in self.into:
                self.rejected.setdefault(position, (reason, detail))
            elif target is None:
                new.append(nth)
        return rejects.take(pa.array(new, pa.int64()))

    def _outcome(self, position: int) -> tuple[ReplayOutcome, list[str] | None, str | None, str | None]:
        if position in self.into:
            return ReplayOutcome.REPLAYED, self.into[position], None, None
        if position in self.rejected:
            return ReplayOutcome.STILL_DEAD, None, *self.rejected[position]
        if position in self.elsewhere:
            detail = f"the spec no longer sends the record to {self.target_of[position]}"
            return ReplayOutcome.STILL_DEAD, None, Reason.UNROUTED.value, detail[:512]
        return ReplayOutcome.FILTERED, None, None, None

    def _outcome_table(self, outcomes: list[Any], number: int, at: datetime) -> pa.Table:
        outcome, into, reason, detail = zip(*outcomes, strict=True) if outcomes else ((), (), (), ())
        count = len(outcomes)
        values = {
            "replay": [number] * count,
            "outcome": [each.value for each in outcome],
            "into": into,
            "reason": reason,
            "detail": detail,
            "spec": [self.plan.spec.digest] * count,
            "at": [at] * count,
        }
        columns = [self.dead_letters.column(name) for name in DEAD_LETTER_KEY]
        columns += [pa.array(column, OUTCOMES.field(name).type) for name, column in values.items()]
        return pa.table(columns, schema=OUTCOMES)

    def _counts(self, outcomes: list[Any]) -> Counts:
        kinds = Counter(outcome for outcome, *_ in outcomes)
        return Counts(
            read=len(outcomes),
            routed=kinds[ReplayOutcome.REPLAYED],
            dead=kinds[ReplayOutcome.STILL_DEAD],
            filtered=kinds[ReplayOutcome.FILTERED],
            value_bytes=self.result.counts.value_bytes,
            reasons=dict(Counter(reason for _, _, reason, _ in outcomes if reason is not None)),
            ignored=self.result.counts.ignored,
        )
