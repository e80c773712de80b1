"""Route schema: payload fields to decode, and columns of the table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from headrace.decode.inference import Structure, evolve, inferred_widening
from headrace.decode.payload_field import (
    MessageScope,
    PayloadField,
    coerced_field,
    dated_field,
    declared_field,
    input_field,
    is_masked,
    json_field,
    payload_field,
    payload_fields,
    rescue_field,
    stored_field,
)
from headrace.delta.schema import KEPT, METADATA, SOURCE
from headrace.delta.type_widening import widens
from headrace.errors import ColumnMismatch, UsageError
from headrace.plan import explode as exploding
from headrace.spec import ColumnSpec, TableSpec
from headrace.spec.explode import Explode
from headrace.spec.partition import PartitionBy
from headrace.spec.types import check_field_names, same_columns, type_name
from headrace.stage.change_schema import check_keys, check_merging, with_scd2_columns
from headrace.stage.derived_partitions import check_origin, derived_field
from headrace.stage.partitions import check_partitioning
from headrace.transform.sql.column_defaults import default_value, with_default
from headrace.transform.sql.constraints import Constraint
from headrace.transform.sql.expression import RECORD_NAMES
from headrace.transform.steps import RenameStep, Transform

_ASIDE: Mapping[str, pa.Field] = {"_op": pa.field("_op", pa.string()), "_before": json_field("_before")}

Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class RouteSchema:
    """Payload and table schema of a route."""

    uri: str
    payload: pa.Schema
    table: pa.Schema
    partition_by: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()  # names in expressions that no record has had yet
    targets: pa.Schema = pa.schema([])  # noqa: RUF009 - table columns set by JMESPath, with declared units
    floors: Offsets = field(default_factory=dict)  # by (topic, partition): last offset that is already in the table
    origins: Mapping[str, str] = field(default_factory=dict)  # payload fields of merge keys
    derived: tuple[PartitionBy, ...] = ()  # derived partition columns
    constraints: tuple[Constraint, ...] = ()  # CHECK constraints and invariants of the table
    unfilled: tuple[str, ...] = ()  # columns that are not written because of only_declared
    from_danube: bool = False  # whether the metadata column is filled from the headers of Danube's messages
    room: int = 2**31  # columns, including nested fields, that the batch can still add


def route_schema_of(
    uri: str,
    rules: TableSpec,
    transform: Transform,
    explode: Explode | None = None,
    *,
    existing: pa.Schema | None = None,
    learned: Structure | None = None,
    floors: Offsets | None = None,
    partition_by: tuple[str, ...] | None = None,  # of the existing table; default: of the spec
    generated: Collection[str] = (),  # generated columns
) -> RouteSchema:
    """Schema of a route from declared columns, the existing table, and inferred columns.

    UsageError if the spec is inconsistent; ColumnMismatch if records or the table conflict with it.
    """
    has_data = existing is not None or bool((learned or {}).get("fields"))
    by = rules.partitions if partition_by is None else partition_by
    with disagreement(uri, has_data):
        payload = payload_of(rules, transform, existing, learned, explode, generated)
        absent = absent_from(columns_of_route(payload, explode), transform)
    known_targets = _targets(transform, _with_existing(_declared(rules.columns), existing))
    # Fields beside an exploded array never become columns.
    payload = with_message(payload, transform, known_targets, open_=explode is None and _grows(rules, existing))
    with disagreement(uri, has_data):
        columns = columns_of_route(payload, explode, record=bool(transform.queries()))
        output = transform.output(with_absent(columns, absent), known_targets)
        table = with_scd2_columns(
            table_of(rules, output, existing, _wanted(rules, columns_of_route(payload, explode))), output, rules.merges
        )
        if rules.columns or (has_data and (explode is None or knows_fields(payload, explode))):
            check_partitioning(table, by)
            for partition in _derived(rules, existing):
                check_origin(partition, table)
            _check_merging(table, rules)
            _check_once(table, rules)
        unfilled = _unfilled(rules, output, existing)
    targets = _targets(transform, (*known_targets, *(item for item in table if item.name not in known_targets.names)))
    origins = _origins(payload, rules, transform) if explode is None else {}
    return RouteSchema(
        uri, payload, table, by, absent, targets, floors or {}, origins, _derived(rules, existing), unfilled=unfilled
    )


def _with_existing(declared: list[pa.Field], existing: pa.Schema | None) -> list[pa.Field]:
    """Declared columns and other columns of the table."""
    names = {item.name.lower() for item in declared}
    return [*declared, *(item for item in existing or () if item.name.lower() not in names)]


def _derived(rules: TableSpec, existing: pa.Schema | None) -> tuple[PartitionBy, ...]:
    """Derived partition columns; an existing table keeps its partitioning."""
    return tuple(partition for partition in rules.derived if existing is None or partition.column in existing.names)


def _unfilled(rules: TableSpec, output: pa.Schema, existing: pa.Schema | None) -> tuple[str, ...]:
    """Columns excluded by only_declared; UsageError if one of them is required."""
    if existing is None or not rules.only_declared:
        return ()
    filled = {
        *output.names,
        *KEPT,
        METADATA.name,
        *rules.scd2_columns,
        *(partition.column for partition in rules.derived),
    }
    unfilled = [item for item in existing if item.name not in filled and default_value(item) is None]
    if required := [item.name for item in unfilled if not item.nullable]:
        raise UsageError(
            f"only_declared excludes {_listed(required)}, which must not be NULL in the table.",
            hint="Declare the columns, or remove only_declared.",
        )
    return tuple(item.name for item in unfilled)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _check_merging(table: pa.Schema, rules: TableSpec) -> None:
    if rules.merges:
        update = rules.merges.update.columns if rules.merges.update else ()
        track = rules.merges.scd2.track if rules.merges.scd2 else ()
        check_merging(table, rules.merges.keys, rules.merges.sequence_by, update, track)


def _check_once(table: pa.Schema, rules: TableSpec) -> None:
    if rules.deduplicate is None:
        return
    check_keys(table, "deduplicate.keys", rules.deduplicate.keys, "", None)
    if SOURCE.name not in table.names:
        raise UsageError(f"deduplicate requires the column '{SOURCE.name}'; the table has {', '.join(table.names)}.")


def _origins(payload: pa.Schema, rules: TableSpec, transform: Transform) -> dict[str, str]:
    """Payload fields of the merge keys, if no key is computed."""
    if rules.merges is None:
        return {}
    ends = {transform.renamed(name): name for name in payload.names}
    computed = transform.targets() | transform.derived()
    origins = {key: ends[key] for key in rules.merges.keys if key in ends and key not in computed}
    return origins if len(origins) == len(rules.merges.keys) else {}


@contextmanager
def disagreement(uri: str, has_data: bool) -> Iterator[None]:
    """Raise ColumnMismatch instead of UsageError if a table or records exist."""
    try:
        yield
    except UsageError as error:
        raise (column_mismatch(uri, error) if has_data else error) from None


def column_mismatch(uri: str, error: UsageError) -> ColumnMismatch:
    """Error for conflicting columns, with a hint."""
    hint = error.hint or "Fix the producer, or change the spec: add a cast to the expression, or use another column."
    return ColumnMismatch(f"{uri}: {error.message}", hint=f"{hint} Then run again; the batch will be read again.")


def predict_schema(
    known: RouteSchema | None, structure: Structure, transform: Transform, explode: Explode | None = None
) -> RouteSchema:
    """Predicted schema with inferred fields added, without a table."""
    payload = _grown_payload(pa.schema([]) if known is None else known.payload, structure, explode)
    absent = absent_from(columns_of_route(payload, explode), transform)
    payload = with_message(payload, transform, pa.schema([]), open_=explode is None)
    return RouteSchema("", payload, pa.schema([]), absent=absent)


def with_message(payload: pa.Schema, transform: Transform, targets: pa.Schema, *, open_: bool) -> pa.Schema:
    """Payload with the message as its last field, if JMESPath needs it.

    `open_`: every field of a record is a column, so that fields without a column do not exist.
    """
    plain = pa.schema([item for item in payload if not payload_field(item).message])
    skipped = sorted({item.name for item in plain} - {item.name for item in decoded_schema(plain)})
    message = PayloadField("the message", pa.string(), message=MessageScope(open_, tuple(skipped)))
    extended = pa.schema([*plain, message.to_arrow()])
    return extended if transform.asks_message(pa.schema(decoded_schema(extended)), targets) else plain


def _targets(transform: Transform, columns: Iterable[pa.Field]) -> pa.Schema:
    roots = {name.split(".")[0].lower() for name, _ in transform.queries()}
    return pa.schema([input_field(item) for item in columns if item.name.lower() in roots])


def _grows(rules: TableSpec, existing: pa.Schema | None) -> bool:
    return rules.contract.new_field not in ("ignore", "rescue") or not (rules.columns or existing)


def absent_from(payload: pa.Schema, transform: Transform) -> tuple[str, ...]:
    """Names in expressions that no record has had yet."""
    return tuple(sorted(transform.inputs() - set(payload.names) - set(RECORD_NAMES)))


def with_absent(payload: pa.Schema, absent: Iterable[str]) -> pa.Schema:
    """Payload as seen by expressions: absent fields are NULL."""
    return pa.schema([*decoded_schema(payload), *(pa.field(name, pa.null()) for name in absent)])


def decoded_schema(payload: pa.Schema) -> list[pa.Field]:
    """Payload fields that are decoded, without skipped ones."""
    return [item for item in payload if not payload_field(item).skipped]


def payload_of(
    rules: TableSpec,
    transform: Transform,
    existing: pa.Schema | None,
    learned: Structure | None,
    explode: Explode | None = None,
    generated: Collection[str] = (),
) -> pa.Schema:
    """Payload fields to decode, with their types."""
    own = {*(partition.column for partition in rules.derived), *rules.scd2_columns}
    fields = _known_fields(rules, transform, existing, own)
    fields = [_with_default(item, rules, transform, existing) for item in fields]
    derived = transform.derived()
    if explode is None:
        declared = pa.schema([_skipped(item) if item.name in derived else item for item in fields])
    else:
        computed = derived | _results(explode, fields, transform)
        declared = pa.schema(exploding.record_fields(explode, [item for item in fields if item.name not in computed]))
    grows = rules.contract.new_field == "evolve" or not knows_fields(declared, explode)
    payload = (
        _grown_payload(declared, learned if grows else inferred_widening(learned), explode) if learned else declared
    )
    unread = [name for name in generated if name not in payload.names]
    payload = pa.schema([*payload, *(_skipped(pa.field(name, pa.string())) for name in unread)])
    if rules.coerce is not None:
        names = {item.name for item in fields}
        payload = pa.schema([coerced_field(item, rules.coerce, names) for item in payload])
    payload = _for_changes(payload, rules)
    if not rules.contract.rescues:
        return payload
    payload = payload.append(_rescued(rules))
    return payload if explode is None else exploding.with_rescued(explode, payload)


def _results(explode: Explode, fields: Iterable[pa.Field], transform: Transform) -> set[str]:
    """Columns set by JMESPath next to a column for the whole element, which has no fields of their names."""
    has_element = any(item.name == explode.column for item in fields)
    return {target.split(".")[0] for target, _ in transform.queries()} - {explode.column} if has_element else set()


def _known_fields(
    rules: TableSpec, transform: Transform, existing: pa.Schema | None, own: Collection[str]
) -> list[pa.Field]:
    """Declared fields and those of other columns of the table, which are filled as well."""
    fields = _declared(rules.columns)
    if existing is not None and rules.contract.widens:
        fields = [_widened(item, existing, transform) for item in fields]
    declared = {item.name.lower() for item in fields}
    stored = [] if rules.only_declared else _stored(existing, transform, own)
    return [*fields, *(item for item in stored if item.name.lower() not in declared)]


def _with_default(item: pa.Field, rules: TableSpec, transform: Transform, existing: pa.Schema | None) -> pa.Field:
    """Field with the DEFAULT of its column, unless the transform sets the column.

    Partial updates that ignore NULLs use no defaults: an absent field keeps the existing value.
    """
    name = transform.renamed(item.name)
    computed = transform.targets() | {target.split(".")[0] for target, _ in transform.queries()}
    partial = rules.merges is not None and rules.merges.update is not None and rules.merges.update.ignore_nulls
    if existing is None or name not in existing.names or name in computed or partial:
        return item
    return with_default(item, existing.field(name))


def _widened(item: pa.Field, existing: pa.Schema, transform: Transform) -> pa.Field:
    """Declared field with the current, wider type of its column."""
    name = transform.renamed(item.name)
    if name not in existing.names:
        return item
    return _grown_field(item, existing.field(name), wide=True, adds=False)


def _grown_payload(payload: pa.Schema, learned: Structure, explode: Explode | None) -> pa.Schema:
    return evolve(payload, learned) if explode is None else exploding.grow_elements(explode, payload, learned)


def columns_of_route(payload: pa.Schema, explode: Explode | None, *, record: bool = False) -> pa.Schema:
    """Columns before the transform; `record`: with the record column for JMESPath."""
    return payload if explode is None else exploding.exploded_columns(explode, decoded_schema(payload), record=record)


def knows_fields(payload: pa.Schema, explode: Explode | None = None) -> bool:
    """Whether the payload has fields."""
    if explode is not None:
        return exploding.knows_elements(explode, payload)
    return any(not (item.rescue or item.message) for item in payload_fields(payload))


def _for_changes(payload: pa.Schema, rules: TableSpec) -> pa.Schema:
    """Payload of changes: all fields are nullable, because deletes may omit them; operation fields are added."""
    if rules.merges is None:
        return payload
    aside = [_ASIDE[name] for name in rules.merges.aside]
    fields = [*payload, *(item for item in aside if item.name not in payload.names)]
    return pa.schema([_of_change(item, rules.merges.aside) for item in fields])


def _of_change(item: pa.Field, aside: Iterable[str]) -> pa.Field:
    return replace(payload_field(item), nullable=True, change=item.name in aside).to_arrow()


def _rescued(rules: TableSpec) -> pa.Field:
    return rescue_field("type" if rules.contract.wrong_type == "rescue" else "field")


def _declared(columns: Iterable[ColumnSpec]) -> list[pa.Field]:
    return [declared_field(column) for column in columns]


def _stored(existing: pa.Schema | None, transform: Transform, own: Collection[str]) -> list[pa.Field]:
    """Payload fields of the columns of an existing table, except those that Headrace fills."""
    if existing is None:
        return []
    olds = [old for step in transform.steps if isinstance(step, RenameStep) for old in step.names]
    origin = {transform.renamed(old): old for old in olds}
    stored = [item for item in existing if item.name not in KEPT and item.name not in own]
    return [input_field(item).with_name(origin.get(item.name, item.name)) for item in stored]


def _skipped(item: pa.Field) -> pa.Field:
    return PayloadField(item.name, item.type, skipped=True).to_arrow()


def _wanted(rules: TableSpec, payload: pa.Schema) -> dict[str, pa.Field]:
    """Declared columns by name, with widened types."""
    columns = {column.name: declared_field(column) for column in rules.columns}
    if rules.contract.widens:
        columns |= {item.name: item for item in decoded_schema(payload) if item.name in columns}
    return columns


def table_of(
    rules: TableSpec, output: pa.Schema, existing: pa.Schema | None, declared: Mapping[str, pa.Field]
) -> pa.Schema:
    """Columns of the table: existing ones in their order, then new ones."""
    aside = set(rules.merges.aside if rules.merges else ()) - declared.keys() - set(existing.names if existing else ())
    fields = [item for item in output if item.name not in aside and not pa.types.is_null(item.type)]
    columns = [_computed_field(item, declared.get(item.name)) for item in fields]
    columns += _partitions(columns, _derived(rules, existing))
    if existing is None:
        own = [item for item in columns if item.name not in KEPT]
        beside = [item for item in columns if item.name in KEPT]
        columns = [*own, *beside, *([SOURCE] if rules.source else []), *_metadata(rules)]
        return pa.schema([stored_field(item) for item in columns])
    new_fields = {item.name: item for item in columns}
    existing_columns = _followed(existing, new_fields, rules.contract.widens)
    more = [*columns, *_metadata(rules)]
    added = [stored_field(item.with_nullable(True)) for item in more if item.name not in existing.names]
    check_field_names([*existing_columns, *added], "The table would have the column")
    return pa.schema([*existing_columns, *added])


def _partitions(fields: Iterable[pa.Field], derived: Iterable[PartitionBy]) -> list[pa.Field]:
    """Derived partition columns; UsageError if a column of the same name exists."""
    names = {item.name.lower() for item in fields}
    for partition in derived:
        if partition.column.lower() in names:
            raise UsageError(
                f"the partition column '{partition.column}' derived from '{partition.origin}' conflicts with "
                "a column of the same name.",
                hint="Rename the derived column (`as`), or partition by the existing column.",
            )
    return [derived_field(partition) for partition in derived]


def _metadata(rules: TableSpec) -> list[pa.Field]:
    return [METADATA] if rules.metadata == "danube" else []


def _computed_field(item: pa.Field, declared: pa.Field | None) -> pa.Field:
    if declared is None:
        return item
    kind = item.type if is_masked(item) else declared.type
    if not same_columns(item.type, kind):
        raise UsageError(
            f"column '{item.name}' is declared as {type_name(kind)}, but the transform returns {type_name(item.type)}.",
            hint="Add a cast to the expression, or declare the type that it returns.",
        )
    return pa.field(item.name, kind, declared.nullable, item.metadata)


def _followed(existing: pa.Schema, new_fields: Mapping[str, pa.Field], wide: bool) -> list[pa.Field]:
    """Existing columns with new nested fields and, if `wide`, with wider types."""
    pairs = [(item, new_fields.get(item.name, item)) for item in existing]
    grown = [_grown_field(have, new, wide=wide) for have, new in pairs]
    conflicts = [
        f"column '{have.name}' is {type_name(have.type)} in the table, but {type_name(new.type)} in the spec"
        for (have, new), item in zip(pairs, grown, strict=True)
        if not same_columns(new.type, item.type)
    ]
    if conflicts:
        raise UsageError(
            f"{'; '.join(conflicts)}.", hint="Change the type in the spec, or add a cast to the expression."
        )
    return grown


def _grown_field(have: pa.Field, new: pa.Field, *, wide: bool, adds: bool = True) -> pa.Field:
    kind = _grown(have.type, new.type, wide=wide, adds=adds)
    if adds or not pa.types.is_date(have.type) or kind == have.type:
        return have.with_type(kind)
    return dated_field(have).with_type(kind)


def _grown(have: pa.DataType, new: pa.DataType, *, wide: bool, adds: bool) -> pa.DataType:
    grown = partial(_grown_field, wide=wide, adds=adds)
    if pa.types.is_struct(have) and pa.types.is_struct(new):
        new_fields = {item.name: item for item in new}
        fields = [grown(item, new_fields.pop(item.name, item)) for item in have]
        return pa.struct([*fields, *(item.with_nullable(True) for item in new_fields.values() if adds)])
    if pa.types.is_map(have) and pa.types.is_map(new):
        return pa.map_(have.key_field, grown(have.item_field, new.item_field))
    if pa.types.is_list(have) and pa.types.is_list(new):
        return pa.list_(grown(have.value_field, new.value_field))
    return new if wide and widens(have, new) else have
