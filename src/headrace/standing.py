"""Where a pipeline stands, read from its state and its source; changes nothing and starts no Spark."""

from __future__ import annotations

from typing import Any

from headrace import lease
from headrace.errors import HeadraceError
from headrace.ledger import Ledger
from headrace.maintain.record import Record
from headrace.read import lag_event, open_source
from headrace.spec import Spec
from headrace.storage import Profile, Store


def standing(spec: Spec, batches: int = 5) -> dict[str, Any]:
    """Holder, newest batches, open batch, tables and lag; what cannot be asked is None."""
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
        "upkeep": _upkeep(spec, state, batches),
    }


def _upkeep(spec: Spec, state: Store, last: int) -> dict[str, Any] | None:
    """What was done to the tables last, and what is under way; None where the spec asks for none."""
    if spec.maintain is None:
        return None
    record = Record(state)
    return {"done": record.done[-last:], "under_way": record.under_way}


def _lag(spec: Spec, ledger: Ledger) -> dict[str, Any]:
    source = open_source(spec)
    try:
        return {**source.lag(ledger.position()).event(), "lag_error": None}
    except HeadraceError as error:
        return {**lag_event(), "lag_error": f"{error.name}: {error.seen}"}
    finally:
        source.close()
