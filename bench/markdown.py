"""Tables of the report, and names of the peers in them."""

from __future__ import annotations

from typing import Any

NAMES = {
    ("headrace", "declared"): "Headrace",
    ("headrace", "inferred"): "Headrace, columns inferred",
    ("textbook", "declared"): "`readStream` → `from_json` → Delta sink",
    ("pandas", "declared"): "Python consumer, `json` + pandas",
    ("arrow", "declared"): "Python consumer, orjson + pyarrow",
    ("floor", "declared"): "minimum: Spark's Kafka source, counted in Python",
}


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table, and an empty line."""
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def peer_name(figures: dict[str, Any]) -> str:
    """Name of the peer of a row."""
    return NAMES[figures["peer"], figures["label"]]
