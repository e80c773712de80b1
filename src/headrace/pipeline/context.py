"""The parts of a running pipeline that recovery and maintenance work with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from headrace.ledger.ledger import Ledger
from headrace.pipeline.events import Report
from headrace.pipeline.manifest import Manifest
from headrace.pipeline.tables import PipelineTables
from headrace.source.base import Source
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.stage.layout import FileLayout
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from headrace.write.intent import Intent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class StagedTable:
    """Records that were read again and staged for one table."""

    manifests: Sequence[Manifest]
    runs: int
    layout: FileLayout | None  # None: the batch has no such table


class BatchSteps(Protocol):
    """Steps of a batch that recovery uses."""

    def stage_for_table(self, uri: str, ranges: Sequence[Range], batch: int, started: datetime) -> StagedTable:
        """Read ranges again and stage them; tables other than `uri` skip the records."""
        ...

    def intend(
        self, batch: int, ranges: tuple[Range, ...], manifests: Sequence[Manifest], started: datetime, runs: int
    ) -> Intent:
        """Build the intent of staged files."""
        ...

    def restage(self, intent: Intent) -> Intent:
        """Read the ranges of an intent again with its own spec, and stage them."""
        ...

    def execute(self, intent: Intent) -> Intent:
        """Write the intent to the state, commit its tables and record it in the ledger."""
        ...


@dataclass(frozen=True, slots=True)
class PipelineContext:
    """A pipeline under its lease, as recovery and maintenance see it; valid until its ledger is opened again."""

    spec: Spec
    writer: str  # the app id of its txns
    state: Store
    source: Source
    ledger: Ledger
    tables: PipelineTables
    lease: Lease
    report: Report
    stop: threading.Event
    spark: Callable[[], SparkSession]
    lag_seconds: float | None  # None where the source reports none
    batches: BatchSteps

    def store(self, uri: str) -> Store:
        """A table's store, with the credentials of the pipeline."""
        return Store(uri, self.state.profile)


class Recovery(Protocol):
    """Repairs before the first batch of a run: `headrace.recovery.startup.StartupRecovery`."""

    def rebuild_ledger(self, context: PipelineContext) -> None:
        """Rebuild a lost ledger."""

    def refill_tables(self, context: PipelineContext) -> None:
        """Write again the rows that a RESTORE removed."""

    def plan_refill(self, context: PipelineContext, intent: Intent) -> Intent:
        """Plan a refill again."""
        ...


class Maintenance(Protocol):
    """Table maintenance between batches."""

    def __call__(self, context: PipelineContext, at_end: bool = False) -> None: ...


class HotStore(Protocol):
    """A database that has the rows of the tables, too: `headrace.hot_store.hot_store.PostgresHotStore`."""

    def follow(self, tables: Iterable[str]) -> None:
        """Follow these tables from now on; their newest commits are written as soon as possible."""

    def wait(self, stop: threading.Event) -> None:
        """Wait until the hot store has every commit so far, if the pipeline requires that."""

    def finish(self, stop: threading.Event) -> None:
        """Wait for the last commits at the end of a bounded run."""

    def close(self) -> None:
        """End without waiting for an unreachable database."""
