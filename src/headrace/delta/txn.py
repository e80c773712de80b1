"""Txns: Delta app transactions (app id, version) that record in a table's log which batches it has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_BATCH = re.compile(r"headrace:[a-z0-9][a-z0-9_-]{0,62}(:replay)?")


def batch_txn(pipeline: str) -> str:
    """The app id whose version is the number of the last batch in a table."""
    return f"headrace:{pipeline}"


def partition_txn(pipeline: str, topic: str, partition: int) -> str:
    """The app id whose version is the last offset of a partition in a table."""
    return f"headrace:{pipeline}:{topic}:{partition}"


def txn_names(pipeline: str, partitions: Iterable[tuple[str, int]] = ()) -> list[str]:
    """The app ids that a log writer needs to commit a batch of these partitions."""
    return [batch_txn(pipeline), *(partition_txn(pipeline, *each) for each in partitions)]


def batch_number_of(txns: Mapping[str, int]) -> tuple[str, int] | None:
    """The txn that numbers a commit: that of the batch or of the replay plan; None without one."""
    named = sorted(name for name in txns if _BATCH.fullmatch(name))
    return (named[0], txns[named[0]]) if named else None


def pipeline_of(txn: str) -> str:
    """The pipeline of a txn's app id."""
    return txn.split(":")[1]
