"""Rows are changed by our own hands, amid others: who comes first is told by put-if-absent.

Whoever does not, does all of it again, on what is there by now. For tables that the log tail may write, and for those
of a pipeline that merges, while it rests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from headrace.delta.actions import File
from headrace.delta.features import append_blocker
from headrace.delta.log_writer import Objection
from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.snapshot import TableState
from headrace.storage.store import Store
from headrace.table.ownership import amid_others, existing_table
from headrace.write.row_edit import EditAttempt, EditResult, RowEdit


def rewrite(store: Store, plan: Callable[[TableState], RowEdit], objection: Objection = append_blocker) -> EditResult:
    """Carry out a change; it is planned anew each time that others came first."""

    def attempt() -> EditResult:
        state = existing_table(store)
        edit = plan(state)
        return EditAttempt(store, state, edit, objection).run({"operation": edit.operation.lower()})

    return amid_others(store, attempt)


def within(stands: Iterable[File], partition: Partition, state: TableState) -> list[File]:
    """The files of a partition that is given by some of its columns; all without one."""
    key = PartitionKeys.of(state.schema, [name for name, _ in partition])
    return [file for file in stands if key(file.partition) == partition]


def commit_parameters(**said: object) -> dict[str, str]:
    """What a commit says of how it was asked for, each as JSON in a text."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in said.items() if value}
