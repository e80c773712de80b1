"""CPU cost of a function in this process: CPU-seconds per million records, one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.runtime.heap import keep_freed_memory

BATCH = 50_000  # records per batch of a task
ROUNDS = 5
Measured = Callable[[Any], object]
Run = tuple[Any, Measured]  # values, and the function that is called with each batch of them


def cost(values: Any, function: Measured) -> float:
    """CPU-seconds per million of one run, in batches as in a task."""
    batches = [values.slice(at, BATCH) for at in range(0, len(values), BATCH)]
    start = time.process_time()
    for batch in batches:
        function(batch)
    return (time.process_time() - start) * 1e6 / len(values)


def lowest_costs(runs: Mapping[str, Run], rounds: int = ROUNDS) -> dict[str, float]:
    """Minimum of several rounds. The runs alternate, so that other load on the machine affects all of them."""
    keep_freed_memory()  # as in a worker
    costs: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (values, function) in runs.items():
            seconds = cost(values if number else values.slice(0, BATCH), function)
            if number:  # the first round warms up
                costs[name].append(seconds)
    return {name: round(min(seconds), 2) for name, seconds in costs.items()}


def to_text(figures: Mapping[str, float]) -> str:
    """Figures as lines of text."""
    return "\n".join(f"{name:46s}{seconds:8.2f} CPU-s per million" for name, seconds in figures.items())
