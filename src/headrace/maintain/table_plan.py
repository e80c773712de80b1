"""Plan of the rewrites of one table, for display: nothing is written."""

from __future__ import annotations

import time

from headrace.delta.log_writer import LogWriter
from headrace.maintain.maintained_table import LogMaintainedTable
from headrace.maintain.planner import Action, plan_rewrites
from headrace.spec import Spec
from headrace.spec.maintenance import MaintenanceSpec
from headrace.storage.store import Store


def planned_rewrites(spec: Spec, store: Store) -> list[Action]:
    """What maintenance of the pipeline would rewrite now, or, if it is disabled, what it would with its defaults."""
    route = spec.route_of(store.uri)
    table = LogMaintainedTable(LogWriter.open(store), None if route is None else spec.table_for(route))
    table.listing.follow(table.state.version)
    return plan_rewrites(
        store.uri,
        table.listing.files,
        table.targets,
        spec.maintenance or MaintenanceSpec(),
        time.time(),
        table.is_ordered,
        table.partition_of,
    )
