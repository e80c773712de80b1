"""Whether what a spec says of exploding and of branches can be: columns that go together, tables that stay apart."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.explode import Explode
from headrace.spec.model import BranchSpec, Spec
from headrace.spec.table import ColumnSpec, TableMatch, TableOptions, TableSpec
from headrace.spec.uris import may_meet
from headrace.spec.yaml_reader import Path
from headrace.validate.columns import bad_name

_HERE: Path = ("explode",)
_WITH_FIELDS = ("json", "avro", "protobuf", "msgpack")


def check_apart(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Every branch has a name of its own, and no two write to one table, whose marks would be of both."""
    met: list[tuple[str, str]] = [("the pipeline's main table", spec.table.path)]
    for index, each in enumerate(spec.branches):
        here: Path = ("branches", index)
        if each.name in [other.name for other in spec.branches[:index]]:
            yield UnlocatedDiagnostic((*here, "name"), f"duplicate name '{each.name}'", "unique branch names")
        for name, path in met:
            if may_meet(each.table.path, path):
                seen = f"overlaps with {name} ({path})"
                yield UnlocatedDiagnostic((*here, "table", "path"), seen, "a separate directory")
                break
        met.append((f"the table of {each.name}", each.table.path))


def check_explode(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Whether a list can be exploded into the table."""
    explode = spec.explode
    if explode is None:
        return
    if spec.format not in _WITH_FIELDS:
        yield UnlocatedDiagnostic(
            _HERE, f"explode requires a format with fields; {spec.format} has none", ", ".join(_WITH_FIELDS)
        )
    yield from _names(explode)
    yield from _kept(explode)
    yield from _table(spec, explode, spec.table, spec.table, ("table",))
    for nth, item in enumerate(spec.tables):
        yield from _table(spec, explode, item.over(spec.table), item, ("tables", nth))


def _names(explode: Explode) -> Iterator[UnlocatedDiagnostic]:
    """The names of columns that exploding makes."""
    made: list[tuple[Path, str]] = [((*_HERE, "column"), explode.column)]
    made += [((*_HERE, "keep", name), name) for name in explode.keep]
    made += [((*_HERE, "position"), explode.position)] if explode.position else []
    met: set[str] = set()
    for path, name in made:
        if trouble := bad_name(name):
            yield UnlocatedDiagnostic(path, trouble, "a valid Delta column name")
        elif "." in name:
            yield UnlocatedDiagnostic(
                path, f"'{name}'", "a name without dots; use {column: a.b} to keep a nested field"
            )
        elif name.lower() in met:
            yield UnlocatedDiagnostic(path, f"duplicate column '{name}' (case-insensitive)", "unique names")
        met.add(name.lower())


def _kept(explode: Explode) -> Iterator[UnlocatedDiagnostic]:
    for name, path in explode.keep.items():
        if not all(path.split(".")):
            yield UnlocatedDiagnostic((*_HERE, "keep", name), f"'{path}'", "a.b, without empty segments")
        elif path.split(".")[0] == explode.column:
            yield UnlocatedDiagnostic(
                (*_HERE, "keep", name), f"'{path}' is the exploded array", "other fields of the record"
            )


def _table(
    spec: Spec, explode: Explode, table: TableSpec, own: TableOptions, here: Path
) -> Iterator[UnlocatedDiagnostic]:
    for index, column in enumerate(own.columns):
        yield from _column(explode, column, (*here, "columns", index))
    if own.columns:
        yield from _declared(spec, explode, table, (*here, "columns"))


def _column(explode: Explode, column: ColumnSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    if column.path is not None and column.name in explode.keep:
        yield UnlocatedDiagnostic(
            (*here, "path"), "path is not supported for a kept field", "explode.keep: {column: a.b}"
        )
    elif column.path is not None:
        yield UnlocatedDiagnostic(
            (*here, "path"), "path is not supported inside an element", "a transform step that sets it from the column"
        )
    if column.name == explode.column and column.json_text:
        yield UnlocatedDiagnostic((*here, "json"), "json is not supported for elements", "the type of the elements")


def _declared(spec: Spec, explode: Explode, table: TableSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Declared columns are all there are, unless the contract lets records add more."""
    names = [column.name for column in table.columns]
    made = {name.split(".")[0] for step in spec.transform for name in (*(step.set or {}), *step.queries)}
    elements = [name for name in names if name not in explode.beside and name not in made]
    if not elements:
        yield UnlocatedDiagnostic(
            here, f"no column for the elements of '{explode.column}'", "at least one field of its elements"
        )
    if explode.column in elements and len(elements) > 1:
        seen = f"'{explode.column}' (the whole element) together with fields of it"
        yield UnlocatedDiagnostic(here, seen, f"either '{explode.column}' or fields of its elements")
    absent = [name for name in explode.keep if name not in names]
    if absent and table.contract.new_field != "evolve":
        yield UnlocatedDiagnostic((*_HERE, "keep", absent[0]), f"'{absent[0]}' is not declared", ", ".join(names))


def written(spec: Spec | BranchSpec) -> Iterator[tuple[Path, TableSpec | TableMatch]]:
    """The table's options, and those of some routes, with where they stand."""
    yield ("table",), spec.table
    for index, item in enumerate(spec.tables):
        yield ("tables", index), item
