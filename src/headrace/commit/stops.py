"""What to do next at each stop that a table's log can force."""

from __future__ import annotations

from headrace.errors import Fenced, MarksDisagree, Stop, TableChanged, TableGone, TableReplaced, TableRestored

_NEXT: dict[type[Stop], str] = {
    TableGone: "Bring it back, or run `headrace resume SPEC --accept-new-table` to fill a new one.",
    TableReplaced: "Bring the old one back, or run `headrace resume SPEC --accept-new-table` to go on with this one.",
    TableRestored: "Run `headrace resume SPEC --table-restored=refill` to read what was undone again for this table; "
    "or `--table-restored=keep` to go on from here, and what was undone stays undone.",
    TableChanged: "Change it back and run again, or `headrace resume SPEC --accept-new-table` goes on as it is now.",
    MarksDisagree: "Find out who else writes to this table; `headrace status SPEC` shows what the ledger knows.",
    Fenced: "Another instance of the pipeline has gone on; this one must not write.",
}


def stop(kind: type[Stop], seen: str) -> Stop:
    """The stop, with the command that goes on."""
    return kind(seen, next=advice(kind))


def advice(kind: type[Stop]) -> str:
    """The command that goes on after a stop of this kind."""
    return _NEXT[kind]
