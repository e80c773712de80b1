"""Names for what fails inside Spark: by the classes of the Java exceptions behind it, outermost first."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    HeadraceError,
    PermissionDenied,
    PipelineStopped,
    SparkDied,
    StorageFull,
)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_DEEPEST = 20  # causes may lead in a circle


@dataclass(frozen=True, slots=True)
class Cause:
    """One Java exception: its class and those above it, and what it says."""

    classes: tuple[str, ...]
    said: str


@dataclass(frozen=True, slots=True)
class ExceptionFamily:
    """A family of Java exceptions; where a class serves for many things, one of these words tells."""

    family: str
    words: tuple[str, ...] = ("",)

    def holds(self, cause: Cause) -> bool:
        """Whether an exception is of the family."""
        return self.family in cause.classes and any(word in cause.said for word in self.words)


FULL = (ExceptionFamily("java.io.IOException", ("No space left on device", "Disk quota exceeded")),)
WORKER = (ExceptionFamily("org.apache.spark.SparkException", ("Python worker exited unexpectedly",)),)
AUTHENTICATION = (ExceptionFamily("org.apache.kafka.common.errors.AuthenticationException"),)
PERMISSION = (ExceptionFamily("org.apache.kafka.common.errors.AuthorizationException"),)
PASSING = (
    ExceptionFamily(
        "org.apache.kafka.common.errors.RetriableException"
    ),  # time-outs, leaders on the move, lost connections
    ExceptionFamily("org.apache.kafka.common.config.ConfigException", ("No resolvable bootstrap urls",)),
    ExceptionFamily("java.util.concurrent.TimeoutException", ("Cannot fetch record for offset",)),
    # Offsets that moved under the reader: the next start says whether they are gone for good.
    ExceptionFamily("org.apache.kafka.clients.consumer.InvalidOffsetException"),
    ExceptionFamily("org.apache.spark.sql.kafka010.KafkaIllegalStateException"),
)


def error_of(error: BaseException, work: Path) -> HeadraceError:
    """A failure of Spark under the name that says what to do about it; `work` is the folder it writes to."""
    found = causes(error)

    def any_of(kinds: tuple[ExceptionFamily, ...]) -> bool:
        return any(kind.holds(cause) for cause in found for kind in kinds)

    if any_of(FULL) or any(isinstance(each, OSError) and each.errno in NO_ROOM for each in _chain(error)):
        return full(work)
    said = _gist(error, found)
    return next((make(said) for kinds, make in _NAMES if any_of(kinds)), _nameless(said))


def full(folder: Path) -> StorageFull:
    """The work folder has no room."""
    return StorageFull(
        f"{folder}: no space left in the work directory.",
        hint="Free some space, or set XDG_STATE_HOME to another directory; then run again.",
    )


def causes(error: BaseException) -> tuple[Cause, ...]:
    """The Java exceptions behind a Python one, outermost first; none when it is Python's own."""
    return tuple(Cause(_classes(each), str(each.getMessage() or "")) for each in _throwables(error))


def _throwables(error: BaseException) -> Iterator[Any]:
    each: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_DEEPEST):
        if each is None:
            return
        yield each
        each = each.getCause()


def _classes(throwable: Any) -> tuple[str, ...]:
    names: list[str] = []
    kind = throwable.getClass()
    while kind is not None:
        names.append(str(kind.getName()))
        kind = kind.getSuperclass()
    return tuple(names)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _gist(error: BaseException, found: tuple[Cause, ...]) -> str:
    """The first line of the innermost exception that says anything; the outer ones repeat it."""
    texts = [cause.said for cause in reversed(found)] + [str(error)]
    return next((line for text in texts if (line := _first_line(text))), type(error).__name__)[:500]


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    traces = [at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    after = [line for line in lines[traces[0] + 1 :] if not line.startswith(" ")] if traces else lines
    return after[0].strip() if after else ""


def _worker_died(_: str) -> HeadraceError:
    return SparkDied(
        "A Spark Python worker was killed during a task.",
        hint="Check for low memory. Lower limits.batch_rows or spark.cores, then run again; no data is lost.",
    )


def _not_known(said: str) -> HeadraceError:
    return AuthenticationFailed(
        f"Authentication to the broker failed in Spark: {said}", hint="Check source.kafka.sasl and source.kafka.tls."
    )


def _not_allowed(said: str) -> HeadraceError:
    return PermissionDenied(f"The broker denied Spark's request: {said}", hint="Grant READ and DESCRIBE on the topics.")


def _unreachable(said: str) -> HeadraceError:
    return BrokerUnreachable(f"Spark cannot read from the broker: {said}")


def _nameless(said: str) -> HeadraceError:
    return PipelineStopped(
        f"Spark failed: {said}",
        hint="See Spark's log in the work directory. Incomplete writes are not visible to readers.",
    )


# In this order: a worker's death shows as a lost connection too.
_NAMES: tuple[tuple[tuple[ExceptionFamily, ...], Callable[[str], HeadraceError]], ...] = (
    (WORKER, _worker_died),
    (AUTHENTICATION, _not_known),
    (PERMISSION, _not_allowed),
    (PASSING, _unreachable),
)
