"""Parts of the benchmark and their figures."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cluster import cluster
from bench.cold import cold
from bench.drains import TEN, with_registry
from bench.files import files
from bench.freshness import freshness
from bench.growth import growth
from bench.idle import idle
from bench.memory import memory
from bench.meter import Peer
from bench.micro import micro
from bench.observed import observed
from bench.records import KINDS
from bench.rivven import rivven
from bench.runs import Bench, Figures
from bench.variants import records, rejected, types

SMALL_BATCH = 250_000  # records per batch with many tables


def drain(bench: Bench) -> list[Figures]:
    """Drain the same topic with every peer."""
    count = bench.scale.records
    job = {"label": "declared", "topic": bench.topics.filled("plain", count), "records": count}
    figures = []
    for peer in ("floor", "headrace", "textbook", "arrow", "pandas"):
        figures += bench.run(peer, [job])
    if not bench.scale.quick:
        figures += bench.run("headrace", [{**job, "label": "inferred", "inferred": True}])
    return figures


def poison(bench: Bench) -> list[Figures]:
    """Drain a topic in which one record in ten is invalid."""
    count = bench.scale.records
    return bench.run(
        "headrace",
        [
            {"label": label, "topic": bench.topics.filled(kind, count), "records": count}
            for label, kind in (("clean", "plain"), ("10 % poison", "poison"))
        ],
    )


def tables(bench: Bench) -> list[Figures]:
    """Drain a topic into 1, 10 and 50 tables, in batches of 250,000; each drain creates the tables."""
    count = bench.scale.records
    common = {"records": count, "spec": {"limits": {"batch_rows": SMALL_BATCH}}}
    drains = [{**common, "label": "one table", "topic": bench.topics.filled("plain", count)}]
    for kind in ("1 table", "10 tables", "50 tables"):
        topic = bench.topics.filled(kind, count)
        drains.append({**common, "label": f"{kind}, by a field", "topic": topic, "route": "event_type"})
    return bench.run("headrace", drains)


def formats(bench: Bench) -> list[Figures]:
    """Drain the same records as JSON, and as Avro and Protobuf with a registry; a quarter of them with long arrays."""
    drains = []
    for kind, count in (
        *((kind, bench.scale.records) for kind in ("plain", "avro", "protobuf")),
        *((kind, bench.scale.records // 4) for kind in ("long lists", "avro, long lists")),
    ):
        encoding = KINDS[kind].encoding
        more = with_registry(encoding, bench.topics.registry().url) if encoding else {}
        label = {"plain": "json", "long lists": "json, long lists"}.get(kind, kind)
        drains.append({"label": label, "topic": bench.topics.filled(kind, count), "records": count, **more})
    return bench.run("headrace", drains)


def jmespath(bench: Bench) -> list[Figures]:
    """Drain with ten common transforms into ten more columns."""
    count = bench.scale.records
    common = {"topic": bench.topics.filled("plain", count), "records": count}
    return bench.run("headrace", [{**common, "label": "without"}, {**common, **TEN, "label": "ten transforms"}])


def partitions(bench: Bench) -> list[Figures]:
    """Drain topics with other numbers of partitions."""
    count = bench.scale.growth
    drains = [
        {"label": f"{number} partitions", "topic": bench.topics.filled("plain", count, number), "records": count}
        for number in (1, 4, 8)
    ]
    return bench.run("headrace", drains)


def commit(bench: Bench) -> list[Figures]:
    """Commit latency on disk and S3: one put, many tables, and a growing table."""
    from dataclasses import asdict

    from bench import commit_loop

    batches, milestones = (20, [200, 400]) if bench.scale.quick else (100, [200, 1000, 10_000])
    figures: list[Figures] = []
    folder = Path(tempfile.mkdtemp(prefix="commit-", dir=bench.folder))
    with commit_loop._lakes(folder) as lakes:
        for storage, lake in lakes.items():
            figures.append(asdict(commit_loop.bare_puts(storage, lake)))
            counts = (1, 10, 50) if storage == "local" or not bench.scale.quick else (1, 10)
            figures += [asdict(commit_loop.many_tables(storage, lake, count, batches)) for count in counts]
            figures += map(asdict, commit_loop.growth(storage, lake, milestones, files=5))
    return figures


def commands(bench: Bench) -> list[Figures]:
    """Commands as cold processes: help, check of a spec, and preview of a topic."""
    from bench.commands import commands as measured

    topic = bench.topics.filled("plain", bench.scale.warm)
    return list(measured(bench.folder, bench.topics.bootstrap, topic, 5 if bench.scale.quick else 15))


def decode(bench: Bench) -> list[Figures]:
    """Decoding without Spark, in this process: CPU-seconds per million, one thread."""
    from bench.decode import figures

    return _costs(bench, figures)


def plan(bench: Bench) -> list[Figures]:
    """Plan without Spark, in this process: CPU-seconds per million, one thread."""
    from bench.plans import figures

    return _costs(bench, figures)


def _costs(bench: Bench, figures: Callable[[int], dict[str, float]]) -> list[Figures]:
    costs = figures(5_000 if bench.scale.quick else 100_000)
    return [{"label": name, "cpu_per_million": seconds} for name, seconds in costs.items()]


def receiving(bench: Bench) -> list[Figures]:
    """Receive into the spool, without Spark: appends, HTTP and OTLP requests, and messages of Danube."""
    from bench.danube import danube
    from bench.otlp import otlp
    from bench.receiving import receiving as measured
    from services.danube import PROGRAM

    folder = bench.folder / "receiving"
    folder.mkdir()
    figures = [*measured(folder, bench.scale.records), *otlp(folder, bench.scale.records)]
    return [*figures, *(danube(folder / "danube", 5_000) if PROGRAM.exists() else ())]


def hot_store(bench: Bench) -> list[Figures]:
    """Follow a Delta table into PostgreSQL, without Spark."""
    from bench.hot_store import hot_store as measured

    folder = bench.folder / "hot-store"
    folder.mkdir()
    return measured(folder, bench.scale.records)


def upsert(bench: Bench) -> list[Figures]:
    """Merge changes into a table of fifty times as many rows: with Headrace, Spark SQL and delta-rs.

    Headrace and Spark also merge into a table with deletion vectors, which delta-rs does not support.
    """
    from bench import lakes

    folder, changes = bench.folder / "merged", bench.scale.records // 10
    lakes.write_merge_target(folder, 50 * changes, changes)
    drains = [
        {
            "label": label,
            "table": str(folder / "table"),
            "source": str(folder / f"{label}.parquet"),
            "changes": changes,
            "copy": True,
        }
        for label in ("everywhere", "at the end", "a thousandth of them")
    ]
    peers = ("headrace", "spark", "delta-rs", "headrace-spark", "headrace-vectors", "spark-vectors")
    return _on_tables(bench, [f"merge {peer}" for peer in peers], drains, changes)


def compact(bench: Bench) -> list[Figures]:
    """Append small pieces and compact once: with Headrace (no Spark), Spark and delta-rs."""
    from bench import lakes

    folder, count = bench.folder / "pieces", bench.scale.records
    lakes.write_pieces(folder, count)
    drains = [{"label": "append and compact", "source": str(folder)}]
    return _on_tables(bench, [f"compact {peer}" for peer in ("headrace", "spark", "delta-rs")], drains, count)


def history(bench: Bench) -> list[Figures]:
    """History and statistics of a table with 10,000 commits."""
    from bench import lakes

    folder, commits = bench.folder / "aged", max(200, bench.scale.records // 100)
    lakes.write_history(folder, commits)
    drains = [{"label": label, "table": str(folder)} for label in ("history", "statistics")]
    return _on_tables(bench, ["history headrace"], drains, commits)


def _on_tables(bench: Bench, peers: Sequence[str], drains: Sequence[Mapping[str, Any]], count: int) -> list[Figures]:
    """Run each peer on the same tables; medians over the turns."""
    figures: list[Figures] = []
    for peer in peers:
        order = {"peer": peer, "drains": drains, "turns": bench.scale.turns}
        folder = Path(tempfile.mkdtemp(prefix="peer-", dir=bench.folder))
        readings = list(Peer(order, folder, 3 * bench.scale.timeout, "bench.lakes").readings())
        for label in dict.fromkeys(each.label for each in readings):
            own = [each for each in readings if each.label == label]
            figures.append(
                {
                    "peer": peer,
                    "label": label,
                    "count": count,
                    "seconds": round(statistics.median(each.seconds for each in own), 2),
                    "cpu": round(statistics.median(each.cpu for each in own), 2),
                    "peak_mib": round(max(each.peak_bytes for each in own) / 2**20),
                    "result": own[-1].result,
                }
            )
    return figures


PARTS: dict[str, Callable[[Bench], list[Figures]]] = {
    "drain": drain,
    "cold": cold,
    "freshness": freshness,
    "memory": memory,
    "micro": micro,
    "poison": poison,
    "rejected": rejected,
    "tables": tables,
    "types": types,
    "formats": formats,
    "jmespath": jmespath,
    "partitions": partitions,
    "rivven": rivven,
    "files": files,
    "records": records,
    "commit": commit,
    "growth": growth,
    "cluster": cluster,
    "receiving": receiving,
    "hot_store": hot_store,
    "idle": idle,
    "observed": observed,
    "upsert": upsert,
    "compact": compact,
    "history": history,
    "commands": commands,
    "decode": decode,
    "plan": plan,
}
# Parts that a quick run of five minutes leaves out.
FULL_ONLY = frozenset(PARTS) - {"drain", "micro", "commit", "history", "commands", "decode", "plan"}
