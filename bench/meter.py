"""Measure a peer: CPU-seconds and memory of its process tree, between the begin and the end that it reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
PREFIX = "@@"  # of the lines that a peer reports


@dataclass(frozen=True)
class Reading:
    """One measurement of a peer."""

    label: str
    seconds: float
    cpu: float
    peak_bytes: int  # peak PSS of the process tree, sampled every half second
    result: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for a file of results."""
        return asdict(self)


def _tree(root: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    return []


def tree_cpu(root: int) -> float:
    """CPU-seconds of a process and its children, including children that have ended."""
    total = 0
    for pid in _tree(root):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / TICKS


def _pss(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return 0


def tree_pss(root: int, *, with_root: bool = True) -> int:
    """PSS of a process and its children, in bytes."""
    return sum(_pss(pid) for pid in _tree(root) if with_root or pid != root)


def kill_tree(child: subprocess.Popen[str]) -> None:
    """Kill a process and its children."""
    for pid in reversed(_tree(child.pid)):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    child.wait(30)


def environment(folder: Path) -> dict[str, str]:
    """Environment of a peer: imports from this repository, bytecode as in an installed package, state in its folder."""
    python_path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": python_path, "XDG_STATE_HOME": str(folder / "state")}


class Peer:
    """A peer in its own process. It reports when a measurement begins and ends, and waits until the meter was read."""

    def __init__(self, order: Mapping[str, Any], folder: Path, timeout: float, module: str = "bench.peers") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._timeout = timeout
        self._log = folder / "peer.log"
        command = [sys.executable, "-m", module, json.dumps({**order, "folder": str(folder)})]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(command, **pipes, stderr=log, env=environment(folder), text=True, cwd=ROOT)
        self.peak = self._peak = 0

    def readings(self) -> Iterator[Reading]:
        """Measurements in the order in which they end; raises RuntimeError if the peer fails or exceeds the timeout."""
        ended = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(ended,), daemon=True)
        sampler.start()
        deadline = threading.Timer(self._timeout, self._end)
        deadline.start()
        try:
            yield from self._listen()
        finally:
            ended.set()
            deadline.cancel()
            self._end()
            sampler.join()
        if self._child.returncode:
            tail = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Peer exited with code {self._child.returncode} (timeout: {self._timeout:g} s): {tail}")

    def _listen(self) -> Iterator[Reading]:
        assert self._child.stdin
        assert self._child.stdout
        start = cpu = 0.0
        for line in self._child.stdout:
            if not line.startswith(PREFIX):
                continue
            now, cpu_now = time.perf_counter(), tree_cpu(self._child.pid)
            event, label, result = json.loads(line.removeprefix(PREFIX))
            if event == "begin":
                start, cpu, self._peak = now, cpu_now, 0
            else:
                peak = max(self._peak, tree_pss(self._child.pid))
                yield Reading(label, now - start, cpu_now - cpu, peak, result)
            self._child.stdin.write("\n")
            self._child.stdin.flush()
        self._child.wait(30)

    def _sample(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            now = tree_pss(self._child.pid)
            self._peak, self.peak = max(self._peak, now), max(self.peak, now)

    def _end(self) -> None:
        if self._child.poll() is None:
            kill_tree(self._child)


def report(event: str, label: str, result: Mapping[str, Any] | None = None) -> None:
    """Report from a peer that a measurement begins or ends; returns when the meter was read."""
    print(f"{PREFIX}{json.dumps([event, label, result or {}])}", flush=True)
    sys.stdin.readline()
