"""A table is made, described, given columns and dropped."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.delta.actions import MetadataAction
from headrace.delta.evolution import check_fits, merge_schemas
from headrace.delta.features import append_blocker
from headrace.delta.log import LOG
from headrace.delta.log_writer import LogWriter
from headrace.delta.properties import check_properties, text_of
from headrace.delta.schema import from_delta, held_field, to_delta
from headrace.delta.snapshot import TableState
from headrace.delta.type_widening import widens
from headrace.errors import DirectCommitBlocked, FeatureRequired, SchemaMismatch, TableChanged, UsageError
from headrace.spec.types import check_field_names, parse_type, type_name
from headrace.stage.partitions import check_partitioning
from headrace.storage.store import Store
from headrace.table.new_columns import Added, add_columns, adding, describe_column
from headrace.table.ownership import TableOwners

# A schema, or names with their types as a spec writes them; `!` for NOT NULL.
Columns: TypeAlias = "pa.Schema | Mapping[str, str]"

# What a change of columns needs that a table does not have by itself, and what that costs.
_FEATURES = {
    "widen": ("typeWidening", "readers built on delta-rs refuse such tables"),
    "rename": ("columnMapping", "files then know their columns by other names, and many readers read NULL"),
    "drop": ("columnMapping", "files then know their columns by other names, and many readers read NULL"),
}


def schema_of(columns: Columns) -> pa.Schema:
    """Columns in our type language; UsageError for a type that there is not, and for a name that is there twice."""
    if isinstance(columns, pa.Schema):
        schema = from_delta(to_delta(pa.schema([held_field(item) for item in columns])))
    else:
        schema = pa.schema([_field(name, spelled) for name, spelled in columns.items()])
    check_field_names(schema)
    return schema


def _field(name: str, spelled: str) -> pa.Field:
    kind, required, _ = spelled.strip().partition("!")
    return pa.field(name, parse_type(kind), nullable=not required)


def create(store: Store, columns: Columns, partition_by: Iterable[str], properties: Mapping[str, str]) -> bool:
    """Make the table, empty; whether we did: one that is there must have these columns and this partitioning."""
    began = time.monotonic()
    schema, by = schema_of(columns), tuple(partition_by)
    if not len(schema):
        raise UsageError("A table has columns.", hint="Name at least one; without a schema its first records do.")
    check_partitioning(schema, by)
    check_properties(properties)
    tail = LogWriter.open(store)
    try:
        made = tail.create(to_delta(schema), by, _texts(properties), str(uuid.uuid4()), (), {}, {}, began=began)
    except DirectCommitBlocked as refused:
        raise FeatureRequired(
            refused.message, hint="Leave it out; or make the table with Spark, which alone may write it then."
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
        raise SchemaMismatch(
            f"{store.uri} is there already. {problem.message}", expected=wanted, actual=there
        ) from None
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
    given = {name: value for name, value in properties.items() if value is not None}
    check_properties(given)
    kept = _texts({**state.properties, **properties})
    if objection := append_blocker(replace(state, metadata=replace(state.metadata, properties=kept))):
        raise FeatureRequired(
            f"{store.uri}: with these properties only Spark could write to the table: {objection}.",
            hint="Leave it out; or write to the table by Spark alone.",
        )

    def change(metadata: MetadataAction) -> MetadataAction:
        return replace(metadata, properties=_texts({**metadata.properties, **properties}))

    told = json.dumps(_texts(given))
    operation = "SET TBLPROPERTIES" if given else "UNSET TBLPROPERTIES"
    return LogWriter.open(store).alter(change, lambda _: (operation, {"properties": told}), {})


def _texts(properties: Mapping[str, object]) -> dict[str, str]:
    return {name: text_of(value) for name, value in properties.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What is to become of a table's columns."""

    add: Mapping[str, str] | pa.Schema | None = None
    comment: Mapping[str, str | None] | None = None  # None: no longer
    widen: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    drop: Iterable[str] = ()
    whole: pa.Schema | None = None  # the columns as they shall be, where that was said


def towards(state: TableState, schema: pa.Schema) -> SchemaChange:
    """The change that makes a table's columns these: what is missing is dropped, what is new is added."""
    there, wanted = state.schema, schema_of(schema)
    _check_kept(there, wanted)
    added = pa.schema([item for item in wanted if item.name not in there.names])
    comments = {item.name: text for item in wanted if (text := _comment(item)) is not None}
    retyped = {item.name: type_name(item.type) for item in wanted if _retyped(item, there)}
    return SchemaChange(
        added, comments, retyped, drop=[name for name in there.names if name not in wanted.names], whole=wanted
    )


def _check_kept(there: pa.Schema, wanted: pa.Schema) -> None:
    """SchemaMismatch where a whole schema asks for what no change does: another order, or another NOT NULL."""
    ours, theirs = (
        [name for name in one.names if name in two.names] for one, two in ((there, wanted), (wanted, there))
    )
    if ours != theirs:
        raise SchemaMismatch(
            f"Columns keep their order: {', '.join(ours)}.", expected=", ".join(ours), actual=", ".join(theirs)
        )
    for name in ours:
        one, two = there.field(name), wanted.field(name)
        alike = type_name(one.type) == type_name(two.type)
        if one.nullable != two.nullable or (alike and one.type != two.type):
            where = f"Column {name}" if one.nullable != two.nullable else f"A field of column {name}"
            raise SchemaMismatch(
                f"{where} is {'NOT NULL' if two.nullable else 'not NOT NULL'} in the table, and no change of columns "
                "makes it otherwise.",
                expected=describe_column(one),
                actual=describe_column(two),
                hint="Write it as it is (`!` for NOT NULL).",
            )


