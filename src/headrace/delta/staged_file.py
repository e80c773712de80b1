"""Data files that are written, but that no commit refers to yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file in a table's storage that no commit refers to yet."""

    table: str  # the URI of the folder it is below: that of the table, or of its staging folder
    path: str  # below the table's root, as it is on disk (partition folders Hive-escaped)
    partition: tuple[tuple[str, str | None], ...]  # in the order of partition_by, values as in the log
    size: int
    rows: int
    stats: str  # Delta's statistics as JSON text


def staged_file(raw: Mapping[str, Any]) -> StagedFile:
    """Parse a staged file from its JSON form."""
    partition = tuple((str(name), value) for name, value in raw["partition"])
    return StagedFile(**{**raw, "partition": partition})
