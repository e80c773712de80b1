"""Rows of a file: values of records, with those that are rejected before they are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.reasons import Reason

Reject = tuple[Reason, str]  # reason and detail


@dataclass(frozen=True, slots=True)
class FileRows:
    """Consecutive rows of a file."""

    values: pa.BinaryArray
    rejects: Mapping[int, Reject] = field(default_factory=dict)  # by position

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, until: int) -> FileRows:
        """A part of the rows."""
        rejects = {at - start: reject for at, reject in self.rejects.items() if start <= at < until}
        return FileRows(self.values.slice(start, until - start), rejects)


def rejected_row(value: bytes, reject: Reject) -> FileRows:
    """One row that is a dead letter."""
    return FileRows(pa.array([value], pa.binary()), {0: reject})
