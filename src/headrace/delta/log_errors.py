"""Errors that a table's log can cause, each with the command that continues."""

from __future__ import annotations

from headrace.delta.properties import EXPIRING
from headrace.delta.snapshot import TableState
from headrace.errors import (
    Fenced,
    PipelineStopped,
    TableChanged,
    TableFeature,
    TableGone,
    TableReplaced,
    TableRestored,
    TxnMismatch,
)

_NEXT: dict[type[PipelineStopped], str] = {
    TableGone: "Recover the table, or run `headrace resume SPEC --accept-new-table` to fill a new one.",
    TableReplaced: "Recover the old table, or run `headrace resume SPEC --accept-new-table` to continue with this one.",
    TableRestored: "Run `headrace resume SPEC --table-restored=refill` to read the undone records again for this "
    "table, or `--table-restored=keep` to continue without them.",
    TableChanged: "Undo the change and run again, or run `headrace resume SPEC --accept-new-table` to continue with "
    "the table as it is now.",
    TxnMismatch: "Find out who else writes to this table, then run again. If its txns are lost, run "
    "`headrace resume SPEC --accept-new-table` to continue with the table as it is now.",
    Fenced: "Another instance of the pipeline has taken over; this one must not write.",
}


def table_stop(kind: type[PipelineStopped], message: str) -> PipelineStopped:
    """An error of this kind, with the command that continues."""
    return kind(message, hint=advice(kind))


def advice(kind: type[PipelineStopped]) -> str:
    """The hint of an error of this kind: the command that continues."""
    return _NEXT[kind]


def restored(uri: str, version: int) -> PipelineStopped:
    """The error for a RESTORE: txns survive it, so the undone rows would stay lost without a message."""
    return table_stop(TableRestored, f"Version {version} of {uri} restored the table to an older version.")


def unreached(uri: str, version: int) -> TableRestored:
    """The error for a log that was cleaned up, so that a RESTORE after `version` cannot be ruled out."""
    return TableRestored(
        f"The log of {uri} no longer reaches back to version {version + 1}, the first after the last one that this "
        "pipeline wrote or checked. The table may have been restored since.",
        hint="Compare the table with its source; then run `headrace resume SPEC --table-restored=keep` to continue "
        "with the table as it is now.",
    )


def set_back(uri: str, version: int, before: int) -> TableRestored:
    """The error for a table whose newest versions are gone."""
    return TableRestored(
        f"{uri} is at version {version} and was at version {before}: it was replaced by an older copy.",
        hint="Recover the newest version, or run `headrace resume SPEC --table-restored=keep` to continue without the "
        "rows that were undone.",
    )


def check_txns_last(uri: str, state: TableState) -> None:
    """TableFeature if the table lets txns expire: a batch whose txn has expired would be written twice."""
    if (value := state.properties.get(EXPIRING)) is not None:
        raise TableFeature(
            f"{uri} has the property {EXPIRING} = '{value}': the txns of this pipeline would expire, and a batch "
            "could be written twice.",
            hint=f"Unset the property and run again: `headrace table set-properties {uri} --unset {EXPIRING}`.",
        )
