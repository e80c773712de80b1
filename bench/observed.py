"""What observers cost: a pipeline alone, and with a scrape each second and `headrace top`; both at the same rate."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.freshness import START, headrace_command, paced_producer
from bench.meter import environment, kill_tree, tree_cpu, tree_pss
from bench.processes import run
from bench.runs import Bench, Figures
from headrace.dev.kafka import free_ports

RATE = 35_000  # records per second: about 70 % of what one core for the producer and one for the pipeline reach
SECONDS = 180.0
LONG = 1_800.0  # seconds with BENCH_LONG=1
WARM_UP = 30.0  # seconds after the first commit
INTERVAL = 2.0  # seconds between two samples of the memory


@dataclass
class ObservedWindow:
    """Measured part of a run: CPU-seconds, and PSS in its first and last tenth."""

    table: Path
    seconds: float
    url: str | None  # of the endpoint, if observers run
    folder: Path
    begin: float = 0.0  # epoch seconds
    end: float = 0.0
    cpu: float = 0.0
    scrapes: int = 0
    memory: list[int] = field(default_factory=list)

    def pass_by(self, child: subprocess.Popen[str]) -> None:
        """Wait for the first commit and the warm-up; then measure, and stop the process."""
        deadline = time.monotonic() + START
        while not any((self.table / "_delta_log").glob("[0-9]*.json")):
            if child.poll() is not None or time.monotonic() > deadline:
                child.terminate()
                return
            time.sleep(0.1)
        with ExitStack() as observers:
            if self.url is not None:
                observers.enter_context(self._scraped(self.url))
                observers.enter_context(_top(self.folder))
            time.sleep(WARM_UP)
            self.begin, before = time.time(), tree_cpu(child.pid)
            while time.time() < self.begin + self.seconds:
                self.memory.append(tree_pss(child.pid, with_root=False))
                time.sleep(INTERVAL)
            self.end, self.cpu = time.time(), tree_cpu(child.pid) - before
        child.terminate()

    @contextmanager
    def _scraped(self, url: str) -> Iterator[None]:
        """Read metrics and health each second, as Prometheus and a probe do."""
        ended = threading.Event()

        def scrape() -> None:
            while not ended.wait(1.0):
                for path in ("/metrics", "/health"):
                    with urllib.request.urlopen(f"{url}{path}", timeout=10) as response:  # noqa: S310
                        response.read()
                self.scrapes += 1

        thread = threading.Thread(target=scrape, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def _top(folder: Path) -> Iterator[None]:
    command = [str(Path(sys.executable).parent / "headrace"), "top", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(folder), text=True)
    try:
        yield
        if child.poll() is not None:
            raise RuntimeError(f"headrace top has ended with code {child.returncode}")
    finally:
        kill_tree(child)


def observed(bench: Bench) -> list[Figures]:
    """Alone, then observed."""
    return [_measure(bench, is_observed) for is_observed in (False, True)]


def _measure(bench: Bench, is_observed: bool) -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="observed-", dir=bench.folder))
    topic = bench.topics.empty(f"observed-{time.monotonic_ns()}")
    command, table = headrace_command(bench.topics.bootstrap, topic, folder)
    address = f"127.0.0.1:{next(iter(free_ports()))}"
    seconds = LONG if os.environ.get("BENCH_LONG") == "1" else SECONDS * min(1.0, bench.scale.records / 1_000_000)
    window = ObservedWindow(table, seconds, f"http://{address}" if is_observed else None, folder)
    if is_observed:
        command = [*command, "--listen", address]
    rate = round(RATE * min(1.0, bench.scale.records / 1_000_000))
    with paced_producer(bench, topic, rate, folder) as sent:
        reading = run(command, folder, table, START + WARM_UP + seconds + 120, window.pass_by)
    if is_observed and window.scrapes < seconds / 2:
        raise AssertionError(f"only {window.scrapes} scrapes in {seconds:g} s")
    tenth = max(1, len(window.memory) // 10)
    first, last = (statistics.median(part) / 2**20 for part in (window.memory[:tenth], window.memory[-tenth:]))
    measured = window.end - window.begin
    return {
        "label": "observed" if is_observed else "alone",
        "rate": rate,
        "seconds": round(measured),
        "sent_per_second": sent["per_second"],
        "per_second": round(_committed_rows(window) / measured),
        "cores": round(window.cpu / measured, 3),
        "first_mib": round(first),
        "last_mib": round(last),
        "peak_mib": round(reading.peak_bytes / 2**20),
    }


def _committed_rows(window: ObservedWindow) -> int:
    """Rows of the commits within the window; the time of a commit is that of its file in the log."""
    rows = 0
    for commit in (window.table / "_delta_log").glob("[0-9]*.json"):
        if window.begin <= commit.stat().st_mtime <= window.end:
            adds = [json.loads(line).get("add") for line in commit.read_text().splitlines()]
            rows += sum(json.loads(add["stats"])["numRecords"] for add in adds if add)
    return rows
