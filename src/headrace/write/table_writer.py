"""The interface of table writers, and the counts of a batch that each of their commits carries.

`AppendWriter` commits staged files directly; `LeasedWriter` merges them, or lets Spark append them, under the lease.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from headrace.delta.receipt import Receipt
from headrace.delta.snapshot import TableState
from headrace.write.intent import Intent, TableIntent


class TableWriter(Protocol):
    """Writes one table. The kind of writer of a table never changes by itself."""

    @property
    def commits_directly(self) -> bool:
        """Whether staged files become files of the table; if so, they are staged in its folder."""
        ...

    @property
    def state(self) -> TableState | None:
        """The table at the last version that was read; None if there is no table."""
        ...

    def writable(self) -> pa.Schema:
        """The columns that rows may fill."""
        ...

    def follow(self) -> object:
        """Read new commits of other writers; raises PipelineStopped if the pipeline must not continue."""
        ...

    def evolve(self, schema: pa.Schema) -> object:
        """Add the columns of `schema` that the table does not have."""
        ...

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """Commit a batch to the table; skipped if the table already has the batch's txn."""
        ...


def batch_account(intent: Intent, attempt: int = 0) -> dict[str, Any]:
    """The counts and ranges of a batch: the same in each of its commits, except for the attempt."""
    restored = {
        "reread": [[item.topic, item.partition, item.start, item.until] for item in intent.reread],
        "reingested": list(intent.reingested),
    }
    return {
        "pipeline": intent.pipeline,
        "batch": intent.batch,
        "spec": intent.digest,
        "ranges": [[item.topic, item.partition, item.start, item.until] for item in intent.ranges],
        **intent.counts.records(),
        **({"attempt": attempt} if attempt else {}),
        # Rows that the commit restores to the table, so that no later refill or reingest restores them again.
        **{name: value for name, value in restored.items() if value},
    }
