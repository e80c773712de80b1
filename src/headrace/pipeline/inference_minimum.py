"""The inference floor: columns that nobody has said are not taken from the first record that comes along."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline
    from headrace.spec.table import Infer

_LOOK_EVERY = 0.25


def wait(pipeline: Pipeline) -> None:
    """Until enough records wait, or the first of them has waited long enough; not where columns are known."""
    floors = list(_floors(pipeline))
    if not floors or pipeline.until is not None or pipeline.stop.is_set():
        return
    _ = pipeline.spark  # it takes longer to start than most floors take to reach
    records, within = max(each.records for each in floors), max(each.within for each in floors)
    first: float | None = None
    while not pipeline.stop.is_set():
        waiting = _waiting(pipeline)
        if waiting and first is None:
            first = time.monotonic()
        late = first is not None and time.monotonic() - first >= within.total_seconds()
        if late or waiting >= records:
            return
        pipeline.stop.wait(_LOOK_EVERY)
        pipeline.lease.check()
        pipeline.on_tick()


def _floors(pipeline: Pipeline) -> Iterator[Infer]:
    """Those of the branches of which nobody has said the columns."""
    known = {route_id.branch for route_id, shape in pipeline.tables.schemas.items() if shape is not None}
    for name, branch in pipeline.spec.branch_specs().items():
        if not branch.table.declared and name not in known:
            yield branch.table.infer


def _waiting(pipeline: Pipeline) -> int:
    """Offsets not yet read; those of a partition nobody has met yet count from its first."""
    bounds = pipeline.source.bounds().items()
    return sum(found.latest - pipeline.position.get(each, found.earliest) for each, found in bounds)
