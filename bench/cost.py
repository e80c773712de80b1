"""What something costs in this process: CPU-seconds per million records, one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

BATCH = 50_000  # records that a task sees at once
ROUNDS = 5
Way = Callable[[Any], object]
Run = tuple[Any, Way]  # what can be sliced, and what is done with each slice


def cost(values: Any, way: Way) -> float:
    """One run, in batches as a task sees them."""
    batches = [values.slice(at, BATCH) for at in range(0, len(values), BATCH)]
    begun = time.process_time()
    for batch in batches:
        way(batch)
    return (time.process_time() - begun) * 1e6 / len(values)


def least(runs: Mapping[str, Run], rounds: int = ROUNDS) -> dict[str, float]:
    """The least of several rounds, taken in turn, so that a neighbour's load falls on all alike."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (values, way) in runs.items():
            taken = cost(values if number else values.slice(0, BATCH), way)
            if number:  # the first round only plans and learns
                spent[name].append(taken)
    return {name: round(min(taken), 2) for name, taken in spent.items()}


def shown(found: Mapping[str, float]) -> str:
    """The figures as lines."""
    return "\n".join(f"{name:46s}{seconds:8.2f} CPU-s per million" for name, seconds in found.items())
