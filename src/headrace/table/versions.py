"""Resolve versions of a table, and read their rows."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from headrace.delta.deletion_vectors import check_vectors
from headrace.delta.log import newest_version, read_commit, readable_versions
from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.scan import Relation, scan_files, stream_files
from headrace.delta.schema import from_delta
from headrace.delta.snapshot import active_files, open_at
from headrace.errors import PartitionNotFound, TableFeature, UsageError, VersionNotFound
from headrace.spec.units import moment
from headrace.storage.store import Store
from headrace.table.ownership import no_table
from headrace.table.records import partition_of

Moment = datetime | str
_SCANNED = frozenset({"columnMapping", "deletionVectors"})  # features that delta-rs reads with `scan()` only
_READABLE = _SCANNED | {"timestampNtz", "typeWidening"}  # of these, delta-rs scans no table with widened types


def resolve_version(store: Store, version: int | None = None, timestamp: Moment | None = None) -> int:
    """Resolve a version number, a timestamp, or the newest version; VersionNotFound if the log does not have it."""
    if version is not None and timestamp is not None:
        raise UsageError("A version and a timestamp are mutually exclusive.", hint="Specify one of them.")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
        raise UsageError(f"Invalid version: {version!r}.", hint="Specify a number, or a `timestamp`.")
    last = newest_version(store)
    if last is None:
        raise no_table(store)
    if version is None and timestamp is None:
        return last
    first, last = readable_versions(store) or (last, last)
    target = _version_at(store, as_moment(timestamp), first, last) if timestamp is not None else version
    if target is None or not first <= target <= last:
        name = f"version {version}" if timestamp is None else f"a version at {as_moment(timestamp).isoformat()}"
        raise VersionNotFound(
            f"{store.uri} does not have {name}: its log has the versions {first} to {last}.",
            hint="Run `headrace table history PATH` to list them.",
            first=first,
            last=last,
        )
    return target


def as_moment(timestamp: Moment | None) -> datetime:
    """Parse a timestamp; UsageError if it is invalid or has no time zone."""
    try:
        if isinstance(timestamp, datetime) and timestamp.tzinfo is None:
            raise ValueError("a datetime with a time zone")
        return moment(timestamp).astimezone(UTC)
    except ValueError as expected:
        raise UsageError(f"Invalid timestamp: '{timestamp}'.", hint=f"Specify {expected}.") from None


def _version_at(store: Store, timestamp: datetime, first: int, last: int) -> int | None:
    """The newest version committed at or before a timestamp, by binary search; None if all are newer.

    Commit times of different writers may be out of order by clock skew, which the search ignores.
    """
    millis = int(timestamp.timestamp() * 1000)
    if _commit_time(store, last) <= millis:
        return last
    low, high = first - 1, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _commit_time(store, middle) <= millis else (low, middle)
    return low if low >= first else None


def _commit_time(store: Store, version: int) -> int:
    commit = read_commit(store, version)
    return commit.timestamp if commit else 0


def open_version(store: Store, version: int) -> Any:
    """Open a version with delta-rs; VersionNotFound if the log no longer has it."""
    try:
        return open_at(store, version)
    except TableFeature as error:
        versions = readable_versions(store)
        if versions and not versions[0] <= version <= versions[1]:
            raise VersionNotFound(f"{store.uri}: the log no longer has version {version}.") from error
        raise


def scan_version(store: Store, version: int, filtered: Collection[str] = ()) -> Relation:
    """Open the rows of a version. Conditions on the `filtered` columns skip files, except in a scan by delta-rs."""
    table = open_version(store, version)
    schema, protocol = from_delta(table.schema().to_json()), table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version == 2 or _SCANNED & features:
        if "deletionVectors" in features:
            check_vectors(store, active_files(store, version).values())
        if "typeWidening" in features and features <= _READABLE:
            by = table.metadata().partition_columns
            return stream_files(store, active_files(store, version).values(), schema, by)
        return Relation(schema, pa.RecordBatchReader.from_stream(_scan(store, table)))
    by = tuple(table.metadata().partition_columns)
    return scan_files(store, active_files(store, version).values(), schema, by, filtered)


def _scan(store: Store, table: Any) -> Any:
    try:
        return table.scan()
    except DeltaError as error:
        reason = str(error).splitlines()[0].rpartition("failed: ")[2]
        raise TableFeature(f"{store.uri} can only be read with Spark: {reason}.", hint="Read it with Spark.") from error


def existing_partition(
    store: Store, version: int, schema: pa.Schema, partition_by: tuple[str, ...], path: str | None
) -> Partition:
    """Parse a partition path (`a=x/b=y`); PartitionNotFound if the version has no rows in it."""
    partition = partition_of(path, schema, partition_by)
    if path is None:
        return partition
    key = PartitionKeys.of(schema, [name for name, _ in partition])
    if any(key(file.partition) == partition for file in active_files(store, version).values()):
        return partition
    raise PartitionNotFound(
        f"{store.uri} has no rows in the partition '{path}'.",
        partition=path,
        hint="Query the partition columns to list the partitions.",
    )
