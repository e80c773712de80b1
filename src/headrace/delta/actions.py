"""The actions of a Delta commit as typed data, and the parser of a commit's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from headrace.delta.staged_file import StagedFile
from headrace.errors import StorageUnreachable

_NUM_RECORDS = re.compile(r'"numRecords"\s*:\s*(\d+)')
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FILE_LINE = re.compile(rb'{"(add|remove|cdc)":')
_INVALID = (ValueError, KeyError, TypeError, AttributeError)  # raised by JSON that is not a commit


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
        """The action as JSON."""
        fields = {
            "id": self.table_id,
            "name": self.name,
            "description": self.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema_json,
            "partitionColumns": list(self.partition_by),
            "configuration": dict(self.properties),
            "createdTime": self.created,
        }
        return {"metaData": {key: value for key, value in fields.items() if value is not None}}

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> MetadataAction:
        """Parse the action."""
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
        """The action as JSON."""
        fields: dict[str, Any] = {"minReaderVersion": self.min_reader, "minWriterVersion": self.min_writer}
        if self.min_reader >= 3:
            fields["readerFeatures"] = sorted(self.reader_features)
        if self.min_writer >= 7:
            fields["writerFeatures"] = sorted(self.writer_features)
        return {"protocol": fields}

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Protocol:
        """Parse the action."""
        return cls(
            raw["minReaderVersion"],
            raw["minWriterVersion"],
            frozenset(raw.get("readerFeatures") or ()),
            frozenset(raw.get("writerFeatures") or ()),
        )


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The descriptor of a deletion vector: where the bitmap of a file's deleted rows is."""

    kind: str  # "u": in a file below the table, "p": in a file at an absolute path, "i": inline in the log
    where: str
    offset: int | None
    rows: int  # deleted
    size: int = 0  # bytes

    @property
    def path(self) -> str | None:
        """The path of its file below the table's root; None if it has none there.

        `ab^-aqEH.-t@S}K{vb[*k^` is the folder `ab` and 20 characters of Z85, which encode a UUID: the file is
        `ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin`.
        """
        if self.kind != "u":
            return None
        folder, encoded = self.where[:-20], self.where[-20:]
        name = f"deletion_vector_{UUID(bytes=_decode_z85(encoded))}.bin"
        return f"{folder}/{name}" if folder else name

    @property
    def address(self) -> str | None:
        """The absolute path of its file; None if the log has a relative one."""
        return unquote(self.where) if self.kind == "p" else None

    @property
    def inline(self) -> bytes:
        """The bitmap of an inline vector, padded to four bytes."""
        return _decode_z85(self.where)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> DeletionVector:
        """Parse the descriptor in a file's action."""
        size, rows = int(raw.get("sizeInBytes") or 0), int(raw["cardinality"])
        return cls(raw["storageType"], raw["pathOrInlineDv"], raw.get("offset"), rows, size)

    @property
    def action(self) -> dict[str, Any]:
        """The descriptor as JSON."""
        offset = {} if self.offset is None else {"offset": self.offset}
        counts = {"sizeInBytes": self.size, "cardinality": self.rows}
        return {"storageType": self.kind, "pathOrInlineDv": self.where, **offset, **counts}


def _decode_z85(text: str) -> bytes:
    """Decode Z85, which the standard library has from Python 3.13: five digits of base 85 are four bytes."""
    words = (text[at : at + 5] for at in range(0, len(text), 5))
    return b"".join(
        reduce(lambda total, digit: total * 85 + _Z85.index(digit), word, 0).to_bytes(4, "big") for word in words
    )


