"""Ids of the tables and topics of a pipeline, so that one that was created again is detected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.errors import Fenced, UnsupportedStateFormat
from headrace.storage.base import AlreadyExists
from headrace.storage.numbered_objects import NumberedObjects
from headrace.storage.store import Store

FORMAT = 2
FOLDER = "known_tables"


def check_format(store: Store, number: object) -> None:
    """UnsupportedStateFormat unless this version of Headrace supports the format of the state."""
    if str(number) != str(FORMAT):
        raise UnsupportedStateFormat(
            f"The state at {store.uri} has format {number}; this version of Headrace supports format {FORMAT}.",
            hint="Run the version of Headrace that wrote it, or a newer one.",
        )


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table at the last commit of the pipeline."""

    id: str
    writer: str  # the kind of writer, for good: "direct", "merge" or "spark"
    rows: str = ""  # what tells its rows apart, for good; empty: nobody has noted it
    restored: int = -1  # a RESTORE up to this version was answered by a person
    refill: int = -1  # the first RESTORE whose undone rows are still owed to the table
    full_refresh: int = 0  # the number of the one in which the table was last overwritten
    names: tuple[str, ...] = ()  # fields that records had, the spec reads and the table does not keep
    overwritten: tuple[str, ...] = ()  # the partition folders that this full refresh has overwritten; ALL: the table
    writers: tuple[str, ...] = ()  # who has committed to it, so that their txns must be there
    scanned: int = -1  # up to this version the log was looked through for RESTOREs


def _known_table(raw: Mapping[str, Any]) -> KnownTable:
    lists = {name: tuple(raw.get(name, ())) for name in ("overwritten", "writers", "names")}
    return KnownTable(**{**raw, **lists})


def _offsets(raw: Sequence[tuple[str, int, int]]) -> dict[tuple[str, int], int]:
    return {(topic, partition): offset for topic, partition, offset in raw}


