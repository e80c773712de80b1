"""Names in a spec that nothing has: neither the table, nor the spec itself, nor any record. Mostly a typo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.plan.arrow import values_of
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.route_schema import RouteSchema, columns_of_route, decoded_schema
from headrace.spec.diagnostics import closest
from headrace.spec.route_id import RouteId
from headrace.spec.steps import StepSpec
from headrace.transform.sql.expression import ENVELOPE as ENVELOPE_NAMES
from headrace.transform.sql.expression import columns_in as names_in


@dataclass(frozen=True, order=True)
class UnknownName:
    """A name that nothing has, and where the spec uses it."""

    place: str  # in the spec, as `transform[0].where`
    name: str
    suggestion: str = ""  # a name that exists and is close to it

    def __str__(self) -> str:
        hint = f" (did you mean '{self.suggestion}'?)" if self.suggestion else ""
        return f"{self.place}: '{self.name}' does not exist in any record, table or step{hint}"


Reports = Iterable[tuple[RouteId, Set[UnknownName]]]  # of every route that had rows: what is unknown there


def unknown_names(
    branch: CompiledBranch, route: str, shape: RouteSchema, envelopes: pa.Table | None = None
) -> frozenset[UnknownName]:
    """The names that a route's rows do not have, without those that may be missing.

    `envelopes`: where records may bring new columns, a name that one of them holds, if only with a null, is known.
    """
    found = {
        UnknownName(place, name, closest(name, there))
        for place, name, there in _uses(branch, route, shape)
        if name.lower() not in {*map(str.lower, there), *ENVELOPE_NAMES, *map(str.lower, branch.spec.allow_missing)}
    }
    if found and envelopes is not None and branch.new_field(route, shape) == "evolve":
        found = {each for each in found if not _holds(branch.spec.format, values_of(envelopes), each.name)}
    return frozenset(found)


def _holds(form: str, values: pa.BinaryArray, name: str) -> bool:
    """Whether a record has a key of this name, at any depth; a typed format says so by its schema."""
    key = re.escape(name)
    pattern = {"json": rf'"{key}"\s*:', "msgpack": key}.get(form)
    return pattern is not None and bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def nowhere(
    reports: Reports,
    branches: Mapping[str, CompiledBranch],
    shapes: Mapping[RouteId, RouteSchema | None],
    known: Iterable[str] = (),
) -> list[UnknownName]:
    """What is unknown to all records and tables of a branch: its routes share their steps, and some may have more."""
    told = list(reports)
    found = set[UnknownName]()
    for name, branch in branches.items():
        theirs = [(route_id, unknown) for route_id, unknown in told if route_id.branch == name]
        tables = [shape for route_id, shape in shapes.items() if shape and route_id.branch == name]
        there = {column.lower() for shape in tables for column in shape.payload.names} | {*map(str.lower, known)}
        lacks = [(_used(branch, route, shapes), {(each.place, each.name) for each in lack}) for route, lack in theirs]
        for each in {each for _, unknown in theirs for each in unknown if each.name.lower() not in there}:
            key = (each.place, each.name)
            if all(key in unknown or key not in used for used, unknown in lacks):
                found.add(each)
    return sorted({(each.place, each.name): each for each in sorted(found)}.values())


def _used(
    branch: CompiledBranch, route_id: RouteId, shapes: Mapping[RouteId, RouteSchema | None]
) -> set[tuple[str, str]]:
    shape = shapes.get(route_id)
    return {(place, name) for place, name, _ in _uses(branch, route_id.route, shape)} if shape else set()


def _uses(branch: CompiledBranch, route: str, shape: RouteSchema) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Where the spec names a column, its name, and the columns that there are."""
    names = list(columns_of_route(pa.schema(decoded_schema(shape.payload)), branch.explode).names)
    if branch.explode is not None:
        names += [branch.explode.column, *branch.explode.keep]
        beside = sorted({way[0] for way in branch.strange.get(route, ())})
        yield "explode", branch.explode.column, [*shape.payload.names, *beside]
    by_sql = branch.routing.by == "sql"
    for at, step in enumerate(branch.spec.transform):
        for key, name, there in _read(step, names):
            if route == EVERY or not by_sql:
                yield f"transform[{at}].{key}", name, there
        names = _after(step, names)
    if route == EVERY:
        yield from (("route.by.sql", name, names) for name in sorted(names_in(branch.routing.value or "NULL")))
    else:
        yield from _of_table(branch, route, names)


def _of_table(branch: CompiledBranch, route: str, names: Sequence[str]) -> Iterator[tuple[str, str, Sequence[str]]]:
    rules = branch.rules(route)
    for at, each in enumerate(rules.expectations):
        yield from ((f"table.expectations[{at}].expect", name, names) for name in sorted(names_in(each.expect)))
    for key in ("delete_when", "truncate_when") if rules.merges else ():
        text = getattr(rules.merges, key) or "NULL"
        there = [*names, *(rules.merges.aside if rules.merges else ())]
        yield from ((f"table.merge.{key}", name, there) for name in sorted(names_in(text)))


def _read(step: StepSpec, names: Sequence[str]) -> Iterator[tuple[str, str, Sequence[str]]]:
    """The columns that a step reads, and the key that says so; JMESPath reads the message itself."""
    there = list(names)
    for target, text in (step.set or {}).items():
        yield from ((f"set.{target}", name, tuple(there)) for name in sorted(names_in(text)))
        there.append(target)
    if step.where is not None:
        yield from (("where", name, names) for name in sorted(names_in(step.where)))
    yield from (("drop", name, names) for name in step.drop or ())
    yield from (("rename", name, names) for name in step.rename or {})
    yield from (("mask", name.split(".")[0], names) for name in step.mask or {})


def _after(step: StepSpec, names: Sequence[str]) -> list[str]:
    """The columns there are after a step."""
    dropped = {name.lower() for name in step.drop or ()}
    moved = {old.lower(): new for old, new in (step.rename or {}).items()}
    left = [moved.get(name.lower(), name) for name in names if name.lower() not in dropped]
    return [*left, *moved.values(), *(step.set or {}), *(target.split(".")[0] for target in step.queries)]
