"""Rules about expressions: in steps, routes, letters, expectations, and what deletes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.model import Spec
from headrace.spec.steps import Jmespath, StepSpec
from headrace.spec.table import TableOptions, TableSpec
from headrace.spec.yaml_reader import Path
from headrace.validate.columns import bad_name, check_column_names, declared_columns_of, names_after


def check_transform(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """What is wrong with the steps, and with the expression that routes."""
    yield from check_column_names(spec.transform)
    closed = spec.table.closed and not spec.tables
    names = _columns(spec, spec.table) if closed else None
    gone: dict[str, str] = {}
    for index, step in enumerate(spec.transform):
        here: Path = ("transform", index)
        if names is None:
            yield from _gone(here, step, gone)
        for path, text in _expressions(step):
            yield from _expression((*here, *path), text, names)
        yield from _queries((*here, "jmespath"), step)
        if names is not None:
            yield from _absent(here, step, names)
            names = names_after([step], names)
    if spec.route.kind == "sql":
        yield from _expression(("route", "by", "sql"), spec.route.value or "", names)


def _gone(here: Path, step: StepSpec, gone: dict[str, str]) -> Iterator[UnlocatedDiagnostic]:
    """Names that an earlier step took away; `gone` learns what this one does."""
    from headrace.transform.sql.expression import columns_in as names_in
    from headrace.transform.sql.parser import Refused

    for path, text in _expressions(step):
        with suppress(Refused):  # told elsewhere
            for name in sorted(each for each in names_in(text) if each.lower() in gone):
                yield UnlocatedDiagnostic(
                    (*here, *path), f"'{name}' is not available: {gone[name.lower()]}", "columns that still exist"
                )
        if path[0] == "set":
            gone.pop(str(path[1]).lower(), None)
    gone |= {name.lower(): f"dropped by transform[{here[1]}]" for name in step.drop or ()}
    gone |= {old.lower(): f"renamed to '{new}' by transform[{here[1]}]" for old, new in (step.rename or {}).items()}
    for name in (*(step.rename or {}).values(), *(target.split(".")[0] for target in step.queries)):
        gone.pop(name.lower(), None)


def check_letters(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """What letters get beside their own columns; those are the letter, and stay as they are."""
    from headrace.delta.schema import DEAD_LETTERS
    from headrace.transform.jmespath import dialect

    names = list(DEAD_LETTERS.names)
    for index, step in enumerate(spec.dead_letters.transform):
        key = "set" if step.set else "jmespath"
        for name, text in (step.set or step.jmespath or {}).items():
            here: Path = ("dead_letters", "transform", index, key, name)
            if trouble := bad_name(name):
                yield UnlocatedDiagnostic(here, trouble, "a valid Delta column name")
            elif name.lower() in [each.lower() for each in names]:
                yield UnlocatedDiagnostic(here, f"'{name}' is already a column of the dead letter", "another name")
            elif step.set:
                yield from _expression(here, text, names)
            else:
                yield from (
                    UnlocatedDiagnostic(here, seen, "one JMESPath expression over the dead letter")
                    for seen in dialect.check_jmespath(text)
                )
            names.append(name)


def _expression(path: Path, text: str, names: list[str] | None) -> Iterator[UnlocatedDiagnostic]:
    from headrace.transform.sql.expression import check_sql as check_expression

    for seen in check_expression(text, names):
        yield UnlocatedDiagnostic(path, seen, "one SQL expression over the row and the record's metadata")


def _queries(here: Path, step: StepSpec) -> Iterator[UnlocatedDiagnostic]:
    from headrace.transform.jmespath.dialect import check_jmespath as check_query

    here = (*here, "set") if isinstance(step.jmespath, Jmespath) else here
    for target, text in step.queries.items():
        for seen in check_query(text):
            yield UnlocatedDiagnostic((*here, target), seen, "one JMESPath expression, or a name such as kafka.offset")


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
    named = [("rename", name, name) for name in step.rename or {}]
    named += [("mask", name, name.split(".")[0]) for name in step.mask or {}]
    for key, at, name in named:
        if name not in names:
            yield UnlocatedDiagnostic((*here, key, at), f"no column '{name}'", ", ".join(names), closest(name, names))


def _columns(spec: Spec, table: TableOptions) -> list[str]:
    """What expressions may name before any step."""
    return [*declared_columns_of(table), *_position(spec), *spec.allow_missing]


def _position(spec: Spec) -> list[str]:
    """The column that exploding makes, whether or not it is declared."""
    made = spec.explode.position if spec.explode else None
    return [made] if made and made not in declared_columns_of(spec.table) else []


def check_expectations(spec: Spec, table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Those written here; the columns they see are the table's, after the transform."""
    closed = table.closed
    names = names_after(spec.transform, _columns(spec, table)) if closed else None
    known: set[str] = set()
    for index, each in enumerate(own.expectations):
        path = (*here, "expectations", index)
        if each.name in known:
            yield UnlocatedDiagnostic((*path, "name"), f"duplicate name '{each.name}'", "unique names")
        known.add(each.name)
        yield from _expression((*path, "expect"), each.expect, names)


def check_predicates(spec: Spec, table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """What deletes, over the columns after the transform and what the envelope says."""
    if own.merge is None:
        return
    closed = table.closed
    names = [*names_after(spec.transform, _columns(spec, table)), *own.merge.aside] if closed else None
    for key in ("delete_when", "truncate_when"):
        if text := getattr(own.merge, key):
            yield from _expression((*here, "merge", key), text, names)
