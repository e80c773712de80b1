"""The spool of sources that cannot be read again."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from headrace.spec.base import SpecModel
from headrace.spec.units import Duration, Integer, Size
from headrace.spec.uris import StoragePath


class SpoolSpec(SpecModel):
    """Spool: received records on disk or in an object store, from the acknowledgement until they are committed."""

    path: StoragePath | None = Field(
        default=None,
        description="Directory of the spool, local or in an object store; only this pipeline may use it. Default: "
        "`spool` below `state`, which must then be a local directory.",
    )
    max_bytes: Size = Field(
        default=10_000_000_000, ge=16_000_000, description="Maximum size; producers must wait while it is reached."
    )
    retry_window: Duration = Field(
        default=timedelta(hours=1),
        description="Time in which a request that a producer repeats is recognized and not stored again.",
    )
    retry_requests: Integer = Field(
        default=100_000, ge=1, le=10_000_000, description="Maximum number of requests that are recognized."
    )
