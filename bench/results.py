"""Results of a run: files by part, and figures in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Results = dict[str, dict[str, Any]]


def load(folder: Path) -> Results:
    """Results of a folder by part."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def figures(results: Results, part: str, **keys: Any) -> dict[str, Any]:
    """Figures with these values; raises KeyError if they were not measured."""
    for row in results[part]["figures"]:
        if all(row.get(key) == value for key, value in keys.items()):
            return dict(row)
    raise KeyError(f"{part}: {keys}")


def ratio(results: Results, key: str, part: str, over: dict[str, Any], under: dict[str, Any]) -> float:
    """Ratio of a figure of two rows of a part."""
    return float(figures(results, part, **over)[key]) / float(figures(results, part, **under)[key])
