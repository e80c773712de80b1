"""A table is made, described, given columns and dropped."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.commit.tail import Tail
from headrace.errors import FeatureRequired, NotAdoptable, SchemaMismatch, TableChanged, UsageError
from headrace.storage import Store
from headrace.table.writers import Writers
from headrace.tables.adopt import may_adopt
from headrace.tables.evolve import check_fits, merge
from headrace.tables.log import LOG, Metadata, TableState
from headrace.tables.partitions import check_partitioning
from headrace.tables.schema import from_delta, parse_type, to_delta, type_name

# A schema, or names with their types as a spec writes them; `!` for NOT NULL.
Columns: TypeAlias = "pa.Schema | Mapping[str, str]"

# What a change of columns needs that a table does not have by itself, and what that costs.
_FEATURES = {
    "widen": ("typeWidening", "readers built on delta-rs refuse such tables"),
    "rename": ("columnMapping", "files then know their columns by other names, and many readers read NULL"),
    "drop": ("columnMapping", "files then know their columns by other names, and many readers read NULL"),
}
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}


def schema_of(columns: Columns) -> pa.Schema:
    """Columns in our type language; UsageError for a type that there is not."""
    if isinstance(columns, pa.Schema):
        return from_delta(to_delta(columns))
    return pa.schema([_field(name, spelled) for name, spelled in columns.items()])


def _field(name: str, spelled: str) -> pa.Field:
    kind, required, _ = spelled.strip().partition("!")
    return pa.field(name, parse_type(kind), nullable=not required)


def create(store: Store, columns: Columns, partition_by: Iterable[str], properties: Mapping[str, str]) -> bool:
    """Make the table, empty; whether we did: one that is there must have these columns and this partitioning."""
    schema, by = schema_of(columns), tuple(partition_by)
    check_partitioning(schema, by)
    tail = Tail.open(store)
    try:
        made = tail.create(to_delta(schema), by, properties, str(uuid.uuid4()), (), {}, {})
    except NotAdoptable as refused:
        raise FeatureRequired(
            refused.seen, next="Leave it out; or make the table with Spark, which alone may write it then."
        ) from None
    if made is not None:
        return True
    _check_same(store, schema, by, tail.known())
    return False


def _check_same(store: Store, schema: pa.Schema, by: tuple[str, ...], state: TableState) -> None:
    wanted, there = _spelled(schema, by), _spelled(state.schema, state.partition_by)
    try:
        check_fits(to_delta(schema), state)
    except TableChanged as problem:
        raise SchemaMismatch(f"{store.uri} is there already. {problem.seen}", expected=wanted, actual=there) from None
    if by != state.partition_by:
        raise SchemaMismatch(
            f"{store.uri} is there already, partitioned by {list(state.partition_by)}, not {list(by)}.",
            expected=wanted,
            actual=there,
        )


def _spelled(schema: pa.Schema, by: tuple[str, ...]) -> str:
    return ", ".join(f"{item.name} {type_name(item.type)}" for item in schema) + f"; by {list(by)}"


def set_properties(store: Store, state: TableState, properties: Mapping[str, str | None]) -> TableState:
    """Set table properties, or take them away (None); refused where only Spark could write the table then."""
    after = {**state.properties, **properties}
    kept = {name: str(value) for name, value in after.items() if value is not None}
    if objection := may_adopt(replace(state, metadata=replace(state.metadata, properties=kept))):
        raise FeatureRequired(
            f"{store.uri}: with these properties only Spark could write to the table: {objection}.",
            next="Leave it out; or write to the table by Spark alone.",
        )

    def change(metadata: Metadata) -> Metadata:
        merged = {**metadata.properties, **properties}
        return replace(metadata, properties={name: str(value) for name, value in merged.items() if value is not None})

    told = json.dumps({name: value for name, value in properties.items() if value is not None})
    operation = "SET TBLPROPERTIES" if told != "{}" else "UNSET TBLPROPERTIES"
    return Tail.open(store).alter(change, lambda _: (operation, {"properties": told}), {})


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What is to become of a table's columns."""

    add: Mapping[str, str] | pa.Schema | None = None
    comment: Mapping[str, str] | None = None
    widen: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    drop: Iterable[str] = ()
    whole: pa.Schema | None = None  # the columns as they shall be, where that was said


def towards(state: TableState, schema: pa.Schema) -> SchemaChange:
    """The change that makes a table's columns these: what is missing is dropped, what is new is added."""
    there, wanted = state.schema, schema_of(schema)
    added = pa.schema([item for item in wanted if item.name not in there.names])
    comments = {item.name: text for item in wanted if (text := _comment(item)) is not None}
    retyped = {item.name: type_name(item.type) for item in wanted if _retyped(item, there)}
    return SchemaChange(
        added, comments, retyped, drop=[name for name in there.names if name not in wanted.names], whole=wanted
    )


def _retyped(item: pa.Field, there: pa.Schema) -> bool:
    return item.name in there.names and not _grows(there.field(item.name), item)


