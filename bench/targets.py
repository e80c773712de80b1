"""Targets of the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.results import Results, figures, ratio

AGED = 10_000  # commits


@dataclass(frozen=True)
class Target:
    """Target of a figure, and its measured value."""

    name: str
    bound: str
    value: float
    met: bool | None  # None: the run is too small for the target


@dataclass(frozen=True)
class Goal:
    """Bound of a figure of a part."""

    part: str  # empty: all parts
    name: str
    sign: str
    bound: float
    measure: Callable[[Results], float]
    small: bool = False  # whether a run with fewer records is compared as well


def _drain_ratio(key: str, peer: str) -> Callable[[Results], float]:
    mine, other = {"peer": "headrace", "label": "declared"}, {"peer": peer, "label": "declared"}
    return lambda results: ratio(results, key, "drain", mine, other)


def _p95_by_age(results: Results, storage: str) -> list[float]:
    """p95 at each milestone of the growing table, without the first, which has too few commits."""
    rows = (each for each in results["commit"]["figures"] if each["storage"] == storage)
    return [float(each["p95"]) for each in rows if each["condition"].startswith("commit ")][1:]


def _label_ratio(key: str, part: str, over: str, under: str) -> Callable[[Results], float]:
    return lambda results: ratio(results, key, part, {"label": over}, {"label": under})


def _late_commit(storage: str) -> Callable[[Results], float]:
    """Ratio of the last milestone to the first."""
    return lambda results: _p95_by_age(results, storage)[-1] / _p95_by_age(results, storage)[0]


def _commit(storage: str) -> Callable[[Results], float]:
    return lambda results: _p95_by_age(results, storage)[-2]


def _spark_ratio(part: str, work: str, label: str) -> Callable[[Results], float]:
    """Ratio of Headrace's time to the time in Spark SQL, with the same settings."""
    ours, theirs = ({"peer": f"{work} {peer}", "label": label} for peer in ("headrace", "spark"))
    return lambda results: ratio(results, "seconds", part, ours, theirs)


def _aged(results: Results, label: str) -> float:
    row = figures(results, "history", label=label)
    if row["count"] < AGED:
        raise KeyError("the table has too few commits")
    return float(row["seconds"])


def _highest_peak(results: Results) -> float:
    """Highest PSS of all rows of Headrace, in GiB; parts without a peer are of Headrace alone."""
    rows = (row for part in results.values() for row in part["figures"] if "headrace" in row.get("peer", "headrace"))
    return max(float(row["peak_mib"]) for row in rows if row.get("peak_mib")) / 1024


def _cold_ratio(key: str, peer: str, *, mine: str = "declared") -> Callable[[Results], float]:
    """Ratio of Headrace to a peer with declared columns, both on the large topic."""

    def measure(results: Results) -> float:
        count = max(row["records"] for row in results["cold"]["figures"])
        over, under = {"peer": "headrace", "label": mine}, {"peer": peer, "label": "declared"}
        return ratio(results, key, "cold", {**over, "records": count}, {**under, "records": count})

    return measure


