"""Bounds of the figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.measures import (
    aged,
    caught_up,
    cold_ratio,
    command,
    commit,
    drain_ratio,
    drain_spread,
    fresh,
    grown,
    highest_peak,
    highest_ratio,
    idle_cores,
    label_ratio,
    lake_ratio,
    late_commit,
    memory_growth,
    otlp_ratio,
    ratio_of_keys,
    received,
    size_ratio,
)
from bench.results import Results, ratio

OWN = ", each with a field of its own"
_OTHER_SHAPES = highest_ratio("decode", "shape: ", lambda label: label.replace("shape: ", "peer: duckdb from_json, "))
_ALL_REJECTED = highest_ratio("plan", "rejects: ", lambda _: "rejects: none")


@dataclass(frozen=True)
class Goal:
    """Bound of a figure of a part."""

    part: str  # empty: all parts
    name: str
    sign: str
    bound: float
    measure: Callable[[Results], float]
    small: bool = False  # whether a run with fewer records is compared as well


GOALS = (
    Goal("cold", "whole command: time ÷ textbook", "≤", 0.4, cold_ratio("seconds", "textbook")),
    Goal("cold", "whole command: time ÷ consumer with pyarrow", "≤", 1.0, cold_ratio("seconds", "arrow")),
    Goal(
        "cold",
        "whole command: time, inferred ÷ declared",
        "≤",
        1.15,
        cold_ratio("seconds", "headrace", mine="inferred"),
    ),
    Goal("cold", "whole command: first commit ÷ textbook", "≤", 0.5, cold_ratio("first_commit", "textbook")),
    *(
        Goal("records", f"{name}, highest ÷ lowest of 0, 1, 5 headers and keys", "≤", 1.1, drain_spread(key))
        for key, name in (("cpu_per_million", "CPU-s per million"), ("per_second", "records/s"))
    ),
    *(
        Goal("records", f"CPU-s per million ÷ minimum, {size}", "≤", 1.4, size_ratio(size))
        for size in ("100 bytes", "320 bytes", "2 kB", "20 kB")
    ),
    *(
        Goal("freshness", f"{key} of the age of rows at {rate:,} records/s, s", "≤", bound, fresh(key, rate))
        for key, rate, bound in (
            ("p95", 1_000, 0.8),
            ("p99", 1_000, 1.2),
            ("p95", 20_000, 0.8),
            ("p99", 20_000, 1.2),
            ("p95", 50_000, 1.2),
        )
    ),
    Goal("freshness", "cores at 1,000 records/s", "≤", 0.5, fresh("cores", 1_000)),
    Goal("memory", "median PSS at 1,000 records/s, last ÷ first period", "≤", 1.1, memory_growth),
    Goal("drain", "records/s ÷ textbook", "≥", 2.5, drain_ratio("per_second", "textbook")),
    Goal("drain", "records/s ÷ consumer with pandas", "≥", 4.0, drain_ratio("per_second", "pandas")),
    Goal("drain", "records/s ÷ consumer with pyarrow", "≥", 1.7, drain_ratio("per_second", "arrow")),
    Goal("drain", "CPU-s per million ÷ textbook", "≤", 0.5, drain_ratio("cpu_per_million", "textbook")),
    Goal("drain", "CPU-s per million ÷ minimum", "≤", 2.2, drain_ratio("cpu_per_million", "floor")),
    Goal(
        "micro",
        "micro-batch at 1,000 records/s ÷ textbook",
        "≤",
        0.35,
        lambda results: ratio(results, "median_ms", "micro", {"peer": "headrace"}, {"peer": "textbook"}),
        small=True,
    ),
    Goal("commit", "commit p95 on disk, ms", "≤", 5.0, commit("local"), small=True),
    Goal("commit", "commit p95 on S3, ms", "≤", 15.0, commit("s3"), small=True),
    Goal("commit", "commit p95, oldest ÷ new table, disk", "≤", 1.5, late_commit("local")),
    Goal("commit", "commit p95, oldest ÷ new table, S3", "≤", 1.5, late_commit("s3")),
    Goal("growth", "commit p50, 100,000th ÷ 200th version", "≤", 1.5, grown),
    Goal(
        "tables",
        "CPU-s per million, 50 tables ÷ one",
        "≤",
        1.5,
        label_ratio("cpu_per_million", "tables", "50 tables, by a field", "one table"),
    ),
    Goal("", "highest peak PSS of Headrace in all parts, GiB", "≤", 1.5, highest_peak),
    Goal(
        "poison",
        "records/s, 10 % poison ÷ clean",
        "≥",
        0.8,
        label_ratio("per_second", "poison", "10 % poison", "clean"),
    ),
    Goal(
        "formats",
        "records/s, Avro with a registry ÷ JSON",
        "≥",
        0.7,
        label_ratio("per_second", "formats", "avro", "json"),
    ),
    Goal(
        "formats",
        "records/s, Protobuf with a registry ÷ JSON",
        "≥",
        0.7,
        label_ratio("per_second", "formats", "protobuf", "json"),
    ),
    Goal(
        "rivven",
        "records/s, Rivven ÷ Kafka",
        "≥",
        0.7,
        label_ratio("per_second", "rivven", "rivven", "kafka"),
    ),
    Goal(
        "files",
        "records/s, files of JSON lines ÷ spark.read.json",
        "≥",
        0.8,
        label_ratio("per_second", "files", "files, Headrace", "files, spark.read.json"),
    ),
    Goal(
        "jmespath",
        "time, ten JMESPath transforms ÷ none",
        "≤",
        1.25,
        label_ratio("per_second", "jmespath", "without", "ten transforms"),
    ),
    Goal(
        "rejected",
        "records/s, every record rejected ÷ clean",
        "≥",
        0.5,
        label_ratio("per_second", "rejected", "every record rejected", "clean"),
    ),
    Goal("decode", "decoding, JSON of other shapes ÷ from_json, highest", "≤", 2.0, _OTHER_SHAPES, small=True),
    Goal(
        "plan",
        "plan, throughput, all rejected ÷ clean, lowest",
        "≥",
        0.5,
        lambda results: 1 / _ALL_REJECTED(results),
        small=True,
    ),
    *(
        Goal(
            "types",
            f"records/s, 200 types{more} ÷ one, {drain}",
            "≥",
            bound,
            label_ratio("per_second", "types", f"200 types{more}, {drain}", f"one type, {drain}"),
        )
        for more, drain, bound in (
            ("", "first drain", 0.6),
            (OWN, "first drain", 0.4),
            (OWN, "once tables exist", 0.6),
        )
    ),
    Goal("receiving", "spool, records of 300 bytes per second", "≥", 50_000, received("spool, appends of 100")),
    Goal("receiving", "HTTP, events per second", "≥", 20_000, received("HTTP, requests of 100")),
    Goal("receiving", "OTLP, spans per second ÷ collector with the debug exporter", "≥", 2.0, otlp_ratio),
    Goal("hot_store", "hot store, rows per second", "≥", 50_000, caught_up),
    Goal(
        "observed",
        "records/s, observed ÷ alone",
        "≥",
        0.97,
        label_ratio("per_second", "observed", "observed", "alone"),
    ),
    Goal(
        "observed",
        "PSS of an observed pipeline, last ÷ first tenth",
        "≤",
        1.1,
        lambda results: ratio_of_keys(results, "observed", "observed", "last_mib", "first_mib"),
    ),
    Goal("idle", "20 idle pipelines, cores", "≤", 0.05, idle_cores, small=True),
    Goal("upsert", "upsert, random keys: time ÷ Spark SQL", "≤", 1.0, lake_ratio("upsert", "merge", "everywhere")),
    Goal("upsert", "upsert, highest keys: time ÷ Spark SQL", "≤", 1.0, lake_ratio("upsert", "merge", "at the end")),
    Goal(
        "upsert",
        "upsert, 0.1 % of the highest keys: time ÷ Spark SQL",
        "≤",
        1.0,
        lake_ratio("upsert", "merge", "a thousandth of them"),
    ),
    Goal(
        "compact",
        "append and compact: time ÷ Spark SQL",
        "≤",
        1.0,
        lake_ratio("compact", "compact", "append and compact"),
    ),
    Goal(
        "upsert",
        "upsert, random keys: time ÷ delta-rs",
        "≤",
        1.0,
        lake_ratio("upsert", "merge", "everywhere", "delta-rs"),
    ),
    Goal(
        "compact",
        "append and compact: time ÷ delta-rs",
        "≤",
        1.0,
        lake_ratio("compact", "compact", "append and compact", "delta-rs"),
    ),
    Goal("history", "history of 10,000 commits, s", "≤", 2.0, lambda results: aged(results, "history")),
    *(
        Goal("commands", f"headrace {name}, s", "≤", bound, command(label), small=True)
        for name, bound, label in (
            ("--help", 0.3, "--help"),
            ("check of a minimal spec", 0.5, "check, minimal spec"),
            ("check with an expression", 0.5, "check, columns and an expression"),
            ("preview of a topic", 1.0, "preview"),
        )
    ),
    Goal("history", "statistics of 10,000 commits, s", "≤", 2.0, lambda results: aged(results, "statistics")),
)
