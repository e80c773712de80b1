"""Rules for table columns: names, types, defaults, partitions, contract, features and properties."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.partition import PartitionBy, column_of
from headrace.spec.table import ColumnSpec, Feature, TableOptions, TableSpec
from headrace.spec.yaml_reader import Path

if TYPE_CHECKING:
    from headrace.spec.steps import StepSpec

_INVALID_CHARACTERS = re.compile(r"[ ,;{}()\n\t=\x00-\x1f]")


def check_table_columns(
    table: TableSpec, own: TableOptions, here: Path, steps: Sequence[StepSpec]
) -> Iterator[UnlocatedDiagnostic]:
    """Check the columns of a table; `own` are the options written at this path, the others are inherited."""
    yield from _columns(own.columns, (*here, "columns"))
    if own.only_declared and not table.declared:
        yield UnlocatedDiagnostic(
            (*here, "only_declared"), "requires declared columns", "only_declared with at least one entry in columns"
        )
    yield from _partitions(table, here, steps)
    yield from _contract(table, own, here)
    yield from _coerce(table, own, here)
    yield from _features(table, own, here)
    yield from _properties(own, here)


def _coerce(table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Coerced columns take values that a contract would rescue, or widen a column for."""
    if table.coerce is None or not {"coerce", "contract_keys", "columns"} & own.model_fields_set:
        return
    if table.contract.rescues or table.contract.widens:
        action = "rescue" if table.contract.rescues else "widen"
        yield UnlocatedDiagnostic((*here, "coerce"), f"coerce with {action}", "a contract without rescue and widen")


def declared_columns_of(table: TableOptions) -> list[str]:
    """Columns of a declared table before the transform."""
    return [*(column.name for column in table.columns), *(["_rescued"] if table.contract.rescues else [])]


def names_after(steps: Sequence[StepSpec], names: Sequence[str]) -> list[str]:
    """Columns after some transform steps."""
    columns = list(names)
    for step in steps:
        columns = [name for name in columns if name not in (step.drop or ())]
        columns = [(step.rename or {}).get(name, name) for name in columns]
        columns += [name for name in step.set or {} if name not in columns]
        columns += [name for name in _roots(step) if name not in columns]
    return columns


def _roots(step: StepSpec) -> Iterator[str]:
    """Columns that JMESPath sets, completely or in part."""
    yield from dict.fromkeys(target.split(".")[0] for target, text in step.queries.items() if text != "null")


def column_name_error(name: str) -> str:
    """Reason why a name is not a valid column name; empty if it is valid."""
    from headrace.delta.schema import reserved

    if reserved(name):
        return f"'{name}' is reserved by Headrace and Delta"
    if not name or len(name) > 255:
        return "empty, or longer than 255 characters"
    match = _INVALID_CHARACTERS.search(name)
    return f"{match[0]!r} in a column name" if match else ""


def _columns(columns: Sequence[ColumnSpec], here: Path) -> Iterator[UnlocatedDiagnostic]:
    diagnostics = list(_column_diagnostics(columns, here))
    yield from diagnostics
    if columns and not diagnostics and (message := _decoder_error(columns)):
        paths = tuple((*here, index, "path") for index in range(len(columns)))
        yield UnlocatedDiagnostic(here, message, "columns that do not conflict", depends_on=paths)


def _column_diagnostics(columns: Sequence[ColumnSpec], here: Path) -> Iterator[UnlocatedDiagnostic]:
    names: set[str] = set()
    for index, column in enumerate(columns):
        if error := column_name_error(column.name):
            expected = "a name without ' ,;{}()=' or control characters"
            yield UnlocatedDiagnostic((*here, index, "name"), error, expected, depends_on=())
        if column.name.lower() in names:
            message = f"duplicate column '{column.name}' (case-insensitive)"
            yield UnlocatedDiagnostic((*here, index, "name"), message, "unique names", depends_on=())
        names.add(column.name.lower())
        yield from _column(column, (*here, index))