def _grows(old: pa.Field, new: pa.Field) -> bool:
    """Whether a column becomes another only by what can be added to it: fields inside a struct."""
    try:
        merged = merge(to_delta(pa.schema([old])), to_delta(pa.schema([new])))
    except TableChanged:
        return False
    return bool(from_delta(merged).field(0).type == new.type)


def _comment(item: pa.Field) -> str | None:
    said = (item.metadata or {}).get(b"comment")
    return None if said is None else said.decode()


def update_schema(store: Store, state: TableState, change: SchemaChange) -> TableState:
    """Add columns and comments in one commit; what needs a table feature is refused with its name and its price."""
    _refuse_features(store, state, change)
    added, comments = added_by(store, state, change), dict(change.comment or {})

    def changed(metadata: Metadata) -> Metadata:
        wanted = change.whole or pa.schema([*from_delta(metadata.schema_json), *added])
        grown = merge(metadata.schema_json, to_delta(wanted)) if len(added) or change.whole else metadata.schema_json
        return replace(metadata, schema_json=_commented(grown, comments))

    operation = "CHANGE COLUMN" if comments and not len(added) else "ADD COLUMNS"
    told = {"columns": json.dumps([f"{item.name} {type_name(item.type)}" for item in added] or sorted(comments))}
    return Tail.open(store).alter(changed, lambda _: (operation, told), {}, schema=state.schema_json)


def added_by(store: Store, state: TableState, change: SchemaChange) -> pa.Schema:
    """The new columns; refused where one is there already, or a comment is about none."""
    added = schema_of(change.add) if change.add is not None else pa.schema([])
    if strange := [name for name in change.comment or () if name not in (*state.schema.names, *added.names)]:
        raise UsageError(f"There is no column '{strange[0]}' to comment on.")
    if twice := [name for name in added.names if name.lower() in map(str.lower, state.schema.names)]:
        raise SchemaMismatch(
            f"{store.uri} has a column '{twice[0]}' already.",
            expected=type_name(added.field(twice[0]).type),
            actual=", ".join(state.schema.names),
        )
    return added


def _commented(schema_json: str, comments: Mapping[str, str]) -> str:
    if not comments:
        return schema_json
    whole: dict[str, Any] = json.loads(schema_json)
    for item in whole["fields"]:
        if item["name"] in comments:
            item["metadata"] = {**item["metadata"], "comment": comments[item["name"]]}
    return json.dumps(whole, ensure_ascii=False)


def _refuse_features(store: Store, state: TableState, change: SchemaChange) -> None:
    for name, wanted in (change.widen or {}).items():
        raise needs(store, "widen", widening(store, state, name, wanted))
    for verb, names in (("rename", list(change.rename or ())), ("drop", list(change.drop))):
        if names:
            raise needs(store, verb, f"column {names[0]}")


def widening(store: Store, state: TableState, name: str, wanted: str) -> str:
    """A wider type in words; SchemaMismatch for one that does not hold all that the column's own does."""
    old = type_name(state.schema.field(name).type) if name in state.schema.names else "no column"
    new = type_name(parse_type(wanted))
    if new in _WIDER.get(old, ()) or (old, new) == ("long", "decimal(20,0)") or _more_digits(old, new):
        return f"column {name} from {old} to {new}"
    raise SchemaMismatch(
        f"{store.uri}: column {name} is {old} and cannot become {new}: its values would not all be the same.",
        expected=old,
        actual=new,
    )


def _more_digits(old: str, new: str) -> bool:
    one, two = parse_type(old) if old != "no column" else None, parse_type(new)
    if one is None or not (pa.types.is_decimal(one) and pa.types.is_decimal(two)):
        return False
    return bool(two.scale >= one.scale and two.precision - two.scale >= one.precision - one.scale)


def needs(store: Store, verb: str, what: str) -> FeatureRequired:
    """The refusal of what a table lacks the feature for."""
    feature, price = _FEATURES[verb]
    return FeatureRequired(
        f"{store.uri}: to {verb} {what} needs the table feature {feature}: {price}. The table does not have it, and "
        "gets it only on purpose, by Spark.",
        next=f"Make a new table; or turn {feature} on with Spark, which alone may write the table from then on.",
        feature=feature,
    )


def drop(store: Store, writers: Writers) -> int:
    """Delete the table, whoever writes it, all its files and its log, the log last; how many files that were."""
    with writers.resting("drop"):
        paths = [item.path for item in store.list()]
        others = {path.partition(f"/{LOG}/")[0] for path in paths if f"/{LOG}/" in path}
        states = {path for path in paths if path.startswith("_headrace/")}
        if others or states:
            kept = min(others or states)
            raise UsageError(
                f"{store.uri} holds more than one table: {kept} is below it, and would go, too.",
                next="Drop that one first, or move it away.",
            )
        store.delete(_in_order(paths))
    return len(paths)


def _in_order(paths: Iterable[str]) -> Iterator[str]:
    """Data first: a drop that is cut short leaves a table that can be dropped again."""
    return iter(sorted(paths, key=lambda path: path.startswith(f"{LOG}/")))
