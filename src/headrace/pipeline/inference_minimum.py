"""Minimum of records from which the columns of a new table are inferred."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline
    from headrace.spec.table import Infer

_INTERVAL = 0.25


def wait(pipeline: Pipeline) -> None:
    """Wait for `infer.records` records, at most `infer.within` from the first one; not where columns are known."""
    minimums = list(_minimums(pipeline))
    if not minimums or pipeline.until is not None or pipeline.stop.is_set():
        return
    _ = pipeline.spark  # its start usually takes longer than the wait
    records, within = max(each.records for each in minimums), max(each.within for each in minimums)
    first: float | None = None
    while not pipeline.stop.is_set():
        waiting = _waiting(pipeline)
        if waiting and first is None:
            first = time.monotonic()
        late = first is not None and time.monotonic() - first >= within.total_seconds()
        if late or waiting >= records:
            return
        pipeline.stop.wait(_INTERVAL)
        pipeline.lease.check()
        pipeline.on_tick()


def _minimums(pipeline: Pipeline) -> Iterator[Infer]:
    """The minimums of branches whose columns are neither declared nor known."""
    known = {route_id.branch for route_id, schema in pipeline.tables.schemas.items() if schema is not None}
    for name, branch in pipeline.spec.branch_specs().items():
        if not branch.table.declared and name not in known:
            yield branch.table.infer


def _waiting(pipeline: Pipeline) -> int:
    """Offsets not read yet; of a new partition, all of them."""
    bounds = pipeline.source.bounds().items()
    return sum(offsets.latest - pipeline.position.get(each, offsets.earliest) for each, offsets in bounds)