def _column(column: ColumnSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    from headrace.spec.types import TIMESTAMP, parse_type, plain_type_names, suggested_type

    try:
        kind = parse_type(column.type)
    except UsageError as error:
        suggestion = suggested_type(column.type)
        # Without a suggestion or hint, the type names are valid and a field name is duplicated.
        expected = ", ".join(plain_type_names()) if suggestion or error.hint else "a type with unique field names"
        message = error.message[0].lower() + error.message[1:].removesuffix(".")
        yield UnlocatedDiagnostic((*here, "type"), message, expected, suggestion, depends_on=())
        return
    related = tuple((*here, key) for key in ("type", "unit", "json"))
    yield from _inner_names(kind, (*here, "type"))
    if column.unit is not None and kind != TIMESTAMP:
        message = f"unit is not supported for {column.type}"
        yield UnlocatedDiagnostic((*here, "unit"), message, "timestamp columns", depends_on=related)
    if column.json_text and not _is_text(kind):
        message = f"json is not supported for {column.type}"
        yield UnlocatedDiagnostic((*here, "json"), message, "string columns", depends_on=related)
    if column.path is not None and not all(column.path.split(".")):
        yield UnlocatedDiagnostic((*here, "path"), f"'{column.path}'", "a.b, without empty segments", depends_on=())
    if column.default is not None and (message := _decoder_error([column])):
        expected = "a value in the format of the records"
        yield UnlocatedDiagnostic((*here, "default"), message, expected, depends_on=related)


def _inner_names(kind: Any, here: Path) -> Iterator[UnlocatedDiagnostic]:
    import pyarrow as pa

    inner = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        for item in inner:
            if error := column_name_error(item.name):
                expected = "a field name without ' ,;{}()=' or control characters"
                yield UnlocatedDiagnostic(here, error, expected, depends_on=())
    for item in inner:
        yield from _inner_names(item.type, here)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind))


def _decoder_error(columns: Sequence[ColumnSpec]) -> str:
    """Error of the decoders for the columns, such as an invalid default; empty if there is none."""
    import pyarrow as pa

    from headrace.decode.payload import payload_schema_of
    from headrace.decode.payload_field import declared_field

    try:
        layout = payload_schema_of(pa.schema([declared_field(column) for column in columns]))
        if any(column.default is not None for column in columns):
            from headrace.decode.json.exact import default_of

            for column in layout.columns:
                default_of(column)
    except UsageError as error:
        return error.message.removesuffix(".")
    return ""


def check_column_names(steps: Sequence[StepSpec]) -> Iterator[UnlocatedDiagnostic]:
    """Column names in transform steps that Delta does not support."""
    for index, step in enumerate(steps):
        columns = [("set", name, name) for name in step.set or {}]
        columns += [("rename", old, new) for old, new in (step.rename or {}).items()]
        for key, at, name in columns:
            if error := column_name_error(name):
                path = ("transform", index, key, at)
                yield UnlocatedDiagnostic(path, error, "a valid Delta column name", depends_on=())
        yield from _target_names(step, ("transform", index, "jmespath"))
        folded = [name.lower() for _, _, name in columns]
        if len(set(folded)) < len(folded):
            message = "two columns with the same name (case-insensitive)"
            yield UnlocatedDiagnostic(("transform", index), message, "unique names", depends_on=())


