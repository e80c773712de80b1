"""A look at what a spec makes of a few records: the plan alone, in this process, writing nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from headrace.delta.snapshot import load_state
from headrace.errors import HeadraceError, UsageError
from headrace.plan.accounting import Counts
from headrace.plan.branch import EVERY
from headrace.plan.inferred_columns import InferredColumns, inferred_columns
from headrace.plan.plan import Plan
from headrace.plan.unknown_names import UnknownName, nowhere
from headrace.source.base import open_source
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.storage.store import Profile, Store

_PATIENCE = 2.0


@dataclass(frozen=True)
class Preview:
    """What was seen."""

    pipeline: str
    tables: Mapping[str, pa.Table]
    letters: pa.Table
    counts: Counts
    notes: tuple[str, ...]
    inferred: tuple[InferredColumns, ...] = ()
    unknown: tuple[UnknownName, ...] = ()  # names that neither the records shown nor the tables have


def preview_records(spec: Spec, envelopes: pa.Table | None, records: int = 10, where: str = "end") -> Preview:
    """Records of the source (or those given) through the plan; existing tables lend their columns."""
    if envelopes is None:
        _check_place(where)
        source = open_source(spec)
        try:
            envelopes = source.tail(records, where)
        finally:
            source.close()
    existing, notes = dict[RouteId, pa.Schema](), []
    for name, branch in spec.branch_specs().items():
        if branch.route.kind == "fixed":
            schema, note = _existing(branch)
            existing |= {} if schema is None else {RouteId(name): schema}
            notes.append(note)
    plan = Plan(spec, existing=existing, unchecked=spec.branch_specs())
    applied = plan.apply(envelopes)
    unknown = nowhere(applied.unknown.items(), plan.branches, plan.shapes)
    notes += [f"{each}. A run stops at it (UnknownColumn)." for each in unknown]
    tables = {spec.uri_of(route_id): rows for route_id, rows in applied.tables.items()}
    shown = tuple(_inferred(plan, existing))
    return Preview(spec.pipeline, tables, applied.letters, applied.counts, tuple(notes), shown, tuple(unknown))


def _inferred(plan: Plan, existing: Mapping[RouteId, pa.Schema]) -> Iterator[InferredColumns]:
    """The columns that the records gave to tables."""
    for branch in plan.branches.values():
        for route, shape in branch.shapes.items():
            if route != EVERY:
                table = existing.get(branch.route_id(route))
                names = {*(table.names if table else ()), *(column.name for column in branch.rules(route).columns)}
                columns = inferred_columns(names, shape, branch.learned(route), branch.transform)
                yield from [columns] if columns else []


def _check_place(where: str) -> None:
    if where in ("start", "end"):
        return
    try:
        if datetime.fromisoformat(where).tzinfo is not None:
            return
    except ValueError:
        pass
    raise UsageError(
        f"'{where}' is no place to look from.", hint="Use start, end, or a time such as 2026-01-31T12:00:00Z."
    )


def _existing(spec: Spec) -> tuple[pa.Schema | None, str]:
    """The table's columns, if its store answers in time."""
    uri = spec.table.path
    pool = ThreadPoolExecutor(1)
    try:
        state = pool.submit(load_state, Store(uri, Profile(**spec.storage_profile()))).result(_PATIENCE)
    except TooLate:
        return None, f"{uri} does not answer within {_PATIENCE:.0f} s: columns are taken from the spec or the records."
    except HeadraceError as error:
        return (
            None,
            f"{uri} cannot be read ({error.name}: {error.message}): columns are taken from the spec or the records.",
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if state is None:
        return None, f"{uri} does not exist yet."
    return state.schema, f"{uri} exists, at version {state.version}."
