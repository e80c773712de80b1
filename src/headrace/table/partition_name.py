"""A partition by its name, and whether a table has rows in it."""

from __future__ import annotations

import pyarrow as pa

from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.snapshot import active_files
from headrace.errors import PartitionNotFound
from headrace.storage.store import Store
from headrace.table.records import partition_of


def inhabited(store: Store, version: int, schema: pa.Schema, by: tuple[str, ...], text: str | None) -> Partition:
    """The partition that is meant, if a version has rows in it; PartitionNotFound where it has none."""
    partition = partition_of(text, schema, by)
    if text is None:
        return partition
    key = PartitionKeys.of(schema, [name for name, _ in partition])
    if any(key(file.partition) == partition for file in active_files(store, version).values()):
        return partition
    raise PartitionNotFound(
        f"{store.uri} has no rows in a partition '{text}'.", partition=text, hint="`query()` shows which there are."
    )
