"""Micro-batches at a constant rate: time per batch."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

from bench.meter import Peer
from bench.runs import Bench, Figures


def micro(bench: Bench) -> list[Figures]:
    """Time per batch with 1,000 records and one batch per second."""
    return [_steady(bench, peer) for peer in ("headrace", "textbook")]


def _steady(bench: Bench, peer: str) -> Figures:
    scale = bench.scale
    batches = scale.skip + scale.batches
    seconds = batches * 2.0 + 40  # maximum; ends after the last batch
    topic = bench.topics.empty(f"steady-{peer}-{time.monotonic_ns()}")
    job = {"label": peer, "topic": topic, "batches": batches, "seconds": seconds}
    order = {"peer": f"steady {peer}", "bootstrap": bench.topics.bootstrap, "drains": [job]}
    child = Peer(order, Path(tempfile.mkdtemp(prefix="peer-", dir=bench.folder)), seconds + 90)
    ended = threading.Event()
    sender = threading.Thread(target=bench.topics.flow, args=(topic, 1000, ended), daemon=True)
    sender.start()
    try:
        (reading,) = child.readings()
    finally:
        ended.set()
        sender.join(60)
    times = reading.result["milliseconds"][scale.skip :]
    if not times:
        raise RuntimeError(f"{peer}: no batch after the first {scale.skip} within {seconds:g} s.")
    return {
        "peer": peer,
        "batches": len(times),
        "median_ms": round(statistics.median(times)),
        "cpu_per_second": round(reading.cpu / reading.seconds, 3),
        "peak_mib": round(reading.peak_bytes / 2**20),
    }
