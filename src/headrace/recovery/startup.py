"""Recovery at the start of a run: a lost ledger, restored tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.recovery.rebuild_ledger import rebuild
from headrace.recovery.refill_restored_table import plan_refill, refill_all
from headrace.write.intent import Intent

if TYPE_CHECKING:
    from headrace.pipeline.context import PipelineContext


class StartupRecovery:
    """Default recovery of a pipeline, which depends only on the `Recovery` protocol."""

    def rebuild_ledger(self, context: PipelineContext) -> None:
        """Rebuild a lost ledger."""
        rebuild(context)

    def refill_tables(self, context: PipelineContext) -> None:
        """Write again the rows that a RESTORE removed."""
        refill_all(context)

    def plan_refill(self, context: PipelineContext, intent: Intent) -> Intent:
        """Plan a refill again."""
        return plan_refill(context, intent.tables[0].path, intent.batch, intent.started)
