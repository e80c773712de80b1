"""What fails inside Spark gets its name from the exceptions' classes; words in a text prove nothing."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    PermissionDenied,
    PipelineStopped,
    SparkExited,
    StorageFull,
)
from headrace.runtime import session, spark_errors

WORK = Path("work")
MISLEADING = "Connection Timeout in org.apache.kafka: NotLeader, KAFKA_DATA_LOSS, DisconnectException"


def thrown(spark: Any, make: Callable[[Any], Any]) -> Exception:
    """What Python gets when the JVM throws this exception, wrapped as a thread pool wraps it."""
    jvm = spark.sparkContext._jvm
    future = jvm.java.util.concurrent.CompletableFuture.failedFuture(make(jvm))
    with pytest.raises(Exception) as caught:  # noqa: PT011
        future.get()
    return caught.value


THROWN: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "time-out": (lambda jvm: jvm.org.apache.kafka.common.errors.TimeoutException("x"), BrokerUnreachable),
    "connection": (lambda jvm: jvm.org.apache.kafka.common.errors.DisconnectException("x"), BrokerUnreachable),
    "leader": (lambda jvm: jvm.org.apache.kafka.common.errors.NotLeaderOrFollowerException("x"), BrokerUnreachable),
    "fetch": (
        lambda jvm: jvm.java.util.concurrent.TimeoutException("Cannot fetch record for offset 7 in 30000 milliseconds"),
        BrokerUnreachable,
    ),
    "names": (
        lambda jvm: jvm.org.apache.kafka.common.config.ConfigException("No resolvable bootstrap urls given in x"),
        BrokerUnreachable,
    ),
    "password": (
        lambda jvm: jvm.org.apache.kafka.common.errors.SaslAuthenticationException("x"),
        AuthenticationFailed,
    ),
    "rights": (lambda jvm: jvm.org.apache.kafka.common.errors.TopicAuthorizationException("x"), PermissionDenied),
    "setting": (lambda jvm: jvm.org.apache.kafka.common.config.ConfigException(MISLEADING), PipelineStopped),
    "too new": (
        lambda jvm: jvm.org.apache.kafka.common.errors.UnsupportedVersionException(MISLEADING),
        PipelineStopped,
    ),
    "other time-out": (lambda jvm: jvm.java.util.concurrent.TimeoutException(MISLEADING), PipelineStopped),
    "full": (lambda jvm: jvm.java.io.IOException("No space left on device"), StorageFull),
    "quota": (lambda jvm: jvm.java.io.IOException("Disk quota exceeded"), StorageFull),
    "file": (lambda jvm: jvm.java.io.IOException(MISLEADING), PipelineStopped),
    "bug": (lambda jvm: jvm.java.lang.IllegalStateException(f"{MISLEADING}; No space left on device"), PipelineStopped),
}


@pytest.mark.parametrize("name", THROWN)
def test_the_class_of_an_exception_names_it(spark: Any, name: str) -> None:
    make, kind = THROWN[name]
    found = spark_errors.error_of(thrown(spark, make), WORK)
    assert type(found) is kind, found


def test_every_class_that_is_named_exists(spark: Any) -> None:
    loader = spark.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for kinds in (
        spark_errors.FULL,
        spark_errors.WORKER,
        spark_errors.AUTHENTICATION,
        spark_errors.PERMISSION,
        spark_errors.TRANSIENT,
    ):
        for kind in kinds:
            loader.loadClass(kind.family)


def failed(spark: Any, task: Callable[[Iterable[Any]], Iterator[Any]]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        session.map_in_arrow(spark.range(2), task, {"id": "long"}).collect()
    return caught.value


def test_a_fault_in_a_task_is_never_taken_for_the_brokers(spark: Any) -> None:
    said = MISLEADING

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        yield from batches
        raise ValueError(said)

    found = spark_errors.error_of(failed(spark, task), WORK)
    assert type(found) is PipelineStopped
    assert f"ValueError: {MISLEADING}" in found.message


def test_a_worker_that_is_killed_is_not_the_brokers_fault(spark: Any) -> None:
    kill, number = os.kill, int(signal.SIGKILL)

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        yield from batches
        kill(os.getpid(), number)

    assert type(spark_errors.error_of(failed(spark, task), WORK)) is SparkExited


def test_a_read_brings_its_cause_along(spark: Any) -> None:
    """A broker that nobody listens for, as a batch meets it."""
    deaf = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "assign": '{"t": [0]}',
        "startingOffsets": '{"t": {"0": 0}}',
        "endingOffsets": '{"t": {"0": 9}}',
        "kafka.default.api.timeout.ms": "500",
        "kafka.request.timeout.ms": "400",
        "fetchOffset.numRetries": "1",
    }
    with pytest.raises(Exception, match="Timed out") as raised:
        spark.read.format("kafka").options(**deaf).load().collect()
    found = spark_errors.error_of(raised.value, WORK)
    assert isinstance(found, BrokerUnreachable)
    assert "Timed out" in found.message


def test_python_has_classes_too() -> None:
    outer = RuntimeError("a batch failed")
    outer.__cause__ = OSError(errno.ENOSPC, "no matter what")
    assert isinstance(spark_errors.error_of(outer, WORK), StorageFull)
    assert (
        type(spark_errors.error_of(OSError(errno.EACCES, f"{MISLEADING} No space left on device"), WORK))
        is PipelineStopped
    )
