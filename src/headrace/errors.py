"""The exception tree. Each class answers one question: retry, stop, or refuse?

HeadraceError
├── UsageError                    exit 2: the command line asks for something that cannot be
│   └── SpecError                 exit 2: the spec is wrong; carries its findings
├── SetupError                    exit 1: Java, a jar or a package cannot be had
├── LeaseHeld                     exit 3: the pipeline is already running elsewhere
├── StopRequested                 exit 0: somebody asked to stop while we waited
├── TableError                    exit 1: an operation on one table cannot be done as it was asked for
│   ├── TableNotFound · VersionNotFound · PartitionNotFound
│   ├── SchemaMismatch            carries what was expected and what was given
│   ├── ConcurrentModification    may be tried again: another writer came first
│   ├── OperationDisabled · FeatureRequired · WrittenBySpark
│   └── ChangesUnknown · TableDamaged · ClockBehind
├── TransientError                retried with back-off, for ever, and shown
│   ├── BrokerUnreachable
│   ├── StorageUnreachable
│   └── RegistryUnreachable
└── PipelineStopped               exit 1: ends the pipeline with a name and the command that goes on
    ├── SourceGap · SourceTopicGone · SourceReplaced · SourceRewound · SourceRepartitioned
    ├── TableGone · TableReplaced · TableRestored · TableChanged
    ├── TableFeature
    │   └── DirectCommitBlocked   only Spark may write the table
    ├── TxnMismatch · Fenced · NewerFormat
    ├── Conflict                  tried a few times before it stops the pipeline
    ├── PermissionDenied · AuthenticationFailed · StorageFull
    ├── TooManyPartitions · ContractViolation · ColumnsDisagree · UnknownColumn
    ├── TooManyRejected           after its batch is in the ledger: the next run goes on behind it
    └── SparkDied
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ERRORS: dict[str, type[HeadraceError]] = {}  # every class of the tree, by name


class HeadraceError(Exception):
    """Base of all errors that Headrace raises: a message, and a hint that says how to resolve it."""

    exit_code = 1
    retryable = False  # whether the same call may succeed later, without anybody changing anything

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
        """The name of the class, as people search for it."""
        return type(self).__name__

    def to_dict(self) -> dict[str, Any]:
        """The error as data: it leaves a Spark task in this form."""
        return {"error": self.name, "message": self.message, "hint": self.hint, "facts": self.facts}


ERRORS[HeadraceError.__name__] = HeadraceError


def error_from_dict(data: Mapping[str, Any]) -> HeadraceError:
    """The error that `to_dict` described, of the same class."""
    return ERRORS.get(data["error"], HeadraceError)(data["message"], hint=data["hint"], **data["facts"])


class UsageError(HeadraceError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class SpecError(UsageError):
    """The spec is wrong; `findings` says where and how."""

    def __init__(self, message: str, findings: tuple[object, ...] = (), *, hint: str = "", **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.findings = findings


class SetupError(HeadraceError):
    """Java, a jar or a package that Headrace needs cannot be had."""


class LeaseHeld(HeadraceError):
    """Another instance of the pipeline holds its lease."""

    exit_code = 3
    retryable = True


class StopRequested(HeadraceError):
    """Somebody asked to stop while we waited to try again."""

    exit_code = 0


class TableError(HeadraceError):
    """An operation on one table cannot be done as it was asked for; nothing was changed."""


class TableNotFound(TableError):
    """There is no Delta table at this place."""


class VersionNotFound(TableError):
    """The table has no such version, or its log or its files no longer reach back to it."""


class PartitionNotFound(TableError):
    """A text that should name a partition names none of this table."""

    def __init__(self, message: str, *, partition: str, hint: str = "") -> None:
        super().__init__(message, hint=hint, partition=partition)
        self.partition = partition


class SchemaMismatch(TableError):
    """Columns or values are not those of the table."""

    def __init__(self, message: str, *, expected: str, actual: str, hint: str = "") -> None:
        super().__init__(message, hint=hint, expected=expected, actual=actual)
        self.expected = expected
        self.actual = actual


class ConcurrentModification(TableError):
    """Other writers changed the table each time it was tried; it may be tried again."""

    retryable = True

    def __init__(self, message: str, *, version: int, hint: str = "") -> None:
        super().__init__(message, hint=hint, version=version)
        self.version = version


class OperationDisabled(TableError):
    """The operation is switched off for this table."""


class FeatureRequired(TableError):
    """The operation needs a table feature that the table does not have, or that shuts other readers out."""


class WrittenBySpark(TableError):
    """Only Spark may change the table: a commit beside one of its own could be lost."""


class ChangesUnknown(TableError):
    """The table's log does not tell which rows changed between two versions."""


