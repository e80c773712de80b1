"""The parts of the bench: what each runs, and the figures it leaves."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.drains import TEN, UNLIKE, behind, by_type
from bench.meter import Peer, Reading
from bench.peers import spec_text
from bench.records import KINDS
from bench.topics import Topics

Figures = dict[str, Any]
LATER = 250_000  # records a batch where many tables are fed


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    quick: bool
    records: int
    turns: int
    warm: int
    growth: int
    skip: int  # micro-batches before those that count
    batches: int
    within: float  # seconds that a peer may take


FULL = Scale(False, 1_000_000, 3, 100_000, 400_000, 10, 60, 420)
QUICK = Scale(True, 100_000, 1, 20_000, 50_000, 3, 8, 240)


@dataclass
class Bench:
    """What a part works with."""

    topics: Topics
    folder: Path
    scale: Scale

    def run(self, peer: str, drains: Sequence[Mapping[str, Any]], *, turns: int = 0) -> list[Figures]:
        """Let a peer drain topics; one set of figures for each label, medians over the turns."""
        order = {
            "peer": peer,
            "bootstrap": self.topics.bootstrap,
            "warm": self.topics.filled("plain", self.scale.warm),
            "drains": drains,
            "turns": turns or self.scale.turns,
        }
        child = Peer(order, Path(tempfile.mkdtemp(prefix="peer-", dir=self.folder)), self.scale.within)
        found = list(child.readings())
        counts = {drain["label"]: int(drain["records"]) for drain in drains}
        return [_figures(peer, label, count, found) for label, count in counts.items()]


def _figures(peer: str, label: str, records: int, found: Sequence[Reading]) -> Figures:
    mine = [reading for reading in found if reading.label == label]
    for reading in mine:
        if reading.said.get("read", records) != records:
            raise AssertionError(f"{peer}, {label}: {reading.said['read']} records read instead of {records}")
    middle = {name: statistics.median(getattr(each, name) for each in mine) for name in ("seconds", "cpu")}
    return {
        "peer": peer,
        "label": label,
        "records": records,
        "per_second": round(records / middle["seconds"]),
        "cpu_per_million": round(middle["cpu"] / records * 1e6, 2),
        "peak_mib": round(max(each.peak_bytes for each in mine) / 2**20),
        "turns": [{"seconds": round(each.seconds, 3), "cpu": round(each.cpu, 2)} for each in mine],
        "dead": mine[-1].said.get("dead", 0),
        "batches": mine[-1].said.get("batches"),
    }


def drain(bench: Bench) -> list[Figures]:
    """Everyone drains the same topic."""
    count = bench.scale.records
    asked = {"label": "declared", "topic": bench.topics.filled("plain", count), "records": count}
    found = []
    for peer in ("floor", "headrace", "textbook", "arrow", "pandas"):
        found += bench.run(peer, [asked])
    if not bench.scale.quick:
        found += bench.run("headrace", [{**asked, "label": "inferred", "inferred": True}])
    return found


def poison(bench: Bench) -> list[Figures]:
    """One record in ten cannot be used."""
    count = bench.scale.records
    return bench.run(
        "headrace",
        [
            {"label": label, "topic": bench.topics.filled(kind, count), "records": count}
            for label, kind in (("clean", "plain"), ("10 % poison", "poison"))
        ],
    )


def tables(bench: Bench) -> list[Figures]:
    """One topic into 1, 10 and 50 tables, in batches of 250,000; every drain also makes the tables."""
    count = bench.scale.records
    common = {"records": count, "spec": {"limits": {"batch_rows": LATER}}}
    drains = [{**common, "label": "one table", "topic": bench.topics.filled("plain", count)}]
    for kind in ("1 table", "10 tables", "50 tables"):
        topic = bench.topics.filled(kind, count)
        drains.append({**common, "label": f"{kind}, by a field", "topic": topic, "route": "event_type"})
    return bench.run("headrace", drains)


def types(bench: Bench) -> list[Figures]:
    """One topic of one type, of 200, and of 200 of which each has a field of its own; every drain makes the tables."""
    asked = (
        ("one type", "1 table", by_type()),
        ("200 types", "200 types", by_type()),
        ("200 types, each with a field of its own", "200 unlike types", by_type(UNLIKE)),
    )
    count = bench.scale.records
    drains = [
        {"label": label, "records": count, "topic": bench.topics.filled(kind, count), **more}
        for label, kind, more in asked
    ]
    return bench.run("headrace", drains)


def formats(bench: Bench) -> list[Figures]:
    """The same records as JSON, and as Avro and Protobuf by a registry; fewer of them with long lists."""
    drains = []
    for kind, count in (
        *((kind, bench.scale.records) for kind in ("plain", "avro", "protobuf")),
        *((kind, bench.scale.records // 4) for kind in ("long lists", "avro, long lists")),
    ):
        encoding = KINDS[kind].encoding
        more = behind(encoding, bench.topics.registry().url) if encoding else {}
        label = {"plain": "json", "long lists": "json, long lists"}.get(kind, kind)
        drains.append({"label": label, "topic": bench.topics.filled(kind, count), "records": count, **more})
    return bench.run("headrace", drains)


def jmespath(bench: Bench) -> list[Figures]:
    """Ten common transforms, and the ten columns that they make."""
    count = bench.scale.records
    common = {"topic": bench.topics.filled("plain", count), "records": count}
    return bench.run("headrace", [{**common, "label": "without"}, {**common, **TEN, "label": "ten transforms"}])


def growth(bench: Bench) -> list[Figures]:
    """Partitions and sizes of records."""
    count = bench.scale.growth
    drains: list[dict[str, Any]] = [
        {"label": f"{number} partitions", "topic": bench.topics.filled("plain", count, number), "records": count}
        for number in (1, 4, 8)
    ]
    for kind, share in (("100 bytes", 1), ("2 kB", 4)):
        topic = bench.topics.filled(kind, count // share)
        drains.append({"label": kind, "topic": topic, "records": count // share, "columns": dict(KINDS[kind].columns)})
    return bench.run("headrace", drains)


def micro(bench: Bench) -> list[Figures]:
    """1,000 records a second, a batch each second: Spark's own time for a trigger."""
    return [_steady(bench, peer) for peer in ("headrace", "textbook")]


