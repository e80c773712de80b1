"""Rules for explode, branches and topics: consistent columns and separate tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.spec.decode import UNKNOWN_FIELDS, ProtobufFormat
from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.explode import Explode
from headrace.spec.model import BranchSpec, Spec, TopicSpec, template
from headrace.spec.table import ColumnSpec, TableMatch, TableOptions, TableSpec
from headrace.spec.uris import may_overlap
from headrace.spec.yaml_reader import Path
from headrace.validate.columns import column_name_error
from headrace.validate.topics import source_topics

_HERE: Path = ("explode",)
_WITH_FIELDS = ("json", "avro", "protobuf", "msgpack")


def check_branches(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Outputs must have unique names and separate tables: a table has one txn per pipeline."""
    outputs: list[tuple[Path, BranchSpec]] = [(("branches", nth), each) for nth, each in enumerate(spec.branches)]
    outputs += [(("topics", nth), each) for nth, each in enumerate(spec.topics)]
    tables: list[tuple[str, str]] = []
    for index, (here, output) in enumerate(outputs):
        if output.name in [before.name for _, before in outputs[:index]]:
            message = f"duplicate name '{output.name}'"
            expected = "names that are unique among branches and topics"
            yield UnlocatedDiagnostic((*here, "name"), message, expected, depends_on=())
        others = tables if _is_apart(spec, output) else [("the pipeline's main table", spec.table.path), *tables]
        for name, path in others:
            if may_overlap(output.table.path, path):
                message = f"overlaps with {name} ({path})"
                yield UnlocatedDiagnostic((*here, "table", "path"), message, "a separate directory")
                break
        tables.append((f"the table of {output.name}", output.table.path))


def _is_apart(spec: Spec, output: BranchSpec) -> bool:
    """Whether an output is where the pipeline would write a topic that it never gets.

    For example `./lake/logs/{topic}` beside `./lake/{topic}`: of the topic `logs`, if it has an entry or is not read.
    """
    if not isinstance(output, TopicSpec) or spec.route.kind != "topic":
        return False
    match = re.match(template(spec.table.path).pattern + "(?=/|$)", output.table.path)
    if match is None:
        return False
    names, pattern = source_topics(spec)
    is_read = names is None or match["route"] in names or (pattern and re.search(pattern, match["route"]))
    return not is_read or spec.entry_of(match["route"]) is not None


def check_explode(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Whether the array can be exploded into the table."""
    explode = spec.explode
    if explode is None:
        return
    if spec.format not in _WITH_FIELDS:
        yield UnlocatedDiagnostic(
            _HERE, f"explode requires a format with fields; {spec.format} has none", ", ".join(_WITH_FIELDS)
        )
    yield from _names(explode)
    yield from _keep_paths(explode)
    yield from _unknown_fields(spec, explode)
    yield from _table(spec, explode, spec.table, spec.table, ("table",))
    for nth, item in enumerate(spec.tables):
        yield from _table(spec, explode, item.over(spec.table), item, ("tables", nth))


def _names(explode: Explode) -> Iterator[UnlocatedDiagnostic]:
    """Names of the columns that explode adds."""
    columns: list[tuple[Path, str]] = [((*_HERE, "column"), explode.column)]
    columns += [((*_HERE, "keep", name), name) for name in explode.keep]
    columns += [((*_HERE, "position"), explode.position)] if explode.position else []
    names: set[str] = set()
    for path, name in columns:
        if error := column_name_error(name):
            yield UnlocatedDiagnostic(path, error, "a valid Delta column name", depends_on=())
        elif "." in name:
            expected = "a name without dots; use {column: a.b} to keep a nested field"
            yield UnlocatedDiagnostic(path, f"'{name}'", expected, depends_on=())
        elif name.lower() in names:
            yield UnlocatedDiagnostic(path, f"duplicate column '{name}' (case-insensitive)", "unique names")
        names.add(name.lower())


def _keep_paths(explode: Explode) -> Iterator[UnlocatedDiagnostic]:
    for name, path in explode.keep.items():
        if not all(path.split(".")):
            expected = "a.b, without empty segments"
            yield UnlocatedDiagnostic((*_HERE, "keep", name), f"'{path}'", expected, depends_on=())
        elif path.split(".")[0] == explode.column:
            yield UnlocatedDiagnostic(
                (*_HERE, "keep", name), f"'{path}' is the exploded array", "other fields of the record"
            )


def _unknown_fields(spec: Spec, explode: Explode) -> Iterator[UnlocatedDiagnostic]:
    """Unknown fields that Protobuf keeps belong to the record: rows without their column would drop them silently.

    Other contracts than `evolve` apply to unknown fields as to any new field: ignored and counted, rejected or rescued.
    """
    options = spec.decode.options
    if not isinstance(options, ProtobufFormat) or not options.keep_unknown_fields:
        return
    tables = (spec.table, *(item.over(spec.table) for item in spec.tables))
    evolves = any(table.contract.new_field == "evolve" for table in tables)
    if evolves and UNKNOWN_FIELDS not in explode.keep.values():
        yield UnlocatedDiagnostic(
            (*_HERE, "keep"),
            "keep_unknown_fields has no column in exploded rows",
            f"explode.keep with {UNKNOWN_FIELDS}, or contract.new_field other than evolve",
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
    """Declared columns must include the fields that explode writes, unless the contract adds columns."""
    names = [column.name for column in table.columns]
    computed = {name.split(".")[0] for step in spec.transform for name in (*(step.set or {}), *step.queries)}
    elements = [name for name in names if name not in explode.beside and name not in computed]
    if not elements:
        yield UnlocatedDiagnostic(
            here, f"no column for the elements of '{explode.column}'", "at least one field of its elements"
        )
    if explode.column in elements and len(elements) > 1:
        message = f"'{explode.column}' (the whole element) together with fields of it"
        yield UnlocatedDiagnostic(here, message, f"either '{explode.column}' or fields of its elements")
    absent = [name for name in explode.keep if name not in names]
    if absent and table.contract.new_field != "evolve":
        yield UnlocatedDiagnostic((*_HERE, "keep", absent[0]), f"'{absent[0]}' is not declared", ", ".join(names))


def written_options(spec: Spec | BranchSpec) -> Iterator[tuple[Path, TableSpec | TableMatch]]:
    """Table options as written in the spec, with their paths."""
    yield ("table",), spec.table
    for index, item in enumerate(spec.tables):
        yield ("tables", index), item
