"""`python -m bench [--only PART,…] [--report]`; QUICK=1 runs a smaller benchmark in five minutes.

The figures of a part are written when it ends, to bench/results/PART.json, or bench/results/quick/PART.json.
A full run also writes docs/internals/bench.md with its chart, and the table in the README.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench import report
from bench.parts import FULL_ONLY, PARTS
from bench.runs import FULL, QUICK, Bench, Figures, Scale
from bench.topics import broker_topics

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Run the selected parts; returns 1 if a part failed."""
    arguments = _arguments()
    if arguments.report:
        report.write(RESULTS)
        return 0
    scale = QUICK if os.environ.get("QUICK") not in (None, "", "0") else FULL
    if arguments.records:
        scale = replace(
            scale, records=arguments.records, growth=arguments.records, warm=min(scale.warm, arguments.records)
        )
    if arguments.turns:
        scale = replace(scale, turns=arguments.turns)
    results = Path(arguments.results or (RESULTS / "quick" if scale.quick else RESULTS))
    results.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if not (scale.quick and part in FULL_ONLY)]
    failed = _measure(arguments.only.split(",") if arguments.only else parts, scale, results)
    print(report.text(results))
    if not scale.quick and not (arguments.only or arguments.records or arguments.turns or failed):
        report.write(RESULTS)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Compare Headrace with its peers.")
    parser.add_argument("--only", default="", help=f"comma-separated parts: {', '.join(PARTS)}")
    parser.add_argument("--report", action="store_true", help="write the pages from existing results")
    parser.add_argument("--records", type=int, default=0, help="number of records; the pages are not written")
    parser.add_argument("--turns", type=int, default=0, help="number of turns; the pages are not written")
    parser.add_argument("--results", default="", help="folder for the figures; default: bench/results")
    arguments = parser.parse_args()
    if unknown := set(filter(None, arguments.only.split(","))) - set(PARTS):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    return arguments


def _measure(names: list[str], scale: Scale, results: Path) -> list[str]:
    """Run the parts one after the other; returns the names of those that failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, broker_topics(Path(folder)) as topics:
        bench = Bench(topics, Path(folder), scale)
        for name in names:
            start = time.monotonic()
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                figures = PARTS[name](bench)
            except Exception as error:
                failed.append(name)
                print(f"{name} failed: {error}", file=sys.stderr, flush=True)
                continue
            _write_results(results / f"{name}.json", name, figures, scale, time.monotonic() - start)
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return failed


def _write_results(file: Path, part: str, figures: list[Figures], scale: Scale, seconds: float) -> None:
    content: dict[str, Any] = {
        "part": part,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": scale.quick,
        "small": scale.records < FULL.records,
        "turns": scale.turns,
        "seconds": round(seconds),
        "machine": {
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "cpu": _cpu(),
            "python": platform.python_version(),
            "load": [round(each, 1) for each in os.getloadavg()],
        },
        "figures": figures,
    }
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(file)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
