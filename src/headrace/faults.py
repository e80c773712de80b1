"""Named crash points of a batch, for tests. Without an armed fault they do nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.errors import StorageUnreachable, UsageError

VARIABLE = "HEADRACE_FAULT"


class Point(StrEnum):
    """Crash points in the order in which a batch reaches them."""

    BEFORE_STAGING = "before_staging"  # ranges selected, nothing written
    DURING_STAGING = "during_staging"  # some files of the batch written
    AFTER_STAGING = "after_staging"  # all files written, `intents/n` not
    AFTER_SCHEMA_CHANGE = "after_schema_change"  # columns added to a table, rows not
    AFTER_TABLE_CREATION = "after_table_creation"  # a table created by this batch
    AFTER_COMMIT = "after_commit"  # commit in the log, reply not received
    AFTER_FIRST_TABLE = "after_first_table"  # one table of several committed
    BEFORE_DEAD_LETTERS = "before_dead_letters"  # all tables committed, dead letters not
    BEFORE_LEDGER_WRITE = "before_ledger_write"  # everything committed, ledger row missing
    AFTER_LEDGER_WRITE = "after_ledger_write"  # batch recorded in the ledger


class HotStorePoint(StrEnum):
    """Crash points of the hot store, in the order in which a commit of a Delta table reaches them."""

    STAGED = "hot_store_staged"  # rows copied to the staging table
    INSERTED = "hot_store_inserted"  # rows in the hot table, the position not written
    BEFORE_COMMIT = "hot_store_before_commit"  # the position written, the transaction open
    AFTER_COMMIT = "hot_store_after_commit"  # committed, reply not received


class Abandoned(BaseException):
    """Abandon the batch at a crash point; not an Exception, so that no handler catches it."""


_Action = str | Callable[[], None]


@dataclass(slots=True)
class Fault:
    """An armed crash point; triggers once."""

    point: Point | HotStorePoint
    action: _Action
    batch: int | None = None
    nth: int = 1

    def matches(self, point: str, batch: object) -> bool:
        """Count a matching pass; true at the nth."""
        if point != self.point or (self.batch is not None and batch != self.batch):
            return False
        self.nth -= 1
        return self.nth == 0


_armed: list[Fault] = []


def reach(point: Point | HotStorePoint, **facts: object) -> None:
    """Report that a batch has reached `point`; the fact `batch=n` selects the faults of that batch."""
    if _armed:
        for fault in [fault for fault in _armed if fault.matches(point, facts.get("batch"))]:
            _armed.remove(fault)
            if callable(fault.action):
                fault.action()
            else:
                _ACTIONS[fault.action]()


def arm(point: str, action: _Action, *, batch: int | None = None, nth: int = 1) -> Fault:
    """Run an action, a function or its name, at the `nth` pass of `point`."""
    if isinstance(action, str) and action not in _ACTIONS:
        raise UsageError(f"Unknown fault: '{action}'.", hint=f"Faults: {', '.join(_ACTIONS)}.")
    points: dict[str, Point | HotStorePoint] = {each: each for each in (*Point, *HotStorePoint)}
    if point not in points:
        raise UsageError(f"Unknown crash point: '{point}'.", hint=f"Crash points: {', '.join(points)}.")
    fault = Fault(points[point], action, batch, nth)
    _armed.append(fault)
    return fault


def disarm() -> None:
    """Remove all armed faults."""
    _armed.clear()


@contextmanager
def armed(point: str, action: _Action, *, batch: int | None = None, nth: int = 1) -> Iterator[None]:
    """Arm a fault for the duration of a block."""
    fault = arm(point, action, batch=batch, nth=nth)
    try:
        yield
    finally:
        if fault in _armed:
            _armed.remove(fault)


def arm_from(text: str) -> None:
    """Arm the faults of a comma-separated list of `point[:batch=n][:nth=k]=action`."""
    for item in filter(None, text.split(",")):
        target, _, action = item.strip().rpartition("=")
        point, *limits = target.split(":")
        options = dict(limit.split("=", 1) for limit in limits)
        if set(options) - {"batch", "nth"} or not all(value.isdigit() for value in options.values()):
            raise UsageError(f"{VARIABLE}: '{item}' is not point[:batch=n][:nth=k]=action.")
        arm(point, action, **{name: int(value) for name, value in options.items()})


def _kill() -> None:
    for pid in _descendants(os.getpid()):
        _signal(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_jvm() -> None:
    for pid in _descendants(os.getpid()):
        if _command(pid) == "java":
            _signal(pid, signal.SIGKILL)


def _abandon() -> None:
    raise Abandoned


def _lose_reply() -> None:
    raise StorageUnreachable("The reply was lost (injected fault).")


def _hang() -> None:
    threading.Event().wait()


def _stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "kill-jvm": _kill_jvm,
    "abandon": _abandon,
    "lost-reply": _lose_reply,
    "stop-self": _stop_self,
    "hang": _hang,
}


def _descendants(root: int) -> list[int]:
    """Every process below `root`, whatever its group: Spark's Python workers have groups of their own."""
    parents = {int(entry.name): _parent(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    tree = [root]
    for pid in tree:
        tree.extend(child for child, parent in parents.items() if parent == pid)
    return tree[1:]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


arm_from(os.environ.get(VARIABLE, ""))
