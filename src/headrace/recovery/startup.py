"""What a pipeline repairs before it reads on: a lost ledger, restored tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.recovery.rebuild_ledger import rebuild
from headrace.recovery.refill_restored_table import refill_all, refilled
from headrace.write.intent import Intent

if TYPE_CHECKING:
    from headrace.pipeline.context import PipelineContext


class StartupRecovery:
    """The recovery of every pipeline; the pipeline itself knows only its interface."""

    def rebuild_ledger(self, context: PipelineContext) -> None:
        """Write the ledger again where it is lost."""
        rebuild(context)

    def refill_tables(self, context: PipelineContext) -> None:
        """Write again what was undone by a RESTORE."""
        refill_all(context)

    def plan_refill(self, context: PipelineContext, intent: Intent) -> Intent:
        """The intent of a refill, planned again."""
        return refilled(context, intent.tables[0].path, intent.batch, intent.started)
