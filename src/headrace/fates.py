"""What becomes of each record where one may have many rows: all its rows of a table are there, or a letter is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode import Rejects

RECORD = pa.field("record", pa.int64())  # the record a row is of; an envelope has it only where there may be many


def numbered(envelopes: pa.Table) -> pa.Table:
    """Envelopes that know their record."""
    if RECORD.name in envelopes.column_names:
        return envelopes
    return envelopes.append_column(RECORD, pa.array(np.arange(len(envelopes)), RECORD.type))


def one_for_each(envelopes: pa.Table, rejects: Rejects) -> Rejects:
    """The first reject of each record."""
    records, made, met = _records(envelopes), Rejects(), set[int]()
    for index, reason, detail in zip(rejects.index, rejects.reason, rejects.detail, strict=True):
        if (record := int(records[index])) not in met:
            met.add(record)
            made.add(index, reason, detail)
    return made


def without(rows: pa.Table, envelopes: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows and envelopes of the records of which nothing was rejected."""
    if not len(rejected):
        return rows, envelopes
    keep = pc.invert(pc.is_in(envelopes[RECORD.name], value_set=rejected[RECORD.name].combine_chunks()))
    return rows.filter(keep), envelopes.filter(keep)


def _records(envelopes: pa.Table) -> np.ndarray:
    records: np.ndarray = envelopes[RECORD.name].to_numpy()
    return records


@dataclass
class Fates:
    """Who has a row, and who a letter."""

    row: np.ndarray
    letter: np.ndarray

    @classmethod
    def of(cls, envelopes: pa.Table) -> Fates:
        """Nothing known yet."""
        size = int(_records(envelopes).max()) + 1 if len(envelopes) else 0
        return cls(np.zeros(size, bool), np.zeros(size, bool))

    def has_row(self, envelopes: pa.Table) -> None:
        """These records have one."""
        self.row[_records(envelopes)] = True

    def has_letter(self, envelopes: pa.Table) -> None:
        """These records have one."""
        self.letter[_records(envelopes)] = True

    @property
    def routed(self) -> int:
        """Records with a row."""
        return int(self.row.sum())

    @property
    def dead(self) -> int:
        """Records with a letter and no row."""
        return int((self.letter & ~self.row).sum())
