"""What is known about a running pipeline: immutable values that readers of the monitor share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import accumulate

from headrace.plan.accounting import Counts
from headrace.source.base import Partition
from headrace.spec import Spec


class PipelineState(StrEnum):
    """State of a pipeline in a process."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    RETRYING = "retrying"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StateReason:
    """Why a pipeline is in its state. `error` is the name of an error, if one is the reason."""

    error: str | None
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Unread records of a partition between `position`, the next offset to read, and the end."""

    position: int
    end: int
    records: int
    seconds: float | None = None  # age of the oldest unread record; None if unknown


@dataclass(frozen=True, slots=True)
class LagView:
    """Lag at the last check; None is unknown and never means 0."""

    records: int | None = None
    seconds: float | None = None
    reason: str | None = None  # `open_transaction`: records wait for a transaction to end
    checked: datetime | None = None
    partitions: Mapping[Partition, PartitionLag] = field(default_factory=dict)  # empty if unknown

    @property
    def is_known(self) -> bool:
        """Whether the number of unread records is known."""
        return self.records is not None


@dataclass(frozen=True, slots=True)
class TableActivity:
    """What this process has committed to a table; `version` is that of its last commit."""

    version: int
    committed: datetime
    commits: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    conflicts: int = 0  # attempts to commit that another writer preceded


@dataclass(frozen=True, slots=True)
class BatchActivity:
    """A finished batch; `phases` has the seconds of each step by name."""

    batch: int
    finished: datetime
    read: int
    dead: int
    tables: int
    seconds: float
    phases: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RateSample:
    """Rate and lag at a moment; None is unknown."""

    at: datetime
    records_per_second: float | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many values are at most each of some bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # by bound, not cumulative; the last one counts values above all bounds
    sum: float = 0.0

    @classmethod
    def empty(cls, *bounds: float) -> Distribution:
        """No values yet."""
        return cls(bounds, (0,) * (len(bounds) + 1))

    def __add__(self, value: float) -> Distribution:
        at = bisect_left(self.bounds, value)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Distribution(self.bounds, counts, self.sum + value)

    def buckets(self) -> list[tuple[str, int]]:
        """Cumulative counts by bound, as histograms have them."""
        return list(zip((*map(str, self.bounds), "+Inf"), accumulate(self.counts), strict=True))

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Files of a table at its last check by maintenance; None is unknown."""

    small_files: int | None = None
    small_bytes: int | None = None
    unused_files: int | None = None  # that no retained version needs
    unused_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MaintenanceActivity:
    """Maintenance of one operation and result: `done` or `failed`."""

    count: int = 0
    seconds: float = 0.0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class HotTableActivity:
    """What this process has written of a table to the hot store; an unknown lag is None."""

    version: int
    lag_commits: int | None
    lag_seconds: float | None
    rows: int = 0
    removed: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A pipeline at a moment. Counts start at 0 with the process."""

    name: str
    spec: Spec
    state: PipelineState
    since: datetime  # start of the state
    reason: StateReason | None
    batch: int | None  # the last one in the ledger; None before the first batch of this process
    committed: datetime | None  # end of that batch
    counts: Counts
    reading: int  # records that the current batch has read
    batches: int
    recovered: int
    records_per_second: float | None  # of the last 30 seconds; None if unknown
    lag: LagView
    retries: Mapping[str, int]  # by name of the error
    errors: Mapping[str, int]  # that have stopped the pipeline, by name
    starts: int  # starts after the first one are restarts
    tables: Mapping[str, TableActivity]  # by path
    last_batches: tuple[BatchActivity, ...]  # oldest first
    samples: tuple[RateSample, ...]  # of the last 15 minutes, oldest first
    phases: Mapping[str, float]  # seconds of all batches, by phase
    durations: Mapping[str, Distribution]  # seconds of each batch, by phase
    schema_changes: int  # columns that were inferred or added, as commits
    batch_seconds: Distribution
    batch_records: Distribution
    maintenance: Mapping[tuple[str, str], MaintenanceActivity]  # by operation and result
    table_files: Mapping[str, TableFiles]  # by path
    received: Mapping[str, int]  # counts of a receiver
    hot_tables: Mapping[str, HotTableActivity]  # by path of the Delta table
    hot_store_error: str | None  # why the hot store cannot be written now
    is_fresh: bool | None  # whether the freshness target is met; None without a target
