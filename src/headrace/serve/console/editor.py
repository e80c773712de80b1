"""The editor: runs a spec over sample records, without Spark, and reaches nothing but these records.

Anyone who may read the console may use it. So the keys that reach outside (files, brokers, registries, stores) and the
references to variables and files must be those of the pipeline whose spec is edited, each where it is there. Otherwise
`set: {x: "'${env:PASSWORD}'"}` would show a secret as a column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import HeadraceError
from headrace.importers.detect import import_yaml
from headrace.plan.plan import Plan
from headrace.plan.unknown_names import unknown_everywhere
from headrace.serve.console.spec_text import plain_spec
from headrace.serve.console.text import printable
from headrace.spec import Spec
from headrace.spec.diagnostics import Diagnostic
from headrace.spec.route_id import RouteId
from headrace.spec.yaml_reader import InvalidYaml, parse_yaml
from headrace.validate.load import examine_text

_NEW_SOURCE = "a source `generate`, or `kafka` with brokers and topics alone"
MAX_TEXT, MAX_RECORDS = 64 * 1024, 100
_FILE = "spec"
# Keys that reach outside of the editor: of the spec, and of a format below any `decode`.
_OUTSIDE = ("source", "storage", "hot_store", "state", "spark")
_OUTSIDE_OF_FORMATS = ("registry", "schema", "single_object", "descriptor", "schemas")
_HARMLESS_SOURCES = {  # that a new spec may have; the editor reads none
    "generate": frozenset({"records", "partitions", "bad_ratio", "rate", "seed", "start"}),
    "kafka": frozenset({"brokers", "topics", "start"}),
}


@dataclass(frozen=True, slots=True)
class RowsOfTable:
    """Rows that the records produce for a table."""

    table: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that would be a dead letter."""

    line: int  # of the records, from 1
    step: str
    reason: str
    detail: str
    value: str


