"""The same drain in one process and on a standalone Spark cluster with one and two workers, all on this machine.

Workers have one core each and share the cores with the driver and the broker. So this measures what distribution
costs, not how far it scales. The rate is that of all batches after the first, which waits for executors to start.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.cold import KIND, headrace_run, row_count, smallest_spec
from bench.meter import environment
from bench.runs import Bench, Figures
from headrace.dev.spark_cluster import StandaloneCluster
from headrace.runtime.environment_archive import build_environment

WORKERS = (0, 1, 2)  # 0: Spark in the process of the driver, on one core
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def cluster(bench: Bench) -> list[Figures]:
    """One drain per number of workers."""
    build_environment()
    topic = bench.topics.filled(KIND, bench.scale.records)
    return [_drained(bench, topic, workers) for workers in WORKERS]


def _drained(bench: Bench, topic: str, workers: int) -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=bench.folder))
    with _spark(folder, workers) as (spark, processes):
        spec = smallest_spec(bench.topics.bootstrap, topic, declared=True) | {"spark": spark}
        before = _cpu(processes)
        batches, driver_cpu = _run([*headrace_run(folder, spec), "--until", "latest", "--json"], folder)
        executor_cpu = _cpu(processes) - before
    if (rows := row_count(folder / "lake" / "events")) != bench.scale.records:
        raise AssertionError(f"{workers} workers: {rows} rows instead of {bench.scale.records}")
    later = batches[1:]
    seconds = later[-1][0] - batches[0][0]
    return {
        "workers": workers,
        "records": bench.scale.records,
        "per_second": round(sum(read for _, read in later) / seconds),
        "first_commit": round(batches[0][0], 1),
        "batches": len(batches),
        "driver_cpu": round(driver_cpu, 1),
        "executor_cpu": round(executor_cpu, 1),
    }


@contextmanager
def _spark(folder: Path, workers: int) -> Iterator[tuple[dict[str, Any], list[psutil.Process]]]:
    """Keys of the spec, and the processes of the workers."""
    if not workers:
        yield {"cores": 1}, []
        return
    with StandaloneCluster.start(folder / "spark", workers=workers) as started:
        keys = {"master": started.master, "shared_mounts": [str(folder)], "conf": _LOOPBACK}
        yield keys, [psutil.Process(worker.pid) for worker in started.workers]


def _cpu(processes: list[psutil.Process]) -> float:
    """CPU-seconds of workers with their executors, which have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def _run(command: list[str], folder: Path) -> tuple[list[tuple[float, int]], float]:
    """Seconds from the start to each batch with its records, and CPU-seconds of the command."""
    before, started = os.times(), time.monotonic()
    batches = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment(folder)) as child:
        for line in child.stdout or ():
            event: Mapping[str, Any] = json.loads(line)
            if event["event"] == "batch":
                batches.append((time.monotonic() - started, event["read"]))
    if child.returncode:
        raise AssertionError(f"{command} exited with {child.returncode}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return batches, cpu
