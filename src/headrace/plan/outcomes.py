"""Outcome of each record: all its rows of a table are written, or it becomes a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Rejects

RECORD = pa.field("record", pa.int64())  # position of the record in the batch


def with_record_numbers(records: pa.Table) -> pa.Table:
    """Append the record number."""
    return records.append_column(RECORD, pa.array(np.arange(len(records)), RECORD.type))


def first_rejects(records: pa.Table, rejects: Rejects) -> Rejects:
    """First reject of each record."""
    _, first = np.unique(record_numbers(records)[rejects.columns.index], return_index=True)
    return rejects.at(np.sort(first))


def without_records(rows: pa.Table, records: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows of records without a reject."""
    if not len(rejected):
        return rows, records
    keep = without_rejects(records, rejected)
    return rows.take(keep), records.take(keep)


def without_rejects(records: pa.Table, rejected: pa.Table) -> pa.Int64Array:
    """Positions of rows of records without a reject."""
    among = pc.is_in(records[RECORD.name], value_set=rejected[RECORD.name].combine_chunks())
    return pc.indices_nonzero(pc.invert(among)).cast(pa.int64())


def record_numbers(records: pa.Table) -> np.ndarray:
    """Record number of each row."""
    numbers: np.ndarray = records[RECORD.name].to_numpy()
    return numbers


@dataclass
class RecordOutcomes:
    """Outcomes of all records of a batch, collected independently, so that the sum is a real check."""

    row: np.ndarray
    rejected: np.ndarray
    present: np.ndarray
    filtered: np.ndarray

    @classmethod
    def of(cls, count: int) -> RecordOutcomes:
        """Empty outcomes for `count` records."""
        return cls(*(np.zeros(count, bool) for _ in range(4)))

    def have_row(self, records: pa.Table) -> None:
        """Mark records with a row."""
        self.row[record_numbers(records)] = True

    def are_rejected(self, records: pa.Table) -> None:
        """Mark records with a dead letter."""
        self.rejected[record_numbers(records)] = True

    def are_present(self, records: pa.Table, at: np.ndarray) -> None:
        """Mark records at positions that a table already has."""
        self.present[record_numbers(records)[at]] = True

    def are_filtered(self, records: pa.Table, at: Sequence[int] | np.ndarray) -> None:
        """Mark records at positions with a filtered row."""
        self.filtered[record_numbers(records)[at]] = True

    @property
    def routed(self) -> int:
        """Records with a row."""
        return int(self.row.sum())

    @property
    def dead(self) -> int:
        """Records with a dead letter and no row."""
        return int((self.rejected & ~self.row).sum())

    @property
    def skipped(self) -> int:
        """Records without row or dead letter that a table already has."""
        return int((self.present & ~self.row & ~self.rejected).sum())

    @property
    def left_out(self) -> int:
        """Records without any row because they were filtered."""
        return int((self.filtered & ~self.row & ~self.rejected & ~self.present).sum())
