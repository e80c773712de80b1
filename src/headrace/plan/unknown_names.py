"""Names in a spec that exist in no table, step or record; usually typos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.errors import did_you_mean
from headrace.plan.arrow import values_of
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.message_keys import MessageKeys, holds_key, payload_keys
from headrace.plan.route_schema import RouteSchema, columns_of_route, decoded_schema
from headrace.spec.diagnostics import closest
from headrace.spec.route_id import RouteId
from headrace.spec.steps import StepSpec
from headrace.transform.jmespath.dialect import message_keys
from headrace.transform.sql.expression import RECORD_NAMES
from headrace.transform.sql.expression import columns_in as names_in


@dataclass(frozen=True, order=True)
class UnknownName:
    """Unknown name and its key in the spec."""

    place: str  # key, such as `transform[0].where`
    name: str
    suggestion: str = ""  # closest existing name

    @property
    def in_message(self) -> bool:
        """Whether the name is a key of the message, which JMESPath reads, instead of a column."""
        return self.place.partition(".")[2].startswith("jmespath.")

    def __str__(self) -> str:
        hint = f" ({did_you_mean(self.suggestion).removeprefix('; ')})" if self.suggestion else ""
        return f"{self.place}: '{self.name}' does not exist in any record, table or step{hint}"


Reports = Iterable[tuple[RouteId, Set[UnknownName]]]  # unknown names by route with rows


def unknown_names(
    branch: CompiledBranch, route: str, schema: RouteSchema, records: pa.Table, rows: pa.Table
) -> frozenset[UnknownName]:
    """Names that the rows of a route do not have, except those in `allow_missing`.

    `records`: with schema evolution, a name that occurs in one of them, even with a null, is known. `rows`: the decoded
    records, with their messages if JMESPath reads them.
    """
    allowed = {*RECORD_NAMES, *map(str.lower, branch.spec.allow_missing)}
    names = {
        UnknownName(place, name, closest(name, there))
        for place, name, there in _uses(branch, route, schema)
        if name.lower() not in {*map(str.lower, there), *allowed}
    }
    if names and branch.new_field(route, schema) == "evolve":
        names = {name for name in names if not holds_key(branch.spec.format, values_of(records), _key(name))}
    keys = payload_keys(schema.payload)
    absent = {
        UnknownName(place, name, closest(name, sorted(keys)))
        for place, name in _message_uses(branch, route)
        if name not in keys and name.lower() not in allowed
    }
    if absent:
        read = MessageKeys(branch.spec.decode, schema.payload, values_of(records), rows)
        names |= {name for name in absent if not read.have(name.name)}
    return frozenset(names)


def _key(name: UnknownName) -> str:
    """The key of a record that would make a name known: the last one of a path, which only masks have."""
    return name.name.rpartition(".")[2] if name.place.endswith(".mask") else name.name


def unknown_everywhere(
    reports: Reports,
    branches: Mapping[str, CompiledBranch],
    schemas: Mapping[RouteId, RouteSchema | None],
    known: Set[str] = frozenset(),
) -> list[UnknownName]:
    """Names that are unknown in all records and tables of a branch, whose routes share the steps."""
    all_reports = list(reports)
    names = set[UnknownName]()
    for name, branch in branches.items():
        prefix = "".join(f"[{step}]." if isinstance(step, int) else step for step in branch.spec.place)
        branch_reports = [(route_id, unknown) for route_id, unknown in all_reports if route_id.branch == name]
        tables = [schema for route_id, schema in schemas.items() if schema and route_id.branch == name]
        columns = {column.lower() for schema in tables for column in schema.payload.names} | {*map(str.lower, known)}
        keys = {key for schema in tables for key in payload_keys(schema.payload)} | {*known}
        lacks = [
            (_used(branch, route, schemas), {(each.place, each.name) for each in lack})
            for route, lack in branch_reports
        ]
        for each in {each for _, unknown in branch_reports for each in unknown}:
            if each.name in keys if each.in_message else each.name.lower() in columns:
                continue
            key = (each.place, each.name)
            if all(key in unknown or key not in used for used, unknown in lacks):
                names.add(replace(each, place=prefix + each.place))
    return sorted({(each.place, each.name): each for each in sorted(names)}.values())


def _used(
    branch: CompiledBranch, route_id: RouteId, schemas: Mapping[RouteId, RouteSchema | None]
) -> set[tuple[str, str]]:
    schema = schemas.get(route_id)
    if schema is None:
        return set()
    uses = {(place, name) for place, name, _ in _uses(branch, route_id.route, schema)}
    return uses | {*_message_uses(branch, route_id.route)}


def _uses(branch: CompiledBranch, route: str, schema: RouteSchema) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Keys of the spec that use a column, the column, and the available columns."""
    columns = columns_of_route(pa.schema(decoded_schema(schema.payload)), branch.explode)
    names, nested = list(columns.names), {item.name: [*_paths(item)] for item in columns}
    if branch.explode is not None:
        names += [branch.explode.column, *branch.explode.keep]
        beside = sorted({path[0] for path in branch.strange.get(route, ())})
        yield "explode", branch.explode.column, [*schema.payload.names, *beside]
    by_sql = branch.routing.by == "sql"
    for at, step in enumerate(branch.spec.transform):
        for key, name, there in _read(step, names, nested):
            if route == EVERY or not by_sql:
                yield f"transform[{at}].{key}", name, there
        names = _after(step, names)
        nested = {name: nested.get(name, []) for name in {*names} - _computed(step)}
    if route == EVERY:
        yield from (("route.by.sql", name, names) for name in sorted(names_in(branch.routing.value or "NULL")))
    else:
        yield from _of_table(branch, route, names)


