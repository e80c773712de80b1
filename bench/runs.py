"""Size of a run, and drains of topics with a peer."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.meter import Peer, Reading
from bench.topics import Topics

Figures = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Size of a run."""

    quick: bool
    records: int
    turns: int
    warm: int
    growth: int
    skip: int  # micro-batches that are not measured
    batches: int
    timeout: float  # seconds per peer


FULL = Scale(False, 1_000_000, 3, 100_000, 400_000, 10, 60, 420)
QUICK = Scale(True, 100_000, 1, 20_000, 50_000, 3, 8, 240)


@dataclass
class Bench:
    """Topics, working folder and size of a run."""

    topics: Topics
    folder: Path
    scale: Scale

    def run(self, peer: str, drains: Sequence[Mapping[str, Any]], *, turns: int = 0) -> list[Figures]:
        """Drain topics with a peer; returns one set of figures per label, medians over the turns."""
        order = {
            "peer": peer,
            "bootstrap": self.topics.bootstrap,
            "warm": self.topics.filled("plain", self.scale.warm),
            "drains": drains,
            "turns": turns or self.scale.turns,
        }
        timeout = self.scale.timeout * max(1, len(drains) / 3)
        child = Peer(order, Path(tempfile.mkdtemp(prefix="peer-", dir=self.folder)), timeout)
        readings = list(child.readings())
        counts = {drain["label"]: int(drain["records"]) for drain in drains}
        return [_figures(peer, label, count, readings) for label, count in counts.items()]


def _figures(peer: str, label: str, records: int, readings: Sequence[Reading]) -> Figures:
    own = [reading for reading in readings if reading.label == label]
    for reading in own:
        if reading.result.get("read", records) != records:
            raise AssertionError(f"{peer}, {label}: {reading.result['read']} records read instead of {records}")
    medians = {name: statistics.median(getattr(each, name) for each in own) for name in ("seconds", "cpu")}
    return {
        "peer": peer,
        "label": label,
        "records": records,
        "per_second": round(records / medians["seconds"]),
        "cpu_per_million": round(medians["cpu"] / records * 1e6, 2),
        "peak_mib": round(max(each.peak_bytes for each in own) / 2**20),
        "turns": [{"seconds": round(each.seconds, 3), "cpu": round(each.cpu, 2)} for each in own],
        "dead": own[-1].result.get("dead", 0),
        "batches": own[-1].result.get("batches"),
    }
