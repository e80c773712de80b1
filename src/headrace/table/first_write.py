"""The first write of a table that nobody has described: its columns are those that the records show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.delta.actions import MetadataAction, Protocol
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import TableState
from headrace.errors import SchemaMismatch, UsageError
from headrace.stage.partitions import check_partitioning
from headrace.storage.store import Store
from headrace.table.records import Records, at_hand
from headrace.table.schema_changes import create, schema_of

Check = Callable[[Records, TableState], object]  # refuses rows that the table would not take


@dataclass(frozen=True, slots=True)
class FirstWrite:
    """A table that is made when its first records come."""

    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def made(self, store: Store, records: Records, partition: str | None, check: Check) -> Records:
        """Make the table, if its rows pass the check; the records, without what none of them has a value for."""
        held = at_hand(records)
        schema = schema_of(_told(held.schema)) if isinstance(held, pa.Table) else columns_of_records(held)
        if not len(schema):
            raise UsageError("No record shows which columns the table is to have.", hint="Give a schema, or records.")
        placed = [name for name in self.partition_by if partition is not None and name not in schema.names]
        whole = pa.schema([*schema, *(pa.field(name, pa.string()) for name in placed)])
        check_partitioning(whole, self.partition_by)
        rows = _without(held, schema.names)
        check(rows, TableState(0, MetadataAction("", to_delta(whole), self.partition_by, {}), Protocol()))
        create(store, whole, self.partition_by, self.properties)
        return rows


def _without(held: pa.Table | list[Mapping[str, Any]], names: list[str]) -> Records:
    if isinstance(held, pa.Table):
        return held.select(names)
    return [{name: value for name, value in record.items() if name in names} for record in held]


def columns_of_records(records: Iterable[Mapping[str, Any]], nullable: bool = True) -> pa.Schema:
    """The columns that dictionaries show; one that is NULL in all of them is none."""
    rows = list(records)
    names = dict.fromkeys(name for row in rows for name in row)
    if strange := [name for name in names if not isinstance(name, str)]:
        raise UsageError(f"{strange[0]!r} is no name of a column.", hint="Names are texts.")
    try:  # Arrow would look at the first record only
        seen = pa.schema([pa.field(name, pa.array([row.get(name) for row in rows]).type) for name in names])
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaMismatch(
            f"The records do not agree on a type: {str(error).splitlines()[0]}",
            expected="one type a field",
            actual="two",
        ) from None
    return schema_of(pa.schema([item.with_nullable(nullable) for item in _told(seen)]))


def _told(seen: pa.Schema) -> pa.Schema:
    return pa.schema([item for item in seen if not pa.types.is_null(item.type)])
