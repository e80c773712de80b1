"""What becomes of each record, which may have many rows: all its rows of a table are there, or a letter is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Rejects

RECORD = pa.field("record", pa.int64())  # the place of a row's record in its batch


def with_record_numbers(envelopes: pa.Table) -> pa.Table:
    """Envelopes that know their record."""
    return envelopes.append_column(RECORD, pa.array(np.arange(len(envelopes)), RECORD.type))


def one_for_each(envelopes: pa.Table, rejects: Rejects) -> Rejects:
    """The first reject of each record."""
    owners, made, met = records(envelopes), Rejects(), set[int]()
    for index, reason, detail in zip(rejects.index, rejects.reason, rejects.detail, strict=True):
        if (record := int(owners[index])) not in met:
            met.add(record)
            made.add(index, reason, detail)
    return made


def without_records(rows: pa.Table, envelopes: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows and envelopes of the records of which nothing was rejected."""
    if not len(rejected):
        return rows, envelopes
    keep = others(envelopes, rejected)
    return rows.take(keep), envelopes.take(keep)


def others(envelopes: pa.Table, rejected: pa.Table) -> pa.Int64Array:
    """Positions of what is of records of which nothing was rejected."""
    among = pc.is_in(envelopes[RECORD.name], value_set=rejected[RECORD.name].combine_chunks())
    return pc.indices_nonzero(pc.invert(among)).cast(pa.int64())


def records(envelopes: pa.Table) -> np.ndarray:
    """The record that each envelope, or copy of one, is of."""
    found: np.ndarray = envelopes[RECORD.name].to_numpy()
    return found


@dataclass
class RecordOutcomes:
    """What became of every record of a batch, in whatever table; each is found on its own, so that the sum can fail."""

    row: np.ndarray
    letter: np.ndarray
    present: np.ndarray
    filtered: np.ndarray

    @classmethod
    def of(cls, count: int) -> RecordOutcomes:
        """Nothing known yet."""
        return cls(*(np.zeros(count, bool) for _ in range(4)))

    def have_row(self, envelopes: pa.Table) -> None:
        """These records have one."""
        self.row[records(envelopes)] = True

    def have_letter(self, envelopes: pa.Table) -> None:
        """These records have one."""
        self.letter[records(envelopes)] = True

    def are_present(self, envelopes: pa.Table, at: np.ndarray) -> None:
        """A table has those at these positions already."""
        self.present[records(envelopes)[at]] = True

    def are_filtered(self, envelopes: pa.Table, at: Sequence[int] | np.ndarray) -> None:
        """A rule of the spec leaves something out of those at these positions."""
        self.filtered[records(envelopes)[at]] = True

    @property
    def routed(self) -> int:
        """Records with a row."""
        return int(self.row.sum())

    @property
    def dead(self) -> int:
        """Records with a letter and no row."""
        return int((self.letter & ~self.row).sum())

    @property
    def skipped(self) -> int:
        """Records with neither, because a table has them already."""
        return int((self.present & ~self.row & ~self.letter).sum())

    @property
    def left_out(self) -> int:
        """Records of which a rule of the spec has left nothing over."""
        return int((self.filtered & ~self.row & ~self.letter & ~self.present).sum())
