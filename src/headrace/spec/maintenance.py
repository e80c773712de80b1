"""Table maintenance while the pipeline runs."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from headrace.spec.base import SpecModel
from headrace.spec.units import Duration, Integer, Size


class MaintenanceSpec(SpecModel):
    """Table maintenance between batches; disabled by default."""

    every: Duration = Field(
        default=timedelta(minutes=1), ge=timedelta(seconds=1), description="Interval between maintenance checks."
    )
    min_input_files: Integer = Field(
        default=30,
        ge=2,
        le=10_000,
        description="Compact a partition when it has this many small files of similar size.",
    )
    idle_after: Duration = Field(
        default=timedelta(hours=1),
        ge=timedelta(seconds=1),
        description="Compact all small files of a partition that has received no rows for this long; idle "
        "partitions come first.",
    )
    max_bytes_per_run: Size = Field(
        default=256_000_000,
        ge=1_000_000,
        le=4_000_000_000,
        description="Approximate bytes to rewrite in one run between two batches.",
    )
    vacuum_every: Duration = Field(
        default=timedelta(days=1),
        ge=timedelta(minutes=1),
        description="Interval between vacuums, which delete files that no version within `retention` references.",
    )
    retention: Duration = Field(
        default=timedelta(days=7),
        ge=timedelta(minutes=1),
        description="Time travel window: older data files and log entries are deleted. Table properties with "
        "a longer retention take precedence.",
    )
    max_lag: Duration = Field(
        default=timedelta(minutes=1),
        ge=timedelta(milliseconds=100),
        description="Skip maintenance while the oldest unprocessed record is older than this.",
    )