def _steady(bench: Bench, peer: str) -> Figures:
    scale = bench.scale
    wanted = scale.skip + scale.batches
    seconds = wanted * 2.0 + 40  # it ends as soon as there are enough
    topic = bench.topics.empty(f"steady-{peer}-{time.monotonic_ns()}")
    asked = {"label": peer, "topic": topic, "batches": wanted, "seconds": seconds}
    order = {"peer": f"steady {peer}", "bootstrap": bench.topics.bootstrap, "drains": [asked]}
    child = Peer(order, Path(tempfile.mkdtemp(prefix="peer-", dir=bench.folder)), seconds + 90)
    ended = threading.Event()
    sender = threading.Thread(target=bench.topics.flow, args=(topic, 1000, ended), daemon=True)
    sender.start()
    try:
        (found,) = child.readings()
    finally:
        ended.set()
        sender.join(60)
    counted = found.said["progress"][scale.skip :]
    if not counted:
        raise RuntimeError(f"{peer} made no batch beyond the first {scale.skip} within {seconds:g} s.")
    return {
        "peer": peer,
        "batches": len(counted),
        "median_ms": statistics.median(each["triggerExecution"] for each in counted),
        "parts_ms": {name: statistics.median(each.get(name, 0) for each in counted) for name in sorted(counted[0])},
        "cpu_per_second": round(found.cpu / found.seconds, 3),
        "peak_mib": round(found.peak_bytes / 2**20),
    }


def commit(bench: Bench) -> list[Figures]:
    """One table's commit, on disk and on S3: bare, with many tables, and as the table grows."""
    from dataclasses import asdict

    from bench import commit_loop

    batches, milestones = (20, [10, 200, 400]) if bench.scale.quick else (100, [10, 200, 1000, 10_000])
    found: list[Figures] = []
    place = Path(tempfile.mkdtemp(prefix="commit-", dir=bench.folder))
    with commit_loop._lakes(place) as lakes:
        for storage, lake in lakes.items():
            found.append(asdict(commit_loop.floor(storage, lake)))
            counts = (1, 10, 50) if storage == "local" or not bench.scale.quick else (1, 10)
            found += [asdict(commit_loop.many_tables(storage, lake, count, batches)) for count in counts]
            found += map(asdict, commit_loop.growth(storage, lake, milestones, files=5))
    return found


