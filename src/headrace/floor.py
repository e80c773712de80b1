"""The inference floor: columns that nobody has said are not taken from the first record that comes along."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline import Pipeline

_LOOK_EVERY = 0.25


def wait(pipeline: Pipeline) -> None:
    """Until enough records wait, or the first of them has waited long enough; not where columns are known."""
    known = pipeline.spec.table.declared or any(pipeline.catalog.shapes.values())
    if known or pipeline.until is not None or pipeline.stop.is_set():
        return
    _ = pipeline.spark  # it takes longer to start than most floors take to reach
    floor = pipeline.spec.table.infer
    first: float | None = None
    while not pipeline.stop.is_set():
        waiting = _waiting(pipeline)
        if waiting and first is None:
            first = time.monotonic()
        late = first is not None and time.monotonic() - first >= floor.within.total_seconds()
        if late or waiting >= floor.records:
            return
        pipeline.stop.wait(_LOOK_EVERY)
        pipeline.lease.check()
        pipeline.on_tick()


def _waiting(pipeline: Pipeline) -> int:
    """Offsets not yet read; those of a partition nobody has met yet count from its first."""
    bounds = pipeline.source.bounds().items()
    return sum(found.latest - pipeline.position.get(each, found.earliest) for each, found in bounds)