_GOALS = (
    Goal("cold", "whole command: time ÷ textbook", "≤", 0.4, _cold_ratio("seconds", "textbook")),
    Goal("cold", "whole command: time ÷ consumer with pyarrow", "≤", 1.0, _cold_ratio("seconds", "arrow")),
    Goal(
        "cold",
        "whole command: time, inferred ÷ declared",
        "≤",
        1.15,
        _cold_ratio("seconds", "headrace", mine="inferred"),
    ),
    Goal("cold", "whole command: first commit ÷ textbook", "≤", 0.5, _cold_ratio("first_commit", "textbook")),
    Goal("drain", "records/s ÷ textbook", "≥", 2.5, _drain_ratio("per_second", "textbook")),
    Goal("drain", "records/s ÷ consumer with pandas", "≥", 4.0, _drain_ratio("per_second", "pandas")),
    Goal("drain", "records/s ÷ consumer with pyarrow", "≥", 1.7, _drain_ratio("per_second", "arrow")),
    Goal("drain", "CPU-s per million ÷ textbook", "≤", 0.5, _drain_ratio("cpu_per_million", "textbook")),
    Goal("drain", "CPU-s per million ÷ minimum", "≤", 2.2, _drain_ratio("cpu_per_million", "floor")),
    Goal(
        "micro",
        "micro-batch at 1,000 records/s ÷ textbook",
        "≤",
        0.35,
        lambda results: ratio(results, "median_ms", "micro", {"peer": "headrace"}, {"peer": "textbook"}),
        small=True,
    ),
    Goal("commit", "commit p95 on disk, ms", "≤", 5.0, _commit("local"), small=True),
    Goal("commit", "commit p95 on S3, ms", "≤", 15.0, _commit("s3"), small=True),
    Goal("commit", "commit p95, oldest ÷ new table, disk", "≤", 1.5, _late_commit("local")),
    Goal("commit", "commit p95, oldest ÷ new table, S3", "≤", 1.5, _late_commit("s3")),
    Goal(
        "tables",
        "CPU-s per million, 50 tables ÷ one",
        "≤",
        1.5,
        _label_ratio("cpu_per_million", "tables", "50 tables, by a field", "one table"),
    ),
    Goal("", "highest peak PSS of Headrace in all parts, GiB", "≤", 1.5, _highest_peak),
    Goal(
        "poison",
        "records/s, 10 % poison ÷ clean",
        "≥",
        0.8,
        _label_ratio("per_second", "poison", "10 % poison", "clean"),
    ),
    Goal(
        "formats",
        "records/s, Avro with a registry ÷ JSON",
        "≥",
        0.7,
        _label_ratio("per_second", "formats", "avro", "json"),
    ),
    Goal(
        "formats",
        "records/s, Protobuf with a registry ÷ JSON",
        "≥",
        0.7,
        _label_ratio("per_second", "formats", "protobuf", "json"),
    ),
    Goal(
        "jmespath",
        "time, ten JMESPath transforms ÷ none",
        "≤",
        1.25,
        _label_ratio("per_second", "jmespath", "without", "ten transforms"),
    ),
    Goal(
        "types",
        "records/s, 200 types in one topic ÷ one",
        "≥",
        0.6,
        _label_ratio("per_second", "types", "200 types", "one type"),
    ),
    Goal("upsert", "upsert, random keys: time ÷ Spark SQL", "≤", 1.0, _spark_ratio("upsert", "merge", "everywhere")),
    Goal("upsert", "upsert, highest keys: time ÷ Spark SQL", "≤", 1.0, _spark_ratio("upsert", "merge", "at the end")),
    Goal(
        "upsert",
        "upsert, 0.1 % of the highest keys: time ÷ Spark SQL",
        "≤",
        1.0,
        _spark_ratio("upsert", "merge", "a thousandth of them"),
    ),
    Goal(
        "compact",
        "append and compact: time ÷ Spark SQL",
        "≤",
        1.0,
        _spark_ratio("compact", "compact", "append and compact"),
    ),
    Goal("history", "history of 10,000 commits, s", "≤", 2.0, lambda results: _aged(results, "history")),
    Goal("history", "statistics of 10,000 commits, s", "≤", 2.0, lambda results: _aged(results, "statistics")),
)


def targets(results: Results) -> Iterator[Target]:
    """Targets whose parts were measured."""
    for goal in _GOALS:
        try:
            value = goal.measure(results)
        except (KeyError, StopIteration, IndexError, ValueError):
            continue
        parts = [results[goal.part]] if goal.part else list(results.values())
        if not goal.small and any(part.get("small") for part in parts):
            yield Target(goal.name, "–", value, None)
            continue
        met = value >= goal.bound if goal.sign == "≥" else value <= goal.bound
        yield Target(goal.name, f"{goal.sign} {goal.bound:g}", value, met)
