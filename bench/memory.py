"""Memory of a pipeline that runs for long: PSS of the process tree in ten equal periods."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.freshness import START, headrace_command, paced_producer
from bench.meter import tree_pss
from bench.processes import run
from bench.runs import Bench, Figures

RATE = 1_000  # records per second
SECONDS = 300.0
LONG = 3600.0  # seconds with BENCH_LONG=1
PERIODS = 10
WARM_UP = 30.0  # seconds after the first commit
INTERVAL = 2.0  # seconds between two samples


@dataclass
class Samples:
    """PSS of the process tree after the warm-up, in bytes, and the commits at the end of each period."""

    table: Path
    seconds: float
    periods: list[list[int]] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)

    def take(self, child: subprocess.Popen[str]) -> None:
        """Sample the process for the whole time; then stop it."""
        deadline = time.monotonic() + START
        while not self._versions() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(WARM_UP)
        for _ in range(PERIODS):
            end, period = time.monotonic() + self.seconds / PERIODS, []
            while time.monotonic() < end and child.poll() is None:
                period.append(tree_pss(child.pid, with_root=False))
                time.sleep(INTERVAL)
            self.periods.append(period)
            self.commits.append(self._versions())
        child.terminate()

    def _versions(self) -> int:
        return sum(1 for _ in (self.table / "_delta_log").glob("[0-9]*.json"))


def memory(bench: Bench) -> list[Figures]:
    """One row per period."""
    folder = Path(tempfile.mkdtemp(prefix="memory-", dir=bench.folder))
    topic = bench.topics.empty(f"memory-{time.monotonic_ns()}")
    command, table = headrace_command(bench.topics.bootstrap, topic, folder)
    seconds = LONG if os.environ.get("BENCH_LONG") == "1" else SECONDS * min(1.0, bench.scale.records / 1_000_000)
    samples = Samples(table, seconds)
    with paced_producer(bench, topic, RATE, folder):
        run(command, folder, table, START, samples.take, commit_poll=10.0)
    return [
        {
            "label": f"minutes {number * seconds / PERIODS / 60:g} to {(number + 1) * seconds / PERIODS / 60:g}",
            "median_mib": round(statistics.median(period) / 2**20),
            "peak_mib": round(max(period) / 2**20),
            "commits": commits,
        }
        for number, (period, commits) in enumerate(zip(samples.periods, samples.commits, strict=True))
    ]
