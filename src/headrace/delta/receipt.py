"""The result of a commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a table has to show for a batch."""

    path: str
    version: int
    rows: int
    files: int
    bytes: int
    skipped: bool = False  # the table was already at the batch's mark
    inserted: int | None = None  # rows, where the table merges and its log tells
    updated: int | None = None
    deleted: int | None = None
