"""CPU of pipelines that have nothing to read: 20 in one process, after each has written a table."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.cold import KIND, headrace_run, smallest_spec
from bench.meter import tree_cpu
from bench.processes import run
from bench.runs import Bench, Figures

PIPELINES = 20
RECORDS = 100  # of each topic
START = 600.0  # seconds within which all tables must have been written
WARM_UP = 30.0
SECONDS = 60.0


@dataclass
class IdleWindow:
    """Measured part of a run: CPU-seconds of the process tree while nothing is read."""

    tables: list[Path]
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)  # before and after

    def pass_by(self, child: subprocess.Popen[str]) -> None:
        """Wait for all tables, the warm-up and the window; then stop the process."""
        deadline = time.monotonic() + START
        while not all(any((table / "_delta_log").glob("[0-9]*.json")) for table in self.tables):
            if child.poll() is not None or time.monotonic() > deadline:
                child.terminate()
                return
            time.sleep(0.5)
        time.sleep(WARM_UP)
        start, self.cpu["before"] = time.monotonic(), tree_cpu(child.pid)
        time.sleep(SECONDS)
        self.cpu["after"], self.seconds = tree_cpu(child.pid), time.monotonic() - start
        child.terminate()


def idle(bench: Bench) -> list[Figures]:
    """One row: the cores that 20 idle pipelines use together."""
    folder = Path(tempfile.mkdtemp(prefix="idle-", dir=bench.folder))
    tables = [folder / "lake" / f"events_{number}" for number in range(PIPELINES)]
    specs = []
    for number, table in enumerate(tables):
        topic = bench.topics.filled(KIND, RECORDS, 1, copy=number)
        spec = smallest_spec(bench.topics.bootstrap, topic, declared=True)
        specs.append({**spec, "pipeline": f"idle_{number}", "table": {**spec["table"], "path": str(table)}})
    command = headrace_run(folder, {})
    Path(command[-1]).write_text("\n---\n".join(map(json.dumps, specs)))
    window = IdleWindow(tables)
    reading = run([*command, "--json"], folder, tables[0], START + WARM_UP + SECONDS + 120, window.pass_by)
    cores = (window.cpu["after"] - window.cpu["before"]) / window.seconds
    figures = {"label": f"{PIPELINES} pipelines", "seconds": round(window.seconds), "cores": round(cores, 3)}
    return [{**figures, "peak_mib": round(reading.peak_bytes / 2**20)}]
