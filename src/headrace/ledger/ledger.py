"""The ledger: what each batch read and wrote. Every start resumes from it.

The state folder holds `ledger/`, a Delta table with one row a batch whose newest commit carries the txns of every
partition; `intents/<n>`, the write-ahead record of batch n, durable before any of it is visible; and `known_tables/`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pyarrow as pa

from headrace.delta.commit_builder import ENGINE
from headrace.delta.log import EPOCH, LogWalk, proved_time
from headrace.delta.log_writer import LogWriter
from headrace.delta.receipt import Receipt
from headrace.delta.snapshot import TableState, all_txns
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_txn, partition_txn
from headrace.errors import Fenced, HeadraceError, TxnMismatch
from headrace.ledger import compaction, row
from headrace.ledger.known_tables import FORMAT, FullRefresh, KnownTable, KnownTables, check_format
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.store import Store
from headrace.write.intent import Intent, IntentKind

__all__ = ["FullRefresh", "KnownTable", "KnownTables", "Ledger", "Position"]

Position = dict[tuple[str, int], int]
_FORGET_EVERY = 32
_FOREVER = datetime.max.replace(tzinfo=UTC)


class Ledger:
    """One pipeline's ledger, open for one driver."""

    folder = "ledger"
    intents = "intents"  # the folder of the batches' write-ahead records
    schema = row.SCHEMA_JSON

    def __init__(self, store: Store, pipeline: str, log_writer: LogWriter, txns: Mapping[str, int]) -> None:
        self._store, self._pipeline, self._log_writer = store, pipeline, log_writer
        self._table = store.child(self.folder)
        self._txns = dict(txns)
        self._half = False
        self._before = 0  # the last recorded batch when a lost ledger was assumed
        self.resumed = EPOCH  # the time of its newest commit when it was opened
        self.known = KnownTables.load(store)
        self._versions: dict[str, tuple[str, int]] = {}  # by table, its id and its version after the last batch

    @classmethod
    def open(cls, store: Store, pipeline: str) -> Self:
        """Load the position from the txns of the ledger; no row is read."""
        table = store.child(cls.folder)
        log_writer = LogWriter.open(table, [batch_txn(pipeline)])
        if log_writer.state is None:
            return cls(store, pipeline, log_writer, {})
        check_format(store, log_writer.state.properties.get("headrace.format"))
        txns, versions = _last_commit(table, log_writer.state, batch_txn(pipeline))
        if not txns:
            raise TxnMismatch(
                f"The ledger at {table.uri} has no txn of pipeline '{pipeline}'.",
                hint="Use a separate state directory for each pipeline. A renamed pipeline is a new pipeline.",
            )
        ledger = cls(store, pipeline, log_writer, txns)
        ledger.resumed = proved_time(table, _FOREVER, timedelta(0), log_writer.state.version)
        ledger._versions = versions
        return ledger

    def proved_time(self, clock: datetime, retain: timedelta = timedelta.max) -> datetime:
        """The time that the ledger proves to have passed; the epoch before it proves any."""
        state = self._log_writer.state
        return EPOCH if state is None else proved_time(self._table, clock, retain, state.version)

    def version_of(self, path: str, table_id: str) -> int:
        """The version that a table had after the last batch; -1 where that batch was not for this table."""
        known_id, version = self._versions.get(path, ("", -1))
        return version if known_id == table_id else -1

    def accept_version(self, path: str) -> None:
        """Take a table as it is, whatever version it had after the last batch; the next batch makes it durable."""
        self._versions.pop(path, None)

    @property
    def batch(self) -> int:
        """The number of the last recorded batch, 0 before the first."""
        return self._txns.get(batch_txn(self._pipeline), 0)

    @property
    def log_writer(self) -> LogWriter:
        """The log of the ledger's table, for maintenance between batches."""
        return self._log_writer

    @property
    def is_new(self) -> bool:
        """Whether there is no ledger: the pipeline's first batch is to come, or its state was lost."""
        return self._log_writer.state is None

    def position(self) -> Position:
        """The next offset to read of every partition that was read, or whose start is decided."""
        return {**(self.known.start or {}), **position_of(self._txns, self._pipeline)}

    def idle_ranges(self, excluded: Collection[tuple[str, int]] = ()) -> tuple[Range, ...]:
        """The position of each partition as an empty range, without those that a batch reads."""
        known = self.known.topics
        return tuple(
            Range(*each, at, at, known.get(each[0], ""))
            for each, at in sorted(self.position().items())
            if each not in excluded
        )

    def open_batch(self) -> Intent | None:
        """The batch that has an intent and no row yet; it must be finished before another batch begins."""
        text = self._intent_text(self.batch + 1)
        if text is None or self._is_recorded(self.batch + 1):
            return None
        intent = Intent.from_json(text.decode())
        while (text := self._intent_text(intent.batch, intent.attempt + 1)) is not None:
            intent = Intent.from_json(text.decode())
        return intent

    def revise(self, intent: Intent) -> None:
        """Make a later attempt of the open batch durable; Fenced when another driver was first, or has finished it."""
        self._expect_next(intent.batch)
        text = intent.to_json().encode()
        try:
            self._store.put_new(self._intent_path(intent.batch, intent.attempt), text)
        except AlreadyExists:
            if self._intent_text(intent.batch, intent.attempt) != text:
                raise self._fenced(f"batch {intent.batch} was staged again by another instance") from None
        if self._is_recorded(intent.batch):
            raise self._fenced(f"batch {intent.batch} is already recorded in the ledger")

    def attempt(self, batch: int, number: int) -> Intent | None:
        """The intent of an attempt of the open batch; None where there is none."""
        text = self._intent_text(batch, number)
        return Intent.from_json(text.decode()) if text is not None else None

    def begin(self, intent: Intent) -> None:
        """Make the intent of a batch durable; Fenced when another driver was first.

        If the number is taken by the very same intent, only the reply was lost.
        """
        self._expect_next(intent.batch)
        text = intent.to_json().encode()
        try:
            self._store.put_new(self._intent_path(intent.batch), text)
        except AlreadyExists:
            if self._intent_text(intent.batch) != text:
                raise self._fenced(f"batch {intent.batch} has an intent of another instance") from None
        if self._is_recorded(intent.batch):
            raise self._fenced(f"batch {intent.batch} is already recorded in the ledger")

    def record(self, intent: Intent, receipts: Sequence[Receipt], finished: datetime, note: str = "") -> None:
        """Record a finished batch: one row and the txns of every partition, in one commit, once.

        The ids of its topics are stored first: after a crash in between, the open batch is recorded first.
        """
        self._expect_next(intent.batch)
        txns = {**self._txns, **intent.txns()}
        note = note or _note(intent)
        topics = {item.topic: item.topic_id for item in intent.ranges if item.topic_id}
        self.known.store(topics=topics, batch=intent.batch)
        staged = self._rows(intent, receipts, finished, note)
        ids = {each.path: self.known.tables[each.path].id for each in receipts if each.path in self.known.tables}
        versions = {each.path: (ids[each.path], each.version) for each in receipts if each.path in ids}
        self._commit(staged, txns, {"pipeline": self._pipeline, "batch": intent.batch, "versions": versions})
        self._txns, self._versions = txns, versions
        self._forget()
        self._compact()

    def decide(self, note: str, position: Mapping[tuple[str, int], int], ranges: Sequence[Range] = ()) -> None:
        """Record a decision of the operator: a batch that reads nothing and moves partitions to new positions."""
        if self.open_batch() is not None:
            raise self._fenced(f"batch {self.batch + 1} is still open")
        named = {(item.topic, item.partition) for item in ranges}
        moved = [self._moved(at, until) for at, until in sorted(position.items()) if at not in named]
        intent = self._decision(self.batch + 1, (*ranges, *moved), self.idle_ranges({*named, *position}), note)
        self.begin(intent)
        self.record(intent, (), datetime.now(UTC), note)

    def newest_intent(self) -> Intent | None:
        """The newest intent, recorded in the ledger or not; all batches before it are done."""
        newest = max((item.path for item in self._store.list(self.intents)), default=None)
        try:
            return Intent.from_json(self._store.get(newest).decode()) if newest else None
        except NotFound:
            raise self._fenced("another instance has taken over") from None

    def assume(self, batch: int, position: Position, half: bool = False) -> None:
        """Take a lost ledger for one that ended with this batch; `rebuild` makes it durable.

        `half`: some tables have the next batch too, and it is about to be started again.
        """
        self._half, self._before = half, self.batch
        txns = {partition_txn(self._pipeline, *each): at - 1 for each, at in position.items()}
        self._txns = {batch_txn(self._pipeline): batch, **txns}

    def rebuild(self, note: str) -> None:
        """Write what was assumed as the first row of a new ledger, or as the next row of one that was set back.

        Fenced when another driver was first, or has recorded a batch since this one has read the ledger: what tables
        have beyond it may be the batch that the other one is writing, and is not lost.
        """
        if not self.batch or self._is_recorded(self.batch):
            return  # nothing was recorded yet, or all that is assumed is
        if self._is_recorded(self._before + 1):
            raise self._fenced(f"another instance has recorded batch {self._before + 1}")
        intent = self._decision(self.batch, self.idle_ranges(), (), note)
        now = datetime.now(UTC)
        staged = row.stage(self._table, row.row(intent, (), now, note))
        info = {"pipeline": self._pipeline, "batch": self.batch}
        if not self.is_new:
            self._log_writer.append([staged], self._txns, info)
        elif not self._create([staged], self._txns, info):
            raise self._fenced("another instance has rebuilt the ledger")

    def _decision(self, batch: int, ranges: tuple[Range, ...], rests: tuple[Range, ...], note: str) -> Intent:
        release = ENGINE.partition("/")[2]
        token, now = uuid.uuid4().hex, datetime.now(UTC)
        return Intent(
            self._pipeline,
            batch,
            ranges,
            (),
            Counts(),
            now,
            token,
            note,
            "",
            release,
            idle_ranges=rests,
            kind=IntentKind.DECISION,
        )

    def check_txn(self, path: str, version: int | None) -> None:
        """TxnMismatch when the txn of a table contradicts the ledger and the intents."""
        known = self.known.tables.get(path)
        if version is None and known is not None and self._pipeline in known.writers:
            raise TxnMismatch(
                f"{path} has no txn of '{self._pipeline}', which has written to it: the txn expired, or the "
                "table was replaced by an older copy.",
                hint="Recover the table if it was replaced; otherwise run `headrace resume SPEC --accept-new-table` to "
                "continue with the table as it is now.",
            )
        if version is None or version <= self.batch:
            return
        if version == self.batch + 1 and (self._half or self.open_batch() is not None):
            return
        if self._is_recorded(self.batch + 1):
            raise self._fenced(f"{path} has batch {version} of another instance")
        raise TxnMismatch(
            f"{path} has batch {version} of '{self._pipeline}', but {self._table.uri} ends at batch {self.batch}: the "
            "state directory was lost or replaced by an older copy.",
            hint="Restore the state directory, or run `headrace resume SPEC --accept-lost-ledger` to continue after "
            "the last batch in the tables.",
        )

    def rows_from(self, batch: int) -> list[dict[str, Any]]:
        """The rows from a batch on, and the one that the open batch will get."""
        open_intent = self.open_batch()
        to_come = [row.row(open_intent, (), open_intent.started, "")] if open_intent is not None else []
        return self.rows(self.batch - batch + 1) + to_come

    def rows(self, last: int) -> list[dict[str, Any]]:
        """The newest rows, oldest first."""
        return row.newest_rows(self._table, self.batch - last) if self.batch else []

    def _rows(self, intent: Intent, receipts: Sequence[Receipt], finished: datetime, note: str) -> Sequence[StagedFile]:
        """The files that the record of a batch adds to the ledger."""
        return [row.stage(self._table, row.row(intent, receipts, finished, note))]

    def _intent_text(self, batch: int, attempt: int = 0) -> bytes | None:
        with suppress(NotFound):
            return self._store.get(self._intent_path(batch, attempt))
        return None

    def _intent_path(self, batch: int, attempt: int = 0) -> str:
        return f"{self.intents}/{batch:012}.{attempt}" if attempt else f"{self.intents}/{batch:012}"

    def _moved(self, at: tuple[str, int], until: int) -> Range:
        """The range of a moved position: forward, the skipped offsets; backward, empty."""
        start = min(self.position().get(at, until), until)
        return Range(*at, start, until, self.known.topics.get(at[0], ""))

    def _expect_next(self, batch: int) -> None:
        if batch != self.batch + 1:
            raise self._fenced(f"batch {batch} does not follow batch {self.batch}")

    def _is_recorded(self, batch: int) -> bool:
        """Whether a batch is in the ledger; checked after each put and read of an intent.

        A driver that slept since before its `begin` may put an intent again that was deleted some batches later.
        """
        self._log_writer.follow()
        state = self._log_writer.state
        return state is not None and state.txns.get(batch_txn(self._pipeline), 0) >= batch

    def _commit(self, staged: Sequence[StagedFile], txns: Mapping[str, int], info: Mapping[str, Any]) -> None:
        if not self._create(staged, txns, info):
            self._log_writer.append(staged, txns, info)

    def _create(self, staged: Sequence[StagedFile], txns: Mapping[str, int], info: Mapping[str, Any]) -> bool:
        properties = {"headrace.format": str(FORMAT)}
        table_id = str(uuid.uuid4())
        return self._log_writer.create(self.schema, (), properties, table_id, staged, txns, info) is not None

    def _forget(self) -> None:
        """Delete intents that recovery no longer needs; a failure is retried later."""
        if self.batch % _FORGET_EVERY == 0:
            with suppress(HeadraceError):
                last = self._intent_path(self.batch - 2)
                old = [item.path for item in self._store.list(self.intents) if item.path <= last]
                self._store.delete(old)

    def _compact(self) -> None:
        """Compact files and log; a failure does not fail the batch, and is retried later."""
        with suppress(HeadraceError, pa.ArrowException):
            compaction.compact(self._log_writer, self.batch, self.proved_time)

    def _fenced(self, seen: str) -> Fenced:
        return Fenced(f"Pipeline '{self._pipeline}': {seen}.", hint="Restart it: it resumes from the ledger.")


