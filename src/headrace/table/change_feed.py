"""Which rows came and went between two versions: from the change data feed, or from the files that appends added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from headrace.delta.actions import Commit, File
from headrace.delta.deletion_vectors import not_deleted
from headrace.delta.log import commits_between, read_commit
from headrace.delta.rows import held_in, read_rows
from headrace.delta.scan import Relation
from headrace.delta.schema import from_delta
from headrace.errors import ChangesUnknown, VersionNotFound
from headrace.spec.types import TIMESTAMP
from headrace.storage.store import Store
from headrace.table.query import RowQuery, RowStream
from headrace.table.versions import Moment, as_moment, open_version, resolve_version

CHANGE = pa.schema(
    [
        pa.field("_change_type", pa.string()),  # insert, delete, update_preimage, update_postimage
        pa.field("_commit_version", pa.int64()),
        pa.field("_commit_timestamp", TIMESTAMP),
    ]
)
_FEED = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(RowQuery):
    """The changes of some versions, the first and the last included."""

    start: int
    until: int | None = None

    def relation(self) -> Relation:
        """The rows of the table and three columns that say what became of them, and when."""
        last = resolve_version(self.store, self.until)
        first = resolve_version(self.store, self.start)
        if first > last:
            raise VersionNotFound(f"{self.store.uri}: there is nothing from version {first} to version {last}.")
        table = open_version(self.store, last)
        schema = from_delta(table.schema().to_json())
        whole = pa.schema([*schema, *CHANGE])
        feeds = table.metadata().configuration.get(_FEED, "").lower() == "true" and _fed(self.store, first)
        vectors = "deletionVectors" in (table.protocol().reader_features or ())
        if feeds and not vectors:
            return Relation(whole, _feed(self.store, table, first, last, whole))
        commits = commits_between(self.store, first - 1, last)
        if commits is None:
            raise ChangesUnknown(
                f"{self.store.uri}: the log no longer has every commit from version {first} to version {last}.",
                hint="Start at a later version; `headrace table history PATH` lists the commits that the log has.",
                version=first,
            )
        if not feeds:
            _only_appends(self.store, commits)
        told = CommitChanges(self.store, schema, tuple(table.metadata().partition_columns))
        batches = (batch for commit in commits for batch in _stamped(commit, told.of(commit), whole))
        return RowStream.of(whole, batches)


def changes(store: Store, start: int | Moment, until: int | Moment | None, **how: Any) -> Changes:
    """The changes from one version, or moment, to another; to the newest without one."""
    first = start if isinstance(start, int) else _after(store, start)
    last = until if isinstance(until, int | None) else resolve_version(store, timestamp=until)
    return Changes(store=store, start=first, until=last, **how)


def _after(store: Store, moment: Moment) -> int:
    """The first version committed at a moment or later."""
    try:
        at = resolve_version(store, timestamp=moment)
    except VersionNotFound as early:
        return int(str(early.facts["first"]))
    commit = read_commit(store, at)
    exact = commit is not None and commit.timestamp == int(as_moment(moment).timestamp() * 1000)
    return at if exact else at + 1


def _fed(store: Store, first: int) -> bool:
    """Whether the feed was on from this version on: else delta-rs has nothing to tell of it."""
    before = open_version(store, first).metadata().configuration
    return str(before.get(_FEED, "")).lower() == "true"


def _feed(store: Store, table: Any, first: int, last: int, schema: pa.Schema) -> pa.RecordBatchReader:
    try:
        reader = pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=first, ending_version=last))
    except DeltaError as error:
        raise ChangesUnknown(f"{store.uri}: its change data cannot be read: {str(error).splitlines()[0]}") from error
    rows = (pa.Table.from_batches([batch]).select(schema.names).cast(schema) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, (batch for each in rows for batch in each.to_batches()))


def _only_appends(store: Store, commits: Iterable[Commit]) -> None:
    for commit in commits:
        if any(file.changes_data for file in commit.removed):
            raise ChangesUnknown(
                f"{store.uri}: version {commit.version} ({commit.operation}) takes rows away, and the table keeps no "
                "change data.",
                hint=f"Set {_FEED}=true to keep it from now on; or ask for a range without that version.",
                version=commit.version,
            )


def _stamped(commit: Commit, changed: Iterable[pa.Table], whole: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows with what became of them, and when that was."""
    at = pa.scalar(datetime.fromtimestamp(commit.timestamp / 1000, UTC), TIMESTAMP)
    for rows in changed:
        when = (pa.repeat(value, len(rows)) for value in (pa.scalar(commit.version), at))
        yield from pa.table([*rows.columns, *when], schema=whole).to_batches()


class CommitChanges:
    """What commits tell of rows: by their change data where they have some, else by the files that come and go.

    A file that stays with another deletion vector tells of the rows in which the two differ.
    """

    def __init__(self, store: Store, schema: pa.Schema, by: tuple[str, ...]) -> None:
        self._store, self._schema, self._by = store, schema, by

    def of(self, commit: Commit) -> Iterator[pa.Table]:
        """The changed rows of one commit, with the kind of their change as last column."""
        if commit.change_data:
            whole = self._schema.append(CHANGE.field(0))
            yield from (read_rows(self._store, file, whole, self._by) for file in commit.change_data)
            return
        after = {file.path: file for file in commit.added if file.changes_data}
        before = {file.path: file for file in commit.removed if file.changes_data}
        for path, file in before.items():
            yield self._rows("delete", file, after.get(path))
        for path, file in after.items():
            yield self._rows("insert", file, before.get(path))

    def _rows(self, kind: str, file: File, other: File | None) -> pa.Table:
        """The rows that one file holds, and the same file with another vector does not."""
        held = held_in(self._store, file, self._schema, self._by)
        there = not_deleted(self._store, file.vector, len(held))
        if other is not None:
            there &= ~not_deleted(self._store, other.vector, len(held))
        rows = held.filter(pa.array(there))
        return rows.append_column(CHANGE.field(0), pa.repeat(pa.scalar(kind), len(rows)))
