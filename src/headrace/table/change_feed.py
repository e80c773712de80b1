"""Query the rows that changed between two versions: from the change data feed, or from the files of appends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from headrace.delta.actions import Commit, File
from headrace.delta.column_mapping import file_schema, in_table_columns
from headrace.delta.deletion_vectors import kept_mask
from headrace.delta.log import commits_between, read_commit
from headrace.delta.partition_values import log_name
from headrace.delta.rows import all_rows, read_rows
from headrace.delta.scan import Relation, RowStream
from headrace.delta.schema import from_delta
from headrace.errors import ChangeDataUnavailable, VersionNotFound
from headrace.spec.types import TIMESTAMP
from headrace.storage.store import Store
from headrace.table.query import RowQuery
from headrace.table.versions import Moment, as_moment, open_version, resolve_version

CHANGE = pa.schema(
    [
        pa.field("_change_type", pa.string()),  # insert, delete, update_preimage, update_postimage
        pa.field("_commit_version", pa.int64()),
        pa.field("_commit_timestamp", TIMESTAMP),
    ]
)
_FEED = "delta.enableChangeDataFeed"
_NOT_BY_DELTA_RS = {"columnMapping", "deletionVectors", "typeWidening", "typeWidening-preview"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(RowQuery):
    """A query on the changes of a range of versions, both ends included."""

    start: int
    until: int | None = None

    def relation(self) -> Relation:
        """The changed rows, with the kind of change, the version and the commit time in three more columns."""
        last = resolve_version(self.store, self.until)
        first = resolve_version(self.store, self.start)
        if first > last:
            raise VersionNotFound(
                f"{self.store.uri}: there are no changes from version {first} to version {last}.",
                hint="Specify a start that is not after the end.",
            )
        table = open_version(self.store, last)
        schema = from_delta(table.schema().to_json())
        with_change = pa.schema([*schema, *CHANGE])
        # delta-rs reads the feed only if it was enabled in the first version, too, and of no table with vectors, or
        # renamed or widened columns.
        has_feed = _has_feed(table) and _has_feed(open_version(self.store, first))
        protocol = table.protocol()
        if has_feed and protocol.min_reader_version != 2 and not _NOT_BY_DELTA_RS & set(protocol.reader_features or ()):
            return Relation(with_change, _read_feed(self.store, table, first, last, with_change))
        commits = commits_between(self.store, first - 1, last)
        if commits is None:
            raise ChangeDataUnavailable(
                f"{self.store.uri}: the log no longer has every commit from version {first} to version {last}.",
                hint="Start at a later version; `headrace table history PATH` lists the commits that the log has.",
                version=first,
            )
        if not has_feed:
            _only_appends(self.store, commits)
        changes = CommitChanges(self.store, schema, tuple(table.metadata().partition_columns))
        batches = (batch for commit in commits for batch in _with_commit(commit, changes.of(commit), with_change))
        return RowStream.of(with_change, batches)


def changes(store: Store, start: int | Moment, until: int | Moment | None, **settings: Any) -> Changes:
    """Query the changes from one version or timestamp to another; default end: the newest version."""
    first = start if isinstance(start, int) else _version_from(store, start)
    last = until if isinstance(until, int | None) else resolve_version(store, timestamp=until)
    return Changes(store=store, start=first, until=last, **settings)


def _version_from(store: Store, timestamp: Moment) -> int:
    """The first version committed at or after a timestamp."""
    try:
        version = resolve_version(store, timestamp=timestamp)
    except VersionNotFound as before_first:
        return int(str(before_first.facts["first"]))
    commit = read_commit(store, version)
    exact = commit is not None and commit.timestamp == int(as_moment(timestamp).timestamp() * 1000)
    return version if exact else version + 1


def _has_feed(table: Any) -> bool:
    return str(table.metadata().configuration.get(_FEED, "")).lower() == "true"


def _read_feed(store: Store, table: Any, first: int, last: int, schema: pa.Schema) -> pa.RecordBatchReader:
    try:
        reader = pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=first, ending_version=last))
    except DeltaError as error:
        raise ChangeDataUnavailable(
            f"{store.uri}: cannot read the change data feed: {str(error).splitlines()[0]}"
        ) from error
    tables = (pa.Table.from_batches([batch]).select(schema.names).cast(schema) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, (batch for rows in tables for batch in rows.to_batches()))


def _only_appends(store: Store, commits: Iterable[Commit]) -> None:
    for commit in commits:
        if any(file.changes_data for file in commit.removed):
            raise ChangeDataUnavailable(
                f"{store.uri}: version {commit.version} ({commit.operation}) removes rows, and the table has no change "
                "data feed.",
                hint=f"Set {_FEED}=true to record changes from now on; or query a range without that version.",
                version=commit.version,
            )


def _with_commit(commit: Commit, tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Changed rows with the version and the time of their commit."""
    timestamp = pa.scalar(datetime.fromtimestamp(commit.timestamp / 1000, UTC), TIMESTAMP)
    for rows in tables:
        columns = (pa.repeat(value, len(rows)) for value in (pa.scalar(commit.version), timestamp))
        yield from pa.table([*rows.columns, *columns], schema=schema).to_batches()


class CommitChanges:
    """Changed rows of commits: from their change data if they have any, else from the files they add and remove.

    For a file that gets another deletion vector, the changes are the rows in which the two vectors differ.
    """

    def __init__(self, store: Store, schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
        self._store, self._schema, self._stored = store, schema, file_schema(schema)
        self._by = tuple(map(log_name, (schema.field(name) for name in partition_by)))  # as in files, like `_stored`

    def of(self, commit: Commit) -> Iterator[pa.Table]:
        """The changed rows of one commit, with the kind of change as the last column."""
        if commit.change_data:
            schema, stored = (columns.append(CHANGE.field(0)) for columns in (self._schema, self._stored))
            for file in commit.change_data:
                yield in_table_columns(read_rows(self._store, file, stored, self._by), schema)
            return
        after = {file.path: file for file in commit.added if file.changes_data}
        before = {file.path: file for file in commit.removed if file.changes_data}
        for path, file in before.items():
            yield self._rows("delete", file, after.get(path))
        for path, file in after.items():
            yield self._rows("insert", file, before.get(path))

    def _rows(self, kind: str, file: File, other: File | None) -> pa.Table:
        """The rows of a file that are not in `other`, the same file with another deletion vector."""
        rows = in_table_columns(all_rows(self._store, file, self._stored, self._by), self._schema)
        mask = kept_mask(self._store, file.vector, len(rows))
        if other is not None:
            mask &= ~kept_mask(self._store, other.vector, len(rows))
        rows = rows.filter(pa.array(mask))
        return rows.append_column(CHANGE.field(0), pa.repeat(pa.scalar(kind), len(rows)))
