"""Sections of the report: one table per part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from bench.markdown import peer_name, table
from bench.results import Results
from bench.targets import targets
from bench.user_sections import user_sections

LAKES = {
    "headrace": "Headrace",
    "spark": "Spark SQL",
    "delta-rs": "delta-rs",
    "headrace-spark": "Headrace, Spark merge",
    "headrace-vectors": "Headrace with deletion vectors",
    "spark-vectors": "Spark SQL with deletion vectors",
}
# Display names of labels in bench/results.
LABELS = {
    "peer: duckdb from_json, unfaithful": "peer: duckdb from_json, lossy",
    "part: json_type at 14 places": "part: json_type of 14 paths",
    "exact way alone": "Headrace, one record at a time",
    "avro, exact way alone, no columns": "avro, one record at a time, no columns",
    "200 types, each with a field of its own": "200 types, each with an additional field",
    "everywhere": "random keys",
    "at the end": "highest keys",
    "a thousandth of them": "0.1 % of the highest keys",
    "one bare put, no commit": "one put, no commit",
}
MET = {True: "yes", False: "**no**", None: "–"}
_DRAINED = {
    "poison": "Poison",
    "tables": "Tables (batches of 250,000)",
    "types": "Types in one topic",
    "formats": "Formats (Avro and Protobuf with a schema registry)",
    "jmespath": "JMESPath (ten transforms into ten columns)",
    "partitions": "Partitions",
    "rivven": "Rivven and Kafka (no headers, no keys)",
    "files": "Files of JSON lines",
    "rejected": "Dead letters only",
}


def _drains(figures: list[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> list[str]:
    head = ["", "records/s", "CPU-seconds per million", "peak memory, MiB"]
    rows = [[name(e), f"{e['per_second']:,}", f"{e['cpu_per_million']:.1f}", f"{e['peak_mib']:,}"] for e in figures]
    return table(head, rows)


def _label(label: str) -> str:
    return LABELS.get(label, re.sub(r"^faithful\b", "Headrace", label))


def sections(results: Results) -> Iterator[str]:
    if measured := list(targets(results)):
        yield "### Targets\n"
        rows = [[each.name, each.bound, f"{each.value:.2f}", MET[each.met]] for each in measured]
        if any(each.met is None for each in measured):
            yield "This run is too small for targets without a bound.\n"
        yield from table(["figure", "target", "measured", "met"], rows)
    if "drain" in results:
        yield f"### One topic ({results['drain']['figures'][0]['records']:,} records, 4 partitions)\n"
        yield from _drains(results["drain"]["figures"], peer_name)
    yield from user_sections(results)
    if "micro" in results:
        yield "### Micro-batches (1,000 records/s, one batch per second)\n"
        rows = [
            [peer_name({**each, "label": "declared"}), f"{each['median_ms']:.0f}", f"{each['cpu_per_second']:.2f}"]
            for each in results["micro"]["figures"]
        ]
        yield from table(["", "median per trigger, ms", "CPU-seconds per second"], rows)
    for part, title in _DRAINED.items():
        if part in results:
            yield f"### {title}\n"
            yield from _drains(results[part]["figures"], lambda each: _label(each["label"]))
    yield from _table_sections(results)
    yield from _small_sections(results)


def _table_sections(results: Results) -> Iterator[str]:
    """Operations on tables."""
    titles = {
        "upsert": "Upsert ({:,} changes into fifty times as many rows)",
        "compact": "Append and compact ({:,} rows in pieces of 20,000)",
        "history": "History and statistics ({:,} commits)",
    }
    for part, title in titles.items():
        if part in results:
            figures = results[part]["figures"]
            yield f"### {title.format(figures[0]['count'])}\n"
            rows = [
                [
                    f"{LAKES[each['peer'].partition(' ')[2]]}, {_label(each['label'])}",
                    f"{each['seconds']:.2f}",
                    f"{each['cpu']:.2f}",
                    f"{each['peak_mib']:,}",
                ]
                for each in figures
            ]
            yield from table(["", "seconds", "CPU-seconds", "peak memory, MiB"], rows)


def _small_sections(results: Results) -> Iterator[str]:
    if "commit" in results:
        yield "### Commits (milliseconds per commit of one table)\n"
        keys = ("storage", "condition", "p50", "p95", "p99")
        yield from table(
            list(keys), [[_label(str(each[key])) for key in keys] for each in results["commit"]["figures"]]
        )
    if "commands" in results:
        yield "### Commands (cold processes; seconds, minimum and median)\n"
        rows = [
            [each["label"], *(f"{each[key]:.2f}" for key in ("seconds", "median", "cpu", "median_cpu"))]
            for each in results["commands"]["figures"]
        ]
        yield from table(["", "seconds", "median", "CPU-seconds", "median"], rows)
    if "receiving" in results:
        yield "### Receiving (durable, one core)\n"
        rows = [
            [each["label"], f"{each['per_second']:,}", f"{each['cpu_per_million']:.1f}"]
            for each in results["receiving"]["figures"]
        ]
        yield from table(["", "records/s", "CPU-seconds per million"], rows)
    if "hot_store" in results:
        yield "### Hot store (PostgreSQL on this machine, with fsync)\n"
        keys = ("cpu_per_million", "server_cpu_per_million")
        rows = [
            [each["label"], f"{each['per_second']:,}", *(f"{each[key]:.1f}" for key in keys)]
            for each in results["hot_store"]["figures"]
        ]
        yield from table(["", "rows/s", "CPU-seconds per million", "of PostgreSQL"], rows)
    if "observed" in results:
        yield "### Observers (a scrape of `/metrics` and `/health` each second, and `headrace top`)\n"
        keys = ("sent_per_second", "per_second", "cores", "first_mib", "last_mib", "peak_mib")
        rows = [[each["label"], *(f"{each[key]:,}" for key in keys)] for each in results["observed"]["figures"]]
        titles = ["", "sent/s", "committed/s", "cores", "PSS at the start, MiB", "at the end", "peak"]
        yield from table(titles, rows)
    if "idle" in results:
        yield "### Idle pipelines (one process, one Kafka topic each)\n"
        rows = [[each["label"], f"{each['cores']:.3f}", f"{each['peak_mib']:,}"] for each in results["idle"]["figures"]]
        yield from table(["", "cores", "peak memory, MiB"], rows)
    for part, title in (("plan", "Plan only"), ("decode", "Decoding only")):
        if part in results:
            yield f"### {title} (one thread)\n"
            rows = [[_label(each["label"]), f"{each['cpu_per_million']:.2f}"] for each in results[part]["figures"]]
            yield from table(["", "CPU-seconds per million"], rows)
