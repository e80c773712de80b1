"""What to do next at each stop that a table's log can force."""

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
    TableGone: "Bring it back, or run `headrace resume SPEC --accept-new-table` to fill a new one.",
    TableReplaced: "Bring the old one back, or run `headrace resume SPEC --accept-new-table` to go on with this one.",
    TableRestored: "Run `headrace resume SPEC --table-restored=refill` to read what was undone again for this table; "
    "or `--table-restored=keep` to go on from here, and what was undone stays undone.",
    TableChanged: "Change it back and run again, or `headrace resume SPEC --accept-new-table` goes on as it is now.",
    TxnMismatch: "Find out who else writes to this table, then run again; where its txns are lost, "
    "`headrace resume SPEC --accept-new-table` goes on with the table as it is now.",
    Fenced: "Another instance of the pipeline has gone on; this one must not write.",
}


def table_stop(kind: type[PipelineStopped], seen: str) -> PipelineStopped:
    """The stop, with the command that goes on."""
    return kind(seen, hint=advice(kind))


def advice(kind: type[PipelineStopped]) -> str:
    """The command that goes on after a stop of this kind."""
    return _NEXT[kind]


def unreached(uri: str, version: int) -> TableRestored:
    """The stop where nobody can tell any more whether a table was restored."""
    return TableRestored(
        f"The log of {uri} no longer reaches back to version {version + 1}, the first after the last commit of this "
        "pipeline or after the last look at it: whether the table was restored since cannot be told.",
        hint="Compare the table with its source; `headrace resume SPEC --table-restored=keep` goes on with the table "
        "as it is now.",
    )


def set_back(uri: str, version: int, before: int) -> TableRestored:
    """The stop where the newest versions of a table are gone: nothing tells what they held."""
    return TableRestored(
        f"{uri} is at version {version} and was at version {before}: an older copy took its place.",
        hint="Bring its newest version back; or `headrace resume SPEC --table-restored=keep` goes on without the rows "
        "that were undone.",
    )


def check_txns_last(uri: str, state: TableState) -> None:
    """TableFeature where the table lets txns expire: a batch whose txn is gone would be written a second time."""
    if (value := state.properties.get(EXPIRING)) is not None:
        raise TableFeature(
            f"{uri} has the property {EXPIRING} = '{value}': the txns of this pipeline would expire, and a batch "
            "could be written twice.",
            hint=f"Unset it and run again: `headrace table set-properties {uri} --unset {EXPIRING}`.",
        )
