"""What a kind of committer offers a pipeline; `adopt` and `spark` are the two there are."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from headrace.delta.receipt import Receipt
from headrace.delta.snapshot import TableState
from headrace.write.intent import Intent, TableIntent


class TableWriter(Protocol):
    """One table, written in one way, for good."""

    @property
    def adopts(self) -> bool:
        """Whether the staged files become the table's own, so that they belong in its folder."""
        ...

    @property
    def state(self) -> TableState | None:
        """The table as last seen; None while there is none."""
        ...

    def writable(self) -> pa.Schema:
        """The columns rows may fill."""
        ...

    def follow(self) -> object:
        """Go along with what others did; what no batch may go along with is raised."""
        ...

    def evolve(self, schema: pa.Schema) -> object:
        """Add the columns the table lacks."""
        ...

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """One table's part of a batch; the same part twice changes nothing."""
        ...
