"""The intent of a batch: its write-ahead record, durable before any table is changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from headrace.delta.log import EPOCH
from headrace.delta.staged_file import StagedFile, staged_file
from headrace.delta.txn import batch_txn, partition_txn
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range

ALL = "*"  # in `replaces`: the whole table
_TIMES = ("started", "retention_time", "resumed")


@dataclass(frozen=True, slots=True)
class Scd2Columns:
    """The validity columns of an SCD2 table, and the columns whose change adds a row."""

    valid_from: str
    valid_to: str
    current: str
    track: tuple[str, ...] = ()  # empty: every change adds a row

    @property
    def columns(self) -> tuple[str, str, str]:
        """The columns that no record fills."""
        return self.valid_from, self.valid_to, self.current


@dataclass(frozen=True, slots=True)
class MergeRules:
    """The rules of a merge: keys, the order of changes, and which columns they update."""

    keys: tuple[str, ...]
    sequence: str | None = None  # a column; without it, and for equal values, the position of the record
    partial: bool = False  # whether a change updates only some columns of a row
    columns: tuple[str, ...] = ()  # that a partial change updates; empty: all
    ignore_nulls: bool = False  # whether NULL in a partial change means "unchanged"
    tombstone_retention: float = 0.0  # seconds for which a delete wins over older changes that arrive late
    scd2: Scd2Columns | None = None  # for SCD2: a changed row is closed and kept

    @property
    def rows(self) -> str:
        """What a row of the table stands for; stored, and compared at the next start."""
        keys = ", ".join(self.keys)
        if self.scd2 is None:
            return f"one row per {keys}"
        return f"one row per state of {keys}, by {self.sequence} in {', '.join(self.scd2.columns)}"

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> MergeRules:
        """Parse the JSON form."""
        columns = raw.get("scd2")
        scd2 = Scd2Columns(**{**columns, "track": tuple(columns["track"])}) if columns else None
        return cls(**{**raw, "keys": tuple(raw["keys"]), "columns": tuple(raw["columns"]), "scd2": scd2})


@dataclass(frozen=True, slots=True)
class TableIntent:
    """The part of a batch for one table."""

    path: str
    table_id: str  # of the existing table, or for the new one
    create: bool  # whether the batch creates the table, unless another writer is first
    schema: str  # Delta's schemaString of the staged files
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    files: tuple[StagedFile, ...]
    dead_letters: bool = False  # whether it is the dead-letter table
    merging: MergeRules | None = None  # if the files are changes; None: rows to append
    replaces: tuple[str, ...] = ()  # the partition folders that the files replace; ALL: the whole table
    cluster_by: tuple[str, ...] = ()  # clustering columns of a new table
    version: int = -1  # of the table when the batch was planned; -1: no table
    attempt: int = 0  # number of the attempt that has this part; a later attempt keeps committed parts
    constraints: tuple[str, ...] = ()  # that the rows were checked against
    foreign: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Txns of kafka-delta-ingest by name: the version before the commit (-1: none), and the one that it sets."""

    def foreign_txns(self) -> dict[str, int]:
        """The txns of kafka-delta-ingest that the commit changes."""
        return {name: after for name, (before, after) in self.foreign.items() if after != before}


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """The input of a replay: dead letters of one version of their table, by a selection; the outcomes are staged."""

    version: int  # of the dead-letter table
    reasons: tuple[str, ...]  # empty: all
    tables: tuple[str, ...]  # empty: all
    since: str  # rejected then or later, ISO 8601; empty: all
    files: tuple[StagedFile, ...]  # the outcomes


class IntentKind(StrEnum):
    """The purpose of a batch."""

    BATCH = "batch"  # reads new records
    REFILL = "refill"  # writes again the rows that a RESTORE removed from one table; moves no partition
    REINGEST = "reingest"  # writes again the rows of lost files of one table; moves no partition
    REPLAY = "replay"  # takes dead letters through the current spec
    DECISION = "decision"  # records a decision of the operator; reads nothing, and `spec` is its text


