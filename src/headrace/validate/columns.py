"""Whether what a spec says of a table can be a Delta table: names, types, defaults, partitions, contract."""

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

_REFUSED = re.compile(r"[ ,;{}()\n\t=\x00-\x1f]")


def check_table_columns(
    table: TableSpec, own: TableOptions, here: Path, steps: Sequence[StepSpec]
) -> Iterator[UnlocatedDiagnostic]:
    """Everything that is wrong with a table; `own` are the options written here, the others are inherited."""
    yield from _columns(own.columns, (*here, "columns"))
    if own.only_declared and not table.declared:
        yield UnlocatedDiagnostic(
            (*here, "only_declared"), "requires declared columns", "only_declared with at least one entry in columns"
        )
    yield from _partitions(table, here, steps)
    yield from _contract(table, own, here)
    yield from _features(table, own, here)
    yield from _properties(own, here)


def declared_columns_of(table: TableOptions) -> list[str]:
    """The columns that rows of a declared table have before any step."""
    return [*(column.name for column in table.columns), *(["_rescued"] if table.contract.rescues else [])]


def names_after(steps: Sequence[StepSpec], names: Sequence[str]) -> list[str]:
    """The columns there are after some steps."""
    left = list(names)
    for step in steps:
        left = [name for name in left if name not in (step.drop or ())]
        left = [(step.rename or {}).get(name, name) for name in left]
        left += [name for name in step.set or {} if name not in left]
        left += [name for name in _roots(step) if name not in left]
    return left


def _roots(step: StepSpec) -> Iterator[str]:
    """The columns that JMESPath makes, or makes something in."""
    yield from dict.fromkeys(target.split(".")[0] for target, text in step.queries.items() if text != "null")


def bad_name(name: str) -> str:
    """Why a name cannot be a column; empty when it can."""
    from headrace.delta.schema import reserved

    if reserved(name):
        return f"'{name}' is reserved by Headrace and Delta"
    if not name or len(name) > 255:
        return "empty, or longer than 255 characters"
    found = _REFUSED.search(name)
    return f"{found[0]!r} in a column name" if found else ""


def _columns(columns: Sequence[ColumnSpec], here: Path) -> Iterator[UnlocatedDiagnostic]:
    each = list(_each_column(columns, here))
    yield from each
    if columns and not each and (seen := _misfit(columns)):
        yield UnlocatedDiagnostic(here, seen, "columns that do not conflict")


def _each_column(columns: Sequence[ColumnSpec], here: Path) -> Iterator[UnlocatedDiagnostic]:
    seen: set[str] = set()
    for index, column in enumerate(columns):
        if trouble := bad_name(column.name):
            yield UnlocatedDiagnostic(
                (*here, index, "name"), trouble, "a name without ' ,;{}()=' or control characters"
            )
        if column.name.lower() in seen:
            yield UnlocatedDiagnostic(
                (*here, index, "name"), f"duplicate column '{column.name}' (case-insensitive)", "unique names"
            )
        seen.add(column.name.lower())
        yield from _column(column, (*here, index))


def _column(column: ColumnSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    from headrace.spec.types import TIMESTAMP, meant_type, parse_type, plain_type_names

    try:
        kind = parse_type(column.type)
    except UsageError as trouble:
        meant = meant_type(column.type)
        # no name was wrong, only how they stand together
        allowed = ", ".join(plain_type_names()) if meant or trouble.hint else "a type with unique field names"
        yield UnlocatedDiagnostic((*here, "type"), trouble.message.removesuffix("."), allowed, meant)
        return
    yield from _inner_names(kind, (*here, "type"))
    if column.unit is not None and kind != TIMESTAMP:
        yield UnlocatedDiagnostic((*here, "unit"), f"unit is not supported for {column.type}", "timestamp columns")
    if column.json_text and not _is_text(kind):
        yield UnlocatedDiagnostic((*here, "json"), f"json is not supported for {column.type}", "string columns")
    if column.path is not None and not all(column.path.split(".")):
        yield UnlocatedDiagnostic((*here, "path"), f"'{column.path}'", "a.b, without empty segments")
    if column.default is not None and (seen := _misfit([column])):
        yield UnlocatedDiagnostic((*here, "default"), seen, "a value in the format of the records")


def _inner_names(kind: Any, here: Path) -> Iterator[UnlocatedDiagnostic]:
    import pyarrow as pa

    inner = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        for item in inner:
            if trouble := bad_name(item.name):
                yield UnlocatedDiagnostic(here, trouble, "a field name without ' ,;{}()=' or control characters")
    for item in inner:
        yield from _inner_names(item.type, here)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind))


def _misfit(columns: Sequence[ColumnSpec]) -> str:
    """What the decoder has against columns: a default that does not fit, two fields that are one."""
    import pyarrow as pa

    from headrace.decode.decoders import decoder
    from headrace.plan.route_schema import declared_field

    try:
        decoder("json", pa.schema([declared_field(column) for column in columns]))
    except UsageError as trouble:
        return trouble.message.removesuffix(".")
    return ""


