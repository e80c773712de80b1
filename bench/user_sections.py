"""Sections on what a user experiences: whole commands, and the age of rows."""

from __future__ import annotations

from collections.abc import Iterator

from bench.markdown import peer_name, table
from bench.measures import REACHED
from bench.results import Results
from headrace.errors import plural

_GROWING = {  # key: column
    "p50": "batch p50, ms",
    "p95": "p95, ms",
    "per_item_ms": "per table or partition, ms",
    "open_ms": "open, ms",
    "checkpoint_ms": "log checkpoint, ms",
    "intent_kb": "intent, kB",
    "commit_kb": "ledger commit, kB",
}
_COLD = ["", "seconds", "CPU-seconds", "first commit, s", "commits", "longest gap, s", "peak memory, MiB"]


def user_sections(results: Results) -> Iterator[str]:
    """Sections of the parts that were measured."""
    if "cold" in results:
        yield from _cold_sections(results)
    if "freshness" in results:
        yield from _freshness_section(results)
    if "memory" in results:
        yield from _memory_section(results)
    if "growth" in results:
        yield from _growth_section(results)
    if "cluster" in results:
        yield from _cluster_section(results)
    if "records" in results:
        yield from _records_sections(results)


def _cold_sections(results: Results) -> Iterator[str]:
    figures = results["cold"]["figures"]
    for count in dict.fromkeys(each["records"] for each in figures):
        yield f"### Whole command ({count:,} records of 270 bytes, cold processes)\n"
        rows = [
            [
                peer_name(each),
                f"{each['seconds']:.1f}",
                f"{each['cpu']:.1f}",
                f"{each['first_commit']:.1f}",
                f"{each['commits']}",
                "–" if each["max_gap"] is None else f"{each['max_gap']:.1f}",
                f"{each['peak_mib']:,}",
            ]
            for each in figures
            if each["records"] == count
        ]
        yield from table(_COLD, rows)


def _freshness_section(results: Results) -> Iterator[str]:
    yield "### Age of rows at commit, seconds (one commit every 500 ms)\n"
    figures = results["freshness"]["figures"]
    if any(each["sent_per_second"] < REACHED * each["rate"] for each in figures):
        yield "A rate that the producer did not reach is not compared with a target.\n"
    rows = [
        [
            f"{peer_name(each)}, {each['rate']:,} records/s",
            f"{each['sent_per_second']:,}",
            f"{each['per_second']:,}",
            *(f"{each[name]:.2f}" for name in ("p50", "p95", "p99", "max", "cores")),
            f"{each['peak_mib']:,}",
        ]
        for each in figures
    ]
    yield from table(["", "sent/s", "committed/s", "p50", "p95", "p99", "max", "cores", "peak memory, MiB"], rows)


def _memory_section(results: Results) -> Iterator[str]:
    yield "### Memory over time (1,000 records/s, one commit every 500 ms)\n"
    rows = [
        [each["label"], f"{each['commits']:,}", f"{each['median_mib']:,}", f"{each['peak_mib']:,}"]
        for each in results["memory"]["figures"]
    ]
    yield from table(["", "commits until then", "median PSS, MiB", "peak PSS, MiB"], rows)


def _records_sections(results: Results) -> Iterator[str]:
    yield "### Headers, keys and record sizes\n"
    rows = [
        [
            each["label"] + (", minimum" if each["peer"] == "floor" else ""),
            f"{each['per_second']:,}",
            f"{each['cpu_per_million']:.1f}",
            f"{each['peak_mib']:,}",
        ]
        for each in results["records"]["figures"]
    ]
    yield from table(["", "records/s", "CPU-seconds per million", "peak memory, MiB"], rows)


def _growth_section(results: Results) -> Iterator[str]:
    yield "### Growth (on disk, without Spark)\n"
    rows = [
        [f"{each['count']:,} {each['series']}", *(_or_dash(each.get(key)) for key in _GROWING)]
        for each in results["growth"]["figures"]
    ]
    yield from table(["", *_GROWING.values()], rows)


def _cluster_section(results: Results) -> Iterator[str]:
    yield "### Spark cluster (workers with one core each, on this machine)\n"
    rows = [
        [
            plural(each["workers"], "worker") if each["workers"] else "one process, `local[1]`",
            f"{each['per_second']:,}",
            f"{each['first_commit']:.1f}",
            f"{each['driver_cpu'] / each['records'] * 1e6:.1f}",
            f"{each['executor_cpu'] / each['records'] * 1e6:.1f}" if each["workers"] else "–",
        ]
        for each in results["cluster"]["figures"]
    ]
    head = ["", "records/s after the first batch", "first commit, s"]
    yield from table([*head, "CPU-seconds per million, driver", "executors"], rows)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:,}"
