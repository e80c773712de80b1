"""The writer of a spool: appends of many threads become durable together, in blocks, with one sync or put."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa

from headrace.errors import HeadraceError, LeaseHeld, SpoolFull, StorageFull, StorageUnreachable, UsageError
from headrace.source.spool.base import BlockLog, WriteUnsettled
from headrace.source.spool.block import BLOCK_SCHEMA, Request
from headrace.source.spool.disk import Disk, LocalDisk, disk_error
from headrace.source.spool.layout import ABOUT, LOCK, SpoolIdentity, decode_identity, folder_name
from headrace.source.spool.log import NewBlock, SegmentLog
from headrace.source.spool.window import RequestKey, RequestWindow, check_fingerprint

_OVERHEAD = 512  # bytes of a block beside its records
_BUSY_SECONDS = 1.0
_FULL_SECONDS = 5.0
_TRIM_SECONDS = 1.0
_SETTLE_SECONDS = 1.0
_MAX_SEQUENCE = 1024
_READY = "ready"  # in the lock, once the ends are those of the segments
_TEMPORARY = (StorageFull, StorageUnreachable, UsageError)  # nothing was stored, and the next write may succeed


@dataclass(frozen=True, slots=True)
class Incoming:
    """Records of one request, which become consecutive records of a topic, all or none.

    The columns are key, value, headers and timestamp, as in `BLOCK_SCHEMA`. A request with a sequence that the producer
    has used within the window is acknowledged, and not stored again. `fingerprint`, a checksum of the content, detects
    a sequence that is used for other records.
    """

    topic: str
    records: pa.RecordBatch
    producer: str = ""
    sequence: str = ""
    fingerprint: int = 0  # 32 bits; 0 if unknown


@dataclass(frozen=True, slots=True)
class Appended:
    """Durable records: offsets `[first_offset, until)`."""

    first_offset: int
    until: int
    duplicate: bool = False  # stored by an earlier request

    @property
    def stored(self) -> int:
        """Number of records."""
        return self.until - self.first_offset

    def results(self) -> list[str]:
        """Where each record is, as JSON."""
        return [f'{{"offset":{offset}}}' for offset in range(self.first_offset, self.until)]


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Limits of a spool."""

    max_bytes: int = 10_000_000_000
    waiting_bytes: int = 64_000_000  # of records that are not durable yet
    segment_bytes: int = 64_000_000
    group_bytes: int = 16_000_000  # of one write
    max_requests: int = 100_000
    request_age: float = 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class SpoolCounts:
    """What a writer has done since it was opened."""

    records: int = 0
    bytes: int = 0
    requests: int = 0
    duplicates: int = 0  # requests
    full: int = 0  # requests
    syncs: int = 0


def _new_future() -> Future[Appended]:
    """A future that its waiter cannot cancel: the records are written all the same, and others wait for them too."""
    future: Future[Appended] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(slots=True)
class _Waiting:
    incoming: Incoming
    size: int
    future: Future[Appended] = field(default_factory=_new_future)

    @property
    def key(self) -> RequestKey | None:
        return request_key(self.incoming)


