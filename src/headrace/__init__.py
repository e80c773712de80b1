"""Headrace streams events from brokers into Delta Lake tables, exactly once, on Spark, and can prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.version import VERSION as __version__

if TYPE_CHECKING:
    from headrace.letters import Letters, Place, Selection
    from headrace.plan import Applied, Plan
    from headrace.replay import purge as purge_letters
    from headrace.replay import replay as replay_letters
    from headrace.runner import run
    from headrace.spec import Spec
    from headrace.spec.load import load, loads
    from headrace.table import Table

__all__ = [
    "Applied",
    "Letters",
    "Place",
    "Plan",
    "Selection",
    "Spec",
    "Table",
    "__version__",
    "load",
    "loads",
    "purge_letters",
    "replay_letters",
    "run",
]

_HOMES = {
    "Applied": ("headrace.plan", "Applied"),
    "Letters": ("headrace.letters", "Letters"),
    "Place": ("headrace.letters", "Place"),
    "Plan": ("headrace.plan", "Plan"),
    "Selection": ("headrace.letters", "Selection"),
    "Spec": ("headrace.spec", "Spec"),
    "Table": ("headrace.table", "Table"),
    "load": ("headrace.spec.load", "load"),
    "loads": ("headrace.spec.load", "loads"),
    "purge_letters": ("headrace.replay", "purge"),
    "replay_letters": ("headrace.replay", "replay"),
    "run": ("headrace.runner", "run"),
}


def __getattr__(name: str) -> Any:
    """Names are fetched when they are first used: importing headrace imports neither Spark nor DuckDB."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    from importlib import import_module

    home, known_as = _HOMES[name]
    return getattr(import_module(home), known_as)
