"""What became of dead letters: a ledger whose batches are replay plans and whose rows are the letters' outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import pyarrow as pa

from headrace.batch import Intent, Receipt, StagedFile
from headrace.ledger import Ledger
from headrace.tables.schema import TIMESTAMP, to_delta


class Outcome(StrEnum):
    """What a plan made of a letter."""

    REPLAYED = "replayed"  # it is a row now
    FILTERED = "filtered"  # a rule of the spec leaves it out now
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


def writer(pipeline: str) -> str:
    """The name that replays write under; no pipeline can have it."""
    return f"{pipeline}:replay"


class Replays(Ledger):
    """The plans of one pipeline and their outcomes, open for one driver."""

    folder = "replays"
    decisions = "plans"
    schema = to_delta(OUTCOMES)

    def _rows(self, intent: Intent, receipts: Sequence[Receipt], finished: datetime, note: str) -> Sequence[StagedFile]:
        assert intent.taken is not None  # noqa: S101
        return intent.taken.files