@dataclass(frozen=True, slots=True)
class Intent:
    """The content of `intents/n`: the write-ahead record of a batch, durable before any of it is visible."""

    pipeline: str
    batch: int
    ranges: tuple[Range, ...]
    tables: tuple[TableIntent, ...]  # data tables in path order, dead letters last
    counts: Counts
    started: datetime
    token: str  # the lease's
    spec: str  # the spec's text, secrets still references
    digest: str
    headrace: str
    runs: int = 1  # 2 if the batch discovered new fields or tables
    idle_ranges: tuple[Range, ...] = ()  # empty ranges at the positions of partitions that the batch does not read
    replay: ReplayInput | None = None  # of a replay
    reread: tuple[Range, ...] = ()  # of a refill or reingest: the ranges that are read again for one table
    reingested: tuple[str, ...] = ()  # of a reingest: the lost files of that table, by their first path
    attempt: int = 0  # how often the batch was staged again, because its files did not fit a table
    retention_time: datetime = EPOCH  # tombstones expire by this time, which the ledger proves, not by `started`
    resumed: datetime = EPOCH  # the time of the ledger when the run started: tombstone retention starts there, or later
    kind: IntentKind = IntentKind.BATCH

    def txns(self) -> dict[str, int]:
        """The txns of every commit of the batch: its number, and the last offset of every partition after it."""
        versions = {batch_txn(self.pipeline): self.batch}
        for item in (*self.idle_ranges, *self.ranges):
            versions[partition_txn(self.pipeline, item.topic, item.partition)] = item.until - 1
        return versions

    def to_json(self) -> str:
        """The content of `intents/n`."""
        return json.dumps(self, separators=(",", ":"), default=_to_json)

    @classmethod
    def from_json(cls, text: str) -> Intent:
        """Parse the content of `intents/n`."""
        raw = json.loads(text)
        for name in ("ranges", "idle_ranges", "reread"):
            raw[name] = tuple(Range(**item) for item in raw.get(name, ()))
        raw["reingested"] = tuple(raw.get("reingested", ()))
        raw["tables"] = tuple(
            TableIntent(
                **{
                    **item,
                    "partition_by": tuple(item["partition_by"]),
                    "replaces": tuple(item.get("replaces", ())),
                    "cluster_by": tuple(item.get("cluster_by", ())),
                    "constraints": tuple(item.get("constraints", ())),
                    "foreign": {name: (before, after) for name, (before, after) in item.get("foreign", {}).items()},
                    "files": tuple(map(staged_file, item["files"])),
                    "merging": MergeRules.of(item["merging"]) if item.get("merging") else None,
                }
            )
            for item in raw["tables"]
        )
        raw["counts"] = Counts(**raw["counts"])
        raw["kind"] = IntentKind(raw["kind"])
        raw["replay"] = _replay(raw.get("replay"))
        times = {name: datetime.fromisoformat(raw[name]) for name in _TIMES if name in raw}
        return cls(**{**raw, **times})


def staged_for(intents: Iterable[Intent]) -> set[str]:
    """The full paths of the files that intents will commit."""
    return {f"{file.table}/{file.path}" for intent in intents for table in intent.tables for file in table.files}


def _to_json(value: Any) -> Any:
    """A time, or an object whose fields are encoded next: `asdict` would copy each of thousands of files and ranges."""
    if isinstance(value, datetime):
        return value.isoformat()
    return {name: getattr(value, name) for name in value.__slots__}


def _replay(raw: Mapping[str, Any] | None) -> ReplayInput | None:
    if raw is None:
        return None
    files = tuple(staged_file(item) for item in raw["files"])
    return ReplayInput(raw["version"], tuple(raw["reasons"]), tuple(raw["tables"]), raw["since"], files)
