"""Scans of files with data skipping: each file has an expression that is true for all of its rows.

The dataset of delta-rs cannot be used: for a column without bounds (because of a NaN, for example) it has the
expression `x >= NULL`, which is never true, so the file is always skipped. The expressions here use only bounds that
are valid for every writer. A file of the partition day = '2024-05-01' with ids from 7 to 42:

    day = '2024-05-01' AND (id >= 7 OR id IS NULL) AND (id <= 42 OR id IS NULL)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from headrace.delta.actions import File
from headrace.delta.column_mapping import file_schema, in_table_columns
from headrace.delta.partition_keys import PartitionKeys, partitions_in
from headrace.delta.partition_values import log_name, value_in
from headrace.delta.rows import INT96, filesystem, row_chunks
from headrace.errors import HeadraceError
from headrace.storage.store import Store

_SLACK = timedelta(milliseconds=1)  # Spark truncates the bounds of timestamps to milliseconds
_FORMAT = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit=INT96))


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows that DuckDB can scan, and their schema."""

    schema: pa.Schema
    rows: Any


@dataclass(frozen=True, slots=True)
class RowStream(Relation):
    """Rows that Python produces while DuckDB reads them.

    DuckDB reports an exception of the producer as the text of an error of its own, so the exception is stored here.
    """

    errors: list[HeadraceError] = field(default_factory=list)

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> RowStream:
        """A stream of these batches, which are produced on demand."""
        errors: list[HeadraceError] = []

        def produce() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except HeadraceError as error:
                errors.append(error)
                raise

        return cls(schema, pa.RecordBatchReader.from_batches(schema, produce()), errors)


def scan_files(
    store: Store, files: Iterable[File], schema: pa.Schema, by: tuple[str, ...], bounded: Collection[str] = ()
) -> Relation:
    """A relation of files, each with its partition values and its bounds of the `bounded` columns."""
    system = filesystem(store)
    names = {name.lower() for name in bounded}
    columns = [item for item in schema if item.name.lower() in names]
    fragments = [
        _FORMAT.make_fragment(file.path, system, partition_expression=_expression(file, schema, by, columns))
        for file in files
    ]
    return Relation(schema, ds.FileSystemDataset(fragments, schema, _FORMAT, system))


def stream_files(store: Store, files: Iterable[File], schema: pa.Schema, by: Iterable[str]) -> RowStream:
    """The rows of files whose columns have other names than the table's, and types that it has widened since."""
    stored, stored_by = file_schema(schema), [log_name(schema.field(name)) for name in by]
    chunks = (chunk for file in files for chunk in row_chunks(store, file, stored, stored_by))
    return RowStream.of(schema, (batch for rows in chunks for batch in in_table_columns(rows, schema).to_batches()))


def files_with_keys(files: Iterable[File], keys: pa.Table, schema: pa.Schema, by: tuple[str, ...]) -> list[File]:
    """The files that may contain one of these keys, by their bounds and partition values."""
    candidates = {file.path: file for file in _in_partitions_of(files, keys, schema, by)}
    if not candidates or not len(keys):
        return []
    ranges = {item.name: pc.min_max(keys[item.name]) for item in keys.schema}
    conditions = [
        (pc.field(name) >= bounds["min"]) & (pc.field(name) <= bounds["max"]) for name, bounds in ranges.items()
    ]
    columns = [schema.field(name) for name in ranges]
    system = LocalFileSystem()  # no file is opened
    fragments = [
        _FORMAT.make_fragment(path, system, partition_expression=_expression(file, schema, by, columns))
        for path, file in candidates.items()
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _FORMAT, system)
    return [candidates[fragment.path] for fragment in dataset.get_fragments(filter=reduce(and_, conditions))]


def _in_partitions_of(files: Iterable[File], keys: pa.Table, schema: pa.Schema, by: tuple[str, ...]) -> Iterable[File]:
    """The files in the partitions of the keys; a range of keys would include all partitions in between.

    Floats are excluded: SQL takes -0.0 for 0.0, which are two partitions.
    """
    names = [name for name in by if name in keys.column_names and not pa.types.is_floating(schema.field(name).type)]
    if not names:
        return files
    key = PartitionKeys.of(schema, names)
    partitions = partitions_in(keys.select(names).cast(pa.schema([schema.field(name) for name in names])), names)
    return [file for file in files if key(file.partition) in partitions]


def _expression(file: File, schema: pa.Schema, by: tuple[str, ...], columns: list[pa.Field]) -> pc.Expression:
    """An expression that is true for every row of a file: its partition values and its bounds of these columns."""
    conditions = [_is(schema.field(name), file) for name in by]
    stats: Mapping[str, Any] = json.loads(file.stats) if file.stats and columns else {}
    conditions += [bound for item in columns if item.name not in by for bound in _bounds(item, stats)]
    return reduce(and_, conditions) if conditions else pc.scalar(True)


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
    except (ValueError, TypeError, OverflowError, pa.ArrowException):  # bounds in an unknown format are not used
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


# No floats: writers differ on NaN. No decimals: some writers convert them through a float.
_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], tuple[Any, Any]]], ...] = (
    (pa.types.is_boolean, _plain),
    (pa.types.is_integer, _plain),
    (pa.types.is_string, _plain),
    (pa.types.is_date, _day),
    (pa.types.is_timestamp, _instant),
)