@dataclass(frozen=True, slots=True)
class File:
    """One data file of a table."""

    path: str  # below the table's root, as in the store; an absolute one if the file is outside of the table
    log_path: str  # the path in the log, URL-encoded
    partition: Mapping[str, str | None]
    size: int
    num_records: int | None  # rows in the file, also deleted ones; None if it has no statistics
    vector: DeletionVector | None = None
    stats: str = ""  # Delta's statistics as JSON text
    changes_data: bool = True  # false for files of a rewrite that keeps all rows
    modified: int = 0  # milliseconds; 0 if the log has no time
    clustered: bool = False  # whether it was written by the table's own clustering

    @property
    def key(self) -> tuple[str, str]:
        """The identity of a file in a log: the same path with another deletion vector is another file."""
        return self.path, f"{self.vector.where}@{self.vector.offset}" if self.vector else ""

    @property
    def rows(self) -> int | None:
        """Rows without the deleted ones; None if the file has no statistics."""
        return None if self.num_records is None else self.num_records - (self.vector.rows if self.vector else 0)

    @property
    def elsewhere(self) -> bool:
        """Whether the file is outside of the table's root, as in a shallow clone."""
        return "://" in self.path or self.path.startswith(("/", "file:"))

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the file and of its deletion vector."""
        vector = self.vector.path or self.vector.address if self.vector else None
        return (self.path, vector) if vector else (self.path,)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> File:
        """Parse an `add`, `remove` or `cdc` action of a commit or of a checkpoint."""
        vector = raw.get("deletionVector")
        return cls(
            unquote(raw["path"]),
            raw["path"],
            dict(raw.get("partitionValues") or {}),
            int(raw.get("size") or 0),
            _num_records(raw),
            DeletionVector.of(vector) if vector else None,
            raw.get("stats") or "",
            bool(raw.get("dataChange", True)),
            int(raw.get("modificationTime") or 0),
            bool(raw.get("clusteringProvider")),
        )


def as_file(staged: StagedFile) -> File:
    """A staged file as a data file of its table."""
    return File(staged.path, staged.path, dict(staged.partition), staged.size, staged.rows, stats=staged.stats)


def _num_records(raw: Mapping[str, Any]) -> int | None:
    if match := _NUM_RECORDS.search(raw.get("stats") or ""):
        return int(match[1])
    count = (raw.get("stats_parsed") or {}).get("numRecords")
    return None if count is None else int(count)


@dataclass(frozen=True)
class Commit:
    """One version of a log.

    The lines of files are parsed on first use: a commit may add thousands of files, and most readers need only the
    txns, the metadata and the number of files.
    """

    version: int
    metadata: MetadataAction | None
    protocol: Protocol | None
    txns: Mapping[str, int]
    info: Mapping[str, Any]  # commitInfo
    add_lines: Sequence[bytes] = ()
    remove_lines: Sequence[bytes] = ()
    cdc_lines: Sequence[bytes] = ()

    @cached_property
    def added(self) -> tuple[File, ...]:
        """The files of `add` actions; StorageUnreachable if a line is incomplete."""
        return self._files("add", self.add_lines)

    @cached_property
    def removed(self) -> tuple[File, ...]:
        """The files of `remove` actions; StorageUnreachable if a line is incomplete."""
        return self._files("remove", self.remove_lines)

    @cached_property
    def change_data(self) -> tuple[File, ...]:
        """The files of `cdc` actions: rows of the change data feed."""
        return self._files("cdc", self.cdc_lines)

    def _files(self, kind: str, lines: Sequence[bytes]) -> tuple[File, ...]:
        try:
            return tuple(File.of(json.loads(line)[kind]) for line in lines)
        except _INVALID as error:
            raise _incomplete(self.version, error) from error

    @property
    def changes(self) -> bool:
        """Whether the commit changes rows or metadata."""
        return self.metadata is not None or any(file.changes_data for file in (*self.added, *self.removed))

    @property
    def operation(self) -> str:
        """The operation that the writer names."""
        return str(self.info.get("operation", ""))

    @property
    def timestamp(self) -> int:
        """The time of the commit in milliseconds; 0 if it has none."""
        return int(self.info.get("inCommitTimestamp") or self.info.get("timestamp") or 0)

    @property
    def commit_id(self) -> str:
        """The id that the writer gave to the commit; empty if it gave none."""
        return str(self.info.get("txnId", ""))

    @property
    def account(self) -> Mapping[str, Any]:
        """Headrace's account of a batch or an operation; empty in commits of other writers.

        The log writer has it in `commitInfo.headrace`; Spark can only write it as text in `userMetadata`.
        """
        if isinstance(account := self.info.get("headrace"), dict):
            return account
        try:
            metadata = json.loads(self.info.get("userMetadata") or "{}")
        except ValueError:
            return {}
        account = metadata.get("headrace") if isinstance(metadata, dict) else None
        return account if isinstance(account, dict) else {}


def parse_commit(version: int, data: bytes) -> Commit:
    """Parse the JSON of a version; StorageUnreachable if it is incomplete (written without an atomic put)."""
    file_lines: dict[str, list[bytes]] = {"add": [], "remove": [], "cdc": []}
    facts: dict[str, Any] = {}
    txns: dict[str, int] = {}
    lines = [line for line in map(bytes.strip, data.split(b"\n")) if line]
    other_lines = []
    for line in lines:
        if match := _FILE_LINE.match(line):
            file_lines[match[1].decode()].append(line)
        else:
            other_lines.append(line)
    try:
        # One call of the parser, as its start costs more than a short line.
        for line, action in zip(other_lines, json.loads(b"[%s]" % b",".join(other_lines)), strict=True):
            for kind, content in action.items():
                if kind in file_lines:  # spelled with blanks by another writer
                    file_lines[kind].append(line)
                elif kind == "txn":
                    txns[content["appId"]] = content["version"]
                else:
                    facts[kind] = content
        if lines and lines[-1] not in other_lines[-1:]:
            json.loads(lines[-1])  # a write that was interrupted ends within its last line
        metadata = MetadataAction.of(facts["metaData"]) if "metaData" in facts else None
        protocol = Protocol.of(facts["protocol"]) if "protocol" in facts else None
    except _INVALID as error:
        raise _incomplete(version, error) from error
    return Commit(version, metadata, protocol, txns, facts.get("commitInfo") or {}, *map(tuple, file_lines.values()))


def _incomplete(version: int, error: Exception) -> StorageUnreachable:
    return StorageUnreachable(f"Version {version} of the log is not a complete commit: {error}.")
