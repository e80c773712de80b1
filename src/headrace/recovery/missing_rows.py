"""Which rows that were made again are not in their table: told by the record they came from, never by their values.

A row may have been lost if it is of a partition of the table, and of a record, of which a lost file can have held rows.
It is lost if its record has fewer rows there than it makes. Where some of them are there and some are not, which can
only be where a file ended in the midst of a record, the rows themselves are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.delta.actions import File, as_file
from headrace.delta.partition_keys import Partition, PartitionKeys
from headrace.delta.rows import ColumnReader, read_rows
from headrace.delta.schema import SOURCE
from headrace.delta.staged_file import StagedFile
from headrace.engine import duck
from headrace.errors import TableDamaged
from headrace.pipeline.deduplicate import without_duplicates
from headrace.recovery.file_origins import OffsetBounds, offset_bounds_of
from headrace.stage.stager import FileLayout
from headrace.storage.store import Store

_PLACE = ("topic", "partition", "offset")
_BOX = pa.schema(
    [
        pa.field("part", pa.int64()),
        *(pa.field(f"topic_{side}", pa.string()) for side in ("low", "high")),
        *(pa.field(f"{name}_{side}", pa.int64()) for name in ("partition", "offset") for side in ("low", "high")),
    ]
)
_OPEN = (None, None)
_SAME = " AND ".join(f'one."{name}" IS NOT DISTINCT FROM two."{name}"' for name in ("part", *_PLACE))
_WITHIN = " AND ".join(
    f'coalesce(one."{name}" >= box.{name}_low AND one."{name}" <= box.{name}_high, true)' for name in _PLACE
)
_LOST = f"""
    WITH stands AS (SELECT part, topic, "partition", "offset", count(*) AS count FROM there GROUP BY ALL),
         counted AS (SELECT *, count(*) OVER (PARTITION BY part, topic, "partition", "offset") AS count FROM made)
    SELECT one.file, one.nth, coalesce(two.count, 0) AS there, one.count - coalesce(two.count, 0) AS lacking
    FROM counted AS one LEFT JOIN stands AS two ON {_SAME}
    WHERE coalesce(two.count, 0) < one.count
      AND EXISTS (SELECT 1 FROM boxes AS box WHERE box.part = one.part AND {_WITHIN})
    ORDER BY one.file, one.nth
