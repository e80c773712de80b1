"""Single-instance lease. Advisory: it prevents duplicate work; correctness relies on txn versions.

Each holder has a number and a note, `lease/<n>`. An instance that finds the newest note free puts the next one, if
absent. Only its holder writes a note again, so renewal and release need no condition, and a holder that lost the lease
sees a newer note than its own.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType

from headrace.errors import Fenced, HeadraceError, LeaseHeld, StopRequested
from headrace.storage.base import AlreadyExists
from headrace.storage.local import make_private
from headrace.storage.numbered_objects import NumberedObjects
from headrace.storage.store import Store

FOLDER = "lease"


class Clock:
    """The wall clock and the monotonic clock of this machine."""

    def now(self) -> float:
        """Seconds since 1970; clocks of other machines may differ."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds; only differences are meaningful."""
        return time.monotonic()

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait until `event` is set, at most for `seconds`; whether it was set."""
        return event.wait(seconds)


@dataclass(frozen=True, slots=True)
class Note:
    """The holder of a lease, as stored."""

    host: str
    boot_id: str  # boot id and pid namespace, within which pids are comparable
    pid: int
    start_ticks: int  # start of the process in clock ticks since boot: differs when a pid is reused
    token: str
    acquired_at: float
    expires_at: float
    ttl: float
    renewals: int = 0  # grows with each renewal, so that the note changes even if the clock does not

    @property
    def released(self) -> bool:
        """Whether its holder has released it."""
        return not self.token


_ours: set[str] = set()  # tokens that this process holds or is acquiring


class Lease:
    """An acquired lease, renewed in the background until it is released or lost."""

    def __init__(self, store: Store, note: Note, number: int, renew: float, clock: Clock) -> None:
        self._chain, self._note, self._number, self._clock = NumberedObjects(store, FOLDER), note, number, clock
        self._where = store.uri
        self._renewed = clock.monotonic()
        self._turn = Lock()
        self._ended = Event()
        self.lost = Event()
        self._thread = Thread(target=self._renew_until_ended, args=(renew,), name="headrace-lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(
        cls,
        store: Store,
        *,
        ttl: float = 20.0,
        renew: float = 5.0,
        clock: Clock | None = None,
        wait: bool = False,
        watch: bool = False,
        stop: Event | None = None,
    ) -> Lease:
        """Acquire the lease; LeaseHeld if another instance has it. `wait`: until it is free or `stop` is set.

        `watch`: LeaseHeld only if its holder renews it; a holder that has ended on another machine is waited for.
        """
        clock, stop = clock or Clock(), stop or Event()
        if store.local:
            make_private(store.root)  # dead letters may contain private data
        taker = _Taker(store, ttl, min(renew, ttl / 4), clock, wait, watch)
        _ours.add(taker.note.token)
        try:
            while (number := taker.attempt()) is None:
                if clock.wait(stop, taker.pause):
                    raise StopRequested("Stop requested while waiting for the lease.")
        except BaseException:
            _ours.discard(taker.note.token)
            raise
        return cls(store, taker.note, number, renew, clock)

    @property
    def token(self) -> str:
        """The unique id of this holder."""
        return self._note.token

    def check(self) -> None:
        """Fenced when another instance has the lease; an overdue renewal is made first."""
        if self._clock.monotonic() - self._renewed > self._note.ttl / 2:
            self.renew()
        if self.lost.is_set():
            raise Fenced(
                f"The lease at {self._where} was taken by another instance.",
                hint="This instance stops writing. Restart it after the other instance has ended.",
            )

    def renew(self) -> None:
        """Extend the lease by its TTL; sets `lost` when another instance has it."""
        with self._turn:
            if self.lost.is_set() or self._ended.is_set():
                return
            moment = self._clock.monotonic()
            note = replace(self._note, expires_at=self._clock.now() + self._note.ttl, renewals=self._note.renewals + 1)
            self._chain.write(self._number, _text(note))
            if self._chain.number() > self._number:
                self.lost.set()
                return
            self._note, self._renewed = note, moment

    def release(self) -> None:
        """Release the lease; a note that is no longer the newest is ignored."""
        self.abandon()
        with self._turn:
            self._chain.write(self._number, _text(replace(self._note, token="", expires_at=0)))

    def abandon(self) -> None:
        """Stop renewing without a release, as a crash would."""
        self._ended.set()
        _ours.discard(self.token)
        self._thread.join(5)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(HeadraceError):
            self.release()

    def _renew_until_ended(self, renew: float) -> None:
        while not self._ended.wait(renew):
            # Unreachable storage does not lose the lease: nobody else can acquire it either.
            with suppress(HeadraceError):
                self.renew()


def holder(store: Store) -> dict[str, object] | None:
    """The current holder of the lease by its note; None if it is free."""
    _, data = NumberedObjects(store, FOLDER).newest()
    note = _note(data or b"")
    if note is None or note.released or _dead(note) or note.expires_at < time.time():
        return None
    return {"host": note.host, "pid": note.pid, "since": note.acquired_at}


class _Taker:
    """Attempts to acquire a lease that another instance may hold."""

    def __init__(self, store: Store, ttl: float, pause: float, clock: Clock, wait: bool, watch: bool) -> None:
        self._chain, self._clock, self.pause = NumberedObjects(store, FOLDER), clock, pause
        self._wait, self._watch = wait, watch
        self.note = _me(ttl)
        self._watched: tuple[bytes, float] | None = None  # the newest note, and since when it has not changed

    def attempt(self) -> int | None:
        """The number of the acquired lease; None to try again later; LeaseHeld if another instance has it."""
        now = self._clock.now()
        self.note = replace(self.note, acquired_at=now, expires_at=now + self.note.ttl)
        number, seen = self._chain.newest()
        if seen is not None and not self._free(seen):
            return None
        with suppress(AlreadyExists):
            self._chain.add(number + 1, _text(self.note))
            return number + 1
        return self.attempt()  # another instance was first

    def _free(self, seen: bytes) -> bool:
        holder = _note(seen)
        if holder is not None and (holder.released or _dead(holder)):
            return True
        return self._unchanged(seen, holder)

    def _unchanged(self, seen: bytes, holder: Note | None) -> bool:
        """Whether the note was not renewed for a whole TTL by the clock of this machine; others are not trusted."""
        moment = self._clock.monotonic()
        first = self._watched is None
        if self._watched is None or self._watched[0] != seen:
            self._watched = (seen, moment)
            valid = not first or (not self._watch and holder is not None and self._fresh(holder))
            if not self._wait and holder is not None and valid:
                raise _held(holder)
        return moment - self._watched[1] > max(self.note.ttl, holder.ttl if holder is not None else 0)

    def _fresh(self, holder: Note) -> bool:
        """Whether the note is valid by this machine's clock; otherwise it must be watched for changes."""
        return self._clock.now() < holder.expires_at <= self._clock.now() + holder.ttl


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _held(holder: Note) -> LeaseHeld:
    since = _date(holder.acquired_at)
    return LeaseHeld(
        f"The pipeline is already running on {holder.host} as pid {holder.pid}, since {since}.",
        hint="Stop that instance first, or pass --wait to start when it ends.",
        host=holder.host,
        pid=holder.pid,
        since=since,
    )


def _me(ttl: float) -> Note:
    pid = os.getpid()
    return Note(socket.gethostname(), _boot(), pid, _born(pid), uuid.uuid4().hex, 0, 0, ttl)


def _dead(holder: Note) -> bool:
    """Whether the holder is certainly dead: same boot, and its process has ended, its pid was reused, or it is us."""
    if (holder.host, holder.boot_id) != (socket.gethostname(), _boot()):
        return False
    if _born(holder.pid) != holder.start_ticks:
        return True
    return holder.pid == os.getpid() and holder.token not in _ours


def _boot() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _born(pid: int) -> int:
    """Start of a process in clock ticks; 0 if it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _text(note: Note) -> bytes:
    return json.dumps(asdict(note)).encode()


def _note(data: bytes) -> Note | None:
    """Parse a note; None if it is invalid, so that only watching it for changes tells whether its holder is alive."""
    try:
        return Note(**json.loads(data))
    except (ValueError, TypeError):
        return None