def _retyped(item: pa.Field, there: pa.Schema) -> bool:
    return item.name in there.names and not _grows(there.field(item.name), item)


def _grows(old: pa.Field, new: pa.Field) -> bool:
    """Whether a column becomes another only by what can be added to it: fields inside a struct."""
    try:
        merged = merge_schemas(to_delta(pa.schema([old])), to_delta(pa.schema([new])))
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

    def changed(metadata: MetadataAction) -> MetadataAction:
        wanted = change.whole or add_columns(from_delta(metadata.schema_json), added)
        check_field_names(wanted)
        merged = (
            merge_schemas(metadata.schema_json, to_delta(wanted)) if added or change.whole else metadata.schema_json
        )
        return replace(metadata, schema_json=_commented(merged, comments))

    operation = "CHANGE COLUMN" if comments and not added else "ADD COLUMNS"
    told = {"columns": json.dumps([f"{each.name} {type_name(each.item.type)}" for each in added] or sorted(comments))}
    try:
        return LogWriter.open(store).alter(changed, lambda _: (operation, told), {}, schema=state.schema_json)
    except TableChanged as refused:
        raise SchemaMismatch(
            refused.message, expected=_spelled(state.schema, state.partition_by), actual=", ".join(told.values())
        ) from None


def added_by(store: Store, state: TableState, change: SchemaChange) -> list[Added]:
    """The new columns; refused where one cannot be added, or a comment is about none."""
    given = schema_of(change.add) if change.add is not None else pa.schema([])
    if strange := [name for name in change.comment or () if name not in (*state.schema.names, *given.names)]:
        raise UsageError(f"There is no column '{strange[0]}' to comment on.", hint=_there(state))
    return adding(store, state, given)


def _commented(schema_json: str, comments: Mapping[str, str | None]) -> str:
    if not comments:
        return schema_json
    whole: dict[str, Any] = json.loads(schema_json)
    for item in whole["fields"]:
        if item["name"] in comments:
            said = {**item["metadata"], "comment": comments[item["name"]]}
            item["metadata"] = {key: value for key, value in said.items() if (key, value) != ("comment", None)}
    return json.dumps(whole, ensure_ascii=False)


def _refuse_features(store: Store, state: TableState, change: SchemaChange) -> None:
    for name, wanted in (change.widen or {}).items():
        raise needs(store, "widen", widening_of(store, state, name, wanted))
    for verb, names in (("rename", list(change.rename or ())), ("drop", list(change.drop))):
        for name in names:
            check_known(state, verb, name)
            raise needs(store, verb, f"column {name}")


def check_known(state: TableState, verb: str, name: str) -> None:
    """UsageError for a column that there is not."""
    if name not in state.schema.names:
        raise UsageError(f"There is no column '{name}' to {verb}.", hint=_there(state))


def _there(state: TableState) -> str:
    return f"There are {', '.join(state.schema.names)}."


def widening_of(store: Store, state: TableState, name: str, wanted: str) -> str:
    """A wider type in words; SchemaMismatch for one that does not hold all that the column's own does."""
    check_known(state, "widen", name)
    old, new = state.schema.field(name).type, parse_type(wanted)
    if widens(old, new):
        return f"column {name} from {type_name(old)} to {type_name(new)}"
    raise SchemaMismatch(
        f"{store.uri}: column {name} is {type_name(old)} and cannot become {type_name(new)}: its values would not all "
        "be the same.",
        expected=type_name(old),
        actual=type_name(new),
    )


def needs(store: Store, verb: str, what: str) -> FeatureRequired:
    """The refusal of what a table lacks the feature for."""
    feature, price = _FEATURES[verb]
    return FeatureRequired(
        f"{store.uri}: to {verb} {what} needs the table feature {feature}: {price}. The table does not have it, and "
        "gets it only on purpose, by Spark.",
        hint=f"Make a new table; or turn {feature} on with Spark, which alone may write the table from then on.",
        feature=feature,
    )


def drop(store: Store, writers: TableOwners) -> int:
    """Delete the table, whoever writes it, all its files and its log, the log last; how many files that were."""
    with writers.resting("drop"):
        paths = [item.path for item in store.list()]
        others = {path.partition(f"/{LOG}/")[0] for path in paths if f"/{LOG}/" in path}
        states = {path for path in paths if path.startswith("_headrace/")}
        if others or states:
            kept = min(others or states)
            raise UsageError(
                f"{store.uri} holds more than one table: {kept} is below it, and would go, too.",
                hint="Drop that one first, or move it away.",
            )
        store.delete(_in_order(paths))
    return len(paths)


def _in_order(paths: Iterable[str]) -> Iterator[str]:
    """Data first: a drop that is cut short leaves a table that can be dropped again."""
    return iter(sorted(paths, key=lambda path: path.startswith(f"{LOG}/")))
