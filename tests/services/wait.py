"""Waiting for a fact, with a deadline, in place of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(fact: Callable[[], T], within: float = 90, say: str | Callable[[], str] = "") -> T:
    """The first truthy answer of `fact`; an AssertionError inside it counts as "not yet"."""
    deadline = time.monotonic() + within
    pause = 0.01
    while True:
        answer, problem = _ask(fact)
        if answer:
            return answer
        if time.monotonic() > deadline:
            said = say() if callable(say) else say or getattr(fact, "__name__", "the fact")
            raise AssertionError(f"not within {within:g} s: {said}; last answer {answer!r}") from problem
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def _ask(fact: Callable[[], T]) -> tuple[T | None, AssertionError | None]:
    try:
        return fact(), None
    except AssertionError as problem:
        return None, problem
