"""The whole life of a Delta table: made, read, written, kept in order, mended, restored, dropped."""

from headrace.reingest import Reingest, Unread
from headrace.table.api import Table
from headrace.table.changes import Changes
from headrace.table.compact import Optimized
from headrace.table.conditions import Deleted, Updated
from headrace.table.facts import Metadata, Statistics
from headrace.table.history import Entry, Latency, OperationMetrics
from headrace.table.insert import Inserted
from headrace.table.query import Query
from headrace.table.repair import Damage, Lost, Repaired
from headrace.table.upkeep import Restored
from headrace.table.upsert import Upserted
from headrace.table.vacuum import Vacuumed

__all__ = [
    "Changes",
    "Damage",
    "Deleted",
    "Entry",
    "Inserted",
    "Latency",
    "Lost",
    "Metadata",
    "OperationMetrics",
    "Optimized",
    "Query",
    "Reingest",
    "Repaired",
    "Restored",
    "Statistics",
    "Table",
    "Unread",
    "Updated",
    "Upserted",
    "Vacuumed",
]