def check_column_names(steps: Sequence[StepSpec]) -> Iterator[UnlocatedDiagnostic]:
    """Every name that the transform makes and Delta refuses."""
    for index, step in enumerate(steps):
        made = [("set", name, name) for name in step.set or {}]
        made += [("rename", old, new) for old, new in (step.rename or {}).items()]
        for key, at, name in made:
            if trouble := bad_name(name):
                yield UnlocatedDiagnostic(("transform", index, key, at), trouble, "a valid Delta column name")
        yield from _target_names(step, ("transform", index, "jmespath"))
        folded = [name.lower() for _, _, name in made]
        if len(set(folded)) < len(folded):
            yield UnlocatedDiagnostic(
                ("transform", index), "two columns with the same name (case-insensitive)", "unique names"
            )


def _target_names(step: StepSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    long = step.jmespath is not None and step.queries is not step.jmespath
    seen: set[str] = set()
    for target in step.queries:
        path = (*here, "set", target) if long else (*here, target)
        for name in target.split("."):
            if trouble := bad_name(name):
                yield UnlocatedDiagnostic(path, trouble, "valid Delta column names, separated by dots")
        if target.lower() in seen:
            yield UnlocatedDiagnostic(path, f"duplicate target '{target}' (case-insensitive)", "unique names")
        seen.add(target.lower())


def _partitions(table: TableSpec, here: Path, steps: Sequence[StepSpec]) -> Iterator[UnlocatedDiagnostic]:
    closed = table.closed
    names = [*names_after(steps, [column.name for column in table.columns]), *table.scd2_columns]
    nested = {column.name for column in table.columns if _is_nested(column.type)}
    for index, by in enumerate(table.partition_by):
        path, name = (*here, "partition_by", index), column_of(by)
        if name.lower() in [other.lower() for other in table.partitions[:index]]:
            yield UnlocatedDiagnostic(path, f"duplicate column '{name}'", "unique names")
        elif isinstance(by, PartitionBy):
            yield from _made_partition(by, path, table, names, closed)
        elif name == "_source" or name in nested:
            yield UnlocatedDiagnostic(path, f"'{name}' is a nested column", "columns of simple types")
        elif closed and name not in names:
            yield UnlocatedDiagnostic(path, f"no column '{name}'", ", ".join(names), closest(name, names))
    if closed and not table.source and set(names) <= set(table.partitions):
        yield UnlocatedDiagnostic(
            (*here, "partition_by"), "partitioned by all columns", "at least one column that is not a partition column"
        )


def _made_partition(
    by: PartitionBy, path: Path, table: TableSpec, names: Sequence[str], closed: bool
) -> Iterator[UnlocatedDiagnostic]:
    """A partition column that is made from another one, and is no other's."""
    from headrace.stage.derived_partitions import RECORD_TIME

    if trouble := bad_name(by.column):
        yield UnlocatedDiagnostic((*path, "as"), trouble, "a valid Delta column name")
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
                yield UnlocatedDiagnostic(
                    (*here, "contract", name), "conflicts with strict: true", "reject, or remove strict"
                )
    yield from _column_contracts(table, own, here)
    if table.contract.missing == "default":
        open_columns = [
            column.name
            for column in table.columns
            if not column.nullable and column.default is None and table.contract.missing_of(column.name) == "default"
        ]
        if open_columns or not table.declared:
            seen = f"no default for {', '.join(open_columns)}" if open_columns else "requires declared columns"
            yield UnlocatedDiagnostic(
                (*here, "contract", "missing"), seen, "a default on every column with nullable: false"
            )


_PRICES: Mapping[Feature, str] = {
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
            seen = "widen requires the typeWidening feature"
            yield UnlocatedDiagnostic((*path, "wrong_type"), seen, "features: [typeWidening] in the table")


def _features(table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """What a feature asks for, and its price, said once."""
    widens = table.contract.wrong_type == "widen" and "typeWidening" not in table.features
    if own.model_fields_set & {"contract_keys", "features"} and widens:
        seen = "widen requires the typeWidening feature"
        yield UnlocatedDiagnostic((*here, "contract", "wrong_type"), seen, "features: [typeWidening]")
    for index, feature in enumerate(own.features):
        if feature == "deletionVectors" and not table.merges:
            seen = "deletionVectors requires a mode that merges"
            yield UnlocatedDiagnostic((*here, "features", index), seen, "mode: upsert or scd2")
        else:
            yield UnlocatedDiagnostic((*here, "features"), _PRICES[feature], severity="warning")


def _properties(table: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """A table made here must be one that a blind append may write, for good, and that Spark can open."""
    from headrace.delta.properties import EXPIRING, expected_value

    for name, value in table.properties.items():
        path = (*here, "properties", name)
        if name == EXPIRING:
            yield UnlocatedDiagnostic(path, "txn expiry breaks exactly-once delivery", "txns that do not expire")
        elif not _adoptable(name, value):
            yield UnlocatedDiagnostic(path, f"'{value}'", "properties that do not restrict appends")
        elif wanted := expected_value(name, value):
            yield UnlocatedDiagnostic(path, f"'{value}'", wanted)


def _adoptable(name: str, value: str) -> bool:
    from headrace.delta.actions import MetadataAction, Protocol
    from headrace.delta.features import append_blocker
    from headrace.delta.snapshot import TableState

    made = MetadataAction("", '{"type":"struct","fields":[]}', (), {name: value})
    return append_blocker(TableState(0, made, Protocol())) is None
