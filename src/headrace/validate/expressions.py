"""Rules for expressions in steps, routes, dead letters, expectations and merges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.model import Spec
from headrace.spec.steps import Jmespath, StepSpec
from headrace.spec.table import TableOptions, TableSpec
from headrace.spec.yaml_reader import Path
from headrace.validate.columns import check_column_names, column_name_error, declared_columns_of, names_after


def check_transform(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check the transform steps and the SQL expression of the route."""
    yield from check_column_names(spec.transform)
    closed = spec.table.closed and not spec.tables
    names = _columns(spec, spec.table) if closed else None
    unavailable: dict[str, str] = {}
    for index, step in enumerate(spec.transform):
        here: Path = ("transform", index)
        if names is None:
            yield from _unavailable_columns(here, step, unavailable)
        for path, text in _expressions(step):
            yield from _expression((*here, *path), text, names)
        yield from _queries((*here, "jmespath"), step)
        if names is not None:
            yield from _absent(here, step, names)
            names = names_after([step], names)
    if spec.route.kind == "sql":
        yield from _expression(("route", "by", "sql"), spec.route.value or "", names)


def _unavailable_columns(here: Path, step: StepSpec, unavailable: dict[str, str]) -> Iterator[UnlocatedDiagnostic]:
    """Uses of columns that an earlier step dropped or renamed; updates `unavailable` with those of this step."""
    from headrace.transform.sql.expression import columns_in as names_in
    from headrace.transform.sql.parser import ExpressionNotAllowed

    for path, text in _expressions(step):
        with suppress(ExpressionNotAllowed):  # reported by `_expression`
            for name in sorted(column for column in names_in(text) if column.lower() in unavailable):
                yield UnlocatedDiagnostic(
                    (*here, *path),
                    f"'{name}' is not available: {unavailable[name.lower()]}",
                    "columns that still exist",
                )
        if path[0] == "set":
            unavailable.pop(str(path[1]).lower(), None)
    unavailable |= {name.lower(): f"dropped by transform[{here[1]}]" for name in step.drop or ()}
    unavailable |= {
        old.lower(): f"renamed to '{new}' by transform[{here[1]}]" for old, new in (step.rename or {}).items()
    }
    for name in (*(step.rename or {}).values(), *(target.split(".")[0] for target in step.queries)):
        unavailable.pop(name.lower(), None)


def check_dead_letters(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check additional columns of dead letters, which cannot replace existing ones, and keys that exclude others."""
    if spec.dead_letters.drop:
        for key in ("path", "retention", "transform"):
            if getattr(spec.dead_letters, key):
                yield UnlocatedDiagnostic(("dead_letters", key), f"{key} with drop", "only one of them")
    if not spec.dead_letters.transform:
        return
    from headrace.delta.schema import DEAD_LETTERS
    from headrace.transform.jmespath import dialect

    names = list(DEAD_LETTERS.names)
    for index, step in enumerate(spec.dead_letters.transform):
        key = "set" if step.set else "jmespath"
        for name, text in (step.set or step.jmespath or {}).items():
            here: Path = ("dead_letters", "transform", index, key, name)
            if error := column_name_error(name):
                yield UnlocatedDiagnostic(here, error, "a valid Delta column name", depends_on=())
            elif name.lower() in [column.lower() for column in names]:
                message = f"'{name}' is already a column of the dead letter"
                yield UnlocatedDiagnostic(here, message, "another name", depends_on=())
            elif step.set:
                yield from _expression(here, text, names)
            else:
                yield from (
                    UnlocatedDiagnostic(here, message, "one JMESPath expression over the dead letter", depends_on=())
                    for message in dialect.check_jmespath(text)
                )
            names.append(name)


def _expression(path: Path, text: str, names: list[str] | None) -> Iterator[UnlocatedDiagnostic]:
    from headrace.transform.sql.expression import check_sql as check_expression

    messages = check_expression(text, names)
    own = check_expression(text) if messages and names is not None else messages  # syntax and functions
    for message in messages:
        expected = "one SQL expression over the row and the record's metadata"
        yield UnlocatedDiagnostic(path, message, expected, depends_on=() if message in own else None)


def _queries(here: Path, step: StepSpec) -> Iterator[UnlocatedDiagnostic]:
    if not step.queries:
        return
    from headrace.transform.jmespath.dialect import check_jmespath as check_query

    here = (*here, "set") if isinstance(step.jmespath, Jmespath) else here
    for target, text in step.queries.items():
        for message in check_query(text):
            expected = "one JMESPath expression, or a name such as kafka.offset"
            yield UnlocatedDiagnostic((*here, target), message, expected, depends_on=())


def _expressions(step: StepSpec) -> Iterator[tuple[Path, str]]:
    if step.where is not None:
        yield ("where",), step.where
    for name, text in (step.set or {}).items():
        yield ("set", name), text


def _absent(here: Path, step: StepSpec, names: list[str]) -> Iterator[UnlocatedDiagnostic]:
    for index, name in enumerate(step.drop or ()):
        if name not in names:
            yield UnlocatedDiagnostic(
                (*here, "drop", index), f"no column '{name}'", ", ".join(names), closest(name, names)
            )
    columns = [("rename", name, name) for name in step.rename or {}]
    columns += [("mask", name, name.split(".")[0]) for name in step.mask or {}]
    for key, at, name in columns:
        if name not in names:
            yield UnlocatedDiagnostic((*here, key, at), f"no column '{name}'", ", ".join(names), closest(name, names))


def _columns(spec: Spec, table: TableOptions) -> list[str]:
    """Columns that expressions can use before any step."""
    return [*declared_columns_of(table), *_position(spec), *spec.allow_missing]


def _position(spec: Spec) -> list[str]:
    """Position column of explode, if it is not declared."""
    position = spec.explode.position if spec.explode else None
    return [position] if position and position not in declared_columns_of(spec.table) else []


def check_expectations(spec: Spec, table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Check expectations, which use the columns after the transform."""
    closed = table.closed
    names = names_after(spec.transform, _columns(spec, table)) if closed else None
    expectation_names: set[str] = set()
    for index, expectation in enumerate(own.expectations):
        path = (*here, "expectations", index)
        if expectation.name in expectation_names:
            message = f"duplicate name '{expectation.name}'"
            yield UnlocatedDiagnostic((*path, "name"), message, "unique names", depends_on=())
        expectation_names.add(expectation.name)
        yield from _expression((*path, "expect"), expectation.expect, names)


def check_predicates(spec: Spec, table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Check delete and truncate predicates, over the columns after the transform and those of the envelope."""
    if own.merge is None:
        return
    closed = table.closed
    names = [*names_after(spec.transform, _columns(spec, table)), *own.merge.aside] if closed else None
    for key in ("delete_when", "truncate_when"):
        if text := getattr(own.merge, key):
            yield from _expression((*here, "merge", key), text, names)
