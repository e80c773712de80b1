"""Which tables the log tail may append to, and which files fit which table: by list, never by trying."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.actions import MetadataAction, Protocol, parse_commit
from headrace.delta.evolution import check_fits, merge_schemas
from headrace.delta.features import append_blocker, protocol_for
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import StorageUnreachable, TableChanged

PLAIN = pa.schema([pa.field("id", pa.int64())])


def state(schema: pa.Schema = PLAIN, protocol: Protocol | None = None, text: str = "", **properties: str) -> TableState:
    return TableState(7, MetadataAction("id", text or to_delta(schema), (), properties), protocol or Protocol())


def carrying(key: str, value: Any = "x", nested: bool = False) -> str:
    column: dict[str, Any] = {"name": "a", "type": "long", "nullable": True, "metadata": {key: value}}
    if nested:
        array = {"type": "array", "elementType": {"type": "struct", "fields": [column]}, "containsNull": True}
        column = {"name": "l", "type": array, "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [column]})


@pytest.mark.parametrize(
    "table",
    [
        state(),
        state(protocol=Protocol(1, 1)),
        state(protocol=Protocol(2, 6)),  # legacy versions name features that nothing here uses
        state(protocol=Protocol(3, 7, frozenset({"timestampNtz"}), frozenset({"timestampNtz", "appendOnly"}))),
        state(protocol=Protocol(1, 7, frozenset(), frozenset({"invariants", "changeDataFeed", "checkConstraints"}))),
        state(**{"owner": "me", "spark.foo": "bar", "delta.appendOnly": "true", "delta.checkpointInterval": "10"}),
        state(**{"delta.enableChangeDataFeed": "true"}, protocol=Protocol(1, 4)),
        state(**{"delta.enableDeletionVectors": "false", "delta.columnMapping.mode": "none"}),
        state(**{"delta.setTransactionRetentionDuration": "interval 7 days"}),
        state(text=carrying("comment")),
        state(text=carrying("headrace.json", nested=True)),
        state(pa.schema([pa.field("id", pa.int64(), False)])),  # NOT NULL is the plan's to enforce
    ],
)
def test_plain_tables_allow_direct_commits(table: TableState) -> None:
    assert append_blocker(table) is None


@pytest.mark.parametrize(
    ("table", "said"),
    [
        *(
            (state(protocol=Protocol(3, 7, frozenset({name}), frozenset({name}))), name)
            for name in (
                "deletionVectors",
                "typeWidening",
                "v2Checkpoint",
                "columnMapping",  # as after a RESTORE to a version without the mapping
                "variantType",
                "vacuumProtocolCheck",
                "somethingNew",
            )
        ),
        *(
            (state(protocol=Protocol(1, 7, frozenset(), frozenset({name}))), name)
            for name in (
                "rowTracking",
                "clustering",
                "inCommitTimestamp",
                "domainMetadata",
                "icebergCompatV2",
                "allowColumnDefaults",
                "coordinatedCommits-preview",
                "catalogManaged",
                "checkpointProtection",
            )
        ),
        (state(protocol=Protocol(4, 8)), r"protocol is \(4, 8\)"),
        (state(**{"delta.constraints.positive": "id > 0"}), "constraints"),
        (state(**{"delta.columnMapping.mode": "name"}), "columnMapping"),
        (state(**{"delta.columnMapping.mode": "id"}), "columnMapping"),
        (state(**{"delta.enableRowTracking": "true"}), "enableRowTracking"),
        (state(**{"delta.enableDeletionVectors": "TRUE"}), "enableDeletionVectors"),
        (state(**{"delta.enableTypeWidening": "true"}), "enableTypeWidening"),
        (state(**{"delta.enableInCommitTimestamps": "true"}), "InCommitTimestamps"),
        (state(**{"delta.universalFormat.enabledFormats": "iceberg"}), "universalFormat"),
        (state(**{"delta.compatibility.symlinkFormatManifest.enabled": "true"}), "symlink"),
        (state(**{"delta.checkpointPolicy": "v2"}), "checkpointPolicy"),
        (state(**{"delta.someday.new": "1"}), "someday"),
        (state(**{"Delta.Constraints.x": "id > 0"}), "Constraints"),
        *(
            (state(text=carrying(key, nested=nested)), key)
            for nested in (False, True)
            for key in (
                "delta.invariants",
                "delta.generationExpression",
                "delta.identity.start",
                "delta.columnMapping.id",
                "delta.typeChanges",
                "CURRENT_DEFAULT",
                "__CHAR_VARCHAR_TYPE_STRING",
                "__COLLATIONS",
            )
        ),
        (state(text=carrying("comment").replace('"long"', '"variant"')), "variant"),
        (state(text=carrying("comment").replace('"long"', '"interval day"')), "interval day"),
    ],
)
def test_what_a_blind_append_would_break_blocks_direct_commits(table: TableState, said: str) -> None:
    reason = append_blocker(table)
    assert reason is not None
    assert said.replace("\\", "") in reason


def test_a_new_table_has_the_lowest_protocol_its_types_need() -> None:
    ntz = pa.schema([pa.field("l", pa.list_(pa.struct([pa.field("at", pa.timestamp("us"))])))])
    assert protocol_for(to_delta(PLAIN), {}) == Protocol(1, 2)
    assert protocol_for(to_delta(PLAIN), {"delta.enableChangeDataFeed": "true"}) == Protocol(1, 4)
    features = frozenset({"appendOnly", "invariants", "timestampNtz"})
    assert protocol_for(to_delta(ntz), {}) == Protocol(3, 7, frozenset({"timestampNtz"}), features)
    risen = protocol_for(to_delta(ntz), {}, Protocol(2, 5))
    assert risen.reader_features == {"columnMapping", "timestampNtz"}
    assert risen.writer_features == features | {
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
    }
    assert protocol_for(to_delta(ntz), {}, risen) == risen


def field(name: str, kind: pa.DataType, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable)


def array(kind: pa.DataType, nullable: bool = True) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable))


INT, TEXT = pa.int32(), pa.string()


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ([field("a", INT)], [field("a", INT)]),
        ([field("a", INT, False)], [field("a", INT)]),
        ([field("a", INT)], [field("b", TEXT), field("a", INT)]),
        ([field("s", pa.struct([field("a", INT)]))], [field("s", pa.struct([field("a", INT), field("b", TEXT)]))]),
        ([field("l", array(INT, False))], [field("l", array(INT))]),
        ([field("m", pa.map_(TEXT, pa.struct([field("a", INT)])))],) * 2,
    ],
)
def test_files_that_fit(file: list[pa.Field], table: list[pa.Field]) -> None:
    check_fits(to_delta(pa.schema(file)), state(pa.schema(table)))


@pytest.mark.parametrize(
    ("file", "table", "said"),
    [
        ([field("a", INT)], [], "a is not in the table"),
        ([field("a", INT)], [field("A", INT)], "a is not in the table"),
        ([field("a", INT)], [field("a", pa.int64())], "a is long in the table and integer in the files"),
        ([field("a", pa.decimal128(10, 2))], [field("a", pa.decimal128(12, 2))], "decimal"),
        ([field("a", pa.timestamp("us"))], [field("a", pa.timestamp("us", "UTC"))], "timestamp_ntz in the files"),
        ([field("a", INT)], [field("a", INT, False)], "a is NOT NULL"),
        ([], [field("a", INT, False)], "a is NOT NULL and not in the files"),
        ([field("a", INT)], [field("a", array(INT))], "a is array in the table and integer in the files"),
        ([field("s", pa.struct([field("a", INT)]))], [field("s", pa.struct([field("a", TEXT)]))], r"s\.a is string"),
        ([field("s", pa.struct([field("b", INT)]))], [field("s", pa.struct([field("a", INT)]))], r"s\.b is not in"),
        ([field("l", array(INT))], [field("l", array(INT, False))], "inside l are NOT NULL"),
        ([field("l", array(INT))], [field("l", array(TEXT))], "l is string"),
        ([field("m", pa.map_(TEXT, INT))], [field("m", pa.map_(TEXT, TEXT))], "m is string"),
    ],
)
def test_files_that_do_not_fit(file: list[pa.Field], table: list[pa.Field], said: str) -> None:
    with pytest.raises(TableChanged, match=said) as caught:
        check_fits(to_delta(pa.schema(file)), state(pa.schema(table)))
    assert "version 7" in str(caught.value)


def test_merging_keeps_the_tables_comments_and_takes_the_wanted_order() -> None:
    commented = pa.schema([pa.field("a", INT, metadata={"comment": "kept"}), pa.field("_source", TEXT)])
    wanted = pa.schema([field("a", INT), field("b", TEXT), field("_source", TEXT)])
    merged = json.loads(merge_schemas(to_delta(commented), to_delta(wanted)))
    assert [item["name"] for item in merged["fields"]] == ["a", "b", "_source"]
    assert merged["fields"][0]["metadata"] == {"comment": "kept"}
    assert merge_schemas(to_delta(wanted), to_delta(PLAIN.remove(0))) == to_delta(wanted)


def test_a_commit_is_read_for_what_matters() -> None:
    lines = [
        {"commitInfo": {"operation": "WRITE", "txnId": "me"}},
        {"add": {"path": "a"}},
        {"remove": {"path": "b"}},
        {"txn": {"appId": "x", "version": 3}},
        {"somethingNew": {}},
    ]
    commit = parse_commit(4, b"\n".join(json.dumps(line).encode() for line in lines) + b"\n\n")
    assert (len(commit.add_lines), len(commit.remove_lines), commit.txns, commit.operation) == (1, 1, {"x": 3}, "WRITE")
    assert commit.commit_id == "me"
    assert commit.metadata is None
    assert parse_commit(5, b"").info == {}


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"metaData":{}}', b'{"txn":3}', b"\xff\xfe"])
def test_a_commit_that_makes_no_sense_is_not_taken_for_one(text: bytes) -> None:
    with pytest.raises(StorageUnreachable, match="not a complete commit"):
        parse_commit(4, text)


def test_metadata_survives_its_own_spelling() -> None:
    metadata = MetadataAction("i", to_delta(PLAIN), ("id",), {"a": "b"}, 5, "n", "d")
    assert MetadataAction.of(metadata.action()["metaData"]) == metadata
    bare = replace(metadata, name=None, description=None)
    assert "name" not in bare.action()["metaData"]
    protocol = Protocol(3, 7, frozenset("ab"), frozenset("ab"))
    assert Protocol.of(protocol.action()["protocol"]) == protocol
