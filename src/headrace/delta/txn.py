"""Marks: app transactions that say, inside the table's own log, what it already holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_BATCH = re.compile(r"headrace:[a-z0-9][a-z0-9_-]{0,62}(:replay)?")


def batch_txn(pipeline: str) -> str:
    """The mark that holds the number of the last batch in a table."""
    return f"headrace:{pipeline}"


def partition_txn(pipeline: str, topic: str, partition: int) -> str:
    """The mark that holds the last offset of a partition in a table."""
    return f"headrace:{pipeline}:{topic}:{partition}"


def txn_names(pipeline: str, partitions: Iterable[tuple[str, int]] = ()) -> list[str]:
    """Every mark a tail must know to commit a batch of these partitions."""
    return [batch_txn(pipeline), *(partition_txn(pipeline, *each) for each in partitions)]


def batch_number_of(marks: Mapping[str, int]) -> tuple[str, int] | None:
    """The mark among these that numbers the commit: the batch's, or a replay plan's; None when there is none."""
    named = sorted(name for name in marks if _BATCH.fullmatch(name))
    return (named[0], marks[named[0]]) if named else None


def pipeline_of(mark: str) -> str:
    """The pipeline that a mark of ours belongs to."""
    return mark.split(":")[1]
