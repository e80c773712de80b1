"""Status of a pipeline, from its state and its source; read-only and without Spark."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from headrace.delta.log import newest_version
from headrace.delta.snapshot import all_txns
from headrace.delta.txn import batch_number_of, pipeline_of
from headrace.errors import HeadraceError, TableNotFound, UsageError
from headrace.ledger.ledger import Ledger
from headrace.ledger.replays import Replays, writer
from headrace.maintain.journal import Journal
from headrace.pipeline.tables import STAGING
from headrace.source.base import lag_event, open_source
from headrace.spec import Spec
from headrace.storage import lease
from headrace.storage.store import Profile, Store
from headrace.table import vacuum
from headrace.table.ownership import TableOwners
from headrace.write.intent import staged_for


def pipeline_status(spec: Spec, batches: int = 5, orphans: bool = False) -> dict[str, Any]:
    """Lease holder, newest batches, open batch, tables and lag; None for values that are unknown or not requested."""
    state = Store(spec.state_uri, Profile(**spec.storage_profile()))
    ledger = Ledger.open(state, spec.pipeline)
    return {
        **_state_status(spec.pipeline, state, ledger, batches),
        **_lag(spec, ledger),
        "maintenance": None if spec.maintenance is None else _maintenance(state, batches),
        "hot_store": _hot_store(spec, sorted(ledger.known.tables)),
        "orphans": _orphans(spec, state, ledger) if orphans else None,
    }


def status_of_state(state: Store, batches: int = 5) -> dict[str, Any]:
    """The same from a state directory alone: without the spec, the lag is unknown."""
    pipeline = _pipeline_of_state(state)
    return {
        **_state_status(pipeline, state, Ledger.open(state, pipeline), batches),
        **lag_event(),
        "lag_error": "the source is in the spec: use `headrace status SPEC`",
        "maintenance": _maintenance(state, batches),
        "hot_store": None,
        "orphans": None,
    }


def state_directories(directory: Store) -> list[Store]:
    """The states of pipelines in a directory, or the directory itself if it is one; UsageError if there is none."""
    if _is_state(directory):
        return [directory]
    states = [state for path in directory.folders() if _is_state(state := directory.child(path))]
    if not states:
        raise UsageError(
            f"{directory.uri} has no states of pipelines.",
            hint="Specify a state directory, or the directory of several, such as lake/_headrace.",
        )
    return states


def _is_state(directory: Store) -> bool:
    return not {Ledger.folder, Ledger.intents, lease.FOLDER}.isdisjoint(directory.folders())


def _pipeline_of_state(state: Store) -> str:
    """The pipeline as its ledger names it; before its first batch, the name of the directory."""
    ledger = state.child(Ledger.folder)
    version = newest_version(ledger)
    named = None if version is None else batch_number_of(all_txns(ledger, version))
    return state.uri.rpartition("/")[2] if named is None else pipeline_of(named[0])


def _state_status(pipeline: str, state: Store, ledger: Ledger, batches: int) -> dict[str, Any]:
    intent = ledger.open_batch()
    return {
        "pipeline": pipeline,
        "holder": lease.holder(state),
        "batch": ledger.batch,
        "open_batch": None if intent is None else intent.batch,
        "tables": sorted(ledger.known.tables),
        "batches": ledger.rows(batches),
    }


def _hot_store(spec: Spec, tables: list[str]) -> dict[str, Any] | None:
    if spec.hot_store is None:
        return None
    from headrace.hot_store.status import hot_store_status  # imports psycopg

    return hot_store_status(spec, tables)


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
        "directories": {uri: len(orphans.files) for uri, orphans in folders.items()},
    }


def _staging_orphans(spec: Spec, state: Store, ledger: Ledger, now: float) -> vacuum.Orphans:
    intents = (ledger.open_batch(), Replays.open(state, writer(spec.pipeline)).open_batch())
    needed = staged_for(intent for intent in intents if intent is not None)
    files = [item for item in state.list(STAGING) if f"{state.uri}/{item.path}" not in needed]
    return vacuum.orphans_among(files, lease.holder(state) is not None, now)


def _maintenance(state: Store, last: int) -> dict[str, Any]:
    """Last and running maintenance actions."""
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
