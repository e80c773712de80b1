"""Commands as cold processes: the time from the start of the program to its end."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PROGRAM = "from headrace.cli import main; main()"
SOURCE = "source: {{kafka: {{brokers: '{bootstrap}', topics: [{topic}]}}}}\n"
MINIMAL = "pipeline: minimal\n" + SOURCE + "table: {{path: ./lake/minimal}}\n"
COLUMNS = (
    "pipeline: columns\n"
    + SOURCE
    + """transform:
  - set: {{country: upper(country)}}
table:
  path: ./lake/columns
  columns:
    - {{name: id, type: bigint, nullable: false}}
    - {{name: country, type: string}}
    - {{name: amount, type: "decimal(12,2)"}}
    - {{name: at, type: timestamp}}
    - {{name: tags, type: array<string>}}
"""
)


def commands(folder: Path, bootstrap: str, topic: str, runs: int) -> Iterator[dict[str, Any]]:
    """Seconds and CPU-seconds of each command: the minimum and the median of some runs."""
    minimal, columns = folder / "minimal.yaml", folder / "columns.yaml"
    minimal.write_text(MINIMAL.format(bootstrap=bootstrap, topic=topic))
    columns.write_text(COLUMNS.format(bootstrap=bootstrap, topic=topic))
    lines: dict[str, Sequence[str]] = {
        "--help": ["--help"],
        "check, minimal spec": ["check", str(minimal)],
        "check, columns and an expression": ["check", str(columns)],
        "preview": ["preview", str(minimal)],
    }
    for label, words in lines.items():
        _seconds(words)  # writes the bytecode, which an installed package has
        readings = [_seconds(words) for _ in range(runs)]
        seconds, cpu = zip(*readings, strict=True)
        yield {
            "label": label,
            "seconds": round(min(seconds), 3),
            "median": round(statistics.median(seconds), 3),
            "cpu": round(min(cpu), 3),
            "median_cpu": round(statistics.median(cpu), 3),
        }


def _seconds(words: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU-seconds of one process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = os.times(), time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60, env=environment)
    seconds, after = time.perf_counter() - start, os.times()
    return seconds, sum(after[2:4]) - sum(before[2:4])  # user and system time of ended children
