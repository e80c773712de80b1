"""Exceptions. The class decides what happens: retry, stop the pipeline, or reject the command.

HeadraceError
├── UsageError                    exit 2: invalid command line or arguments
│   └── SpecError                 exit 2: invalid spec; carries the diagnostics
├── SetupError                    exit 1: Java, a jar or a package is not available
├── LeaseHeld                     exit 3: another instance runs the pipeline
├── StopRequested                 exit 0: stopped on request during a retry wait
├── SpoolFull                     retryable: producers are told when to send again
├── QueueFull                     retryable: the same, of the records that wait for Kafka
├── SequenceReused                a producer used a sequence again for other records
├── TableError                    exit 1: a table operation failed; the table is unchanged
│   ├── TableNotFound · VersionNotFound · PartitionNotFound
│   ├── SchemaMismatch            carries the expected and the actual schema
│   ├── ConcurrentModification    retryable: another writer committed first
│   ├── OperationDisabled · FeatureRequired · SparkWriterRequired
│   └── ChangeDataUnavailable · TableDamaged · ClockSkew
├── TransientError                retried with backoff, without limit, and reported
│   ├── BrokerUnreachable
│   ├── StorageUnreachable
│   ├── RegistryUnreachable
│   └── HotStoreUnreachable
└── PipelineStopped               exit 1: stops the pipeline; the hint has the command to continue
    ├── SourceGap · SourceTopicGone · SourceReplaced · SourceRewound · SourceRepartitioned · SpoolDamaged · FileChanged
    ├── TableGone · TableReplaced · TableRestored · TableChanged
    ├── TableFeature
    │   └── DirectCommitBlocked   the table requires Spark
    ├── TxnMismatch · Fenced · UnsupportedStateFormat
    ├── TakeoverRequired          a table has records of kafka-delta-ingest
    ├── CommitConflict            retried a few times first
    ├── PermissionDenied · AuthenticationFailed · EndpointInvalid · StorageFull · StorageUnsupported
    ├── TooManyPartitions · ContractViolation · ColumnMismatch · UnknownColumn
    ├── HotStoreTableInvalid · HotStoreValueRejected
    ├── TooManyRejected           after its batch is recorded; the next run continues after it
    ├── EnvironmentMismatch       executors lack Headrace, or have other versions than the driver
    └── SparkExited
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ERRORS: dict[str, type[HeadraceError]] = {}  # every class, by name


class HeadraceError(Exception):
    """Base class of all errors: a message, and a hint that says how to resolve it."""

    exit_code = 1
    retryable = False  # whether the same call may succeed later
    restartable = False  # whether a supervisor starts the pipeline again: no decision or change by a person is needed

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        self.message = message
        self.hint = hint
        self.facts = facts
        super().__init__(f"{message} {hint}".strip())

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        ERRORS[cls.__name__] = cls

    @property
    def name(self) -> str:
        """Class name; shown to users, who search for it."""
        return type(self).__name__

    def to_dict(self) -> dict[str, Any]:
        """Serialize the error; Spark tasks return errors in this form."""
        return {"error": self.name, "message": self.message, "hint": self.hint, "facts": self.facts}


ERRORS[HeadraceError.__name__] = HeadraceError


def error_from_dict(data: Mapping[str, Any]) -> HeadraceError:
    """Restore an error, of the same class, from `to_dict`."""
    return ERRORS.get(data["error"], HeadraceError)(data["message"], hint=data["hint"], **data["facts"])


class UsageError(HeadraceError):
    """Invalid command line or arguments."""

    exit_code = 2


class SpecError(UsageError):
    """Invalid spec; `diagnostics` has the position and the cause of each error."""

    def __init__(self, message: str, diagnostics: tuple[Any, ...] = (), *, hint: str = "", **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.diagnostics = diagnostics


class SetupError(HeadraceError):
    """Java, a jar or a package is not available."""

    restartable = True


class LeaseHeld(HeadraceError):
    """Another instance of the pipeline holds the lease."""

    exit_code = 3
    retryable = True
    restartable = True


class StopRequested(HeadraceError):
    """Stopped on request while waiting for the next retry."""

    exit_code = 0


class SpoolFull(HeadraceError):
    """The spool has no room for these records; they can be sent again after `retry_after` seconds."""

    retryable = True

    @property
    def retry_after(self) -> float:
        """Seconds after which the records can be sent again."""
        seconds = self.facts.get("retry_after", 1.0)
        assert isinstance(seconds, float | int)  # noqa: S101
        return seconds


class QueueFull(HeadraceError):
    """Too many records wait for Kafka; they can be sent again soon."""

    retryable = True


class SequenceReused(HeadraceError):
    """A producer sent other records with a sequence or idempotency key that it has used before."""


class TableError(HeadraceError):
    """A table operation failed; the table is unchanged."""


class TableNotFound(TableError):
    """No Delta table at this path."""


class VersionNotFound(TableError):
    """The version does not exist, or its log entries or files were cleaned up."""


class PartitionNotFound(TableError):
    """No partition of the table matches."""

    def __init__(self, message: str, *, partition: str, hint: str = "") -> None:
        super().__init__(message, hint=hint, partition=partition)
        self.partition = partition


class SchemaMismatch(TableError):
    """Columns or values do not match the table schema."""

    def __init__(self, message: str, *, expected: str, actual: str, hint: str = "") -> None:
        super().__init__(message, hint=hint, expected=expected, actual=actual)
        self.expected = expected
        self.actual = actual


class ConcurrentModification(TableError):
    """Concurrent writers won every attempt to commit; retryable."""

    retryable = True
    restartable = True

    def __init__(self, message: str, *, version: int, hint: str = "") -> None:
        super().__init__(message, hint=hint, version=version)
        self.version = version


class OperationDisabled(TableError):
    """The operation is disabled or not supported for this table."""


class FeatureRequired(TableError):
    """The operation needs a table feature that the table lacks, or that would exclude other readers."""


class SparkWriterRequired(TableError):
    """Only Spark may write the table; it could overwrite a concurrent commit of another writer."""


class ChangeDataUnavailable(TableError):
    """The log does not record which rows changed between two versions."""


class TableDamaged(TableError):
    """Files in the table's log are missing or unreadable."""


