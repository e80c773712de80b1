"""Find the rows that a table lacks, by the records they come from, never by their values.

A row may be lost if a lost file can have had rows of its partition and its record. It is lost if its record has fewer
rows in the table than it gives. If only some of them are there, which happens where a file ended in the middle of a
record, the rows themselves are compared.
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
from headrace.recovery.file_origins import POSITION, OffsetBounds, offset_bounds_of
from headrace.stage.layout import FileLayout
from headrace.storage.store import Store

_BOUNDS = pa.schema(
    [
        pa.field("part", pa.int64()),
        *(pa.field(f"topic_{side}", pa.string()) for side in ("low", "high")),
        *(pa.field(f"{name}_{side}", pa.int64()) for name in ("partition", "offset") for side in ("low", "high")),
    ]
)
_UNKNOWN = (None, None)
_SAME = " AND ".join(f'one."{name}" IS NOT DISTINCT FROM two."{name}"' for name in ("part", *POSITION))
_WITHIN = " AND ".join(
    f'coalesce(one."{name}" >= file.{name}_low AND one."{name}" <= file.{name}_high, true)' for name in POSITION
)
_LOST = f"""
    WITH present AS (SELECT part, topic, "partition", "offset", count(*) AS count FROM in_table GROUP BY ALL),
         counted AS (SELECT *, count(*) OVER (PARTITION BY part, topic, "partition", "offset") AS count FROM staged)
    SELECT one.file, one.nth, coalesce(two.count, 0) AS present, one.count - coalesce(two.count, 0) AS missing
    FROM counted AS one LEFT JOIN present AS two ON {_SAME}
    WHERE coalesce(two.count, 0) < one.count
      AND EXISTS (SELECT 1 FROM lost AS file WHERE file.part = one.part AND {_WITHIN})
    ORDER BY one.file, one.nth
