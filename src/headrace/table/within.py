"""A partition by its name, and whether a table has rows in it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.errors import PartitionNotFound
from headrace.storage import Store
from headrace.table.records import partition_of
from headrace.tables import files
from headrace.tables.partitions import Partition
from headrace.tables.rows import value_of

_PHYSICAL = b"delta.columnMapping.physicalName"  # under which the log has the values of a renamed column


def inhabited(store: Store, version: int, schema: pa.Schema, by: tuple[str, ...], text: str | None) -> Partition:
    """The partition that is meant, if a version has rows in it; PartitionNotFound where it has none."""
    partition = partition_of(text, schema, by)
    if text is None:
        return partition
    wanted = [(_key(item), item.type, value_of(value, item.type)) for item, value in _typed(partition, schema)]
    stands = files.active(store, version).values()
    if any(all(value_of(file.partition.get(key), kind) == value for key, kind, value in wanted) for file in stands):
        return partition
    raise PartitionNotFound(
        f"{store.uri} has no rows in a partition '{text}'.", partition=text, next="`query()` shows which there are."
    )


def _typed(partition: Partition, schema: pa.Schema) -> Iterator[tuple[pa.Field, str | None]]:
    return ((schema.field(name), value) for name, value in partition)


def _key(item: pa.Field) -> str:
    return str((item.metadata or {}).get(_PHYSICAL, item.name.encode()).decode())
