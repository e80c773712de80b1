"""Routing rules as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# A name that is one plain folder on every store: no separator, no leading dot, nothing to decode or to escape.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Routing:
    """Routing rules."""

    by: Literal["fixed", "topic", "type", "field", "header", "sql"] = "fixed"
    value: str | None = None  # a field's pointer, a header's name or an expression
    include: str | None = None
    exclude: str | None = None
    unrouted: Literal["dead_letter", "skip"] = "dead_letter"
    topics: bool = False  # whether every topic has tables of its own: routes are then `topic:route`
