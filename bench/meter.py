"""Watching a peer: CPU-seconds and memory of its whole process tree, between the moments it names itself."""

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

TICKS = os.sysconf("SC_CLK_TCK")
SIGN = "@@"  # begins the lines that a peer says to us


@dataclass(frozen=True)
class Reading:
    """What one measured stretch took."""

    label: str
    seconds: float
    cpu: float
    peak_bytes: int  # highest PSS of the tree, sampled each half second
    said: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """For a file of results."""
        return asdict(self)


def _tree(root: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    return []


def tree_cpu(root: int) -> float:
    """CPU-seconds of a process and its children, those that ended and were waited for included."""
    total = 0
    for pid in _tree(root):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / TICKS


def tree_pss(root: int) -> int:
    """Bytes of memory of a process and its children, shared pages by their share."""
    total = 0
    for pid in _tree(root):
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return total


class Peer:
    """A peer in a process of its own; it says when a stretch begins and ends, and waits for our nod each time."""

    def __init__(self, order: Mapping[str, Any], folder: Path, within: float, module: str = "bench.peers") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._within = within
        self._log = folder / "peer.log"
        root = Path(__file__).resolve().parent.parent
        python_path = os.pathsep.join(filter(None, [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": python_path, "XDG_STATE_HOME": str(folder / "state")}
        command = [sys.executable, "-m", module, json.dumps({**order, "folder": str(folder)})]
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, cwd=root
            )
        self.peak = self._peak = 0

    def readings(self) -> Iterator[Reading]:
        """Every measured stretch, as it ends; raises when the peer fails or takes too long."""
        watching = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(watching,), daemon=True)
        sampler.start()
        deadline = threading.Timer(self._within, self._end)
        deadline.start()
        try:
            yield from self._listen()
        finally:
            watching.set()
            deadline.cancel()
            self._end()
            sampler.join()
        if self._child.returncode:
            tail = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"A peer ended with {self._child.returncode} (allowed: {self._within:g} s): {tail}")

    def _listen(self) -> Iterator[Reading]:
        assert self._child.stdin
        assert self._child.stdout
        began = cpu = 0.0
        for line in self._child.stdout:
            if not line.startswith(SIGN):
                continue
            now, used = time.perf_counter(), tree_cpu(self._child.pid)
            word, label, said = json.loads(line.removeprefix(SIGN))
            if word == "begin":
                began, cpu, self._peak = now, used, 0
            else:
                peak = max(self._peak, tree_pss(self._child.pid))
                yield Reading(label, now - began, used - cpu, peak, said)
            self._child.stdin.write("\n")
            self._child.stdin.flush()
        self._child.wait(30)

    def _sample(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            now = tree_pss(self._child.pid)
            self._peak, self.peak = max(self._peak, now), max(self.peak, now)

    def _end(self) -> None:
        if self._child.poll() is not None:
            return
        for pid in reversed(_tree(self._child.pid)):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        self._child.wait(30)


def say(word: str, label: str, said: Mapping[str, Any] | None = None) -> None:
    """From inside a peer: a stretch begins or ends; goes on when the meter has been read."""
    print(f"{SIGN}{json.dumps([word, label, said or {}])}", flush=True)
    sys.stdin.readline()
