"""Outcomes of replayed dead letters: a ledger whose batches are replay plans and whose rows are outcomes."""

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


# What tells a letter from every other; offsets of a topic that was made anew come again at another time.
LETTER = ("topic", "partition", "offset", "table", "rejected_at")

OUTCOMES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("table", pa.string()),
        pa.field("rejected_at", TIMESTAMP),
        pa.field("plan", pa.int64()),
        pa.field("outcome", pa.string()),
        pa.field("into", pa.list_(pa.field("element", pa.string()))),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("spec", pa.string()),
        pa.field("at", TIMESTAMP),
    ]
)


def without_doubles(outcomes: pa.Table, left_out: Mapping[str, Counter[tuple[str, int, int]]]) -> pa.Table:
    """The outcomes as they are once tables have left out, of these records, rows that they have already."""
    said = outcomes.to_pylist()
    for row in said:
        at = (row["topic"], row["partition"], row["offset"])
        doubled = [uri for uri in row["into"] or () if uri in left_out and left_out[uri][at] > 0]
        for uri in doubled:
            left_out[uri][at] -= 1
            row["into"] = [each for each in row["into"] if each != uri] or None
        if doubled and row["into"] is None:
            row |= {"outcome": ReplayOutcome.FILTERED.value, "detail": f"{doubled[0]} already has a row with its keys"}
    return pa.Table.from_pylist(said, OUTCOMES)


def writer(pipeline: str) -> str:
    """The name that replays write under; no pipeline can have it."""
    return f"{pipeline}:replay"


class Replays(Ledger):
    """The plans of one pipeline and their outcomes, open for one driver."""

    folder = "replays"
    intents = "replay_intents"
    schema = to_delta(OUTCOMES)

    def _compact(self) -> None:
        """Do nothing: there are few plans."""

    def _rows(self, intent: Intent, receipts: Sequence[Receipt], finished: datetime, note: str) -> Sequence[StagedFile]:
        assert intent.replay is not None  # noqa: S101
        return intent.replay.files