class TableDamaged(TableError):
    """The table's log names files that are gone or cannot be read."""


class ClockBehind(TableError):
    """This machine's clock is before the newest commit of the table; ages cannot be told."""


class TransientError(HeadraceError):
    """Trouble that passes by itself: retried with back-off, never a dead letter."""

    retryable = True


class BrokerUnreachable(TransientError):
    """The broker does not answer."""


class StorageUnreachable(TransientError):
    """The store does not answer, or answers with a fault of its own."""


class RegistryUnreachable(TransientError):
    """The schema registry does not answer, or not as a registry does."""


class PipelineStopped(HeadraceError):
    """Ends the pipeline with a name; going on would lose, double or change data."""


class SourceGap(PipelineStopped):
    """Offsets that were never read are gone from the broker."""


class SourceTopicGone(PipelineStopped):
    """A topic of the spec no longer exists."""


class SourceReplaced(PipelineStopped):
    """A topic was deleted and made again: same name, other id."""


class SourceRewound(PipelineStopped):
    """The broker's end is before what was already read."""


class SourceRepartitioned(PipelineStopped):
    """A topic has more partitions than before, under a table whose changes are ordered by offset."""


class TableGone(PipelineStopped):
    """A table that was written before no longer exists."""


class TableReplaced(PipelineStopped):
    """A table was dropped and made again: same path, other id."""


class TableRestored(PipelineStopped):
    """A table was restored to an older version underneath the pipeline."""


class TableChanged(PipelineStopped):
    """A table was altered beyond what can be followed."""


class TableFeature(PipelineStopped):
    """A table uses a protocol feature that this writer must not touch."""


class DirectCommitBlocked(TableFeature):
    """The table uses something a blind append would break; only Spark may write it."""


class NewerFormat(PipelineStopped):
    """The state was written by a newer Headrace than this one."""


class Conflict(PipelineStopped):
    """Other writers' commits came first each time; tried a few times before it stops the pipeline."""

    retryable = True


class TxnMismatch(PipelineStopped):
    """Ledger and table marks contradict each other."""


class Fenced(PipelineStopped):
    """Another driver of this pipeline has gone on; this one must not write any more."""


class PermissionDenied(PipelineStopped):
    """The store, the broker or the registry refuses an operation to these credentials."""


class AuthenticationFailed(PipelineStopped):
    """The credentials themselves are refused."""


class StorageFull(PipelineStopped):
    """There is no space left where something must be written."""


class TooManyPartitions(PipelineStopped):
    """A batch would make more partition values in one table than the limit allows."""


class ContractViolation(PipelineStopped):
    """A record breaks a contract whose answer is `stop`."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "Change the producer, table.contract or table.expectations; then run again: it is read anew.",
        **facts: object,
    ) -> None:
        super().__init__(message, hint=hint, **facts)


class TooManyRejected(PipelineStopped):
    """More than the breaker's share of records became dead letters; all that was read is booked."""


class ColumnsDisagree(PipelineStopped):
    """What records bring, what the spec makes of it and what the table has do not go together."""


class UnknownColumn(PipelineStopped):
    """The spec names a column that neither the table, nor the spec, nor any record of the first batch has."""


class SparkDied(PipelineStopped):
    """The JVM that runs Spark is gone."""