@dataclass(frozen=True, slots=True)
class EditorResult:
    """What a spec does with some records."""

    diagnostics: tuple[Diagnostic, ...] = ()
    tables: tuple[RowsOfTable, ...] = ()
    rejected: tuple[RejectedRecord, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str = ""
    milliseconds: float = 0.0

    @property
    def errors(self) -> int:
        """Number of errors in the spec."""
        return sum(each.severity == "error" for each in self.diagnostics)


def run_editor(
    text: str, records: str, edited: Spec | None, schemas: Mapping[str, pa.Schema] | None = None
) -> EditorResult:
    """Check a spec, and run it over records, one per line. `schemas`: of the pipeline's tables, by URI."""
    started = perf_counter()
    result = _result(text, records, edited, schemas or {})
    return replace(result, milliseconds=round((perf_counter() - started) * 1000, 1))


def _result(text: str, records: str, edited: Spec | None, schemas: Mapping[str, pa.Schema]) -> EditorResult:
    if len(text) > MAX_TEXT or len(records) > MAX_TEXT:
        return EditorResult(error=f"Spec and records may have at most {MAX_TEXT:,} characters each.")
    if refusals := tuple(outside_changes(text, edited)):
        return EditorResult(refusals)
    base = edited.base if edited is not None else Path("/nonexistent")
    specs, diagnostics = examine_text(text, base, _FILE)
    if not specs or any(each.severity == "error" for each in diagnostics):
        return EditorResult(tuple(diagnostics))
    try:
        return _applied(specs[0], records, tuple(diagnostics), schemas)
    except HeadraceError as error:
        return EditorResult(tuple(diagnostics), error=f"{error.name}: {error.message} {error.hint}".strip())


def _applied(
    spec: Spec, records: str, diagnostics: tuple[Diagnostic, ...], schemas: Mapping[str, pa.Schema]
) -> EditorResult:
    lines = [(number, line) for number, line in enumerate(records.splitlines(), 1) if line.strip()][:MAX_RECORDS]
    existing = {route: schema for uri, schema in schemas.items() if (route := spec.route_of(uri)) is not None}
    plan = Plan(spec, existing=existing, unchecked=spec.branch_specs())
    applied = plan.apply(_records(spec, lines))
    unknown = unknown_everywhere(applied.unknown.items(), plan.branches, plan.schemas)
    numbers = [number for number, _ in lines]
    rejected = tuple(
        RejectedRecord(
            numbers[row["offset"]], row["step"], row["reason"], row["detail"] or "", printable(row["value"] or b"", 200)
        )
        for row in applied.dead_letters.to_pylist()
    )
    return EditorResult(
        diagnostics,
        tuple(_rows(_name(spec, route), rows) for route, rows in applied.tables.items() if len(rows)),
        rejected,
        applied.counts.records(),
        tuple(f"{each}. A run stops with UnknownColumn." for each in unknown),
    )


def _records(spec: Spec, lines: list[tuple[int, str]]) -> pa.Table:
    now, topic = datetime.now(UTC), (_topics(spec) or ("sample",))[0]
    rows = [
        {"topic": topic, "partition": 0, "offset": position, "timestamp": now, "timestamp_type": 0, "value": text}
        for position, text in enumerate(line.encode() for _, line in lines)
    ]
    return pa.Table.from_pylist(rows, RECORD_SCHEMA)


def _topics(spec: Spec) -> tuple[str, ...]:
    """Topics of the source, if it lists them."""
    source = getattr(spec.source, spec.source_kind, None)
    topics = getattr(source, "topics", None)
    return tuple(map(str, topics)) if isinstance(topics, tuple | list) else ()


def _name(spec: Spec, route: RouteId) -> str:
    """A table as the spec calls it: below its directory, or by its URI."""
    return spec.uri_of(route).removeprefix(f"{spec.base}/")


def _rows(uri: str, rows: pa.Table) -> RowsOfTable:
    names = [name for name in rows.schema.names if name != "_source"]
    cells = tuple(
        tuple("NULL" if row[name] is None else printable(row[name], 200) for name in names) for row in rows.to_pylist()
    )
    return RowsOfTable(uri, tuple(names), tuple(str(rows.schema.field(name).type) for name in names), cells)


# ---- what the editor does not follow ----


def outside_changes(text: str, edited: Spec | None) -> Iterator[Diagnostic]:
    """Diagnostics for keys and references that reach outside and are not those of the edited spec."""
    try:
        documents = parse_yaml(text)
    except InvalidYaml:
        return  # reported with all other errors
    if import_yaml(_FILE, documents, {}) is not None:  # its importer would read variables of this process
        yield _refusal(1, "", "the configuration of another system", "a spec, as `headrace import` prints it")
        return
    if len(documents) > 1:
        yield _refusal(1, "", "several pipelines", "one pipeline")
        return
    own = plain_spec(edited) if edited is not None else {}
    for root in documents:
        content = root.plain()
        if not isinstance(content, dict):
            continue
        line = {key: spot.line for key, (spot, _) in root.content.items()} if isinstance(root.content, dict) else {}
        own_values = {(path, _text(value)) for path, value in _outside_values(own)}
        for path, value in _outside_values(content):
            if (path, _text(value)) not in own_values and not _is_harmless_source(path, value):
                name = ".".join(path)
                expected = f"`{name}` of the pipeline, unchanged" if own else _NEW_SOURCE
                message = f"the editor does not follow `{name}`, which reaches files or other systems"
                yield _refusal(line.get(path[0], 1), name, message, expected)
        references = set(_references(own))
        for path, value in _references(content):
            if (path, value) not in references:
                name = ".".join(path)
                message = f"the editor does not follow the reference in `{name}`"
                yield _refusal(line.get(path[0], 1), name, message, "a value without ${…}")


def _refusal(line: int, key: str, message: str, expected: str) -> Diagnostic:
    return Diagnostic(_FILE, line, 1, key, message, expected)


def _outside_values(content: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The keys of a spec that reach outside, with their values."""
    yield from (((name,), content[name]) for name in _OUTSIDE if name in content)
    if isinstance(options := content.get("dead_letters"), Mapping) and "path" in options:
        yield ("dead_letters", "path"), options["path"]
    yield from _outside_of_formats(content, ())


def _outside_of_formats(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Files and registries of formats: of the pipeline, and of the entries of `topics`."""
    if isinstance(value, list):
        for item in value:
            yield from _outside_of_formats(item, (*path, "*"))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if "decode" in path and name in _OUTSIDE_OF_FORMATS:
                yield (*path, name), inner
            yield from _outside_of_formats(inner, (*path, str(name)))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _is_harmless_source(path: tuple[str, ...], value: Any) -> bool:
    """Whether a value is a source whose settings name no files."""
    if path != ("source",) or not isinstance(value, Mapping) or len(value) != 1:
        return False
    kind, options = next(iter(value.items()))
    names = set(options) if isinstance(options, Mapping) else set()
    return kind in _HARMLESS_SOURCES and names <= _HARMLESS_SOURCES[kind]


def _references(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """All texts with a reference, by path."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _references(inner, (*path, str(name)))
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner, (*path, "*"))  # steps may be moved
    elif isinstance(value, str) and "${" in value:
        yield path, value


# ---- first content ----

NEW_SPEC = """\
pipeline: new
source: {generate: {records: 10}}
transform:
  - set: {day: "CAST(occurred_at AS DATE)"}
route: {by: {field: type}}
table:
  path: ./lake/{route}
  partition_by: [day]
  columns:
    - {name: id, type: bigint, nullable: false}
    - {name: type, type: string}
    - {name: occurred_at, type: timestamp}
"""
NEW_RECORDS = """\
{"id": 1, "type": "page_view", "occurred_at": "2026-01-31T12:00:00Z", "path": "/"}
{"id": 2, "type": "order", "occurred_at": "2026-01-31T12:00:01Z", "amount": 12.5}
{"id": "three", "type": "order", "occurred_at": "2026-01-31T12:00:02Z"}
"""
_EXAMPLES: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_boolean, True),
    (pa.types.is_integer, 1),
    (pa.types.is_floating, 1.5),
    (pa.types.is_decimal, 1),
    (pa.types.is_timestamp, "2026-01-31T12:00:00Z"),
    (pa.types.is_date, "2026-01-31"),
)


def example_records(spec: Spec, schemas: Mapping[str, pa.Schema]) -> str:
    """A generated JSON record for each of a few tables, from their columns."""
    lines = []
    for uri, schema in list(schemas.items())[:5]:
        route = spec.route_of(uri) or RouteId()
        record = {item.name: _example(item.type) for item in schema if item.name not in ("_source", "_rescued")}
        if spec.route.kind == "field" and route.route:
            record |= {str(spec.route.value): route.route.rpartition(":")[2]}
        lines.append(json.dumps(record))
    return "\n".join(lines) + "\n" if lines else ""


def _example(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {item.name: _example(item.type) for item in kind}
    if pa.types.is_list(kind):
        return [_example(kind.value_type)]
    return next((value for is_kind, value in _EXAMPLES if is_kind(kind)), "text")
