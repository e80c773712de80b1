"""Age of rows when they can be read: a producer at a constant rate, and a pipeline that commits every half second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from bench.cold import KIND, Command, headrace_run, smallest_spec, textbook_script
from bench.meter import environment, tree_cpu
from bench.processes import ProcessReading, run
from bench.runs import Bench, Figures

RATES = {"headrace": (1_000, 20_000, 50_000), "textbook": (1_000, 20_000)}
WARM_UP = 15.0  # seconds after the first commit
START = 180.0  # seconds within which the first commit must be made
SECONDS = 120.0
LONG = (20_000, 600.0)  # rate and seconds of a long run: BENCH_LONG=1


@dataclass
class Window:
    """Measured part of a run, after the warm-up: epoch seconds, and CPU-seconds of the process tree."""

    table: Path
    seconds: float
    begin: float = 0.0
    end: float = 0.0
    cpu: float = 0.0

    def pass_by(self, child: subprocess.Popen[str]) -> None:
        """Wait for the first commit, the warm-up and the window; then stop the process."""
        deadline = time.monotonic() + START
        while not any((self.table / "_delta_log").glob("[0-9]*.json")):
            if child.poll() is not None or time.monotonic() > deadline:
                child.terminate()
                return
            time.sleep(0.1)
        time.sleep(WARM_UP)
        self.begin, before = time.time(), tree_cpu(child.pid)
        time.sleep(self.seconds)
        self.end, self.cpu = time.time(), tree_cpu(child.pid) - before
        child.terminate()


@dataclass
class Ages:
    """Ages of the rows that were committed in the window, in seconds, and the offsets of all rows."""

    ages: list[Any] = field(default_factory=list)
    commits: int = 0
    rows: int = 0
    ends: dict[int, int] = field(default_factory=dict)  # partition: highest offset + 1


def freshness(bench: Bench) -> list[Figures]:
    """Each rate with Headrace, and all but the highest with the textbook."""
    return [_measure(bench, peer, rate) for peer, rates in RATES.items() for rate in rates]


def _measure(bench: Bench, peer: str, rate: int) -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="fresh-", dir=bench.folder))
    topic = bench.topics.empty(f"fresh-{peer}-{rate}-{time.monotonic_ns()}")
    command, table = _command(peer, bench.topics.bootstrap, topic, folder)
    window = Window(table, _seconds(bench, rate))
    with paced_producer(bench, topic, rate, folder) as sent:
        reading = run(command, folder, table, START, window.pass_by)
    ages = _ages(table, window)
    if ages.rows != sum(ages.ends.values()):
        raise AssertionError(f"{peer}, {rate} records/s: {ages.rows} rows of {sum(ages.ends.values())} records")
    return {**_figures(peer, rate, window, ages, reading), "sent_per_second": sent["per_second"]}


def _seconds(bench: Bench, rate: int) -> float:
    if rate == LONG[0] and os.environ.get("BENCH_LONG") == "1":
        return LONG[1]
    return SECONDS * min(1.0, bench.scale.records / 1_000_000)  # --records shortens the run


def _command(peer: str, bootstrap: str, topic: str, folder: Path) -> Command:
    if peer == "textbook":
        return textbook_script(bootstrap, topic, folder, {"processingTime": "500 milliseconds"})
    return headrace_command(bootstrap, topic, folder)


def headrace_command(bootstrap: str, topic: str, folder: Path) -> Command:
    """`headrace run` with a commit every half second, until it is stopped."""
    spec = {**smallest_spec(bootstrap, topic, declared=True), "flush": {"every": "500ms"}}
    return [*headrace_run(folder, spec), "--json"], folder / "lake" / "events"


@contextmanager
def paced_producer(bench: Bench, topic: str, rate: int, folder: Path) -> Iterator[dict[str, int]]:
    """Send records at a constant rate until the end; the rate that was reached is known then."""
    file = folder / "values.jsonl"
    file.write_bytes(b"\n".join(bench.topics.values(KIND, 10_000)))
    order = {"bootstrap": bench.topics.bootstrap, "topic": topic, "per_second": rate, "file": str(file)}
    command = [sys.executable, "-m", "bench.producer", json.dumps(order)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(folder))
    reached: dict[str, int] = {}
    try:
        yield reached
    finally:
        child.terminate()
        output, _ = child.communicate(timeout=60)
        sent = json.loads(output)
        reached["per_second"] = round(sent["sent"] / sent["seconds"])


def _ages(table: Path, window: Window) -> Ages:
    """Read the positions of all rows; the time of a commit is that of its file in the log."""
    found = Ages()
    for commit in sorted((table / "_delta_log").glob("[0-9]*.json")):
        at = commit.stat().st_mtime
        actions = map(json.loads, commit.read_text().splitlines())
        paths = [each["add"]["path"] for each in actions if each.get("add", {}).get("dataChange")]
        for path in paths:
            source = parquet.read_table(table / path, columns=["_source"])["_source"].combine_chunks()
            stamps, offsets = (source.field(name).to_numpy(zero_copy_only=False) for name in ("timestamp", "offset"))
            partitions = source.field("partition").to_numpy(zero_copy_only=False)
            for partition in np.unique(partitions):
                end = int(offsets[partitions == partition].max()) + 1
                found.ends[int(partition)] = max(end, found.ends.get(int(partition), 0))
            found.rows += len(stamps)
            if window.begin <= at <= window.end:
                found.ages.append(at - stamps.astype("datetime64[us]").astype("int64") / 1e6)
        found.commits += bool(paths) and window.begin <= at <= window.end
    return found


def _figures(peer: str, rate: int, window: Window, ages: Ages, reading: ProcessReading) -> Figures:
    values = np.concatenate(ages.ages)
    seconds = window.end - window.begin
    p50, p95, p99 = (round(float(each), 3) for each in np.percentile(values, (50, 95, 99)))
    return {
        "peer": peer,
        "label": "declared",
        "rate": rate,
        "seconds": round(seconds),
        "per_second": round(len(values) / seconds),
        "commits": ages.commits,
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": round(float(values.max()), 3),
        "cores": round(window.cpu / seconds, 2),
        "peak_mib": round(reading.peak_bytes / 2**20),
    }
