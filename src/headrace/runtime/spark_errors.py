"""Map Spark failures to errors, by the classes of their Java exceptions."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    EnvironmentMismatch,
    HeadraceError,
    PermissionDenied,
    PipelineStopped,
    SparkExited,
    StorageFull,
)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MAX_CAUSES = 20  # causes may be cyclic


@dataclass(frozen=True, slots=True)
class Cause:
    """Java exception: its class with superclasses, and its message."""

    classes: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class ExceptionFamily:
    """Java exception class; for classes with many uses, the message must contain one of `words`."""

    family: str
    words: tuple[str, ...] = ("",)

    def matches(self, cause: Cause) -> bool:
        """Whether an exception belongs to the family."""
        return self.family in cause.classes and any(word in cause.message for word in self.words)


FULL = (ExceptionFamily("java.io.IOException", ("No space left on device", "Disk quota exceeded")),)
WORKER = (ExceptionFamily("org.apache.spark.SparkException", ("Python worker exited unexpectedly",)),)
# Before the first line of a task of ours runs: no interpreter, another version of it, or no Headrace.
_UNABLE = ("Cannot run program", "No module named 'headrace", "PYTHON_VERSION_MISMATCH")
ENVIRONMENT = (
    ExceptionFamily("java.io.IOException", _UNABLE),
    ExceptionFamily("org.apache.spark.SparkException", _UNABLE),
    ExceptionFamily("org.apache.spark.api.python.PythonException", _UNABLE),
)
AUTHENTICATION = (ExceptionFamily("org.apache.kafka.common.errors.AuthenticationException"),)
PERMISSION = (ExceptionFamily("org.apache.kafka.common.errors.AuthorizationException"),)
TRANSIENT = (
    ExceptionFamily("org.apache.kafka.common.errors.RetriableException"),  # timeouts, leader changes, lost connections
    ExceptionFamily("org.apache.kafka.common.config.ConfigException", ("No resolvable bootstrap urls",)),
    ExceptionFamily("java.util.concurrent.TimeoutException", ("Cannot fetch record for offset",)),
    # No token: the exception does not say why. The driver obtains its own tokens and names the cause.
    ExceptionFamily("javax.security.auth.login.LoginException"),
    # Offsets out of range during a read: the next start determines whether they are lost.
    ExceptionFamily("org.apache.kafka.clients.consumer.InvalidOffsetException"),
    ExceptionFamily("org.apache.spark.sql.kafka010.KafkaIllegalStateException"),
)


def error_of(error: BaseException, work: Path) -> HeadraceError:
    """Error for a Spark failure; `work` is the directory that Spark writes to."""
    chain = causes(error)

    def any_of(kinds: tuple[ExceptionFamily, ...]) -> bool:
        return any(kind.matches(cause) for cause in chain for kind in kinds)

    if any_of(FULL) or any(isinstance(each, OSError) and each.errno in NO_ROOM for each in _chain(error)):
        return storage_full(work)
    text = _first_message(error, chain)
    return next((create(text) for kinds, create in _ERRORS if any_of(kinds)), _unknown_failure(text))


def storage_full(folder: Path) -> StorageFull:
    """Error for a full temporary directory."""
    return StorageFull(
        f"{folder}: no space left in the temporary directory.",
        hint="Free up space, or set TMPDIR to another directory; then run again.",
    )


def causes(error: BaseException) -> tuple[Cause, ...]:
    """Java exceptions of a Python exception, outermost first; empty for pure Python errors."""
    return tuple(Cause(_classes(each), str(each.getMessage() or "")) for each in _throwables(error))


def _throwables(error: BaseException) -> Iterator[Any]:
    throwable: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_MAX_CAUSES):
        if throwable is None:
            return
        yield throwable
        throwable = throwable.getCause()


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


def _first_message(error: BaseException, chain: tuple[Cause, ...]) -> str:
    """First line of the innermost exception with a message; outer exceptions repeat it."""
    texts = [cause.message for cause in reversed(chain)] + [str(error)]
    return next((line for text in texts if (line := _first_line(text))), type(error).__name__)[:500]


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    traces = [at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    after = [line for line in lines[traces[0] + 1 :] if not line.startswith(" ")] if traces else lines
    return after[0].strip() if after else ""


def _worker_died(_: str) -> HeadraceError:
    return SparkExited(
        "A Spark Python worker was killed during a task.",
        hint="Check for low memory. Lower limits.batch_rows or spark.cores, then run again; no data is lost.",
    )


def _environment_mismatch(text: str) -> HeadraceError:
    return EnvironmentMismatch(
        f"Executors cannot run Headrace: {text}",
        hint="Run `headrace setup --pack` and set spark.environment: archive, or install Headrace with the Python "
        "version of the driver on all nodes.",
    )


def _authentication_failed(text: str) -> HeadraceError:
    return AuthenticationFailed(
        f"Authentication to the broker failed in Spark: {text}",
        hint="Check `sasl` and `tls` of the connection to Kafka.",
    )


def _permission_denied(text: str) -> HeadraceError:
    return PermissionDenied(f"The broker denied Spark's request: {text}", hint="Grant READ and DESCRIBE on the topics.")


def _unreachable(text: str) -> HeadraceError:
    return BrokerUnreachable(f"Spark cannot read from the broker: {text}")


def _unknown_failure(text: str) -> HeadraceError:
    return PipelineStopped(
        f"Spark failed: {text}",
        hint="See Spark's log in the work directory. Incomplete writes are not visible to readers.",
    )


# Order matters: the death of a worker also appears as a lost connection.
_ERRORS: tuple[tuple[tuple[ExceptionFamily, ...], Callable[[str], HeadraceError]], ...] = (
    (ENVIRONMENT, _environment_mismatch),
    (WORKER, _worker_died),
    (AUTHENTICATION, _authentication_failed),
    (PERMISSION, _permission_denied),
    (TRANSIENT, _unreachable),
)
