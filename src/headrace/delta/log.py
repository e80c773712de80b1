"""What a Delta log says: one commit's JSON as the few facts a blind append needs, and a table's state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headrace.delta.schema import from_delta
from headrace.errors import StorageUnreachable, TableFeature
from headrace.storage.base import Meta, NotThere
from headrace.storage.store import Store

EPOCH = datetime.fromtimestamp(0, UTC)

LOG = "_delta_log"
_NUMBERED = re.compile(rf"{LOG}/(\d{{20}})\.")
_CHECKPOINT = re.compile(rf"{LOG}/\d{{20}}\.checkpoint\.parquet$")  # whole, in one file
_SURE = timedelta(days=1)
_VERSION = re.compile(rf"{LOG}/(\d{{20}})\.(?:json|checkpoint\b.*\.parquet)$")


@dataclass(frozen=True, slots=True)
class MetadataAction:
    """The `metaData` action."""

    table_id: str
    schema_json: str
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    created: int | None = None  # milliseconds
    name: str | None = None
    description: str | None = None

    def action(self) -> dict[str, Any]:
        """The line of a commit that says this."""
        said = {
            "id": self.table_id,
            "name": self.name,
            "description": self.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema_json,
            "partitionColumns": list(self.partition_by),
            "configuration": dict(self.properties),
            "createdTime": self.created,
        }
        return {"metaData": {key: value for key, value in said.items() if value is not None}}

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> MetadataAction:
        """Out of a commit's line."""
        return cls(
            raw["id"],
            raw["schemaString"],
            tuple(raw.get("partitionColumns") or ()),
            raw.get("configuration") or {},
            raw.get("createdTime"),
            raw.get("name"),
            raw.get("description"),
        )


@dataclass(frozen=True, slots=True)
class Protocol:
    """The `protocol` action; features are listed from reader 3 and writer 7 on."""

    min_reader: int = 1
    min_writer: int = 2
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()

    def action(self) -> dict[str, Any]:
        """The line of a commit that says this."""
        said: dict[str, Any] = {"minReaderVersion": self.min_reader, "minWriterVersion": self.min_writer}
        if self.min_reader >= 3:
            said["readerFeatures"] = sorted(self.reader_features)
        if self.min_writer >= 7:
            said["writerFeatures"] = sorted(self.writer_features)
        return {"protocol": said}

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Protocol:
        """Out of a commit's line."""
        return cls(
            raw["minReaderVersion"],
            raw["minWriterVersion"],
            frozenset(raw.get("readerFeatures") or ()),
            frozenset(raw.get("writerFeatures") or ()),
        )


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version, without its files."""

    version: int
    metadata: MetadataAction
    protocol: Protocol
    marks: Mapping[str, int] = field(default_factory=dict)  # those asked for, and every one met since

    @property
    def table_id(self) -> str:
        """The table's id, which a table made anew at the same place does not have."""
        return self.metadata.table_id

    @property
    def schema_json(self) -> str:
        """Delta's schemaString."""
        return self.metadata.schema_json

    @property
    def schema(self) -> pa.Schema:
        """The columns in our type language; TableFeature for a type we do not know."""
        return _schema(self.metadata.schema_json)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns, in order."""
        return self.metadata.partition_by

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's configuration."""
        return self.metadata.properties


@lru_cache(maxsize=1024)
def _schema(schema_json: str) -> pa.Schema:
    return from_delta(schema_json)


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a log, read on its own."""

    version: int
    metadata: MetadataAction | None
    protocol: Protocol | None
    marks: Mapping[str, int]
    info: Mapping[str, Any]  # commitInfo
    added: int
    removed: int

    @property
    def operation(self) -> str:
        """What the writer says it did."""
        return str(self.info.get("operation", ""))

    @property
    def timestamp(self) -> int:
        """When, in milliseconds; 0 where nothing tells."""
        return int(self.info.get("inCommitTimestamp") or self.info.get("timestamp") or 0)

    @property
    def commit_id(self) -> str:
        """The writer's own name for this commit, if it gave one."""
        return str(self.info.get("txnId", ""))


def version_path(version: int) -> str:
    """Where a version's JSON is, below the table's root."""
    return f"{LOG}/{version:020}.json"


def parse_commit(version: int, data: bytes) -> Commit:
    """Read one version's JSON; StorageUnreachable while it is not whole (a writer without atomic puts)."""
    facts: dict[str, Any] = {}
    marks: dict[str, int] = {}
    added = removed = 0
    try:
        for line in filter(None, map(bytes.strip, data.split(b"\n"))):
            if line.startswith(b'{"add":'):  # by far the most lines; their content does not matter here
                added += 1
                continue
            for kind, content in json.loads(line).items():
                added += kind == "add"
                removed += kind == "remove"
                if kind == "txn":
                    marks[content["appId"]] = content["version"]
                else:
                    facts[kind] = content
        metadata = MetadataAction.of(facts["metaData"]) if "metaData" in facts else None
        protocol = Protocol.of(facts["protocol"]) if "protocol" in facts else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageUnreachable(f"Version {version} of a log is no whole commit: {error}.") from error
    return Commit(version, metadata, protocol, marks, facts.get("commitInfo") or {}, added, removed)


