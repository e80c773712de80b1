"""The intent of a batch: its write-ahead record, durable before any table is changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from headrace.delta.log import EPOCH
from headrace.delta.staged_file import StagedFile, staged_file
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range

ALL = "*"  # no folder of a partition
_TIMES = ("started", "retention_time", "resumed")


@dataclass(frozen=True, slots=True)
class Scd2Columns:
    """The columns that say when a row was so, and those whose change makes a new row."""

    valid_from: str
    valid_to: str
    current: str
    track: tuple[str, ...] = ()  # empty: every change makes one

    @property
    def columns(self) -> tuple[str, str, str]:
        """Those that no record brings."""
        return self.valid_from, self.valid_to, self.current


@dataclass(frozen=True, slots=True)
class MergeRules:
    """How changes go into a table: what tells rows apart, what orders changes, and what they leave of a row."""

    keys: tuple[str, ...]
    sequence: str | None = None  # a column; the record's place without it, and among equals
    partial: bool = False  # whether a change leaves some columns of the row as they are
    columns: tuple[str, ...] = ()  # those a partial change brings; empty: all
    ignore_nulls: bool = False  # whether a partial change's NULLs say nothing
    tombstone_retention: float = 0.0  # seconds for which a delete keeps older changes of its key away
    scd2: Scd2Columns | None = None  # where a row that changes is ended, and stays

    @property
    def rows(self) -> str:
        """What is one row of the table, in words that stay the same while it does."""
        keys = ", ".join(self.keys)
        if self.scd2 is None:
            return f"a row for each {keys}"
        return f"a row for each state of {keys}, by {self.sequence} in {', '.join(self.scd2.columns)}"

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> MergeRules:
        """Out of its JSON form."""
        columns = raw.get("scd2")
        scd2 = Scd2Columns(**{**columns, "track": tuple(columns["track"])}) if columns else None
        return cls(**{**raw, "keys": tuple(raw["keys"]), "columns": tuple(raw["columns"]), "scd2": scd2})


@dataclass(frozen=True, slots=True)
class TableIntent:
    """What one batch will do to one table."""

    path: str
    table_id: str  # the id it has, or the one it will be made with
    create: bool  # the batch makes it, if nobody does so first
    schema: str  # Delta's schema JSON that the staged files were written for
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    files: tuple[StagedFile, ...]
    dead_letters: bool = False  # whether it is the dead-letter table
    merging: MergeRules | None = None  # where the files are changes; without it they are rows to append
    replaces: tuple[str, ...] = ()  # the folders of partitions that the files replace; ALL of them: the whole table
    cluster_by: tuple[str, ...] = ()  # what Spark makes the table with
    version: int = -1  # of the table when this was planned; -1: there was none
    plan: int = 0  # the plan of the batch that this part is of; a later plan keeps the parts that are committed
    constraints: tuple[str, ...] = ()  # what the rows were held to


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """What a replay plan takes: letters of one version of their table, by these rules; their outcomes are staged."""

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
    runs: int = 1  # 2 when the batch discovered something
    idle_ranges: tuple[Range, ...] = ()  # empty ranges where the partitions stand that the batch does not read
    replay: ReplayInput | None = None  # where the batch is a replay plan
    reread: tuple[Range, ...] = ()  # where it gives one table back what it had lost: what is read again for it
    reingested: tuple[str, ...] = ()  # and the files of that table whose rows these are, as they were first committed
    plan: int = 0  # counts how often the batch was planned again, for tables that its files did not fit
    retention_time: datetime = EPOCH  # tombstones expire by this time, which the ledger proves, not by `started`
    resumed: datetime = EPOCH  # the time of the ledger when the run began: tombstones are kept from then, or later
    kind: IntentKind = IntentKind.BATCH

    def txns(self) -> dict[str, int]:
        """App transactions every commit of the batch carries: its number, and where every partition stands after it."""
        named = {f"headrace:{self.pipeline}": self.batch}
        for item in (*self.idle_ranges, *self.ranges):
            named[f"headrace:{self.pipeline}:{item.topic}:{item.partition}"] = item.until - 1
        return named

    def to_json(self) -> str:
        """The text of `intents/n`."""
        times = {name: getattr(self, name).isoformat() for name in _TIMES}
        return json.dumps({**asdict(self), **times}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Intent:
        """Read `intents/n` back."""
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
                    "files": tuple(staged_file(each) for each in item["files"]),
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
    """The files, with their folders, that intents are going to commit."""
    return {f"{item.table}/{item.path}" for each in intents for table in each.tables for item in table.files}


def _replay(raw: Mapping[str, Any] | None) -> ReplayInput | None:
    if raw is None:
        return None
    files = tuple(staged_file(item) for item in raw["files"])
    return ReplayInput(raw["version"], tuple(raw["reasons"]), tuple(raw["tables"]), raw["since"], files)
