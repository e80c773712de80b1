"""Routing rules as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# A directory name that is valid on every store: no separator, no leading dot, nothing to escape.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Routing:
    """Routing rules."""

    by: Literal["fixed", "topic", "type", "field", "header", "sql"] = "fixed"
    value: str | None = None  # field path, header name or SQL expression
    include: str | None = None
    exclude: str | None = None
    unrouted: Literal["dead_letter", "skip"] = "dead_letter"
    topics: bool = False  # whether each topic has its own tables; routes are then `topic:route`
