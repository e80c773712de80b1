"""Headrace streams events from brokers into Delta Lake tables, exactly once, on Spark, and can prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.version import VERSION as __version__

if TYPE_CHECKING:
    from headrace.plan import Applied, Plan
    from headrace.runner import run
    from headrace.spec import Spec
    from headrace.spec.load import load, loads

__all__ = ["Applied", "Plan", "Spec", "__version__", "load", "loads", "run"]

_HOMES = {
    "Applied": "headrace.plan",
    "Plan": "headrace.plan",
    "Spec": "headrace.spec",
    "load": "headrace.spec.load",
    "loads": "headrace.spec.load",
    "run": "headrace.runner",
}


def __getattr__(name: str) -> Any:
    """Names are fetched when they are first used: importing headrace imports neither Spark nor DuckDB."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