def _note(intent: Intent) -> str:
    if intent.kind is IntentKind.REINGEST:
        return f"reingest of {intent.tables[0].path}" if intent.tables else "reingest cancelled: its files are missing"
    if intent.kind is IntentKind.REFILL:
        return f"refill of {', '.join(table.path for table in intent.tables) or 'a deleted table'}"
    return intent.spec if intent.kind is IntentKind.DECISION else ""


def _last_commit(table: Store, state: TableState, name: str) -> tuple[dict[str, int], dict[str, tuple[str, int]]]:
    """The txns of the pipeline and the versions of its tables: each commit of the ledger carries all of them."""
    if name not in state.txns:
        return {}, {}
    for commit in LogWalk(table, state.version):
        if name in commit.txns:
            table_versions = (commit.info.get("headrace") or {}).get("versions") or {}
            versions = {path: (str(known_id), int(version)) for path, (known_id, version) in table_versions.items()}
            return _of_pipeline(commit.txns, name), versions
    return _of_pipeline(all_txns(table, state.version), name), {}  # cleaned away; log checkpoints keep the txns


def _of_pipeline(txns: Mapping[str, int], name: str) -> dict[str, int]:
    return {key: value for key, value in txns.items() if key == name or key.startswith(f"{name}:")}


def position_of(txns: Mapping[str, int], pipeline: str) -> Position:
    """The next offset of every partition that has a txn."""
    position: Position = {}
    name = batch_txn(pipeline)
    for key, last in txns.items():
        topic, colon, partition = key.removeprefix(f"{name}:").rpartition(":")
        if key.startswith(f"{name}:") and colon:
            position[topic, int(partition)] = last + 1
    return position
