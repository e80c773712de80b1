"""Partition values: split rows by them, spell them as Delta does, name their folders as Spark does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.partition_keys import Partition, _spelling
from headrace.delta.partition_values import parse_partition_value
from headrace.delta.staged_file import StagedFile
from headrace.errors import TooManyPartitions, UsageError
from headrace.storage.store import parse_uri

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
FOLDER_BYTES = 255  # what a file system takes as one name
KEY_BYTES = 1024  # what S3 takes as the key of an object
PATH_BYTES = 4095  # what a file system takes as a path
_FILE_BYTES = 128  # of the file's own name, and of the folder of change data
_VALUE_BYTES = 64  # of a value that is no text, escaped

# The years 1 to 9999, which is what every reader can spell.
_RANGES = (
    (pa.types.is_date32, pa.int32(), -719_162, 2_932_896),
    (pa.types.is_timestamp, pa.int64(), -62_135_596_800_000_000, 253_402_300_799_999_999),
)
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")


def check_partitioning(schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """UsageError unless rows of this schema can be stored by these columns and read back unchanged."""
    for name in partition_by:
        if name not in schema.names:
            columns = ", ".join(schema.names)
            raise UsageError(f"partition_by names '{name}', which is not a column: there are {columns}.")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise UsageError(
                f"partition_by names '{name}', whose type cannot be part of a path.",
                hint="Partition by text, numbers, booleans, dates or timestamps.",
            )
        if len(f"{_escape(name)}=".encode()) > FOLDER_BYTES - _VALUE_BYTES:
            raise UsageError(
                f"partition_by names '{name:.40}…', whose name is too long for a folder.",
                hint=f"Partition by a column whose name has at most {FOLDER_BYTES - _VALUE_BYTES - 1} bytes.",
            )
    if len(set(partition_by)) != len(partition_by):
        raise UsageError("partition_by names a column twice.")
    if len(partition_by) == len(schema.names):
        raise UsageError("partition_by names every column: nothing would be left for the files.")


def unstorable(name: str, column: Any) -> Any:
    """Which values cannot be partition values, as booleans: a reader would see another value, or none."""
    if pa.types.is_string(column.type):
        return pc.fill_null(_unstorable_text(name, column), False)
    for is_kind, physical, first, last in _RANGES:
        if is_kind(column.type):
            raw = column.cast(physical)
            return pc.fill_null(pc.or_(pc.less(raw, first), pc.greater(raw, last)), False)
    return pa.repeat(False, len(column))


def beyond_store(columns: Mapping[str, Any], partition_by: Sequence[str], uri: str) -> Any | None:
    """Which rows would have a path that the table's store cannot hold, as booleans; None where no row can."""
    room = _room(uri) if uri else PATH_BYTES
    if (FOLDER_BYTES + 1) * len(partition_by) <= room:
        return None
    texts = [name for name in partition_by if pa.types.is_string(columns[name].type)]
    room -= sum(len(f"{_escape(name)}=/".encode()) for name in partition_by)
    room -= _VALUE_BYTES * (len(partition_by) - len(texts))
    sizes = [pc.fill_null(_escaped_size(columns[name]), len(NULL_FOLDER)) for name in texts]
    return pc.greater(reduce(pc.add, sizes), room) if sizes else None


def _room(uri: str) -> int:
    """Bytes for the folders of a partition below a table."""
    bucket, root = parse_uri(uri)
    return (KEY_BYTES if bucket else PATH_BYTES) - _FILE_BYTES - len(f"{root}/".encode())


def _escaped_size(column: Any) -> Any:
    return pc.binary_length(pc.replace_substring_regex(column, _ESCAPED.pattern, "%00"))


def _unstorable_text(name: str, column: Any) -> Any:
    """The empty text, on which readers differ; what folders cannot hold, as Polars takes values from folders."""
    room = FOLDER_BYTES - len(f"{_escape(name)}=".encode())
    size = _escaped_size(column)
    return pc.or_(pc.or_(pc.equal(size, 0), pc.greater(size, room)), pc.equal(column, NULL_FOLDER))


def split_by_partition(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[Partition, pa.Table]]:
    """Rows by partition value, without the partition columns, each piece in the order its rows came."""
    if not partition_by:
        yield (), rows
        return
    groups = _groups(rows, partition_by)
    rest = rows.drop_columns(list(partition_by))
    if groups.num_rows == 1:
        yield next(_partitions(groups, partition_by)), rest
        return
    for partition, places in zip(_partitions(groups, partition_by), groups.column("places_list"), strict=True):
        # ReplayInput, not sliced: a slice of one sorted table would pin the memory of all of it.
        yield partition, rest.take(places.values)


def _groups(rows: pa.Table, partition_by: tuple[str, ...]) -> pa.Table:
    """One row per partition value: the values, named by their place, and the places of its rows in order."""
    keys = [str(place) for place in range(len(partition_by))]
    values = rows.select(partition_by).rename_columns(keys)
    numbered = values.append_column("places", pa.arange(0, rows.num_rows))
    return numbered.group_by(keys, use_threads=False).aggregate([("places", "list")])


def _partitions(groups: pa.Table, partition_by: tuple[str, ...]) -> Iterator[Partition]:
    spelled = [_spelled(name, groups.column(str(place))) for place, name in enumerate(partition_by)]
    for values in zip(*spelled, strict=True):
        yield tuple(zip(partition_by, values, strict=True))


def _spelled(name: str, column: pa.ChunkedArray) -> list[str | None]:
    """Values as Delta writes them beside a file."""
    physical, spell = _spelling(column.type)
    if pc.any(unstorable(name, column)).as_py():
        raise ValueError(f"column {name} holds a value that cannot be a partition value")
    return [None if value is None else spell(value) for value in column.cast(physical).to_pylist()]


def partition_folder(partition: Partition) -> str:
    """The folders of a partition value below the table's root, escaped as Spark and Hive do."""
    return "/".join(_folder(name, value) for name, value in partition)


def _folder(name: str, value: str | None) -> str:
    return f"{_escape(name)}={NULL_FOLDER if value is None else _escape(value)}"


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def partition_name(text: str) -> Iterator[tuple[str, str | None]]:
    """The columns and values that a partition's folders name, escaped or not: `folder` the other way round."""
    for each in text.strip("/").split("/"):
        name, sign, value = each.partition("=")
        if not (name and sign):
            raise ValueError(f"'{each}' is not written as name=value")
        yield _unescape(name), None if value == NULL_FOLDER else _unescape(value)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def partition_text_of(name: str, value: str, kind: pa.DataType) -> str:
    """A value as Delta writes it, out of any text of it; ValueError where it is none, or cannot be stored."""
    if not value:
        raise ValueError("an empty value")
    scalar = parse_partition_value(value, kind)
    return str(_spelled(name, pa.chunked_array([pa.array([scalar.as_py()], kind)]))[0])


def check_partition_count(files: Iterable[StagedFile], limit: int) -> None:
    """TooManyPartitions when a batch's files hold more partition values in one table than the limit."""
    seen: dict[str, set[Partition]] = {}
    for file in files:
        seen.setdefault(file.table, set()).add(file.partition)
    for table, partitions in seen.items():
        check_count(table, len(partitions), limit)


def check_count(table: str, count: int, limit: int) -> None:
    """TooManyPartitions, naming table, count and limit, when there are more than the limit."""
    if count > limit:
        raise TooManyPartitions(
            f"{table}: one batch holds {count} partition values, the limit is {limit}. Nothing was committed.",
            hint="Partition by a coarser column, or raise limits.partition_values; then run again.",
            table=table,
            count=count,
            limit=limit,
        )
