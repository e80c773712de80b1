"""Deduplication: drop rows whose keys the table already has within a time window, before the intent is written.

The table itself is the memory: the keys of its recent rows, by the timestamps of their records, are read once and then
cached. So no second state can be lost, and a table that was restored or repaired is compared as it is.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File, as_file
from headrace.delta.column_mapping import file_schema
from headrace.delta.partition_values import parse_partition_value, value_in
from headrace.delta.rows import ColumnReader, read_rows
from headrace.delta.schema import RESCUED, SOURCE
from headrace.delta.snapshot import active_files
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_txn
from headrace.errors import TableFeature
from headrace.pipeline.table_entry import OpenTable
from headrace.pipeline.tables import PipelineTables
from headrace.plan.accounting import Counts
from headrace.spec.merge import Deduplicate
from headrace.spec.types import TIMESTAMP
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store

TIME = "_headrace_time"  # of the record, in microseconds
_MICRO = timedelta(microseconds=1)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_ROUNDS = 8
PLACE = ("topic", "partition", "offset")


@dataclass
class _RecentKeys:
    """Keys of a table's rows since a time, as of a version."""

    version: int
    since: int
    parts: list[pa.Table] = field(default_factory=list)


class Deduplication:
    """Recent keys of the tables that deduplicate."""

    def __init__(self, tables: PipelineTables) -> None:
        self._tables = tables
        self._recent_keys: dict[str, _RecentKeys] = {}
        self.places: dict[str, pa.Table] = {}  # by table: records of the rows that the last batch dropped

    def drop_duplicates(
        self, staged: Sequence[StagedFile], counts: Counts, batch: int, started: datetime
    ) -> tuple[tuple[StagedFile, ...], Counts, list[StagedFile]]:
        """Files without duplicates, the updated counts, and the files that they replace."""
        files, old = list(staged), list[StagedFile]()
        self.places = {}
        for entry, layout in self._tables.deduplicated(batch):
            mine = [each for each in files if each.table == layout.path]
            if not mine or _has(entry, self._tables.writer, batch):
                continue
            replaced, new, counts = self._of_table(entry, layout, mine, counts, batch, started)
            files = [each for each in files if each not in replaced] + new
            old += replaced
        return tuple(files), counts, old

    def _of_table(
        self,
        entry: OpenTable,
        layout: FileLayout,
        mine: list[StagedFile],
        counts: Counts,
        batch: int,
        started: datetime,
    ) -> tuple[list[StagedFile], list[StagedFile], Counts]:
        rules = entry.rules.deduplicate
        assert rules is not None  # noqa: S101
        staged = ColumnReader(Store(layout.path, entry.store.profile), [*rules.keys, SOURCE.name])
        fields = {key: layout.schema.field(key).remove_metadata() for key in rules.keys}
        parts = [_keys(staged, as_file(each), fields) for each in mine]
        rows, within = pa.concat_tables(parts), rules.within // _MICRO
        newest = min(_newest(rows), (started - _EPOCH) // _MICRO)
        recent_keys = self._known(entry, rules, layout.schema, newest - 2 * within)
        is_duplicate = duplicate_mask(rows, recent_keys.parts, rules.keys, within)
        self._keep_along(
            recent_keys, rows.filter(pa.array(~is_duplicate)).select([*rules.keys, TIME]), newest - 2 * within
        )
        self.places[entry.store.uri] = rows.filter(pa.array(is_duplicate)).select(PLACE)
        ends = np.cumsum([0, *(len(part) for part in parts)])
        masks = [is_duplicate[low:high] for low, high in pairwise(ends)]
        touched = [(each, mask) for each, mask in zip(mine, masks, strict=True) if mask.any()]
        new, rescued = without_duplicates(entry.store, layout, touched, f"{batch:08d}-once")
        count = int(is_duplicate.sum())
        duplicates = {**counts.duplicates, entry.store.uri: count} if count else counts.duplicates
        counts = replace(
            counts,
            routed=counts.routed - count,
            filtered=counts.filtered + count,
            rescued=counts.rescued - rescued,
            duplicates=duplicates,
        )
        return [each for each, _ in touched], new, counts

    def _known(self, entry: OpenTable, rules: Deduplicate, schema: pa.Schema, since: int) -> _RecentKeys:
        """The cached keys of a table; read again if another writer has changed it."""
        state, recent_keys = entry.writer.state, self._recent_keys.get(entry.store.uri)
        version = -1 if state is None else state.version
        if recent_keys is None or recent_keys.version != version or recent_keys.since > since:
            parts = [] if state is None else list(_stored_keys(entry.store, version, rules.keys, schema, since))
            recent_keys = self._recent_keys[entry.store.uri] = _RecentKeys(version, since, parts)
        return recent_keys

    def _keep_along(self, recent_keys: _RecentKeys, kept: pa.Table, since: int) -> None:
        """Add the rows of the batch to the cache, and drop those before the window."""
        if len(kept):
            recent_keys.parts.append(kept)
            recent_keys.version += 1
        recent_keys.since = max(recent_keys.since, since)
        recent_keys.parts = [part for part in recent_keys.parts if _newest(part) >= recent_keys.since]


def duplicate_mask(rows: pa.Table, recent_keys: Iterable[pa.Table], keys: Sequence[str], within: int) -> np.ndarray:
    """Mask of the rows whose keys an earlier row has within the window; NULL never matches."""
    is_duplicate = np.zeros(len(rows), bool)
    whole = np.flatnonzero(np.logical_and.reduce([pc.is_valid(rows[key]).to_numpy() for key in keys]))
    mine = rows.take(pa.array(whole))
    before = [_among(part, mine, keys) for part in recent_keys]
    together = pa.concat_tables([*(part.select([*keys, TIME]) for part in before), mine.select([*keys, TIME])])
    numbers = _numbers(together, keys)
    many = np.flatnonzero((np.bincount(numbers, minlength=1) > 1)[numbers])
    known = len(together) - len(mine)
    by_place = [(name, "ascending") for name in PLACE]
    place = np.empty(len(together), np.int64)
    place[:known] = -1
    place[known + pc.sort_indices(mine, sort_keys=by_place).to_numpy()] = np.arange(len(mine))
    later_rows = many[_later_ones(numbers[many], together[TIME].to_numpy()[many], place[many], within)]
    is_duplicate[whole[later_rows - known]] = True
    return is_duplicate


def _later_ones(numbers: np.ndarray, times: np.ndarray, place: np.ndarray, within: int) -> np.ndarray:
    """Where rows are of which one with their number is kept already; those without a place are kept from the start.

    Round by round, the first row of each number that is not settled is kept, and settles those near it. Producers that
    try again need one or two rounds; what needs more goes one by one.
    """
    order = np.lexsort((times, numbers))
    kept, is_duplicate = place < 0, np.zeros(len(numbers), bool)
    for _ in range(_ROUNDS):
        is_duplicate |= ~kept & _near(numbers, times, order, kept, within)
        left = np.flatnonzero(~kept & ~is_duplicate)
        if not len(left):
            return np.flatnonzero(is_duplicate)
        left = left[np.argsort(place[left])]
        kept[left[np.unique(numbers[left], return_index=True)[1]]] = True
    return _one_by_one(numbers, times, place, within)


def _near(numbers: np.ndarray, times: np.ndarray, order: np.ndarray, kept: np.ndarray, within: int) -> np.ndarray:
    """Mask of the rows with a kept row of the same number within the window."""
    at = np.arange(len(order))
    before = np.maximum.accumulate(np.where(kept[order], at, -1))
    after = np.minimum.accumulate(np.where(kept[order], at, len(order))[::-1])[::-1]
    near = np.zeros(len(order), bool)
    for nearest in (before, after):
        there = (nearest >= 0) & (nearest < len(order))
        other = order[np.where(there, nearest, 0)]
        near[order] |= there & (numbers[other] == numbers[order]) & (np.abs(times[other] - times[order]) <= within)
    return near


def _one_by_one(numbers: np.ndarray, times: np.ndarray, place: np.ndarray, within: int) -> np.ndarray:
    stand: dict[int, list[int]] = {}
    duplicates: list[int] = []
    for at in np.argsort(place, kind="stable").tolist():
        kept, time = stand.setdefault(int(numbers[at]), []), int(times[at])
        near = bisect_left(kept, time - within)
        if place[at] >= 0 and near < len(kept) and kept[near] <= time + within:
            duplicates.append(at)
        else:
            insort(kept, time)
    return np.array(sorted(duplicates), np.int64)


def _among(part: pa.Table, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows of a part that may have the keys of these rows."""
    for key in keys:
        part = part.filter(pc.is_in(part[key], value_set=rows[key].combine_chunks()))
    return part


def _numbers(rows: pa.Table, keys: Sequence[str]) -> np.ndarray:
    """A number per distinct key."""
    numbers = np.zeros(len(rows), np.int64)
    for key in keys:
        codes = rows[key].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
        _, numbers = np.unique(numbers * (len(rows) + 1) + codes, return_inverse=True)
    return numbers.astype(np.int64)


def _newest(rows: pa.Table) -> int:
    return int(pc.max(rows[TIME]).as_py() or 0)


def _has(entry: OpenTable, writer: str, batch: int) -> bool:
    """Whether the table already has the batch: then all its rows would be duplicates."""
    state = entry.writer.state
    return state is not None and state.txns.get(batch_txn(writer), 0) >= batch


# ---- rows of files ----


def _stored_keys(store: Store, version: int, keys: Sequence[str], schema: pa.Schema, since: int) -> Iterator[pa.Table]:
    in_files = file_schema(schema)
    fields = {key: in_files.field(schema.get_field_index(key)) for key in keys}
    columns = ColumnReader(store, [*(item.name for item in fields.values()), f"{SOURCE.name}.timestamp"])
    for file in active_files(store, version).values():
        if _may_hold(file, since):
            if file.elsewhere:
                raise TableFeature(
                    f"{store.uri}: the file {file.path} belongs to another table (shallow clone), so the records of "
                    "its rows are unknown.",
                    hint="Write to a deep clone of the table, or remove table.deduplicate.",
                )
            rows = _keys(columns, file, fields)
            yield rows.filter(pc.greater_equal(rows[TIME], since))


def _may_hold(file: File, since: int) -> bool:
    """Whether a file may have rows since a time; statistics may be truncated to milliseconds."""
    text = json.loads(file.stats or "{}").get("maxValues", {}).get(SOURCE.name, {}).get("timestamp")
    try:
        newest = parse_partition_value(text, TIMESTAMP).cast(pa.int64()).as_py()
    except (ValueError, TypeError):  # no usable statistics
        return True
    return newest is None or newest + 1000 >= since


def _keys(columns: ColumnReader, file: File, fields: Mapping[str, pa.Field]) -> pa.Table:
    """Keys and times of a file's rows, and the positions of their records where they are read; fields as in files."""
    live_rows = columns.live_rows(file)
    key_columns = {key: _column(live_rows, file.partition, item) for key, item in fields.items()}
    source = live_rows[SOURCE.name]
    there = {item.name for item in source.type}
    parts: Mapping[str, pa.Array] = {name: pc.struct_field(source, name) for name in PLACE if name in there}
    time = pc.struct_field(source, "timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return pa.table({**key_columns, TIME: pc.fill_null(time, 0), **parts})


def _column(live_rows: pa.Table, partition: Mapping[str, str | None], item: pa.Field) -> pa.Array:
    if item.name in partition:
        return pa.repeat(value_in(partition, item), len(live_rows))
    return (
        live_rows[item.name].cast(item.type)
        if item.name in live_rows.column_names
        else pa.nulls(len(live_rows), item.type)
    )


def without_duplicates(
    store: Store, layout: FileLayout, touched: Sequence[tuple[StagedFile, np.ndarray]], name: str
) -> tuple[list[StagedFile], int]:
    """Files without the masked rows, and how many of those have rescued values."""
    stager, rescued = Stager(lambda uri: Store(uri, store.profile), name), 0
    try:
        for each, mask in touched:
            rows = read_rows(Store(each.table, store.profile), as_file(each), layout.schema, layout.partition_by)
            removed_rows = rows.filter(pa.array(mask))
            if RESCUED.name in rows.column_names:
                rescued += len(removed_rows) - removed_rows[RESCUED.name].null_count
            stager.add(layout, rows.filter(pa.array(~mask)))
        return list(stager.finish()), rescued
    except BaseException:
        stager.abandon()
        raise
