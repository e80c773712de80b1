"""Targets of the figures that were measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.goals import GOALS
from bench.results import Results


@dataclass(frozen=True)
class Target:
    """Target of a figure, and its measured value."""

    name: str
    bound: str
    value: float
    met: bool | None  # None: the run is too small for the target


def targets(results: Results) -> Iterator[Target]:
    """Targets whose parts were measured."""
    for goal in GOALS:
        try:
            value = goal.measure(results)
        except (KeyError, StopIteration, IndexError, ValueError):
            continue
        parts = [results[goal.part]] if goal.part else list(results.values())
        if not goal.small and any(part.get("small", part["quick"]) for part in parts):
            yield Target(goal.name, "–", value, None)
            continue
        met = value >= goal.bound if goal.sign == "≥" else value <= goal.bound
        yield Target(goal.name, f"{goal.sign} {goal.bound:g}", value, met)
