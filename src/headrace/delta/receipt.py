"""The result of a commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of committing a batch to a table."""

    path: str
    version: int
    rows: int
    files: int
    bytes: int
    skipped: bool = False  # the table already had the batch's txn
    inserted: int | None = None  # rows, where the table merges and its log tells
    updated: int | None = None
    deleted: int | None = None
    conflicts: int = 0  # attempts that lost the race for a version against another writer
