"""Daily cleanup of a pipeline: expired dead letters and tombstones, and staged files that no batch needs."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime

from headrace.errors import HeadraceError
from headrace.ledger.replays import Replays
from headrace.ledger.replays import writer as replays_writer
from headrace.pipeline.context import PipelineContext
from headrace.pipeline.tables import STAGING
from headrace.write import retention
from headrace.write.intent import staged_for
from headrace.write.tombstones import DAY, TOMBSTONES


def clean_up(context: PipelineContext, now: datetime) -> None:
    """Delete what has expired at a time that the ledger proves."""
    context.tables.follow_logs()
    _delete_abandoned_files(context)
    tombstones = context.state.child(TOMBSTONES)
    for folder in tombstones.folders():
        retention.purge_days(tombstones.child(folder), now.date(), DAY)
    age = context.spec.dead_letters.retention
    purge = purge_dead_letters(context, retention.retention_day(age, now)) if age is not None else None
    if purge is not None and purge.files:
        context.report({"event": "purge", "pipeline": context.spec.pipeline, "text": f"purged {purge}"})


def purge_dead_letters(context: PipelineContext, before: date) -> retention.Purge:
    """Record the purge in the ledger, then delete the dead letters before a day; none while a replay is open."""
    store = context.store(context.spec.dead_letters_uri)
    purge = retention.purge_preview(store, before)
    if not purge.files or _open_replays(context).open_batch() is not None:
        return retention.Purge(before)
    context.ledger.decide(f"purged {purge}", {})
    return retention.purge_days(store, before)


def _delete_abandoned_files(context: PipelineContext) -> None:
    """Delete the staged files of batches that ended before their intent was written; no other batch is running."""
    intents = context.ledger.open_batch(), _open_replays(context).open_batch()
    needed = staged_for(intent for intent in intents if intent is not None)
    with suppress(HeadraceError):
        paths = [item.path for item in context.state.list(STAGING)]
        context.state.delete([path for path in paths if f"{context.state.uri}/{path}" not in needed])


def _open_replays(context: PipelineContext) -> Replays:
    return Replays.open(context.state, replays_writer(context.spec.pipeline))
