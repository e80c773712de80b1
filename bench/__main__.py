"""`python -m bench [--only PART,…] [--report]`; QUICK=1 measures less, once, in five minutes.

Each part's figures are written when it ends: to bench/results/PART.json, or bench/results/quick/PART.json.
A full run ends by writing docs/internals/bench.md with its drawing, and the table in the README.
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
from bench.parts import FULL, FULL_ONLY, PARTS, QUICK, Bench, Figures, Scale
from bench.topics import broker_topics

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Measure what was asked for; 1 when a part failed."""
    asked = _arguments()
    if asked.report:
        report.write(RESULTS)
        return 0
    scale = QUICK if os.environ.get("QUICK") not in (None, "", "0") else FULL
    if asked.records:
        scale = replace(scale, records=asked.records, growth=asked.records, warm=min(scale.warm, asked.records))
    results = Path(asked.results or (RESULTS / "quick" if scale.quick else RESULTS))
    results.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if not (scale.quick and part in FULL_ONLY)]
    failed = _measure(asked.only.split(",") if asked.only else parts, scale, results)
    print(report.text(results))
    if not scale.quick and not asked.only and not asked.records and not failed:
        report.write(RESULTS)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Headrace beside its peers.")
    parser.add_argument("--only", default="", help=f"parts, with commas between: {', '.join(PARTS)}")
    parser.add_argument("--report", action="store_true", help="write the pages from the results that are there")
    parser.add_argument("--records", type=int, default=0, help="another number of records, for a look")
    parser.add_argument("--results", default="", help="another folder for the figures")
    asked = parser.parse_args()
    if unknown := set(filter(None, asked.only.split(","))) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return asked


def _measure(names: list[str], scale: Scale, results: Path) -> list[str]:
    """Every part in turn; one that fails is named and leaves the others."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place, broker_topics(Path(place)) as topics:
        bench = Bench(topics, Path(place), scale)
        for name in names:
            began = time.monotonic()
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                figures = PARTS[name](bench)
            except Exception as error:
                failed.append(name)
                print(f"{name} failed: {error}", file=sys.stderr, flush=True)
                continue
            _keep(results / f"{name}.json", name, figures, scale, time.monotonic() - began)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return failed


def _keep(file: Path, part: str, figures: list[Figures], scale: Scale, seconds: float) -> None:
    found: dict[str, Any] = {
        "part": part,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": scale.quick,
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
    new.write_text(json.dumps(found, indent=1) + "\n")
    new.replace(file)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
