"""The Table API: create, query, change, maintain, repair, restore and drop Delta tables."""

from headrace.recovery.reingest_plan import Reingest, UnrecoverableRows
from headrace.table.change_feed import Changes
from headrace.table.delete_update import Deleted, Updated
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
    "Damage",
    "Deleted",
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
