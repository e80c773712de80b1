"""Partition values: split rows by them, format them as Delta does, name folders as Spark and Hive do.

The row {day: 2024-05-01, city: "a/b"} of a table partitioned by day and city has

    partitionValues  {"day": "2024-05-01", "city": "a/b"}     values as text, in the log
    path             day=2024-05-01/city=a%2Fb/part-….parquet    escaped, on disk

and NULL is the folder city=__HIVE_DEFAULT_PARTITION__.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.sizes import CAPACITY
from headrace.delta.partition_keys import Partition, text_format
from headrace.delta.partition_values import parse_partition_value
from headrace.delta.staged_file import StagedFile
from headrace.errors import TooManyPartitions, UsageError
from headrace.storage.store import parse_uri

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
FOLDER_BYTES = 255  # maximum length of a name in a file system
KEY_BYTES = 1024  # maximum length of an object key in S3
PATH_BYTES = 4095  # maximum length of a path in a file system
_FILE_BYTES = 128  # reserved for the file name and the folder of the change data feed
_VALUE_BYTES = 64  # reserved for a value that is not a string, escaped

# The years 1 to 9999, which every reader can parse.
_RANGES = (
    (pa.types.is_date32, pa.int32(), -719_162, 2_932_896),
    (pa.types.is_timestamp, pa.int64(), -62_135_596_800_000_000, 253_402_300_799_999_999),
)
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")


def check_partitioning(schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """UsageError unless a table of this schema can be partitioned by these columns without changing values."""
    for name in partition_by:
        if name not in schema.names:
            columns = ", ".join(schema.names)
            raise UsageError(f"partition_by: unknown column '{name}'. Columns: {columns}.")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise UsageError(
                f"partition_by: column '{name}' is {kind}, which cannot be part of a path.",
                hint="Partition by strings, numbers, booleans, dates or timestamps.",
            )
        if len(f"{_escape(name)}=".encode()) > FOLDER_BYTES - _VALUE_BYTES:
            raise UsageError(
                f"partition_by: the column name '{name:.40}…' is too long for a directory.",
                hint=f"Partition by a column whose name has at most {FOLDER_BYTES - _VALUE_BYTES - 1} bytes.",
            )
    if len(set(partition_by)) != len(partition_by):
        raise UsageError("partition_by: duplicate column.")
    if len(partition_by) == len(schema.names):
        raise UsageError("partition_by has all columns; data files need at least one column.")


def unstorable(name: str, column: Any) -> Any:
    """A mask of the values that cannot be partition values, because readers would return another value or none."""
    if pa.types.is_string(column.type):
        return pc.fill_null(_unstorable_text(name, column), False)
    for is_kind, physical, first, last in _RANGES:
        if is_kind(column.type):
            raw = column.cast(physical)
            return pc.fill_null(pc.or_(pc.less(raw, first), pc.greater(raw, last)), False)
    return pa.repeat(False, len(column))


def beyond_store(columns: Mapping[str, Any], partition_by: Sequence[str], uri: str) -> Any | None:
    """A mask of the rows whose path would be too long for the table's storage; None if no path can be."""
    room = _room(uri) if uri else PATH_BYTES
    if (FOLDER_BYTES + 1) * len(partition_by) <= room:
        return None
    texts = [name for name in partition_by if pa.types.is_string(columns[name].type)]
    room -= sum(len(f"{_escape(name)}=/".encode()) for name in partition_by)
    room -= _VALUE_BYTES * (len(partition_by) - len(texts))
    sizes = [pc.fill_null(_escaped_size(columns[name]), len(NULL_FOLDER)) for name in texts]
    return pc.greater(reduce(pc.add, sizes), room) if sizes else None


def _room(uri: str) -> int:
    """Bytes that are left for the partition folders below a table."""
    bucket, root = parse_uri(uri)
    return (KEY_BYTES if bucket else PATH_BYTES) - _FILE_BYTES - len(f"{root}/".encode())


def _escaped_size(column: Any) -> Any:
    return pc.binary_length(pc.replace_substring_regex(column, _ESCAPED.pattern, "%00"))