def preview(bench: Bench) -> list[Figures]:
    """`headrace preview` of a topic: start to end of the command."""
    topic = bench.topics.filled("plain", bench.scale.warm)
    spec = bench.folder / "preview.yaml"
    spec.write_text(spec_text({"bootstrap": bench.topics.bootstrap}, {"topic": topic}))
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "preview", str(spec)]
    seconds, cpu = [], []
    for _ in range(max(3, bench.scale.turns)):
        before, began = os.times(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        seconds.append(time.perf_counter() - began)
        after = os.times()
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return [{"seconds": round(statistics.median(seconds), 2), "cpu": round(statistics.median(cpu), 2)}]


def decode(bench: Bench) -> list[Figures]:
    """The decode alone, in this process: CPU-seconds per million, one thread."""
    from bench.decode import figures

    return _alone(bench, figures)


def plan(bench: Bench) -> list[Figures]:
    """The plan alone, in this process: CPU-seconds per million, one thread."""
    from bench.plans import figures

    return _alone(bench, figures)


def _alone(bench: Bench, figures: Callable[[int], dict[str, float]]) -> list[Figures]:
    found = figures(5_000 if bench.scale.quick else 100_000)
    return [{"label": name, "cpu_per_million": seconds} for name, seconds in found.items()]


def upsert(bench: Bench) -> list[Figures]:
    """A batch of changed keys into fifty times as many rows: the pipeline's merge, by hand, and by delta-rs.

    The first two also with deletion vectors, where delta-rs refuses the table.
    """
    from bench import lakes

    place, changes = bench.folder / "merged", bench.scale.records // 10
    lakes.merged_into(place, 50 * changes, changes)
    drains = [
        {
            "label": label,
            "table": str(place / "table"),
            "source": str(place / f"{label}.parquet"),
            "changes": changes,
            "copy": True,
        }
        for label in ("everywhere", "at the end", "a thousandth of them")
    ]
    peers = ("headrace", "spark", "delta-rs", "headrace-spark", "headrace-vectors", "spark-vectors")
    return _on_tables(bench, [f"merge {peer}" for peer in peers], drains, changes)


def compact(bench: Bench) -> list[Figures]:
    """Small appends and a compaction at the end: without Spark, by hand on Spark, and by delta-rs."""
    from bench import lakes

    place, count = bench.folder / "pieces", bench.scale.records
    lakes.in_pieces(place, count)
    drains = [{"label": "append and compact", "source": str(place)}]
    return _on_tables(bench, [f"compact {peer}" for peer in ("headrace", "spark", "delta-rs")], drains, count)


def history(bench: Bench) -> list[Figures]:
    """History and statistics of a table of 10,000 commits."""
    from bench import lakes

    place, commits = bench.folder / "aged", max(200, bench.scale.records // 100)
    lakes.grown(place, commits)
    drains = [{"label": label, "table": str(place)} for label in ("history", "statistics")]
    return _on_tables(bench, ["look headrace"], drains, commits)


def _on_tables(bench: Bench, peers: Sequence[str], drains: Sequence[Mapping[str, Any]], count: int) -> list[Figures]:
    """Each peer over the same tables; medians over the turns."""
    found: list[Figures] = []
    for peer in peers:
        order = {"peer": peer, "drains": drains, "turns": bench.scale.turns}
        folder = Path(tempfile.mkdtemp(prefix="peer-", dir=bench.folder))
        readings = list(Peer(order, folder, 3 * bench.scale.within, "bench.lakes").readings())
        for label in dict.fromkeys(each.label for each in readings):
            mine = [each for each in readings if each.label == label]
            found.append(
                {
                    "peer": peer,
                    "label": label,
                    "count": count,
                    "seconds": round(statistics.median(each.seconds for each in mine), 2),
                    "cpu": round(statistics.median(each.cpu for each in mine), 2),
                    "peak_mib": round(max(each.peak_bytes for each in mine) / 2**20),
                    "said": mine[-1].said,
                }
            )
    return found


PARTS: dict[str, Callable[[Bench], list[Figures]]] = {
    "drain": drain,
    "micro": micro,
    "poison": poison,
    "tables": tables,
    "types": types,
    "formats": formats,
    "jmespath": jmespath,
    "growth": growth,
    "commit": commit,
    "upsert": upsert,
    "compact": compact,
    "history": history,
    "preview": preview,
    "decode": decode,
    "plan": plan,
}
# What a quick run has no time for: it answers in five minutes.
FULL_ONLY = frozenset({"types", "formats", "jmespath", "poison", "growth", "tables", "upsert", "compact"})
