"""Status of a pipeline, from its state and its source; read-only and without Spark."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from headrace.errors import HeadraceError, TableNotFound
from headrace.ledger.ledger import Ledger
from headrace.ledger.replays import Replays, writer
from headrace.maintain.journal import Journal
from headrace.pipeline import lease
from headrace.pipeline.tables import STAGING
from headrace.source.base import lag_event, open_source
from headrace.spec import Spec
from headrace.storage.store import Profile, Store
from headrace.table import vacuum
from headrace.table.ownership import TableOwners
from headrace.write.intent import staged_for


def pipeline_status(spec: Spec, batches: int = 5, orphans: bool = False) -> dict[str, Any]:
    """Lease holder, newest batches, open batch, tables and lag; None for values that are unknown or not requested."""
    state = Store(spec.state_uri, Profile(**spec.storage_profile()))
    ledger = Ledger.open(state, spec.pipeline)
    intent = ledger.open_batch()
    return {
        "pipeline": spec.pipeline,
        "holder": lease.holder(state),
        "batch": ledger.batch,
        "open_batch": None if intent is None else intent.batch,
        **_lag(spec, ledger),
        "tables": sorted(ledger.known.tables),
        "batches": ledger.rows(batches),
        "maintenance": _maintenance(spec, state, batches),
        "orphans": _orphans(spec, state, ledger) if orphans else None,
    }


def _orphans(spec: Spec, state: Store, ledger: Ledger) -> dict[str, Any]:
    """Files of failed writers, by folder; lists all files of every table."""
    now, states = time.time(), {spec.pipeline: state.uri}
    folders = {f"{state.uri}/{STAGING}": _staging_orphans(spec, state, ledger, now)}
    for uri in sorted({*ledger.known.tables, spec.dead_letters_uri}):
        store = Store(uri, state.profile)
        with suppress(TableNotFound):
            folders[uri] = vacuum.orphans(store, TableOwners(store, states), now)
    folders = {uri: orphans for uri, orphans in folders.items() if orphans.files}
    return {
        "files": sum(len(orphans.files) for orphans in folders.values()),
        "bytes": sum(orphans.bytes for orphans in folders.values()),
        "folders": {uri: len(orphans.files) for uri, orphans in folders.items()},
    }


def _staging_orphans(spec: Spec, state: Store, ledger: Ledger, now: float) -> vacuum.Orphans:
    intents = (ledger.open_batch(), Replays.open(state, writer(spec.pipeline)).open_batch())
    needed = staged_for(intent for intent in intents if intent is not None)
    files = [item for item in state.list(STAGING) if f"{state.uri}/{item.path}" not in needed]
    return vacuum.orphans_among(files, lease.holder(state) is not None, now)


def _maintenance(spec: Spec, state: Store, last: int) -> dict[str, Any] | None:
    """Last and running maintenance actions; None if the spec has no `maintenance`."""
    if spec.maintenance is None:
        return None
    journal = Journal(state)
    return {"done": journal.done[-last:], "running": journal.running}


def _lag(spec: Spec, ledger: Ledger) -> dict[str, Any]:
    source = open_source(spec)
    try:
        return {**source.lag(ledger.position()).event(), "lag_error": None}
    except HeadraceError as error:
        return {**lag_event(), "lag_error": f"{error.name}: {error.message}"}
    finally:
        source.close()
