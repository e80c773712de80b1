"""What a pipeline repairs before it reads on: a lost ledger, restored tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.recovery.rebuild_ledger import rebuild
from headrace.recovery.refill_restored_table import refill_all, refilled
from headrace.write.intent import Intent

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline


class StartupRecovery:
    """The recovery of every pipeline; the pipeline itself knows only its interface."""

    def rebuild_ledger(self, pipeline: Pipeline) -> None:
        """Write the ledger again where it is lost."""
        rebuild(pipeline)

    def refill_tables(self, pipeline: Pipeline) -> None:
        """Write again what was undone by a RESTORE."""
        refill_all(pipeline)

    def plan_refill(self, pipeline: Pipeline, intent: Intent) -> Intent:
        """The intent of a refill, planned again."""
        return refilled(pipeline, intent.tables[0].path, intent.batch, intent.started)
