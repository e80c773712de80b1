"""What gRPC and HTTP have in common: tokens, and export requests into the spool."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.source.otlp.export_request import RECORD_NAMES, request_parts
from headrace.source.otlp.json_request import response_type
from headrace.source.otlp.refusal import Refusal, RefusalKind, refusal_of
from headrace.source.spool.block import BLOCK_SCHEMA
from headrace.source.spool.receiver import Destination
from headrace.source.spool.writer import Incoming
from headrace.spec.decode import Signal


class Intake:
    """Stores export requests; a request is answered when its records are durable."""

    def __init__(self, spool: Destination, tokens: Sequence[str], *, max_body: int, record_bytes: int) -> None:
        self._spool = spool
        self._tokens = [token.encode() for token in tokens]
        self._max_body, self._record_bytes = max_body, record_bytes

    def authenticate(self, authorization: str | None) -> None:
        """Check the `authorization` of a request: `Bearer` and one of the tokens."""
        if not self._tokens:
            return
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip().encode()
        # All are compared, so that the time does not tell which one is similar.
        matches = [hmac.compare_digest(given, each) for each in self._tokens]
        if scheme.lower() != "bearer" or not any(matches):
            raise Refusal(RefusalKind.UNAUTHENTICATED, "A valid bearer token is required.")

    def check_size(self, size: int) -> None:
        """Refuse a request, decompressed, that is too large."""
        if size > self._max_body:
            message = f"The request is larger than {self._max_body:,} bytes (max_body)."
            raise Refusal(RefusalKind.TOO_LARGE, message)

    @property
    def max_body(self) -> int:
        """Maximum size of a request, decompressed."""
        return self._max_body

    async def store(self, signal: Signal, raw: bytes) -> Any:
        """Store a request; returns the response message when it is durable. Raises Refusal."""
        self.check_size(len(raw))
        stored = request_parts(signal, raw, self._record_bytes)
        response = response_type(signal)()
        if stored.rejected:
            setattr(response.partial_success, f"rejected_{RECORD_NAMES[signal]}", stored.rejected)
            response.partial_success.error_message = stored.message
        if stored.values:
            try:
                await asyncio.wrap_future(self._spool.append(_incoming(signal, raw, stored.values)))
            except Exception as error:
                raise refusal_of(error) from error
        return response


def _incoming(signal: Signal, raw: bytes, values: Sequence[bytes]) -> Incoming:
    """The records of a request. OTLP has no number of a request: the same bytes again are a retry."""
    count = len(values)
    columns = [
        pa.nulls(count, BLOCK_SCHEMA.field("key").type),
        pa.array(values, pa.binary()),
        pa.nulls(count, BLOCK_SCHEMA.field("headers").type),
        pa.array([time.time_ns() // 1000] * count, pa.int64()).view(BLOCK_SCHEMA.field("timestamp").type),
    ]
    records = pa.RecordBatch.from_arrays(columns, schema=BLOCK_SCHEMA)
    return Incoming(signal, records, "otlp", hashlib.sha256(raw).hexdigest())
