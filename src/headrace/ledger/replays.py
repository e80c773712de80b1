"""Outcomes of replayed dead letters: a ledger whose batches are replays and whose rows are outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import pyarrow as pa

from headrace.delta.receipt import Receipt
from headrace.delta.schema import to_delta
from headrace.delta.staged_file import StagedFile
from headrace.ledger.ledger import Ledger
from headrace.spec.types import TIMESTAMP
from headrace.write.intent import Intent


class ReplayOutcome(StrEnum):
    """Outcome of a dead letter in a replay."""

    REPLAYED = "replayed"  # it is a row now
    FILTERED = "filtered"  # the spec filters it now
    STILL_DEAD = "still_dead"  # it can be tried again


# The identity of a dead letter; a recreated topic has the same offsets again, at another time.
DEAD_LETTER_KEY = ("topic", "partition", "offset", "table", "rejected_at")

OUTCOMES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("table", pa.string()),
        pa.field("rejected_at", TIMESTAMP),
        pa.field("replay", pa.int64()),
        pa.field("outcome", pa.string()),
        pa.field("into", pa.list_(pa.field("element", pa.string()))),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("spec", pa.string()),
        pa.field("at", TIMESTAMP),
    ]
)


def without_duplicate_rows(outcomes: pa.Table, removed_rows: Mapping[str, Counter[tuple[str, int, int]]]) -> pa.Table:
    """The outcomes as they are once tables have left out, of these records, rows that they have already."""
    outcome_rows = outcomes.to_pylist()
    for row in outcome_rows:
        at = (row["topic"], row["partition"], row["offset"])
        duplicate_tables = [uri for uri in row["into"] or () if uri in removed_rows and removed_rows[uri][at] > 0]
        for uri in duplicate_tables:
            removed_rows[uri][at] -= 1
            row["into"] = [each for each in row["into"] if each != uri] or None
        if duplicate_tables and row["into"] is None:
            detail = f"{duplicate_tables[0]} already has a row with its keys"
            row |= {"outcome": ReplayOutcome.FILTERED.value, "detail": detail}
    return pa.Table.from_pylist(outcome_rows, OUTCOMES)


def writer(pipeline: str) -> str:
    """The name that replays write under; no pipeline can have it."""
    return f"{pipeline}:replay"


class Replays(Ledger):
    """The replays of one pipeline and their outcomes, open for one driver."""

    folder = "replays"
    intents = "replay_intents"
    schema = to_delta(OUTCOMES)

    def _compact(self) -> None:
        """Do nothing: there are few replays."""

    def _rows(self, intent: Intent, receipts: Sequence[Receipt], finished: datetime, note: str) -> Sequence[StagedFile]:
        assert intent.replay is not None  # noqa: S101
        return intent.replay.files
