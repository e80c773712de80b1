"""Drains of records that differ: headers, keys, sizes, types, and records that are all rejected."""

from __future__ import annotations

from typing import Any

from bench.drains import UNLIKE, by_type
from bench.records import KINDS
from bench.runs import Bench, Figures

SIZES = {"100 bytes": 1, "plain": 1, "2 kB": 4, "20 kB": 20}  # kind: divisor of the number of records
FIRST, SECOND = "first drain", "once tables exist"


def records(bench: Bench) -> list[Figures]:
    """Drain records with and without headers and keys, and records of other sizes beside the minimum."""
    return [*_headers_and_keys(bench), *_sizes(bench)]


def _headers_and_keys(bench: Bench) -> list[Figures]:
    """No column reads headers or keys, so that all drains write the same rows."""
    count = bench.scale.growth
    kinds = [kind for kind in KINDS if kind.endswith(("headers, key", "headers, no key"))]
    drains = [
        {"label": kind, "topic": bench.topics.filled(kind, count), "records": count, "headers": False} for kind in kinds
    ]
    return bench.run("headrace", drains)


def _sizes(bench: Bench) -> list[Figures]:
    drains: list[dict[str, Any]] = []
    for kind, divisor in SIZES.items():
        count = bench.scale.growth // divisor
        label = "320 bytes" if kind == "plain" else kind
        topic, columns = bench.topics.filled(kind, count), dict(KINDS[kind].columns)
        drains.append({"label": label, "topic": topic, "records": count, "columns": columns})
    return [*bench.run("headrace", drains), *bench.run("floor", drains)]


def rejected(bench: Bench) -> list[Figures]:
    """Drain a topic in which every record becomes a dead letter: half have a wrong type, half are invalid JSON."""
    count = bench.scale.records
    figures = bench.run(
        "headrace",
        [
            {"label": label, "topic": bench.topics.filled(kind, count), "records": count}
            for label, kind in (("clean", "plain"), ("every record rejected", "rejected"))
        ],
    )
    if figures[-1]["dead"] != count:
        raise AssertionError(f"{figures[-1]['dead']} dead letters instead of {count}")
    return figures


def types(bench: Bench) -> list[Figures]:
    """Drain topics of 1 type, 200 types, and 200 types with an additional field each.

    Into new tables first, then a second topic with as many records into the same tables.
    """
    kinds = (
        ("one type", "1 table", by_type()),
        ("200 types", "200 types", by_type()),
        ("200 types, each with a field of its own", "200 unlike types", by_type(UNLIKE)),
    )
    count = bench.scale.records
    drains: list[dict[str, Any]] = []
    for label, kind, more in kinds:
        topics = [bench.topics.filled(kind, count, copy=copy) for copy in (1, 2)]
        common = {"records": count, "topic": topics[0], **more}
        drains.append({**common, "label": f"{label}, {FIRST}"})
        drains.append({**common, "label": f"{label}, {SECOND}", "topics": topics, "same_tables": True})
    return bench.run("headrace", drains)
