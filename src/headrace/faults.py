"""Named crash points: the moments of a batch at which a test may make it die. Nothing happens unless one is armed."""

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
    """The moments, in the order in which a batch passes them."""

    PLANNED = "planned"  # ranges chosen, nothing written
    SOME_STAGED = "some_staged"  # some files of the batch are there
    ALL_STAGED = "all_staged"  # all files are there, `intents/n` is not
    EVOLVED = "evolved"  # a table has its new columns, not yet the rows
    TABLE_MADE = "table_made"  # a table was made by this batch
    COMMIT_LANDED = "commit_landed"  # a commit is in the log, its reply is not here
    TABLE_A_DONE = "table_a_done"  # one table of several has the batch
    LETTERS_NOT = "letters_not"  # all tables have it, the dead letters do not
    LEDGER_NOT = "ledger_not"  # everything is committed, nothing is booked
    LEDGER_DONE = "ledger_done"  # booked


class Abandoned(BaseException):
    """The batch was given up on purpose at a crash point; no `except Exception` holds it."""


Action = str | Callable[[], None]


@dataclass(slots=True)
class Fault:
    """One armed point; it strikes once."""

    point: Point
    action: Action
    batch: int | None = None
    nth: int = 1

    def meets(self, point: str, batch: object) -> bool:
        """Counts the passes that fit; true at the nth."""
        if point != self.point or (self.batch is not None and batch != self.batch):
            return False
        self.nth -= 1
        return self.nth == 0


_armed: list[Fault] = []


def reach(point: Point, **facts: object) -> None:
    """Say that the batch has come to `point`; `batch=n` among the facts narrows what an armed fault meets."""
    if _armed:
        for fault in [fault for fault in _armed if fault.meets(point, facts.get("batch"))]:
            _armed.remove(fault)
            _strike(fault.action)


def arm(point: str, action: Action, *, batch: int | None = None, nth: int = 1) -> Fault:
    """Let the `nth` pass of `point` strike: by the name of an action, or by a function."""
    if isinstance(action, str) and action not in _ACTIONS:
        raise UsageError(f"'{action}' is no fault.", hint=f"Faults: {', '.join(_ACTIONS)}.")
    if point not in set(Point):
        raise UsageError(f"'{point}' is no crash point.", hint=f"Crash points: {', '.join(Point)}.")
    fault = Fault(Point(point), action, batch, nth)
    _armed.append(fault)
    return fault


def disarm() -> None:
    """Forget whatever is armed."""
    _armed.clear()


@contextmanager
def armed(point: str, action: Action, *, batch: int | None = None, nth: int = 1) -> Iterator[None]:
    """Arm for the length of a block."""
    fault = arm(point, action, batch=batch, nth=nth)
    try:
        yield
    finally:
        if fault in _armed:
            _armed.remove(fault)


def arm_from(text: str) -> None:
    """Arm what `point[:batch=n][:nth=k]=action` names; several are separated by commas."""
    for item in filter(None, text.split(",")):
        where, _, action = item.strip().rpartition("=")
        point, *limits = where.split(":")
        named = dict(limit.split("=", 1) for limit in limits)
        if set(named) - {"batch", "nth"} or not all(value.isdigit() for value in named.values()):
            raise UsageError(f"{VARIABLE}: '{item}' is not point[:batch=n][:nth=k]=action.")
        arm(point, action, **{name: int(value) for name, value in named.items()})


def _strike(action: Action) -> None:
    if callable(action):
        action()
    else:
        _ACTIONS[action]()


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
    raise StorageUnreachable("The reply was lost (a fault armed on purpose).")


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
    """Every process below `root`, whatever its group: Spark's Python workers make groups of their own."""
    parents = {int(entry.name): _parent(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


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