def _target_names(step: StepSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    long = step.jmespath is not None and step.queries is not step.jmespath
    targets: set[str] = set()
    for target in step.queries:
        path = (*here, "set", target) if long else (*here, target)
        for name in target.split("."):
            if error := column_name_error(name):
                expected = "valid Delta column names, separated by dots"
                yield UnlocatedDiagnostic(path, error, expected, depends_on=())
        if target.lower() in targets:
            message = f"duplicate target '{target}' (case-insensitive)"
            yield UnlocatedDiagnostic(path, message, "unique names", depends_on=())
        targets.add(target.lower())


def _partitions(table: TableSpec, here: Path, steps: Sequence[StepSpec]) -> Iterator[UnlocatedDiagnostic]:
    closed = table.closed
    names = [*names_after(steps, [column.name for column in table.columns]), *table.scd2_columns]
    nested = {column.name for column in table.columns if _is_nested(column.type)}
    for index, by in enumerate(table.partition_by):
        path, name = (*here, "partition_by", index), column_of(by)
        if name.lower() in [partition.lower() for partition in table.partitions[:index]]:
            yield UnlocatedDiagnostic(path, f"duplicate column '{name}'", "unique names", depends_on=())
        elif isinstance(by, PartitionBy):
            yield from _derived_partition(by, path, table, names, closed)
        elif name == "_source" or name in nested:
            yield UnlocatedDiagnostic(path, f"'{name}' is a nested column", "columns of simple types")
        elif closed and name not in names:
            yield UnlocatedDiagnostic(path, f"no column '{name}'", ", ".join(names), closest(name, names))
    if closed and not table.source and set(names) <= set(table.partitions):
        yield UnlocatedDiagnostic(
            (*here, "partition_by"), "partitioned by all columns", "at least one column that is not a partition column"
        )


def _derived_partition(
    by: PartitionBy, path: Path, table: TableSpec, names: Sequence[str], closed: bool
) -> Iterator[UnlocatedDiagnostic]:
    """Derived partition column: must have an own name and a suitable source column."""
    from headrace.stage.derived_partitions import RECORD_TIME

    if error := column_name_error(by.column):
        yield UnlocatedDiagnostic((*path, "as"), error, "a valid Delta column name", depends_on=())
    elif by.column.lower() in [name.lower() for name in names]:
        yield UnlocatedDiagnostic(
            path, f"'{by.column}' is an existing column", "another name (as), or the name of the column itself"
        )
    elif table.merges:
        yield UnlocatedDiagnostic(
            path,
            "derived partition columns are not supported with merges",
            "transform.set, and the name of its column here",
        )
    elif closed and by.origin != RECORD_TIME and by.origin not in names:
        yield UnlocatedDiagnostic(
            (*path, by.kind), f"no column '{by.origin}'", ", ".join(names), closest(by.origin, names)
        )
    elif by.origin == RECORD_TIME and by.kind == "hash":
        yield UnlocatedDiagnostic((*path, "hash"), "a timestamp column", "a string or integer column")


def _is_nested(text: str) -> bool:
    return text.strip().lower().startswith(("array", "map", "struct"))


def _contract(table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    keys = own.contract_keys
    if own.strict:
        for name in sorted(keys.model_fields_set):
            if getattr(keys, name) not in (None, "reject"):
                path, expected = (*here, "contract", name), "reject, or remove strict"
                yield UnlocatedDiagnostic(
                    path, "conflicts with strict: true", expected, depends_on=((*here, "strict"),)
                )
    yield from _column_contracts(table, own, here)
    if table.contract.missing == "default":
        open_columns = [
            column.name
            for column in table.columns
            if not column.nullable and column.default is None and table.contract.missing_of(column.name) == "default"
        ]
        if open_columns or not table.declared:
            message = f"no default for {', '.join(open_columns)}" if open_columns else "requires declared columns"
            yield UnlocatedDiagnostic(
                (*here, "contract", "missing"),
                message,
                "a default on every column with nullable: false",
                depends_on=((*here, "strict"), *_columns_named(own, open_columns, here)) if open_columns else None,
            )


def _columns_named(own: TableOptions, names: Sequence[str], here: Path) -> Iterator[Path]:
    """Paths of the columns with these names that are written here."""
    for index, column in enumerate(own.columns):
        if column.name in names:
            yield (*here, "columns", index)


_FEATURE_WARNINGS: Mapping[Feature, str] = {
    "typeWidening": "type widening: clients based on delta-rs cannot read the table from its first version on, and all "
    "appends use Spark",
    "deletionVectors": "deletion vectors: Spark and `headrace table` can read the table; pandas, Polars and DuckDB "
    "with delta-rs datasets cannot after the first merge",
}


def _column_contracts(table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    for index, column in enumerate(own.columns):
        path = (*here, "columns", index, "contract")
        for name in sorted(column.contract.model_fields_set) if table.strict else ():
            if getattr(column.contract, name) not in (None, "reject"):
                yield UnlocatedDiagnostic((*path, name), "conflicts with strict: true", "reject, or remove strict")
        if column.contract.missing == "default" and column.default is None:
            yield UnlocatedDiagnostic((*path, "missing"), "no default", "a default value")
        if column.contract.wrong_type == "widen" and "typeWidening" not in table.features:
            message = "widen requires the typeWidening feature"
            yield UnlocatedDiagnostic((*path, "wrong_type"), message, "features: [typeWidening] in the table")


def _features(table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Requirements of table features, and their consequences as warnings."""
    widens = table.contract.wrong_type == "widen" and "typeWidening" not in table.features
    if own.model_fields_set & {"contract_keys", "features"} and widens:
        message = "widen requires the typeWidening feature"
        yield UnlocatedDiagnostic((*here, "contract", "wrong_type"), message, "features: [typeWidening]")
    for index, feature in enumerate(own.features):
        if feature == "deletionVectors" and not table.merges:
            message = "deletionVectors requires a mode that merges"
            yield UnlocatedDiagnostic((*here, "features", index), message, "mode: upsert or scd2")
        else:
            yield UnlocatedDiagnostic((*here, "features"), _FEATURE_WARNINGS[feature], severity="warning")


def _properties(table: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Properties of new tables must permit direct commits and be valid in Spark."""
    if not table.properties:
        return
    from headrace.delta.properties import EXPIRING, expected_value

    for name, value in table.properties.items():
        path = (*here, "properties", name)
        if name == EXPIRING:
            yield UnlocatedDiagnostic(
                path, "txn expiry breaks exactly-once delivery", "txns that do not expire", depends_on=()
            )
        elif not _permits_appends(name, value):
            yield UnlocatedDiagnostic(path, f"'{value}'", "properties that do not restrict appends", depends_on=())
        elif expected := expected_value(name, value):
            yield UnlocatedDiagnostic(path, f"'{value}'", expected, depends_on=())


def _permits_appends(name: str, value: str) -> bool:
    from headrace.delta.actions import MetadataAction, Protocol
    from headrace.delta.features import append_blocker
    from headrace.delta.snapshot import TableState

    metadata = MetadataAction("", '{"type":"struct","fields":[]}', (), {name: value})
    return append_blocker(TableState(0, metadata, Protocol())) is None
