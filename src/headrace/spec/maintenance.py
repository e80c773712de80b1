"""How a running pipeline keeps its tables in order."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from headrace.spec.base import SpecModel
from headrace.spec.units import Duration, Size, Whole


class MaintenanceSpec(SpecModel):
    """Maintenance of the tables between batches. Disabled without this key."""

    every: Duration = Field(
        default=timedelta(minutes=1), ge=timedelta(seconds=1), description="How often the tables are looked at."
    )
    min_input_files: Whole = Field(
        default=30,
        ge=2,
        le=10_000,
        description="Small files of about the same size in a partition that are joined: its debt.",
    )
    idle_after: Duration = Field(
        default=timedelta(hours=1),
        ge=timedelta(seconds=1),
        description="A partition without new rows for so long is cold: all its small files are joined, before others'.",
    )
    max_bytes_per_run: Size = Field(
        default=256_000_000,
        ge=1_000_000,
        le=4_000_000_000,
        description="About how many bytes are rewritten in one go, between two batches.",
    )
    vacuum_every: Duration = Field(
        default=timedelta(days=1),
        ge=timedelta(minutes=1),
        description="How often files are deleted that no version within `retention` needs.",
    )
    retention: Duration = Field(
        default=timedelta(days=7),
        ge=timedelta(minutes=1),
        description="How long older versions can be read: then their files and their part of the log go. Longer where "
        "the table's own properties say so.",
    )
    max_lag: Duration = Field(
        default=timedelta(minutes=1),
        ge=timedelta(milliseconds=100),
        description="Nothing is done while the oldest record that waits is older than this.",
    )
