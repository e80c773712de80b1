"""What a spec, current or changed, would make of stored letters; writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headrace.dead_letters.evaluate import Evaluation, evaluate_dead_letters
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
    """One letter and what would become of it."""

    letter: dict[str, Any]
    outcome: dict[str, Any]
    rows: tuple[tuple[str, dict[str, Any]], ...]  # table and row


def dry_run(spec: Spec, changed: Spec, selection: Selection, count: int) -> list[DryRunResult]:
    """A sample of the letters of a pipeline through the plan of a changed spec; existing tables lend their columns."""
    letters = DeadLetters(spec).sample(selection, count)
    if not len(letters):
        return []
    judged = evaluate_dead_letters(Plan(changed, existing=_existing(spec, changed)), letters, 0, datetime.now(UTC))
    return list(_tried(changed, letters, judged))


def _tried(spec: Spec, letters: pa.Table, judged: Evaluation) -> Iterator[DryRunResult]:
    rows: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    for name, table in judged.tables.items():
        for nth, row in zip(judged.origins[name].tolist(), table.to_pylist(), strict=True):
            rows.setdefault(nth, []).append((spec.uri_of(name), row))
    for nth, (letter, outcome) in enumerate(zip(letters.to_pylist(), judged.outcomes.to_pylist(), strict=True)):
        yield DryRunResult(letter, outcome, tuple(rows.get(nth, ())))


def _existing(spec: Spec, changed: Spec) -> dict[RouteId, pa.Schema]:
    """The columns of the tables that the pipeline has met, by the routes of the changed spec."""
    profile = Profile(**spec.storage_profile())
    known = Ledger.open(Store(spec.state_uri, profile), spec.pipeline).known.tables
    fixed = {branch.table.path for branch in changed.branch_specs().values() if branch.route.kind == "fixed"}
    found: dict[RouteId, pa.Schema] = {}
    for uri in {*known, *fixed}:
        if (name := changed.route_of(uri)) is None:
            continue
        try:
            state = load_state(Store(uri, profile))
        except PipelineStopped:
            continue
        if state is not None:
            found[name] = state.schema
    return found
