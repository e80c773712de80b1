"""Data files that are written and that no commit names yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One Parquet file in a table's own storage that no commit names yet."""

    table: str  # the table's URI, as in the spec after its template is filled
    path: str  # below the table's root, as it is on disk (partition folders Hive-escaped)
    partition: tuple[tuple[str, str | None], ...]  # in partition_by order, values as Delta writes them
    size: int
    rows: int
    stats: str  # Delta's statistics as JSON text


def staged_file(raw: Mapping[str, Any]) -> StagedFile:
    """A staged file out of its JSON form."""
    partition = tuple((str(name), value) for name, value in raw["partition"])
    return StagedFile(**{**raw, "partition": partition})
