"""What becomes of each record where one may have many rows: all its rows of a table are there, or a letter is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode import Rejects

RECORD = pa.field("record", pa.int64())  # the record a row is of; an envelope has it only where it is asked for


def numbered(envelopes: pa.Table) -> pa.Table:
    """Envelopes that know their record."""
    if RECORD.name in envelopes.column_names:
        return envelopes
    return envelopes.append_column(RECORD, pa.array(np.arange(len(envelopes)), RECORD.type))


def one_for_each(envelopes: pa.Table, rejects: Rejects) -> Rejects:
    """The first reject of each record."""
    owners, made, met = records(envelopes), Rejects(), set[int]()
    for index, reason, detail in zip(rejects.index, rejects.reason, rejects.detail, strict=True):
        if (record := int(owners[index])) not in met:
            met.add(record)
            made.add(index, reason, detail)
    return made


def without(rows: pa.Table, envelopes: pa.Table, rejected: pa.Table) -> tuple[pa.Table, pa.Table]:
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
class Fates:
    """Who has a row, and who a letter."""

    row: np.ndarray
    letter: np.ndarray

    @classmethod
    def of(cls, envelopes: pa.Table) -> Fates:
        """Nothing known yet."""
        size = int(records(envelopes).max()) + 1 if len(envelopes) else 0
        return cls(np.zeros(size, bool), np.zeros(size, bool))

    def has_row(self, envelopes: pa.Table) -> None:
        """These records have one."""
        self.row[records(envelopes)] = True

    def has_letter(self, envelopes: pa.Table) -> None:
        """These records have one."""
        self.letter[records(envelopes)] = True

    @property
    def routed(self) -> int:
        """Records with a row."""
        return int(self.row.sum())

    @property
    def dead(self) -> int:
        """Records with a letter and no row."""
        return int((self.letter & ~self.row).sum())
