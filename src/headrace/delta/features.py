"""Allow-lists of the table features that direct commits support; a blind append enforces no rule of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.delta.actions import Protocol
from headrace.delta.schema import from_delta
from headrace.delta.snapshot import TableState
from headrace.errors import TableFeature

# Features without requirements for an append, unless a property or a column uses them (checked below). Not column
# mapping: Spark writes a table that lists it, also one that a RESTORE returned to a version without the mapping.
_FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",  # appended rows need no change data
        "generatedColumns",
        "identityColumns",
        "timestampNtz",
    }
)
# Features without requirements for a commit that only removes files, with their deletion vectors.
_UNTOUCHED = _FEATURES | {
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "v2Checkpoint",
}
WRITER = "headrace.writer"  # the table property that names the kind of writer; it never changes by itself
FEATURE_PROPERTIES = {  # features that change which columns a table may get, and the properties that enable them
    "columnMapping": "delta.columnMapping.mode",
    "typeWidening": "delta.enableTypeWidening",
}
_LEGACY = {  # features of writer versions below 7, by the version that introduced them
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}


class WriterKind(StrEnum):
    """The kind of writer of a table."""

    DIRECT = "direct"  # direct commits of staged files
    MERGE = "merge"  # merges of a pipeline, in-process or by Spark
    SPARK = "spark"  # only Spark


def _any(_: str) -> bool:
    return True


def _is(*allowed: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() in allowed


_PROPERTIES: dict[str, Callable[[str], bool]] = {
    "delta.appendOnly": _any,
    "delta.autoOptimize": _any,
    "delta.autoOptimize.autoCompact": _any,
    "delta.autoOptimize.optimizeWrite": _any,
    "delta.checkpoint.writeStatsAsJson": _any,
    "delta.checkpoint.writeStatsAsStruct": _any,
    "delta.checkpointInterval": _any,
    "delta.checkpointPolicy": _is("classic"),
    "delta.checkpointRetentionDuration": _any,
    "delta.columnMapping.mode": _is("none"),
    "delta.compatibility.symlinkFormatManifest.enabled": _is("false"),
    "delta.dataSkippingNumIndexedCols": _any,
    "delta.dataSkippingStatsColumns": _any,
    "delta.deletedFileRetentionDuration": _any,
    "delta.enableChangeDataFeed": _any,
    "delta.enableDeletionVectors": _is("false"),
    "delta.enableExpiredLogCleanup": _any,
    "delta.enableFullRetentionRollback": _any,
    "delta.enableIcebergCompatV1": _is("false"),
    "delta.enableIcebergCompatV2": _is("false"),
    "delta.enableInCommitTimestamps": _is("false"),
    "delta.enableRowTracking": _is("false"),
    "delta.enableTypeWidening": _is("false"),
    "delta.isolationLevel": _any,
    "delta.logRetentionDuration": _any,
    "delta.minReaderVersion": _any,
    "delta.minWriterVersion": _any,
    "delta.parquet.compression.codec": _any,
    "delta.randomPrefixLength": _any,
    "delta.randomizeFilePrefixes": _any,
    "delta.sampleRetentionDuration": _any,
    "delta.setTransactionRetentionDuration": _any,
    "delta.targetFileSize": _any,
    "delta.tuneFileSizesForRewrites": _any,
}


def append_blocker(state: TableState) -> str | None:
    """Why the log writer must not append to this table; None if it may."""
    return next(_blockers(state), None)


def rewrite_blocker(state: TableState) -> str | None:
    """Why the log writer must not change rows of this table, even one that Spark writes; None if it may."""
    if state.properties.get("delta.appendOnly", "").lower() == "true":
        return "it is append-only (delta.appendOnly)"
    if strict := next((item.name for item in state.schema if _strict(item.type)), None):
        return f"a nested field of its column {strict} is NOT NULL, which only Spark checks"
    return next(_content_blockers(state), None)


def _strict(kind: pa.DataType) -> bool:
    """Whether a nested field or element of a type is NOT NULL."""
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _strict(kind.key_type) or _strict(kind.item_type)
    return any(not item.nullable or _strict(item.type) for item in (kind.field(at) for at in range(kind.num_fields)))


def metadata_only_blocker(state: TableState) -> str | None:
    """Why the log writer must not remove files from this table, even one that Spark writes; None if it may."""
    return next(_protocol_blockers(state.protocol, _UNTOUCHED), None)


def is_enabled(feature: str, properties: Mapping[str, str]) -> bool:
    """Whether the property of column mapping or type widening enables it."""
    return properties.get(FEATURE_PROPERTIES[feature], "").strip().lower() in ("name", "id", "true")


def declared_writer(state: TableState) -> WriterKind | None:
    """The kind of writer that a property of the table names; None if it names none, or direct commits."""
    name = state.properties.get(WRITER)
    return next((kind for kind in (WriterKind.MERGE, WriterKind.SPARK) if kind == name), None)


def writer_of(state: TableState) -> WriterKind:
    """The kind of writer that a table requires, by its features and properties."""
    if append_blocker(state) is None:
        return WriterKind.DIRECT
    return WriterKind.MERGE if state.properties.get(WRITER) == WriterKind.MERGE else WriterKind.SPARK


def _protocol_blockers(protocol: Protocol, supported: frozenset[str]) -> Iterator[str]:
    unknown = (protocol.reader_features | protocol.writer_features) - supported
    yield from (f"it uses the feature {name}" for name in sorted(unknown))
    if protocol.min_writer > 7 or protocol.min_reader > 3:
        yield f"its protocol is ({protocol.min_reader}, {protocol.min_writer})"


def _blockers(state: TableState) -> Iterator[str]:
    yield from _content_blockers(state)
    if (writer := state.properties.get(WRITER, WriterKind.DIRECT)) != WriterKind.DIRECT:
        yield f"its property {WRITER} is '{writer}'"


def _content_blockers(state: TableState) -> Iterator[str]:
    """Features, properties and column metadata that a writer would have to enforce."""
    yield from _protocol_blockers(state.protocol, _FEATURES)
    for name, value in sorted(state.properties.items()):
        if name.lower().startswith("delta.") and not _PROPERTIES.get(name, _is())(str(value)):
            yield f"its property {name} is '{value}'"
    yield from _schema_blockers(state.schema_json)


@lru_cache(maxsize=1024)
def _schema_blockers(schema_json: str) -> tuple[str, ...]:
    """Cached, because parsing a wide schema at every commit takes time."""
    blockers = [
        f"its column {path} has the metadata {key}"
        for path, key in _metadata_keys(json.loads(schema_json)["fields"], "")
        if key != "comment" and not key.startswith("headrace.")
    ]
    try:
        from_delta(schema_json)
    except TableFeature as unknown:
        blockers.append(unknown.message)
    return tuple(blockers)


def _metadata_keys(fields: list[dict[str, Any]], prefix: str) -> Iterator[tuple[str, str]]:
    for item in fields:
        path = prefix + item["name"]
        yield from ((path, key) for key in item.get("metadata") or {})
        yield from _nested_keys(item["type"], path)


def _nested_keys(kind: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(kind, dict):
        return
    yield from _metadata_keys(kind.get("fields", []), f"{path}.")
    for inner in ("elementType", "keyType", "valueType"):
        yield from _nested_keys(kind.get(inner), path)


def protocol_for(schema_json: str, properties: Mapping[str, str], current: Protocol | None = None) -> Protocol:
    """The lowest protocol that a schema and properties require, at least the current one."""
    protocol = current or Protocol()
    if properties.get("delta.enableChangeDataFeed", "").lower() == "true" and protocol.min_writer < 4:
        protocol = Protocol(protocol.min_reader, 4)
    return with_feature(protocol, "timestampNtz") if lacks_ntz(schema_json, protocol) else protocol


def with_feature(protocol: Protocol, feature: str) -> Protocol:
    """A protocol that lists one more feature for readers and writers.

    Column mapping is listed, too, although reader 2 would do: readers that take reader 2 and ignore the mapping, such
    as `DeltaTable.to_pyarrow_table`, would read NULL in renamed columns.
    """
    listed = protocol.writer_features | {
        name for version, names in _LEGACY.items() if version <= protocol.min_writer < 7 for name in names
    }
    mapping = {"columnMapping"} if protocol.min_reader == 2 else set()
    return Protocol(3, 7, protocol.reader_features | mapping | {feature}, listed | {feature})


def lacks_ntz(schema_json: str, protocol: Protocol) -> bool:
    """Whether a schema has a timestamp without zone, and the protocol does not have the feature for it."""
    return "timestampNtz" not in protocol.writer_features and _has_type(json.loads(schema_json), "timestamp_ntz")


def _has_type(kind: Any, name: str) -> bool:
    if not isinstance(kind, dict):
        return bool(kind == name)
    inner = [kind.get(key) for key in ("elementType", "keyType", "valueType")]
    return any(
        _has_type(inner_type, name) for inner_type in [*inner, *(item["type"] for item in kind.get("fields", []))]
    )
