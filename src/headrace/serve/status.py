"""Where a pipeline stands, read from its state and its source; changes nothing and starts no Spark."""

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
    """Holder, newest batches, open batch, tables and lag; what cannot be, or was not, asked is None."""
    state = Store(spec.state_uri, Profile(**spec.storage_profile()))
    ledger = Ledger.open(state, spec.pipeline)
    begun = ledger.open_batch()
    return {
        "pipeline": spec.pipeline,
        "holder": lease.holder(state),
        "batch": ledger.batch,
        "open_batch": None if begun is None else begun.batch,
        **_lag(spec, ledger),
        "tables": sorted(ledger.known.tables),
        "batches": ledger.rows(batches),
        "maintenance": _maintenance(spec, state, batches),
        "orphans": _orphans(spec, state, ledger) if orphans else None,
    }


def _orphans(spec: Spec, state: Store, ledger: Ledger) -> dict[str, Any]:
    """Files that dead writers left, by folder: each table is listed, so it takes as long as that does."""
    now, states = time.time(), {spec.pipeline: state.uri}
    found = {f"{state.uri}/{STAGING}": _left_in_staging(spec, state, ledger, now)}
    for uri in sorted({*ledger.known.tables, spec.dead_letters_uri}):
        store = Store(uri, state.profile)
        with suppress(TableNotFound):
            found[uri] = vacuum.orphans(store, TableOwners(store, states), now)
    counted = {uri: each for uri, each in found.items() if each.files}
    return {
        "files": sum(len(each.files) for each in counted.values()),
        "bytes": sum(each.bytes for each in counted.values()),
        "folders": {uri: len(each.files) for uri, each in counted.items()},
    }


def _left_in_staging(spec: Spec, state: Store, ledger: Ledger, now: float) -> vacuum.Orphans:
    begun = (ledger.open_batch(), Replays.open(state, writer(spec.pipeline)).open_batch())
    needed = staged_for(each for each in begun if each is not None)
    left = [item for item in state.list(STAGING) if f"{state.uri}/{item.path}" not in needed]
    return vacuum.orphans_among(left, lease.holder(state) is not None, now)


def _maintenance(spec: Spec, state: Store, last: int) -> dict[str, Any] | None:
    """What was done to the tables last, and what is under way; None where the spec asks for none."""
    if spec.maintenance is None:
        return None
    record = Journal(state)
    return {"done": record.done[-last:], "running": record.running}


def _lag(spec: Spec, ledger: Ledger) -> dict[str, Any]:
    source = open_source(spec)
    try:
        return {**source.lag(ledger.position()).event(), "lag_error": None}
    except HeadraceError as error:
        return {**lag_event(), "lag_error": f"{error.name}: {error.message}"}
    finally:
        source.close()
