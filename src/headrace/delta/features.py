"""Which tables the log writer may append to: an allow-list, because a blind append enforces nothing."""

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

# Features that ask nothing of an append, or only where a property or a column uses them (both are looked at below).
_FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",  # an append's rows are their own change data
        "generatedColumns",
        "columnMapping",
        "identityColumns",
        "timestampNtz",
    }
)
# Features that ask nothing of a commit which only takes files away, when it names their vectors.
_UNTOUCHED = _FEATURES | {
    "clustering",
    "deletionVectors",
    "domainMetadata",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "v2Checkpoint",
}
WRITER = "headrace.writer"  # the property of a table that one kind of writer writes, for good
_LEGACY = {  # what a writer version below 7 means, by the version that brought it
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}


class WriterKind(StrEnum):
    """Who writes a table."""

    DIRECT = "direct"  # staged files are committed as they are, put if absent
    MERGE = "merge"  # a pipeline merges into it, in-process or by Spark
    SPARK = "spark"  # Spark alone appends to it and changes it


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
    """Why the log writer must not append to this table; None when it may."""
    return next(_objections(state), None)


def rewrite_blocker(state: TableState) -> str | None:
    """Why the log writer must not put other rows in place of this table's, also where Spark writes it; None: it may."""
    if state.properties.get("delta.appendOnly", "").lower() == "true":
        return "it only takes rows"
    if strict := next((item.name for item in state.schema if _strict(item.type)), None):
        return f"something within its column {strict} takes no NULL, which Spark looks for"
    return next(_content_objections(state), None)


def _strict(kind: pa.DataType) -> bool:
    """Whether something within a value may not be NULL."""
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _strict(kind.key_type) or _strict(kind.item_type)
    return any(not item.nullable or _strict(item.type) for item in (kind.field(at) for at in range(kind.num_fields)))


def metadata_only_blocker(state: TableState) -> str | None:
    """Why the log writer must not take files out of this table, also where Spark writes it; None when it may."""
    return next(_protocol_objections(state.protocol, _UNTOUCHED), None)


def writer_of(state: TableState) -> WriterKind:
    """The kind of writer that a table needs, as it says itself."""
    if append_blocker(state) is None:
        return WriterKind.DIRECT
    return WriterKind.MERGE if state.properties.get(WRITER) == WriterKind.MERGE else WriterKind.SPARK


def _protocol_objections(protocol: Protocol, known: frozenset[str]) -> Iterator[str]:
    unknown = (protocol.reader_features | protocol.writer_features) - known
    yield from (f"it uses the feature {name}" for name in sorted(unknown))
    if protocol.min_writer > 7 or protocol.min_reader > 3:
        yield f"its protocol is ({protocol.min_reader}, {protocol.min_writer})"


def _objections(state: TableState) -> Iterator[str]:
    yield from _content_objections(state)
    if (writer := state.properties.get(WRITER, WriterKind.DIRECT)) != WriterKind.DIRECT:
        yield f"its property {WRITER} is '{writer}'"


def _content_objections(state: TableState) -> Iterator[str]:
    """What asks more of a writer than rows in columns."""
    yield from _protocol_objections(state.protocol, _FEATURES)
    for name, value in sorted(state.properties.items()):
        if name.lower().startswith("delta.") and not _PROPERTIES.get(name, _is())(str(value)):
            yield f"its property {name} is '{value}'"
    yield from _schema_objections(state.schema_json)


@lru_cache(maxsize=1024)
def _schema_objections(schema_json: str) -> tuple[str, ...]:
    """Kept, because a wide schema would be read again at every commit."""
    found = [
        f"its column {path} carries {key}"
        for path, key in _metadata_keys(json.loads(schema_json)["fields"], "")
        if key != "comment" and not key.startswith("headrace.")
    ]
    try:
        from_delta(schema_json)
    except TableFeature as unknown:
        found.append(unknown.message)
    return tuple(found)


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


def protocol_for(schema_json: str, properties: Mapping[str, str], now: Protocol | None = None) -> Protocol:
    """The lowest protocol that this schema and these properties need, from what the table has now."""
    now = now or Protocol()
    if properties.get("delta.enableChangeDataFeed", "").lower() == "true" and now.min_writer < 4:
        now = Protocol(now.min_reader, 4)
    if not lacks_ntz(schema_json, now):
        return now
    spelled_out = now.writer_features | {
        name for version, names in _LEGACY.items() if version <= now.min_writer < 7 for name in names
    }
    mapping = {"columnMapping"} if now.min_reader == 2 else set()
    return Protocol(3, 7, now.reader_features | mapping | {"timestampNtz"}, spelled_out | {"timestampNtz"})


def lacks_ntz(schema_json: str, now: Protocol) -> bool:
    """Whether a schema has a time without a zone, and the protocol not the feature that such a type needs."""
    return "timestampNtz" not in now.writer_features and _has_type(json.loads(schema_json), "timestamp_ntz")


def _has_type(kind: Any, name: str) -> bool:
    if not isinstance(kind, dict):
        return bool(kind == name)
    inner = [kind.get(key) for key in ("elementType", "keyType", "valueType")]
    return any(_has_type(each, name) for each in [*inner, *(item["type"] for item in kind.get("fields", []))])