"""  # noqa: S608 our own names


def absent(
    store: Store,
    layout: FileLayout,
    made: Sequence[StagedFile],
    gone: Sequence[File],
    there: Iterable[File],
    batch: int,
) -> tuple[list[StagedFile], list[StagedFile], int]:
    """Files with the rows that are lost, those that are none of it any more, and of how many records they are."""
    parts = _Parts.of(layout, gone)
    mine = [item for item in made if parts.number(dict(item.partition)) is not None]
    left = [item for item in made if item not in mine]
    boxes = [(parts.number(file.partition), offset_bounds_of(file)) for file in gone]
    stands = [file for file in there if _overlaps(file, boxes, parts)]
    if not mine:
        return [], left, 0
    columns = ColumnReader(store, [f"{SOURCE.name}.{name}" for name in _PLACE])
    places = [_places(columns, as_file(item), parts) for item in mine]
    whole = pa.concat_tables(each.append_column("file", _same(at, len(each))) for at, each in enumerate(places))
    found = duck.query(_LOST, made=whole, there=_all_places(columns, stands, parts), boxes=_listed(boxes))
    keep = _kept(store, layout, mine, stands, found)
    kept, old, new = list[StagedFile](), list[StagedFile](), list[tuple[StagedFile, np.ndarray]]()
    for item, mask in zip(mine, keep, strict=True):
        (kept if mask.all() else old).append(item)
        if mask.any() and not mask.all():
            new.append((item, ~mask))
    records = whole.filter(pa.array(np.concatenate(keep))).group_by(list(_PLACE)).aggregate([]).num_rows
    return kept + without_duplicates(store, layout, new, f"{batch:08d}-lost")[0], left + old, records


@dataclass(frozen=True, slots=True)
class _Parts:
    """The partitions of lost files, by number; those of other files have none."""

    key: PartitionKeys
    numbers: Mapping[Partition, int]

    @classmethod
    def of(cls, layout: FileLayout, gone: Sequence[File]) -> _Parts:
        key = PartitionKeys.of(layout.schema, layout.partition_by)
        return cls(key, {key(file.partition): number for number, file in enumerate(gone)})

    def number(self, values: Mapping[str, str | None]) -> int | None:
        return self.numbers.get(self.key(values))


def _kept(
    store: Store, layout: FileLayout, mine: Sequence[StagedFile], stands: Sequence[File], found: pa.Table
) -> list[np.ndarray]:
    """For each file which of its rows are lost."""
    keep = [np.zeros(item.rows, bool) for item in mine]
    files, rows, there, lacking = (found[name].to_numpy() for name in ("file", "nth", "there", "lacking"))
    for at in np.unique(files).tolist():
        keep[at][rows[(files == at) & (there == 0)]] = True
    if (partly := there > 0).any():
        asked = zip(files[partly].tolist(), rows[partly].tolist(), strict=True)
        _compare(store, layout, mine, stands, dict(zip(asked, lacking[partly].tolist(), strict=True)), keep)
    return keep


def _compare(
    store: Store,
    layout: FileLayout,
    mine: Sequence[StagedFile],
    stands: Sequence[File],
    asked: Mapping[tuple[int, int], int],
    keep: Sequence[np.ndarray],
) -> None:
    """Of records that have some of their rows left, take those that no row in the table equals.

    `asked` says how many rows each one's record lacks. Rows are compared as texts of their values, which tell values
    of one schema apart, and a NaN is one value. Where more differ than are lacking, the records make other rows now
    than they did, as `now()` does: then nobody can tell which of them are there.
    """
    made = {
        at: read_rows(store, as_file(mine[at]), layout.schema, layout.partition_by) for at in {at for at, _ in asked}
    }
    spelled = {(at, nth): repr(made[at].slice(nth, 1).to_pylist()[0]) for at, nth in asked}
    places = pa.array([made[at][SOURCE.name][nth].as_py()["offset"] for at, nth in asked], pa.int64())
    left = Counter[str]()
    for file in stands:
        rows = read_rows(store, file, layout.schema, layout.partition_by)
        met = rows.filter(pc.is_in(pc.struct_field(rows[SOURCE.name], "offset"), value_set=places))
        left.update(map(repr, met.to_pylist()))
    differ, lacks = Counter[tuple[Any, ...]](), dict[tuple[Any, ...], int]()
    for (at, nth), text in spelled.items():
        keep[at][nth] = left[text] == 0
        left[text] -= left[text] > 0
        place = made[at][SOURCE.name][nth].as_py()
        record = (mine[at].partition, *(place[name] for name in _PLACE))
        differ[record] += bool(keep[at][nth])
        lacks[record] = asked[at, nth]
    if strange := [record for record, count in differ.items() if count > lacks[record]]:
        raise TableDamaged(
            f"{store.uri}: the record {strange[0][1:]} (topic, partition, offset) lacks {lacks[strange[0]]} rows, and "
            f"{differ[strange[0]]} of those that it makes now are not in the table: it makes other rows than before.",
            hint="Nothing was put back. Fill a new table from the topic.",
        )


def _places(columns: ColumnReader, file: File, parts: _Parts) -> pa.Table:
    """Where each row of a file came from; NULL where it has no record."""
    source, held = columns.of(file)
    kinds = dict(zip(_PLACE, (pa.string(), pa.int64(), pa.int64()), strict=True))
    known = SOURCE.name in source.column_names
    made = {
        name: pc.struct_field(source[SOURCE.name], name).cast(kind) if known else pa.nulls(held, kind)
        for name, kind in kinds.items()
    }
    number = _same(parts.number(file.partition), held)
    return pa.table({"part": number, **made, "nth": pa.array(np.arange(held))})


def _all_places(columns: ColumnReader, stands: Sequence[File], parts: _Parts) -> pa.Table:
    empty = {"part": pa.int64(), "topic": pa.string(), "partition": pa.int64(), "offset": pa.int64(), "nth": pa.int64()}
    return pa.concat_tables([pa.schema(empty).empty_table(), *(_places(columns, file, parts) for file in stands)])


def _overlaps(file: File, boxes: Iterable[tuple[int | None, OffsetBounds]], parts: _Parts) -> bool:
    """Whether a file may have rows of records that a lost one had rows of."""
    part = parts.number(file.partition)
    if part is None:
        return False
    mine = offset_bounds_of(file)
    return any(number == part and mine.crosses(box) for number, box in boxes)


def _listed(boxes: Iterable[tuple[int | None, OffsetBounds]]) -> pa.Table:
    def sides(box: OffsetBounds) -> tuple[Any, ...]:
        return *(box.topics or _OPEN), *(box.partitions or _OPEN), *(box.offsets or _OPEN)

    rows = [dict(zip(_BOX.names, (part, *sides(box)), strict=True)) for part, box in boxes]
    return pa.Table.from_pylist(rows, _BOX)


def _same(number: int | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), count)
