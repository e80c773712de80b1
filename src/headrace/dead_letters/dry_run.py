"""Dry run: evaluate dead letters with the current or a changed spec, without writing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headrace.dead_letters.evaluate import evaluate_dead_letters
from headrace.dead_letters.reader import DeadLetters, Selection
from headrace.delta.snapshot import load_state
from headrace.errors import PipelineStopped
from headrace.ledger.ledger import Ledger
from headrace.plan.plan import Plan
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.storage.store import Profile, Store


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """A dead letter, its outcome and its rows."""

    dead_letter: dict[str, Any]
    outcome: dict[str, Any]
    rows: tuple[tuple[str, dict[str, Any]], ...]  # table and row


def dry_run(spec: Spec, changed: Spec, selection: Selection, count: int) -> list[DryRunResult]:
    """Evaluate a sample of dead letters with a changed spec, against the columns of existing tables."""
    dead_letters = DeadLetters(spec).sample(selection, count)
    if not len(dead_letters):
        return []
    plan = Plan(changed, existing=_existing(spec, changed))
    evaluation = evaluate_dead_letters(plan, dead_letters, 0, datetime.now(UTC))
    rows: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    for route, table in evaluation.tables.items():
        for position, row in zip(evaluation.origins[route].tolist(), table.to_pylist(), strict=True):
            rows.setdefault(position, []).append((changed.uri_of(route), row))
    outcomes = zip(dead_letters.to_pylist(), evaluation.outcomes.to_pylist(), strict=True)
    return [
        DryRunResult(dead_letter, outcome, tuple(rows.get(position, ())))
        for position, (dead_letter, outcome) in enumerate(outcomes)
    ]


def _existing(spec: Spec, changed: Spec) -> dict[RouteId, pa.Schema]:
    """Schemas of the pipeline's tables, by the routes of the changed spec."""
    profile = Profile(**spec.storage_profile())
    known = Ledger.open(Store(spec.state_uri, profile), spec.pipeline).known.tables
    fixed = {branch.table.path for branch in changed.branch_specs().values() if branch.route.kind == "fixed"}
    schemas: dict[RouteId, pa.Schema] = {}
    for uri in {*known, *fixed}:
        if (route := changed.route_of(uri)) is None:
            continue
        try:
            state = load_state(Store(uri, profile))
        except PipelineStopped:
            continue
        if state is not None:
            schemas[route] = state.schema
    return schemas