def read_commit(store: Store, version: int) -> Commit:
    """One version's JSON out of the store; NotThere when the log does not have it."""
    return parse_commit(version, store.get(version_path(version)))


def time_until(store: Store, version: int, until: int) -> int | None:
    """The time of the newest commit that is not after a moment, both in milliseconds; None where the log has none.

    Searched from a version back, in steps that double, then by halving: a day of commits costs some thirty reads.
    """

    def is_after(at: int) -> bool:
        time = _time(store, at)
        return time is not None and time > until

    low, high, step = version, version + 1, 1
    while low >= 0 and is_after(low):
        low, high, step = low - step, low, step * 2
    low = max(low, -1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_after(middle) else (middle, high)
    return _time(store, low) if low >= 0 else None


def proved_time(log: Store, clock: datetime, retain: timedelta, version: int | None = None) -> datetime:
    """The time that a log proves to have passed: of its newest commit that is a day old by our clock.

    What is deleted for good must not rest on the clock of one machine alone: started once with a clock a year ahead, a
    pipeline would delete all that it keeps for less than a year. A commit of that very run is no proof either, until
    the clock has stood by it for a day; or for a seventh of `retain`, where that is less.
    """
    at = newest_version(log) if version is None else version
    until = clock - min(_SURE, retain / 7)
    found = None if at is None else time_until(log, at, int(until.timestamp() * 1000))
    return EPOCH if found is None else datetime.fromtimestamp(found / 1000, UTC)


def _time(store: Store, version: int) -> int | None:
    """When a version was committed, in milliseconds; None where the log no longer has it."""
    try:
        return read_commit(store, version).timestamp
    except NotThere:
        return None


def apply(state: TableState, commit: Commit) -> TableState:
    """The state one version later."""
    return TableState(
        commit.version,
        commit.metadata or state.metadata,
        commit.protocol or state.protocol,
        {**state.marks, **commit.marks},
    )


def load_state(store: Store, marks: Iterable[str] = ()) -> TableState | None:
    """The newest state through delta-rs; None where there is no table, TableFeature where delta-rs cannot read it."""
    version = newest_version(store)
    return None if version is None else _state(open_at(store, version), marks)


def newest_version(store: Store) -> int | None:
    """The newest version of a log, as a listing shows it."""
    after = last_checkpoint(store)  # saves most of the listing where there is one
    found = _newest(store, None if after < 0 else f"{LOG}/{after:020}")
    return found if found is not None or after < 0 else _newest(store, None)  # a hint may be ahead of a log set back


def _newest(store: Store, after: str | None) -> int | None:
    names = (_VERSION.match(item.path) for item in store.list(LOG, after))
    return max((int(found[1]) for found in names if found), default=None)


def last_checkpoint(store: Store) -> int:
    """The version of the newest log checkpoint, as the log's own hint tells; -1 without one."""
    try:
        return int(json.loads(store.get(f"{LOG}/_last_checkpoint"))["version"])
    except (NotThere, ValueError, KeyError, TypeError):
        return -1


def expired(store: Store, until: datetime) -> list[Meta]:
    """What the log says of versions that ended before a time; the newest checkpoint of then is kept."""
    old: list[Meta] = []
    for item in store.list(LOG):
        if _NUMBERED.match(item.path) is None:
            continue
        if item.modified >= until.timestamp():
            break
        old.append(item)
    kept = max((number(item) for item in old if _CHECKPOINT.match(item.path)), default=-1)
    return [item for item in old if number(item) < kept]


def number(item: Meta) -> int:
    """The version that a file of the log is of."""
    found = _NUMBERED.match(item.path)
    return int(found[1]) if found else -1


def open_at(store: Store, version: int) -> DeltaTable:
    """The table at a version that was seen. Asked for the newest, delta-rs lists a folder while versions are being
    added, may see one and not the one before it, and calls that a gap; below a version once seen there is none."""
    try:
        return DeltaTable(store.delta_uri, version, storage_options=store.delta_options)
    except OSError as error:
        raise StorageUnreachable(f"{store.uri}: its log cannot be read: {_first_line(error)}") from error
    except TableNotFoundError as error:
        raise StorageUnreachable(f"{store.uri}: version {version} was there a moment ago.") from error
    except DeltaError as error:
        raise TableFeature(f"{store.uri}: delta-rs cannot read this table: {_first_line(error)}") from error


def _state(table: DeltaTable, marks: Iterable[str]) -> TableState:
    metadata, protocol = table.metadata(), table.protocol()
    found = {name: table.transaction_version(name) for name in marks}
    return TableState(
        table.version(),
        MetadataAction(
            str(metadata.id),
            table.schema().to_json(),
            tuple(metadata.partition_columns),
            {key: value for key, value in metadata.configuration.items() if value is not None},
            metadata.created_time,
            metadata.name,
            metadata.description,
        ),
        Protocol(
            protocol.min_reader_version,
            protocol.min_writer_version,
            frozenset(protocol.reader_features or ()),
            frozenset(protocol.writer_features or ()),
        ),
        {name: value for name, value in found.items() if value is not None},
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