def _triples(offsets: Mapping[tuple[str, int], int]) -> list[list[str | int]]:
    return [[*each, offset] for each, offset in sorted(offsets.items())]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What another writer had written to a table when the pipeline took it over."""

    app_id: str = ""  # of kafka-delta-ingest, which must not write any more; empty: not checked
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)  # the last one of each partition


def _taken_over(raw: Mapping[str, Any]) -> TakenOver:
    return TakenOver(raw["app_id"], _offsets(raw["offsets"]))


@dataclass(frozen=True, slots=True)
class FullRefresh:
    """One reading of the source from its start, which overwrites the tables."""

    number: int = 0
    open: bool = False  # until its drain ends


class KnownTables:
    """The newest object of `known_tables/`; a change adds one, unless another driver was first (Fenced)."""

    def __init__(self, chain: NumberedObjects, number: int, raw: Mapping[str, Any]) -> None:
        self._chain, self._number = chain, number
        self.tables = {path: _known_table(item) for path, item in raw.get("tables", {}).items()}
        self.topics: dict[str, str] = dict(raw.get("topics", {}))
        self.since: dict[str, int] = dict(raw.get("since", {}))  # the batch that first met a topic under its id
        self.full_refresh = FullRefresh(**raw.get("full_refresh", {}))
        self.start = _offsets(raw["start"]) if "start" in raw else None  # None: the first start is not decided
        self.taken_over = {path: _taken_over(item) for path, item in raw.get("taken_over", {}).items()}

    @classmethod
    def load(cls, store: Store) -> KnownTables:
        """Load the newest object, or start with none."""
        chain = NumberedObjects(store, FOLDER)
        number, data = chain.newest()
        raw = json.loads(data) if data is not None else {"format": FORMAT}
        check_format(store, raw.get("format"))
        return cls(chain, number, raw)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever stored, or all of it is lost."""
        return self._number == 0

    def store(
        self,
        *,
        tables: Mapping[str, KnownTable] | None = None,
        topics: Mapping[str, str] | None = None,
        batch: int = 0,
    ) -> None:
        """Add or change tables and topics, which this batch has met; Fenced when another driver wrote meanwhile."""
        met = {name: batch for name, topic_id in (topics or {}).items() if self.topics.get(name) != topic_id}
        self._become({**self.tables, **(tables or {})}, {**self.topics, **(topics or {})}, {**self.since, **met})

    def store_start(self, offsets: Mapping[tuple[str, int], int], topics: Mapping[str, str], batch: int) -> None:
        """Where partitions are read from that no batch has read yet; a restart reads them from the same offsets."""
        start = {**(self.start or {}), **offsets}
        met = {name: batch for name, topic_id in topics.items() if self.topics.get(name) != topic_id}
        self._become(self.tables, {**self.topics, **topics}, {**self.since, **met}, start=start)

    def store_takeover(
        self, offsets: Mapping[tuple[str, int], int], topics: Mapping[str, str], tables: Mapping[str, TakenOver]
    ) -> None:
        """Where a new pipeline starts to read, and what its tables have already; replaces an earlier start."""
        taken_over = {**self.taken_over, **tables}
        met = dict.fromkeys(topics, 1)
        self._become(self.tables, dict(topics), met, start=dict(offsets), taken_over=taken_over)

    def unwatch(self, paths: Iterable[str]) -> None:
        """Forget which app id had written tables that were taken over: from now on, the pipeline sets its txns."""
        taken_over = {**self.taken_over, **{path: replace(self.taken_over[path], app_id="") for path in paths}}
        self._become(self.tables, self.topics, self.since, taken_over=taken_over)

    def store_full_refresh(self, full_refresh: FullRefresh) -> None:
        """Which full refresh overwrites the tables, or has done so."""
        self._become(self.tables, self.topics, self.since, full_refresh)

    def forget(self, path: str) -> None:
        """Remove a table, so that it may be created again, without the rows that another writer had written."""
        tables = {key: table for key, table in self.tables.items() if key != path}
        taken_over = {key: each for key, each in self.taken_over.items() if key != path}
        self._become(tables, self.topics, self.since, taken_over=taken_over)

    def _become(
        self,
        tables: dict[str, KnownTable],
        topics: dict[str, str],
        since: dict[str, int],
        full_refresh: FullRefresh | None = None,
        start: dict[tuple[str, int], int] | None = None,
        taken_over: dict[str, TakenOver] | None = None,
    ) -> None:
        full_refresh, start = full_refresh or self.full_refresh, self.start if start is None else start
        taken_over = self.taken_over if taken_over is None else taken_over
        current = (self.tables, self.topics, self.full_refresh, self.start, self.taken_over)
        if (tables, topics, full_refresh, start, taken_over) == current:
            return
        raw: dict[str, Any] = {
            "format": FORMAT,
            "tables": {path: asdict(table) for path, table in sorted(tables.items())},
            "topics": dict(sorted(topics.items())),
            "since": dict(sorted(since.items())),
            "full_refresh": asdict(full_refresh),
        }
        if start is not None:
            raw["start"] = _triples(start)
        if taken_over:
            raw["taken_over"] = {
                path: {"app_id": each.app_id, "offsets": _triples(each.offsets)}
                for path, each in sorted(taken_over.items())
            }
        self._number = self._add(json.dumps(raw, indent=1).encode())
        self.tables, self.topics, self.since = tables, topics, since
        self.full_refresh, self.start, self.taken_over = full_refresh, start, taken_over

    def _add(self, text: bytes) -> int:
        number = self._number + 1
        try:
            self._chain.add(number, text)
        except AlreadyExists:
            if self._chain.newest() != (number, text):  # else it is ours, and only the reply was lost
                raise Fenced(
                    "Another instance has changed the known tables and topics of the pipeline.",
                    hint="Restart the pipeline: it resumes from the ledger.",
                ) from None
        return number
