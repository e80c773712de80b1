"""Files to be scanned, with what each of them cannot hold said beforehand.

delta-rs has a dataset of its own. Of a column for which a file has no bounds (a NaN is in it, say) that one tells Arrow
`x >= NULL`, which is never true, and such files are left out for good. So files are described here, and only by bounds
that hold whoever wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from headrace.delta.actions import File
from headrace.delta.partition_keys import PartitionKeys, partitions_in
from headrace.delta.partition_values import value_in
from headrace.delta.rows import INT96, filesystem
from headrace.storage.store import Store

_SLACK = timedelta(milliseconds=1)  # Spark cuts the bounds of timestamps to milliseconds
_FORMAT = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit=INT96))


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows that DuckDB can scan, and the schema they have."""

    schema: pa.Schema
    rows: Any


def scan_files(
    store: Store, stands: Iterable[File], schema: pa.Schema, by: tuple[str, ...], asked: Collection[str] = ()
) -> Relation:
    """The rows of some files, each described by its partition and its bounds in the columns `asked` about."""
    system = filesystem(store)
    wanted = [schema.field(name) for name in schema.names if name.lower() in {each.lower() for each in asked}]
    fragments = [
        _FORMAT.make_fragment(file.path, system, partition_expression=_told(file, schema, by, wanted))
        for file in stands
    ]
    return Relation(schema, ds.FileSystemDataset(fragments, schema, _FORMAT, system))


def among(stands: Iterable[File], keys: pa.Table, schema: pa.Schema, by: tuple[str, ...]) -> list[File]:
    """Those of the files that may hold one of these keys: their bounds and partition values do not exclude it."""
    there = {file.path: file for file in _sharing_partition(stands, keys, schema, by)}
    if not there or not len(keys):
        return []
    hulls = {item.name: pc.min_max(keys[item.name]) for item in keys.schema}
    met = reduce(and_, [(pc.field(n) >= hull["min"]) & (pc.field(n) <= hull["max"]) for n, hull in hulls.items()])
    wanted = [schema.field(name) for name in hulls]
    system = LocalFileSystem()  # nothing is opened
    told = [
        _FORMAT.make_fragment(path, system, partition_expression=_told(file, schema, by, wanted))
        for path, file in there.items()
    ]
    found = ds.FileSystemDataset(told, schema, _FORMAT, system).get_fragments(filter=met)
    return [there[fragment.path] for fragment in found]


def _sharing_partition(
    stands: Iterable[File], keys: pa.Table, schema: pa.Schema, by: tuple[str, ...]
) -> Iterable[File]:
    """The files of the very partitions that the keys name; their lowest and highest would let in all between.

    Floats are left to the bounds: SQL takes -0.0 for 0.0, which are two partitions.
    """
    placed = [name for name in by if name in keys.column_names and not pa.types.is_floating(schema.field(name).type)]
    if not placed:
        return stands
    key = PartitionKeys.of(schema, placed)
    typed = keys.select(placed).cast(pa.schema([schema.field(name) for name in placed]))
    wanted = partitions_in(typed, placed)
    return [file for file in stands if key(file.partition) in wanted]


def _told(file: File, schema: pa.Schema, by: tuple[str, ...], wanted: list[pa.Field]) -> pc.Expression:
    """What is true of every row of a file: its partition values, and its bounds in the columns that matter."""
    said = [_is(schema.field(name), file) for name in by]
    stats: Mapping[str, Any] = json.loads(file.stats) if file.stats and wanted else {}
    said += [each for item in wanted if item.name not in by for each in _bounds(item, stats)]
    return reduce(and_, said) if said else pc.scalar(True)


def _is(item: pa.Field, file: File) -> pc.Expression:
    field, value = pc.field(item.name), value_in(file.partition, item)
    return field == value if value.is_valid else field.is_null()


def _bounds(item: pa.Field, stats: Mapping[str, Any]) -> Iterator[pc.Expression]:
    read = next((read for is_kind, read in _READERS if is_kind(item.type)), None)
    low, high = (stats.get(side, {}).get(item.name) for side in ("minValues", "maxValues"))
    if read is None or low is None or high is None:
        return
    if pa.types.is_boolean(item.type) and not (isinstance(low, bool) and isinstance(high, bool)):
        return
    nulls, field = stats.get("nullCount", {}).get(item.name), pc.field(item.name)
    try:
        least, most = pa.scalar(read(low)[0], item.type), pa.scalar(read(high)[1], item.type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):  # of another writer: they bound nothing for us
        return
    for bound in (field >= least, field <= most):
        yield bound if nulls == 0 else bound | field.is_null()


def _plain(raw: Any) -> tuple[Any, Any]:
    return raw, raw


def _day(raw: str) -> tuple[date, date]:
    return date.fromisoformat(raw), date.fromisoformat(raw)


def _instant(raw: str) -> tuple[datetime, datetime]:
    at = datetime.fromisoformat(raw)
    last = datetime.max.replace(tzinfo=at.tzinfo)
    return at, last if last - at < _SLACK else at + _SLACK


# Floats are not among them: writers differ on NaN; nor are decimals, which some write by way of a float.
_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], tuple[Any, Any]]], ...] = (
    (pa.types.is_boolean, _plain),
    (pa.types.is_integer, _plain),
    (pa.types.is_string, _plain),
    (pa.types.is_date, _day),
    (pa.types.is_timestamp, _instant),
)
