"""Preview: run a spec over a few records in this process, writing nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from headrace.delta.snapshot import load_state
from headrace.errors import HeadraceError, UsageError
from headrace.plan.accounting import Counts
from headrace.plan.branch import EVERY
from headrace.plan.inferred_columns import InferredColumns, inferred_columns
from headrace.plan.plan import Plan
from headrace.plan.unknown_names import UnknownName, unknown_everywhere
from headrace.source.base import Source, open_source
from headrace.source.spool.receiver import ReceivingSource
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.storage.store import Profile, Store

_TIMEOUT = 2.0


@dataclass(frozen=True)
class Preview:
    """The result of a preview."""

    pipeline: str
    tables: Mapping[str, pa.Table]
    dead_letters: pa.Table
    counts: Counts
    notes: tuple[str, ...]
    inferred: tuple[InferredColumns, ...] = ()
    unknown: tuple[UnknownName, ...] = ()  # names that neither these records nor the tables have


def preview_records(spec: Spec, records: pa.Table | None, count: int = 10, where: str = "end") -> Preview:
    """Run records of the source, or `records`, through the plan, with the columns of existing tables."""
    existing, notes = dict[RouteId, pa.Schema](), list[str]()
    if records is None:
        _check_start(where)
        source = open_source(spec)
        try:
            records = source.tail(count, where)
        finally:
            source.close()
        notes += [] if len(records) else [_nothing(source, where)]
    for name, branch in spec.branch_specs().items():
        if branch.route.kind == "fixed":
            schema, note = _existing(branch)
            existing |= {} if schema is None else {RouteId(name): schema}
            notes.append(note)
    plan = Plan(spec, existing=existing, unchecked=spec.branch_specs())
    applied = plan.apply(records)
    unknown = unknown_everywhere(applied.unknown.items(), plan.branches, plan.schemas)
    notes += [f"{each}. A run stops with UnknownColumn." for each in unknown]
    tables = {spec.uri_of(route_id): rows for route_id, rows in applied.tables.items()}
    shown = tuple(_inferred(plan, existing))
    return Preview(spec.pipeline, tables, applied.dead_letters, applied.counts, tuple(notes), shown, tuple(unknown))


def _nothing(source: Source, where: str) -> str:
    """Why there are no records, and how to get some."""
    if where not in ("start", "end"):
        return f"The source has no records since {where}."
    if isinstance(source, ReceivingSource):
        return "Nothing was received yet: run `headrace receive` or `headrace run`, then send records."
    return "The source has no records."


def _inferred(plan: Plan, existing: Mapping[RouteId, pa.Schema]) -> Iterator[InferredColumns]:
    """Columns that tables get from the records."""
    for branch in plan.branches.values():
        for route, schema in branch.schemas.items():
            if route != EVERY:
                table = existing.get(branch.route_id(route))
                names = {*(table.names if table else ()), *(column.name for column in branch.rules(route).columns)}
                columns = inferred_columns(names, schema, branch.learned(route), branch.transform)
                yield from [columns] if columns else []


def _check_start(where: str) -> None:
    if where in ("start", "end"):
        return
    try:
        if datetime.fromisoformat(where).tzinfo is not None:
            return
    except ValueError:
        pass
    raise UsageError(
        f"Invalid start of the preview: '{where}'.", hint="Use start, end, or a time such as 2026-01-31T12:00:00Z."
    )


def _existing(spec: Spec) -> tuple[pa.Schema | None, str]:
    """The columns of a table, and a note; no columns if its storage does not respond in time."""
    uri = spec.table.path
    pool = ThreadPoolExecutor(1)
    try:
        state = pool.submit(load_state, Store(uri, Profile(**spec.storage_profile()))).result(_TIMEOUT)
    except FutureTimeout:
        return None, f"{uri} does not respond within {_TIMEOUT:.0f} s: using the columns of the spec or the records."
    except HeadraceError as error:
        reason = f"{error.name}: {error.message}"
        return None, f"{uri} cannot be read ({reason}): using the columns of the spec or the records."
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if state is None:
        return None, f"{uri} does not exist yet."
    return state.schema, f"{uri} exists, at version {state.version}."