class Spool:
    """An open spool; its only writer. All methods are thread-safe."""

    def __init__(self, log: BlockLog, identity: SpoolIdentity, limits: SpoolLimits, unlock: Callable[[], None]) -> None:
        self.identity, self.limits = identity, limits
        self._log, self._unlock = log, unlock
        self._window = RequestWindow(limits.max_requests, int(limits.request_age * 1000))
        for each in log.recover():
            self._window.add(each.topic, each.request, each.time)
        self._ends, self._stored = log.ends(), log.size()
        self._condition = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._pending: dict[RequestKey, _Waiting] = {}
        self._pending_bytes = 0
        self._topics_to_add: list[tuple[str, Future[Appended]]] = []
        self._counts = SpoolCounts()
        self._failure: HeadraceError | None = None
        self._outage: HeadraceError | None = None  # while it is not known whether a write is stored
        self._closing = self._trim_now = False
        self._thread = threading.Thread(target=self._run, name="headrace-spool", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, folder: str | Path, pipeline: str, limits: SpoolLimits | None = None) -> Spool:
        """Open or create the spool of a pipeline; LeaseHeld if another process writes it."""
        limits, path = limits or SpoolLimits(), str(folder)
        disk = LocalDisk(path)
        try:
            disk.make_folder("")
            with suppress(FileNotFoundError):  # before the lock: who finds it held reads the spool
                decode_identity(bytes(disk.read(ABOUT)), path).verify(pipeline, path)
            lock = _locked(Path(path))
            try:
                identity = _identity(disk, path, pipeline)
                log = SegmentLog(
                    disk,
                    segment_bytes=limits.segment_bytes,
                    request_age=limits.request_age,
                    max_requests=limits.max_requests,
                )
                spool = cls(log, identity, limits, partial(os.close, lock))
                os.pwrite(lock, f"{os.getpid()} {_READY}".encode(), 0)
                return spool
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise disk_error(error, path) from error

    # ---- receivers ----

    def append(self, incoming: Incoming) -> Future[Appended]:
        """Append the records; the future completes when they are durable.

        SpoolFull if there is no room, SequenceReused if the sequence had other content; errors of the disk are raised
        by the future, and then the records are not stored.
        """
        check_incoming(incoming)
        waiting = _Waiting(incoming, incoming.records.nbytes + _OVERHEAD)
        with self._condition:
            self._check_open()
            if (earlier := self._earlier(waiting)) is not None:
                self._counts = replace(self._counts, duplicates=self._counts.duplicates + 1)
                return earlier
            self._check_room(waiting.size)
            self._waiting.append(waiting)
            self._pending_bytes += waiting.size
            if (key := waiting.key) is not None:
                self._pending[key] = waiting
            self._condition.notify()
        return waiting.future

    def check_room(self) -> None:
        """SpoolFull if no records can be appended now; receivers that pull stop pulling then."""
        with self._condition:
            self._check_open()
            self._check_room(0)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise UsageError("The spool is closed.")
        if self._outage is not None:
            raise self._outage

    def _check_room(self, size: int) -> None:
        limits = self.limits
        if self._pending_bytes + size > limits.waiting_bytes and self._waiting:
            seconds, reason = _BUSY_SECONDS, f"{self._pending_bytes:,} bytes wait to be written"
        elif self._stored + self._pending_bytes + size > limits.max_bytes:
            self._trim_now = True
            seconds, reason = _FULL_SECONDS, f"it has {self._stored:,} of {limits.max_bytes:,} bytes"
        else:
            return
        self._counts = replace(self._counts, full=self._counts.full + 1)
        raise SpoolFull(
            f"The spool is full: {reason}.",
            hint="Send the records again later. The pipeline makes room when it commits them; see `headrace status`.",
            retry_after=seconds,
        )

    def _earlier(self, waiting: _Waiting) -> Future[Appended] | None:
        """The result of the same request, if it was made before."""
        key, fingerprint = waiting.key, waiting.incoming.fingerprint
        if key is None:
            return None
        if (stored := self._window.find(key, fingerprint, _now())) is not None:
            future = _new_future()
            future.set_result(Appended(stored.first, stored.first + stored.count, True))
            return future
        if (pending := self._pending.get(key)) is not None:
            check_fingerprint(key, pending.incoming.fingerprint, fingerprint)
            return _follow(pending.future)
        return None

    # ---- state ----

    @property
    def kind(self) -> str:
        """What receives the records."""
        return "spool"

    @property
    def counts(self) -> SpoolCounts:
        """What was appended since the start."""
        return self._counts

    @property
    def failure(self) -> HeadraceError | None:
        """The error after which nothing can be appended until the spool is opened again."""
        return self._failure

    @property
    def stored_bytes(self) -> int:
        """Bytes of the spool."""
        return self._stored

    def stored_records(self) -> int:
        """Number of records that are not committed yet."""
        committed = self._log.committed()
        return sum(max(0, end - committed.get(topic, 0)) for topic, end in self._ends.items())

    def ends(self) -> dict[str, int]:
        """The durable end of each topic."""
        return dict(self._ends)

    def add_topics(self, topics: Sequence[str]) -> None:
        """Create topics that do not exist."""
        missing = [topic for topic in topics if topic not in self._ends]
        futures = [_new_future() for _ in missing]
        with self._condition:
            self._check_open()
            self._topics_to_add += zip(missing, futures, strict=True)
            self._condition.notify()
        for future in futures:
            future.result()

    def trim(self) -> None:
        """Delete what is committed soon, without waiting for it."""
        with self._condition:
            self._trim_now = True
            self._condition.notify()

    def close(self) -> None:
        """Write what waits, then close and unlock."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()
        self._log.close()
        unlock, self._unlock = self._unlock, lambda: None
        unlock()

    # ---- the writer thread ----

    def _run(self) -> None:
        trimmed = time.monotonic()
        while True:
            with self._condition:
                if not (self._waiting or self._topics_to_add or self._closing or self._trim_now):
                    self._condition.wait(_TRIM_SECONDS)
                group, new_topics = self._take(), self._topics_to_add
                self._topics_to_add = []
                trim, self._trim_now = self._trim_now, False
                closing = self._closing  # before the lock is released: then nothing is appended any more
            self._add(new_topics)
            if group:
                self._commit(group)
            elif closing:
                return
            if trim or time.monotonic() - trimmed > _TRIM_SECONDS:
                self._trim()
                trimmed = time.monotonic()

    def _take(self) -> list[_Waiting]:
        """The next group: everything that waits, up to `group_bytes`."""
        size = count = 0
        for count, each in enumerate(self._waiting, 1):  # noqa: B007
            size += each.size
            if size >= self.limits.group_bytes:
                break
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _add(self, topics: Sequence[tuple[str, Future[Appended]]]) -> None:
        for topic, future in topics:
            try:
                self._log.add_topic(topic)
                self._ends = self._log.ends()
                future.set_result(Appended(0, 0))
            except Exception as error:
                future.set_exception(error)

    def _commit(self, group: Sequence[_Waiting]) -> None:
        by_topic: dict[str, list[_Waiting]] = {}
        for each in group:
            by_topic.setdefault(each.incoming.topic, []).append(each)
        try:
            if self._failure is not None:
                raise self._failure
            firsts = self._log.write({topic: _block(items) for topic, items in by_topic.items()})
            results = _results(by_topic, firsts)
            self._stored_group(results)
        except WriteUnsettled as error:
            self._settle(by_topic, error)
            return
        except Exception as error:
            self._fail(group, error)
            return
        for each, appended in results:
            each.future.set_result(appended)

    def _settle(self, by_topic: Mapping[str, Sequence[_Waiting]], unsettled: WriteUnsettled) -> None:
        """Refuse requests until it is known that a group is stored. Its producers repeat them, and are recognized."""
        outage = StorageUnreachable(unsettled.message, hint=unsettled.hint)
        with self._condition:
            self._outage = outage
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self._forget(each)
        for each in waiting:
            each.future.set_exception(outage)
        for each in chain.from_iterable(by_topic.values()):
            each.future.set_exception(unsettled)
        while not self._closing:
            with self._condition:
                self._condition.wait(_SETTLE_SECONDS)
            try:
                self._stored_group(_results(by_topic, unsettled.settle()))
                return
            except _TEMPORARY:
                continue
            except Exception as error:
                self._fail((), error)
                return

    def _stored_group(self, results: Sequence[tuple[_Waiting, Appended]]) -> None:
        now, before = _now(), self._stored
        with self._condition:
            self._outage = None
            self._ends, self._stored = self._log.ends(), self._log.size()
            for each, appended in results:
                self._forget(each)
                if each.incoming.sequence:
                    self._window.add(each.incoming.topic, _request(each.incoming, appended.first_offset), now)
            counts = self._counts
            self._counts = replace(
                counts,
                records=counts.records + sum(each.until - each.first_offset for _, each in results),
                bytes=counts.bytes + self._stored - before,
                requests=counts.requests + len(results),
                syncs=counts.syncs + 1,
            )

    def _forget(self, waiting: _Waiting) -> None:
        self._pending_bytes -= waiting.size
        if (key := waiting.key) is not None:
            self._pending.pop(key, None)

    def _fail(self, group: Sequence[_Waiting], error: Exception) -> None:
        with self._condition:
            for each in group:
                self._forget(each)
            if self._failure is None and not isinstance(error, _TEMPORARY):
                self._failure = error if isinstance(error, HeadraceError) else _unexpected(error)
        for each in group:
            each.future.set_exception(error)

    def _trim(self) -> None:
        """Delete what is committed. A failure leaves the rest for the next time."""
        full = self._stored > self.limits.max_bytes // 2
        try:
            if self._log.is_trim_due(is_full=full):
                self._log.trim(self._log.committed(), is_full=full)
        except OSError:
            return
        except Exception as error:
            self._fail((), error)
            return
        with self._condition:
            self._stored = self._log.size()


def check_incoming(incoming: Incoming) -> None:
    """UsageError if a name is too long, ValueError if there are no records or other columns."""
    if incoming.records.schema != BLOCK_SCHEMA:
        raise ValueError(f"columns of records: {incoming.records.schema}, expected: {BLOCK_SCHEMA}")
    if not incoming.records.num_rows:
        raise ValueError("no records")
    if len(incoming.producer) > _MAX_SEQUENCE or len(incoming.sequence) > _MAX_SEQUENCE:
        raise UsageError(
            f"A producer or sequence is longer than {_MAX_SEQUENCE} characters.", hint="Use a shorter one."
        )
    folder_name(incoming.topic)  # UsageError


def request_key(incoming: Incoming) -> RequestKey | None:
    """What a request has in common with its repetitions; None if it has no sequence."""
    return (incoming.topic, incoming.producer, incoming.sequence) if incoming.sequence else None


def _request(incoming: Incoming, first: int) -> Request:
    return Request(incoming.producer, incoming.sequence, incoming.fingerprint, first, incoming.records.num_rows)


def _results(by_topic: Mapping[str, Sequence[_Waiting]], firsts: Mapping[str, int]) -> list[tuple[_Waiting, Appended]]:
    """Where the records of each request are, from the first offset of each topic."""
    results: list[tuple[_Waiting, Appended]] = []
    for topic, items in by_topic.items():
        offset = firsts[topic]
        for each in items:
            until = offset + each.incoming.records.num_rows
            results.append((each, Appended(offset, until)))
            offset = until
    return results


def _block(items: Sequence[_Waiting]) -> NewBlock:
    requests, offset = [], 0
    for each in items:
        if each.incoming.sequence:
            requests.append(_request(each.incoming, offset))
        offset += each.incoming.records.num_rows
    return NewBlock([each.incoming.records for each in items], requests)


def _follow(first: Future[Appended]) -> Future[Appended]:
    """A future with the result of a request that is not durable yet, as a duplicate."""
    second = _new_future()

    def done(future: Future[Appended]) -> None:
        if (error := future.exception()) is not None:
            second.set_exception(error)
        else:
            second.set_result(replace(future.result(), duplicate=True))

    first.add_done_callback(done)
    return second


def _unexpected(error: Exception) -> HeadraceError:
    return HeadraceError(f"{type(error).__name__}: {error}", hint="This is a bug in Headrace; report it.")


def _now() -> int:
    return int(time.time() * 1000)


def _locked(folder: Path) -> int:
    """The lock of the writer, which ends with its process."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, _, state = os.pread(descriptor, 64, 0).decode(errors="replace").partition(" ")
        os.close(descriptor)
        raise LeaseHeld(
            f"The spool {folder} is written by another process, with pid {pid}.",
            hint="Stop that process first, or let it receive and start `headrace run` beside it.",
            pid=pid,
            ready=state == _READY,
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _identity(disk: Disk, where: str, pipeline: str) -> SpoolIdentity:
    """The identity of the spool, created with it; UsageError if it belongs to another pipeline."""
    try:
        identity = decode_identity(bytes(disk.read(ABOUT)), where)
    except FileNotFoundError:
        identity = SpoolIdentity(uuid.uuid4().hex, pipeline)
        disk.replace(ABOUT, identity.encode(), durable=True)
    identity.verify(pipeline, where)
    return identity