def _unstorable_text(name: str, column: Any) -> Any:
    """Empty strings, on which readers disagree, and values too long for a folder, from which Polars reads them."""
    room = FOLDER_BYTES - len(f"{_escape(name)}=".encode())
    size = _escaped_size(column)
    return pc.or_(pc.or_(pc.equal(size, 0), pc.greater(size, room)), pc.equal(column, NULL_FOLDER))


def split_by_partition(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[Partition, pa.Table]]:
    """Split rows by partition, without the partition columns; the order of rows stays."""
    if not partition_by:
        yield (), rows
        return
    groups = _groups(rows, partition_by)
    rest = rows.drop_columns(list(partition_by))
    if groups.num_rows == 1:
        yield next(_partitions(groups, partition_by)), rest
        return
    if rest.nbytes <= CAPACITY:
        rest = rest.combine_chunks()  # else `take` would combine them for each partition
    for partition, indices in zip(_partitions(groups, partition_by), groups.column("rows_list"), strict=True):
        # Copied, not sliced: a slice of one sorted table would keep the memory of all of it.
        yield partition, rest.take(indices.values)


def _groups(rows: pa.Table, partition_by: tuple[str, ...]) -> pa.Table:
    """One row per partition: the values in columns "0", "1", …, and the indices of its rows in order."""
    keys = [str(index) for index in range(len(partition_by))]
    values = rows.select(partition_by).rename_columns(keys)
    numbered = values.append_column("rows", pa.arange(0, rows.num_rows))
    return numbered.group_by(keys, use_threads=False).aggregate([("rows", "list")])


def _partitions(groups: pa.Table, partition_by: tuple[str, ...]) -> Iterator[Partition]:
    columns = [_texts(name, groups.column(str(index))) for index, name in enumerate(partition_by)]
    for values in zip(*columns, strict=True):
        yield tuple(zip(partition_by, values, strict=True))


def _texts(name: str, column: pa.ChunkedArray) -> list[str | None]:
    """Values as text, as in `partitionValues`."""
    physical, to_text = text_format(column.type)
    if pc.any(unstorable(name, column)).as_py():
        raise ValueError(f"column {name} has a value that cannot be a partition value")
    return [None if value is None else to_text(value) for value in column.cast(physical).to_pylist()]


def partition_folder(partition: Partition) -> str:
    """The folders of a partition below the table's root, escaped as Spark and Hive do."""
    return "/".join(_folder(name, value) for name, value in partition)


def _folder(name: str, value: str | None) -> str:
    return f"{_escape(name)}={NULL_FOLDER if value is None else _escape(value)}"


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def partition_name(text: str) -> Iterator[tuple[str, str | None]]:
    """Parse the folders of a partition, `a=x/b=y`, escaped or not, into columns and values; ValueError if invalid."""
    for folder in text.strip("/").split("/"):
        name, sign, value = folder.partition("=")
        if not (name and sign):
            raise ValueError(f"'{folder}' is not of the form name=value")
        yield _unescape(name), None if value == NULL_FOLDER else _unescape(value)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def partition_text_of(name: str, value: str, kind: pa.DataType) -> str:
    """Normalize the text of a partition value; ValueError if it is invalid for the type or cannot be stored."""
    if not value:
        raise ValueError("the value is empty")
    scalar = parse_partition_value(value, kind)
    return str(_texts(name, pa.chunked_array([pa.array([scalar.as_py()], kind)]))[0])


def check_partition_count(files: Iterable[StagedFile], limit: int) -> None:
    """TooManyPartitions if the files of a batch are in more partitions of a table than the limit."""
    by_table: dict[str, set[Partition]] = {}
    for file in files:
        by_table.setdefault(file.table, set()).add(file.partition)
    for table, partitions in by_table.items():
        check_count(table, len(partitions), limit)


def check_count(table: str, count: int, limit: int) -> None:
    """TooManyPartitions if the count is above the limit."""
    if count > limit:
        raise TooManyPartitions(
            f"{table}: one batch has {count} partition values, the limit is {limit}. Nothing was committed.",
            hint="Partition by a column with fewer values, or increase limits.partition_values; then run again.",
            table=table,
            count=count,
            limit=limit,
        )