def _message_uses(branch: CompiledBranch, route: str) -> Iterator[tuple[str, str]]:
    """Keys of the spec with JMESPath, and the keys of messages that it reads."""
    if route != EVERY and branch.routing.by == "sql":  # the route's records were transformed before
        return
    for at, step in enumerate(branch.spec.transform):
        for target, text in () if step.allows_missing else step.queries.items():
            yield from ((f"transform[{at}].jmespath.{target}", name) for name in message_keys(text))


def _of_table(branch: CompiledBranch, route: str, names: Sequence[str]) -> Iterator[tuple[str, str, Sequence[str]]]:
    rules = branch.rules(route)
    for at, expectation in enumerate(rules.expectations):
        yield from ((f"table.expectations[{at}].expect", name, names) for name in sorted(names_in(expectation.expect)))
    for key in ("delete_when", "truncate_when") if rules.merges else ():
        text = getattr(rules.merges, key) or "NULL"
        available = [*names, *(rules.merges.aside if rules.merges else ())]
        yield from ((f"table.merge.{key}", name, available) for name in sorted(names_in(text)))


def _paths(item: pa.Field) -> Iterator[str]:
    """The nested fields of a column."""
    for inner in item.type if pa.types.is_struct(item.type) else ():
        yield from (f"{item.name}.{path}" for path in (inner.name, *_paths(inner)))


def _read(
    step: StepSpec, names: Sequence[str], nested: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Columns that a step reads, with their keys; JMESPath reads the message instead."""
    available = list(names)
    for target, text in (step.set or {}).items():
        yield from ((f"set.{target}", name, tuple(available)) for name in sorted(names_in(text)))
        available.append(target)
    if step.where is not None:
        yield from (("where", name, names) for name in sorted(names_in(step.where)))
    yield from (("drop", name, names) for name in step.drop or ())
    yield from (("rename", name, names) for name in step.rename or {})
    for name in step.mask or {}:
        column = name.split(".")[0]
        # A value inside a column must not be stored as it is because of a typo behind the point.
        paths = next((paths for each, paths in nested.items() if each.lower() == column.lower()), ())
        yield ("mask", name, [*names, *paths]) if paths else ("mask", column, names)


def _computed(step: StepSpec) -> set[str]:
    """Columns whose type a step may change."""
    return {*(step.rename or {}).values(), *(step.set or {}), *(target.split(".")[0] for target in step.queries)}


def _after(step: StepSpec, names: Sequence[str]) -> list[str]:
    """Columns after a step."""
    dropped = {name.lower() for name in step.drop or ()}
    moved = {old.lower(): new for old, new in (step.rename or {}).items()}
    columns = [moved.get(name.lower(), name) for name in names if name.lower() not in dropped]
    return [*columns, *moved.values(), *(step.set or {}), *(target.split(".")[0] for target in step.queries)]
