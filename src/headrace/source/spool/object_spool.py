"""Open the spool of a pipeline in an object store for writing."""

from __future__ import annotations

import uuid
from contextlib import suppress

from headrace.errors import HeadraceError, LeaseHeld
from headrace.source.spool.layout import ABOUT, SpoolIdentity, decode_identity
from headrace.source.spool.object_log import ObjectLog
from headrace.source.spool.writer import Spool, SpoolLimits
from headrace.storage.base import AlreadyExists, NotFound
from headrace.storage.lease import Lease
from headrace.storage.store import Store


def open_object_spool(
    store: Store, pipeline: str, limits: SpoolLimits | None = None, *, ttl: float = 20.0, renew: float = 5.0
) -> Spool:
    """Open or create the spool of a pipeline; LeaseHeld if another process writes it.

    The lease prevents that two processes end each other's writes in turn; the numbers of the objects are what makes
    it safe.
    """
    limits = limits or SpoolLimits()
    identity = _identity(store, pipeline)  # before the lease: who finds it held reads the spool
    lease = _lease(store, ttl, renew)
    try:
        store.verify_conditional_puts()
        log = ObjectLog(
            store,
            segment_bytes=limits.segment_bytes,
            request_age=limits.request_age,
            max_requests=limits.max_requests,
        )
        return Spool(log, identity, limits, lambda: _release(lease))
    except BaseException:
        _release(lease)
        raise


def _lease(store: Store, ttl: float, renew: float) -> Lease:
    try:
        return Lease.take(store, ttl=ttl, renew=renew, watch=True)
    except LeaseHeld as held:
        raise LeaseHeld(
            f"The spool {store.uri} is written by another process, on {held.facts['host']} with pid "
            f"{held.facts['pid']}.",
            hint="Stop that process first, or let it receive and start `headrace run` beside it.",
            **held.facts,
            ready=True,
        ) from None


def _release(lease: Lease) -> None:
    with suppress(HeadraceError):  # it expires
        lease.release()


def _identity(store: Store, pipeline: str) -> SpoolIdentity:
    """The identity of the spool, created with it; UsageError if it belongs to another pipeline."""
    try:
        identity = decode_identity(store.get(ABOUT), store.uri)
    except NotFound:
        with suppress(AlreadyExists):
            store.put_new(ABOUT, SpoolIdentity(uuid.uuid4().hex, pipeline).encode())
        identity = decode_identity(store.get(ABOUT), store.uri)
    identity.verify(pipeline, store.uri)
    return identity