"""  # noqa: S608 our own names


def missing_rows(
    store: Store,
    layout: FileLayout,
    staged: Sequence[StagedFile],
    lost: Sequence[File],
    active: Iterable[File],
    batch: int,
) -> tuple[list[StagedFile], list[StagedFile], int]:
    """Staged files with the lost rows alone, staged files that are not needed, and the number of lost records."""
    partitions = _Partitions.of(layout, lost)
    candidates = [file for file in staged if partitions.number(dict(file.partition)) is not None]
    unneeded = [file for file in staged if file not in candidates]
    bounds = [(partitions.number(file.partition), offset_bounds_of(file)) for file in lost]
    present = [file for file in active if _overlaps(file, bounds, partitions)]
    if not candidates:
        return [], unneeded, 0
    columns = ColumnReader(store, [f"{SOURCE.name}.{name}" for name in POSITION])
    tables = (_positions(columns, as_file(file), partitions) for file in candidates)
    positions = pa.concat_tables(
        table.append_column("file", pa.repeat(pa.scalar(nth, pa.int64()), len(table)))
        for nth, table in enumerate(tables)
    )
    in_table = pa.concat_tables(
        [_POSITIONS.empty_table(), *(_positions(columns, file, partitions) for file in present)]
    )
    matches = duck.query(_LOST, staged=positions, in_table=in_table, lost=_bounds_table(bounds))
    masks = _masks(store, layout, candidates, present, matches)
    kept, replaced, partial = list[StagedFile](), list[StagedFile](), list[tuple[StagedFile, np.ndarray]]()
    for file, mask in zip(candidates, masks, strict=True):
        (kept if mask.all() else replaced).append(file)
        if mask.any() and not mask.all():
            partial.append((file, ~mask))
    records = positions.filter(pa.array(np.concatenate(masks))).group_by(list(POSITION)).aggregate([]).num_rows
    return kept + without_duplicates(store, layout, partial, f"{batch:08d}-lost")[0], unneeded + replaced, records


@dataclass(frozen=True, slots=True)
class _Partitions:
    """Numbers of the partitions of lost files; other partitions have none."""

    key: PartitionKeys
    numbers: Mapping[Partition, int]

    @classmethod
    def of(cls, layout: FileLayout, lost: Sequence[File]) -> _Partitions:
        key = PartitionKeys.of(layout.schema, layout.partition_by)
        return cls(key, {key(file.partition): number for number, file in enumerate(lost)})

    def number(self, values: Mapping[str, str | None]) -> int | None:
        return self.numbers.get(self.key(values))


def _masks(
    store: Store, layout: FileLayout, candidates: Sequence[StagedFile], present: Sequence[File], matches: pa.Table
) -> list[np.ndarray]:
    """For each staged file a mask of its lost rows."""
    masks = [np.zeros(file.rows, bool) for file in candidates]
    files, rows, counts, missing = (matches[name].to_numpy() for name in ("file", "nth", "present", "missing"))
    for nth in np.unique(files).tolist():
        masks[nth][rows[(files == nth) & (counts == 0)]] = True
    if (partly := counts > 0).any():
        keys = zip(files[partly].tolist(), rows[partly].tolist(), strict=True)
        _compare(store, layout, candidates, present, dict(zip(keys, missing[partly].tolist(), strict=True)), masks)
    return masks


def _compare(
    store: Store,
    layout: FileLayout,
    candidates: Sequence[StagedFile],
    present: Sequence[File],
    missing: Mapping[tuple[int, int], int],
    masks: Sequence[np.ndarray],
) -> None:
    """Of records with some of their rows in the table, mark the rows that no row of the table equals.

    `missing` has the number of missing rows of each row's record. Rows are compared as text, which distinguishes
    values of one schema and treats NaN as one value. If more rows differ than are missing, the records give other
    rows now than before, as with `now()`; then the missing rows cannot be identified.
    """
    tables = {
        nth: read_rows(store, as_file(candidates[nth]), layout.schema, layout.partition_by)
        for nth in {nth for nth, _ in missing}
    }
    texts = {(nth, row): repr(tables[nth].slice(row, 1).to_pylist()[0]) for nth, row in missing}
    offsets = pa.array([tables[nth][SOURCE.name][row].as_py()["offset"] for nth, row in missing], pa.int64())
    unmatched = Counter[str]()
    for file in present:
        rows = read_rows(store, file, layout.schema, layout.partition_by)
        rows = rows.filter(pc.is_in(pc.struct_field(rows[SOURCE.name], "offset"), value_set=offsets))
        unmatched.update(map(repr, rows.to_pylist()))
    different, expected = Counter[tuple[Any, ...]](), dict[tuple[Any, ...], int]()
    for (nth, row), text in texts.items():
        masks[nth][row] = unmatched[text] == 0
        unmatched[text] -= unmatched[text] > 0
        source = tables[nth][SOURCE.name][row].as_py()
        record = (candidates[nth].partition, *(source[name] for name in POSITION))
        different[record] += bool(masks[nth][row])
        expected[record] = missing[nth, row]
    if changed := [record for record, count in different.items() if count > expected[record]]:
        raise TableDamaged(
            f"{store.uri}: {expected[changed[0]]} rows of the record {changed[0][1:]} (topic, partition, offset) are "
            f"missing, but {different[changed[0]]} of its rows are not in the table: "
            "the record now produces different rows.",
            hint="No row was restored. Fill a new table from the topic.",
        )


_POSITIONS = pa.schema(
    {"part": pa.int64(), "topic": pa.string(), "partition": pa.int64(), "offset": pa.int64(), "nth": pa.int64()}
)


def _positions(columns: ColumnReader, file: File, partitions: _Partitions) -> pa.Table:
    """The record position of each row of a file; NULL where it has none."""
    source, count = columns.of(file)
    has_source = SOURCE.name in source.column_names
    values = {
        name: pc.struct_field(source[SOURCE.name], name).cast(_POSITIONS.field(name).type)
        if has_source
        else pa.nulls(count, _POSITIONS.field(name).type)
        for name in POSITION
    }
    number = pa.repeat(pa.scalar(partitions.number(file.partition), pa.int64()), count)
    return pa.table({"part": number, **values, "nth": pa.array(np.arange(count))})


def _overlaps(file: File, bounds: Iterable[tuple[int | None, OffsetBounds]], partitions: _Partitions) -> bool:
    """Whether a file may have rows of the records of a lost one."""
    number = partitions.number(file.partition)
    own = offset_bounds_of(file)
    return number is not None and any(number == other and own.overlaps(lost) for other, lost in bounds)


def _bounds_table(bounds: Iterable[tuple[int | None, OffsetBounds]]) -> pa.Table:
    rows = [
        (part, *(lost.topics or _UNKNOWN), *(lost.partitions or _UNKNOWN), *(lost.offsets or _UNKNOWN))
        for part, lost in bounds
    ]
    return pa.Table.from_pylist([dict(zip(_BOUNDS.names, row, strict=True)) for row in rows], _BOUNDS)
