"""Measure a whole process: wall time, CPU-seconds and memory of its tree, and the commits it makes to a table."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.meter import environment, kill_tree, tree_pss

POLL = 0.02  # seconds between two looks at the log
PSS_POLL = 0.5
REAPER = Path(__file__).with_name("reaper.py")


@dataclass(frozen=True)
class ProcessReading:
    """One run of a process."""

    seconds: float  # from exec to exit
    cpu: float
    peak_bytes: int  # peak PSS of the process tree, sampled every half second
    commits: tuple[float, ...]  # seconds from exec to each commit with data

    @property
    def first_commit(self) -> float:
        """Seconds until the first data can be read."""
        return self.commits[0]

    @property
    def max_gap(self) -> float | None:
        """Longest time between two commits."""
        return max((after - before for before, after in pairwise(self.commits)), default=None)


class CommitWatch:
    """Times at which commits with data appear in the log of a table."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._seen: set[str] = set()
        self.times: list[float] = []

    def look(self) -> None:
        """Record the commits that are new."""
        now = time.monotonic()
        with suppress(OSError):
            for file in sorted(self._log.glob("[0-9]*.json")):
                if file.name not in self._seen and (text := file.read_text()).endswith(("}", "\n")):
                    self._seen.add(file.name)
                    if '"add"' in text:
                        self.times.append(now)


def run(
    command: Sequence[str],
    folder: Path,
    table: Path,
    timeout: float,
    during: Callable[[subprocess.Popen[str]], None] | None = None,
    *,
    commit_poll: float = POLL,
) -> ProcessReading:
    """Run a command until it exits; `during` runs beside it, and may send SIGTERM."""
    log, watch, peak = folder / "process.log", CommitWatch(table), [0]
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, str(REAPER), *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(folder),
            cwd=folder,
        )
    ended = threading.Event()
    samplers = [
        threading.Thread(target=_repeat, args=(ended, commit_poll, watch.look), daemon=True),
        threading.Thread(target=_repeat, args=(ended, PSS_POLL, lambda: _sample(child.pid, peak)), daemon=True),
    ]
    for sampler in samplers:
        sampler.start()
    try:
        if during:
            during(child)
        output, _ = child.communicate(timeout=timeout)
    finally:
        ended.set()
        if child.poll() is None:
            kill_tree(child)
        for sampler in samplers:
            sampler.join()
    watch.look()
    return _reading(output, watch, peak[0], log)


def _repeat(ended: threading.Event, interval: float, function: Callable[[], None]) -> None:
    while not ended.wait(interval):
        function()


def _sample(pid: int, peak: list[int]) -> None:
    peak[0] = max(peak[0], tree_pss(pid, with_root=False))


def _reading(output: str, watch: CommitWatch, peak: int, log: Path) -> ProcessReading:
    lines = output.splitlines()
    report = json.loads(lines[-1]) if lines else {"code": "unknown"}
    if report["code"] or report["killed"] or not watch.times:
        tail = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"Process: {report}, {len(watch.times)} commits: {tail}")
    commits = tuple(at - report["start"] for at in watch.times)
    return ProcessReading(report["end"] - report["start"], report["cpu"], peak, commits)
