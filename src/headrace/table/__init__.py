"""The Table API: create, query, change, maintain, repair, restore and drop Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.recovery.reingest_plan import Reingest, UnrecoverableRows
    from headrace.table.change_feed import Changes
    from headrace.table.delete_update import Deleted, Updated
    from headrace.table.enable_feature import ClientAccess, EnabledFeature
    from headrace.table.history import HistoryEntry, Latency, OperationLatencies
    from headrace.table.insert import Inserted
    from headrace.table.optimize import Optimized
    from headrace.table.query import Query
    from headrace.table.repair import Damage, Lost, Repaired
    from headrace.table.restore import Restored
    from headrace.table.stats import Statistics, TableInfo
    from headrace.table.table import Table
    from headrace.table.upsert import Upserted
    from headrace.table.vacuum import Vacuumed

__all__ = [
    "Changes",
    "ClientAccess",
    "Damage",
    "Deleted",
    "EnabledFeature",
    "HistoryEntry",
    "Inserted",
    "Latency",
    "Lost",
    "OperationLatencies",
    "Optimized",
    "Query",
    "Reingest",
    "Repaired",
    "Restored",
    "Statistics",
    "Table",
    "TableInfo",
    "UnrecoverableRows",
    "Updated",
    "Upserted",
    "Vacuumed",
]

_HOMES = {
    "Reingest": "headrace.recovery.reingest_plan",
    "UnrecoverableRows": "headrace.recovery.reingest_plan",
    "Changes": "headrace.table.change_feed",
    "Deleted": "headrace.table.delete_update",
    "Updated": "headrace.table.delete_update",
    "ClientAccess": "headrace.table.enable_feature",
    "EnabledFeature": "headrace.table.enable_feature",
    "HistoryEntry": "headrace.table.history",
    "Latency": "headrace.table.history",
    "OperationLatencies": "headrace.table.history",
    "Inserted": "headrace.table.insert",
    "Optimized": "headrace.table.optimize",
    "Query": "headrace.table.query",
    "Damage": "headrace.table.repair",
    "Lost": "headrace.table.repair",
    "Repaired": "headrace.table.repair",
    "Restored": "headrace.table.restore",
    "Statistics": "headrace.table.stats",
    "TableInfo": "headrace.table.stats",
    "Table": "headrace.table.table",
    "Upserted": "headrace.table.upsert",
    "Vacuumed": "headrace.table.vacuum",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use: pipelines need only few modules of this package."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.table' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
