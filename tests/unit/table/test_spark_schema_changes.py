"""What Spark is told when columns of its tables change; nothing is told before all of it is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.actions import MetadataAction, Protocol
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import FeatureRequired, SchemaMismatch, UsageError
from headrace.storage.store import Store
from headrace.table.schema_changes import SchemaChange, change_to, schema_of
from headrace.table.spark_schema_changes import properties, statements

STORE = Store("/lake/t")
COLUMNS = {"id": "int", "p": "string", "s": "struct<a: int>", "x`y": "float"}


def state(**said: str) -> TableState:
    named = {"widening": "delta.enableTypeWidening", "mapping": "delta.columnMapping.mode"}
    metadata = MetadataAction(
        "t", to_delta(schema_of(COLUMNS)), ("p",), {named[name]: value for name, value in said.items()}
    )
    return TableState(0, metadata, Protocol())


ABLE = state(widening="true", mapping="name")


def test_every_change_is_a_statement() -> None:
    change = SchemaChange(
        {"n": "bigint", "s.b": "date"},
        {"id": "it's", "p": None},
        {"id": "bigint", "x`y": "double"},
        {"x`y": "z"},
        ("s",),
    )
    assert statements(STORE, ABLE, change) == [
        "ADD COLUMNS (`n` long, `s`.`b` date)",
        "ALTER COLUMN `id` TYPE long",
        "ALTER COLUMN `x``y` TYPE double",
        "ALTER COLUMN `id` COMMENT 'it''s'",
        "ALTER COLUMN `p` COMMENT ''",
        "RENAME COLUMN `x``y` TO `z`",
        "DROP COLUMN `s`",
    ]
    assert statements(STORE, ABLE, SchemaChange()) == []


@pytest.mark.parametrize(
    "change", [SchemaChange({"t": "array<timestamp_ntz>"}), SchemaChange(widen={"d": "timestamp_ntz"})]
)
def test_timestamps_without_zone_need_their_feature_first(change: SchemaChange) -> None:
    schema = to_delta(schema_of({**COLUMNS, "d": "date"}))
    on = replace(ABLE, metadata=replace(ABLE.metadata, schema_json=schema))
    feature = "SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    assert statements(STORE, on, change)[0] == feature
    supported = replace(on, protocol=Protocol(3, 7, frozenset({"timestampNtz"}), frozenset({"timestampNtz"})))
    assert feature not in statements(STORE, supported, change)


@pytest.mark.parametrize(
    ("change", "on", "error"),
    [
        (SchemaChange(widen={"id": "bigint"}), state(mapping="name"), FeatureRequired),
        (SchemaChange(widen={"id": "smallint"}), ABLE, SchemaMismatch),
        (SchemaChange(widen={"nobody": "bigint"}), ABLE, UsageError),
        (SchemaChange(add={"q": "bigint!"}), ABLE, SchemaMismatch),
        (SchemaChange(add={"q": "int", "Q": "int"}), ABLE, UsageError),
        (SchemaChange(add={"s.A": "int"}), ABLE, UsageError),
        (SchemaChange(rename={"id": "key"}), state(widening="true"), FeatureRequired),
        (SchemaChange(rename={"nobody": "key"}), ABLE, UsageError),
        (SchemaChange(drop=("id",)), state(mapping="none"), FeatureRequired),
        (SchemaChange(drop=("p",)), ABLE, UsageError),
        (SchemaChange(add={"ID": "int"}), ABLE, SchemaMismatch),
        (SchemaChange(comment={"nobody": "x"}), ABLE, UsageError),
    ],
)
def test_what_the_table_cannot_is_refused(change: SchemaChange, on: TableState, error: type[Exception]) -> None:
    with pytest.raises(error):
        statements(STORE, on, change)


def whole(change: Callable[[pa.Schema], pa.Schema]) -> list[str]:
    return statements(STORE, ABLE, change_to(ABLE, change(ABLE.schema)))


def test_a_whole_schema_is_the_way_to_it() -> None:
    assert whole(lambda there: there) == []
    assert whole(lambda there: there.append(pa.field("n", pa.int64()))) == ["ADD COLUMNS (`n` long)"]
    assert whole(lambda there: there.remove(0)) == ["DROP COLUMN `id`"]
    assert whole(lambda there: there.set(0, pa.field("id", pa.int64()))) == ["ALTER COLUMN `id` TYPE long"]
    with pytest.raises(UsageError, match="at the end"):
        whole(lambda there: there.insert(0, pa.field("n", pa.int64())))
    inner = pa.field("s", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32())]))
    with pytest.raises(UsageError, match="Cannot add fields to the struct"):
        whole(lambda there: there.set(2, inner))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"a": "1"}, ["SET TBLPROPERTIES ('a' = '1')"]),
        ({"a": None, "b": "x'y"}, ["SET TBLPROPERTIES ('b' = 'x''y')", "UNSET TBLPROPERTIES IF EXISTS ('a')"]),
        ({}, []),
    ],
)
def test_properties(given: dict[str, Any], told: list[str]) -> None:
    assert list(properties(given)) == told