class ClockSkew(TableError):
    """The local clock is behind the newest commit of the table, so the age of files is unknown."""


class TransientError(HeadraceError):
    """Transient error of the infrastructure: retried with backoff, never a dead letter."""

    retryable = True
    restartable = True


class BrokerUnreachable(TransientError):
    """The broker does not respond."""


class StorageUnreachable(TransientError):
    """The store does not respond, or responds with a server error."""


class RegistryUnreachable(TransientError):
    """The schema registry does not respond, or responds with a server error."""


class HotStoreUnreachable(TransientError):
    """PostgreSQL does not respond, or cannot take rows at present."""


class PipelineStopped(HeadraceError):
    """Stops the pipeline; continuing would lose, duplicate or change data."""


class SourceGap(PipelineStopped):
    """Offsets were deleted from the broker before they were read."""


class SourceTopicGone(PipelineStopped):
    """A topic of the spec no longer exists."""


class SourceReplaced(PipelineStopped):
    """A topic was deleted and recreated: same name, different id."""


class SourceRewound(PipelineStopped):
    """The end offset of a partition is lower than the offsets already read."""


class SourceRepartitioned(PipelineStopped):
    """Partitions were added to a topic whose changes a table orders by offset."""


class SpoolDamaged(PipelineStopped):
    """Stored records of the spool are missing or changed."""


class FileChanged(PipelineStopped):
    """A file of the source was changed or deleted before all of its records were read."""


class TableGone(PipelineStopped):
    """A table of the pipeline no longer exists."""


class TableReplaced(PipelineStopped):
    """A table was dropped and recreated: same path, different id."""


class TableRestored(PipelineStopped):
    """A table of the pipeline was restored to an older version."""


class TableChanged(PipelineStopped):
    """A table was altered in a way that the pipeline cannot write to."""


class TableFeature(PipelineStopped):
    """A table has a protocol feature that Headrace cannot write."""


class DirectCommitBlocked(TableFeature):
    """A table has a feature that direct commits would break; only Spark may write it."""


class UnsupportedStateFormat(PipelineStopped):
    """The state was written by a newer version of Headrace."""


class CommitConflict(PipelineStopped):
    """Concurrent writers won every attempt to commit; retried a few times before it stops the pipeline."""

    retryable = True
    restartable = True


class TxnMismatch(PipelineStopped):
    """The ledger and the txns of a table contradict each other."""


class TakeoverRequired(PipelineStopped):
    """A table has txns of kafka-delta-ingest, and the pipeline may read the records before them again."""


class Fenced(PipelineStopped):
    """Another instance of the pipeline has taken over; this one must not write."""

    restartable = True


class PermissionDenied(PipelineStopped):
    """The store, the broker or the registry denies the operation to these credentials."""

    restartable = True


class EndpointInvalid(PipelineStopped):
    """The address of the object store does not exist, or its certificate is not trusted; or no source answers there."""

    restartable = True


class AuthenticationFailed(PipelineStopped):
    """The credentials are rejected."""

    restartable = True


class StorageUnsupported(PipelineStopped):
    """The object store has no conditional writes, without which commits could overwrite each other."""


class StorageFull(PipelineStopped):
    """No space left on the store."""

    restartable = True


class TooManyPartitions(PipelineStopped):
    """A batch has more partition values for one table than the limit."""


class ContractViolation(PipelineStopped):
    """A record violates a contract or an expectation with `stop`."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "Change the producer, table.contract or table.expectations, then run again; nothing is lost.",
        **facts: object,
    ) -> None:
        super().__init__(message, hint=hint, **facts)


class TooManyRejected(PipelineStopped):
    """The circuit breaker's ratio of dead letters was exceeded; the batch is recorded in the ledger."""


class ColumnMismatch(PipelineStopped):
    """The columns of the records, of the spec and of the table do not agree."""


class UnknownColumn(PipelineStopped):
    """The spec names a column that the table, the spec and the records of the first batch do not have."""


class HotStoreTableInvalid(PipelineStopped):
    """A table of the hot store cannot hold the rows of its Delta table."""


class HotStoreValueRejected(PipelineStopped):
    """PostgreSQL cannot store a value, and the hot store is required."""


class EnvironmentMismatch(PipelineStopped):
    """The Python environment of Spark executors is not that of the driver."""


class SparkExited(PipelineStopped):
    """The JVM that runs Spark has exited."""

    restartable = True


# ---- wording of messages ----


def plural(number: int, noun: str) -> str:
    """Number with its noun, such as `1 row` and `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """First line of an error's message, up to 300 characters; the name of its type if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def did_you_mean(*suggestions: str) -> str:
    """Last part of a message about an unknown name; empty without a suggestion."""
    names = " or ".join(f"'{name}'" for name in suggestions if name)
    return f"; did you mean {names}?" if names else ""
