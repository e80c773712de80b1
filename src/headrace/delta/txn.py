"""Txns: Delta app transactions (app id, version) that record in a table's log which batches it has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_BATCH = re.compile(r"headrace:[a-z0-9][a-z0-9_-]{0,62}(:replay)?")
_FOREIGN = re.compile(r"(.+)-(0|[1-9][0-9]{0,8})", re.DOTALL)  # at most nine digits, as partitions have


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
    """The txn that numbers a commit: that of the batch or of the replay; None without one."""
    named = sorted(name for name in txns if _BATCH.fullmatch(name))
    return (named[0], txns[named[0]]) if named else None


def foreign_txn(app_id: str, partition: int) -> str:
    """The txn of kafka-delta-ingest whose version is the last offset of a partition that it has written to a table."""
    return f"{app_id}-{partition}"


def foreign_txns(txns: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """The txns of kafka-delta-ingest: by app id, the last offset of each partition.

    Other writers may have txns of this form: `my-stream-1` of a query that numbers its batches. But not `headrace:a-1`,
    and no UUID, such as the query ids of Spark (`…-a716-446655440000`): its last part is no partition number.
    """
    by_app_id: dict[str, dict[int, int]] = {}
    for name, version in sorted(txns.items()):
        match = _FOREIGN.fullmatch(name)
        if match is not None and not name.startswith("headrace:"):
            by_app_id.setdefault(match[1], {})[int(match[2])] = version
    return by_app_id


def pipeline_of(txn: str) -> str:
    """The pipeline of a txn's app id."""
    return txn.split(":")[1]
