"""Headrace streams events from Kafka into Delta Lake tables, exactly once, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.version import VERSION as __version__

if TYPE_CHECKING:
    from headrace.dead_letters.reader import DeadLetters, RecordPosition, Selection
    from headrace.dead_letters.replay import purge as purge_dead_letters
    from headrace.dead_letters.replay import replay as replay_dead_letters
    from headrace.plan.batch_result import BatchResult
    from headrace.plan.plan import Plan
    from headrace.serve.runner import run
    from headrace.spec import Spec
    from headrace.spec.route_id import RouteId
    from headrace.table import Table
    from headrace.validate.load import load, loads

__all__ = [
    "BatchResult",
    "DeadLetters",
    "Plan",
    "RecordPosition",
    "RouteId",
    "Selection",
    "Spec",
    "Table",
    "__version__",
    "load",
    "loads",
    "purge_dead_letters",
    "replay_dead_letters",
    "run",
]

_HOMES = {
    "BatchResult": ("headrace.plan.batch_result", "BatchResult"),
    "DeadLetters": ("headrace.dead_letters.reader", "DeadLetters"),
    "RecordPosition": ("headrace.dead_letters.reader", "RecordPosition"),
    "Plan": ("headrace.plan.plan", "Plan"),
    "RouteId": ("headrace.spec.route_id", "RouteId"),
    "Selection": ("headrace.dead_letters.reader", "Selection"),
    "Spec": ("headrace.spec", "Spec"),
    "Table": ("headrace.table", "Table"),
    "load": ("headrace.validate.load", "load"),
    "loads": ("headrace.validate.load", "loads"),
    "purge_dead_letters": ("headrace.dead_letters.replay", "purge"),
    "replay_dead_letters": ("headrace.dead_letters.replay", "replay"),
    "run": ("headrace.serve.runner", "run"),
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that importing headrace imports neither Spark nor DuckDB."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    from importlib import import_module

    home, known_as = _HOMES[name]
    return getattr(import_module(home), known_as)
