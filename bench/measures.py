"""Figures that targets are about, computed from results."""

from __future__ import annotations

from collections.abc import Callable

from bench.results import Results, figures, ratio

AGED = 10_000  # commits
REACHED = 0.98  # of the rate of a producer


def drain_ratio(key: str, peer: str) -> Callable[[Results], float]:
    """Ratio of Headrace to a peer with declared columns."""
    mine, other = {"peer": "headrace", "label": "declared"}, {"peer": peer, "label": "declared"}
    return lambda results: ratio(results, key, "drain", mine, other)


def p95_by_age(results: Results, storage: str) -> list[float]:
    """p95 at each milestone of the growing table."""
    rows = (each for each in results["commit"]["figures"] if each["storage"] == storage)
    return [float(each["p95"]) for each in rows if each["condition"].startswith("commit ")]


def label_ratio(key: str, part: str, over: str, under: str) -> Callable[[Results], float]:
    """Ratio of two drains of a part."""
    return lambda results: ratio(results, key, part, {"label": over}, {"label": under})


def late_commit(storage: str) -> Callable[[Results], float]:
    """Ratio of the last milestone to the first."""
    return lambda results: p95_by_age(results, storage)[-1] / p95_by_age(results, storage)[0]


def commit(storage: str) -> Callable[[Results], float]:
    """p95 of the last milestone."""
    return lambda results: p95_by_age(results, storage)[-1]


def grown(results: Results) -> float:
    """Median commit time of the last row of the series of versions ÷ that of its first."""
    rows = [row for row in results["growth"]["figures"] if row["series"] == "versions"]
    return float(rows[-1]["p50"]) / float(rows[0]["p50"])


def memory_growth(results: Results) -> float:
    """Median PSS of the last period ÷ that of the first."""
    rows = results["memory"]["figures"]
    return float(rows[-1]["median_mib"]) / float(rows[0]["median_mib"])


def lake_ratio(part: str, work: str, label: str, other: str = "spark") -> Callable[[Results], float]:
    """Ratio of Headrace's time to the time of Spark SQL or delta-rs, with the same settings."""
    ours, theirs = ({"peer": f"{work} {peer}", "label": label} for peer in ("headrace", other))
    return lambda results: ratio(results, "seconds", part, ours, theirs)


def command(label: str) -> Callable[[Results], float]:
    """Median time of a command in a cold process."""
    return lambda results: float(figures(results, "commands", label=label)["median"])


def received(label: str) -> Callable[[Results], float]:
    """Records per second of a receiver."""
    return lambda results: float(figures(results, "receiving", label=label)["per_second"])


def caught_up(results: Results) -> float:
    """Rows per second that the hot store writes of an append."""
    return float(figures(results, "hot_store", label="commits of a quarter of the rows")["per_second"])


def idle_cores(results: Results) -> float:
    """Cores that idle pipelines use together."""
    return float(figures(results, "idle", label="20 pipelines")["cores"])


def ratio_of_keys(results: Results, part: str, label: str, key: str, base: str) -> float:
    """Ratio of two figures of one row."""
    row = figures(results, part, label=label)
    return float(row[key]) / float(row[base])


def otlp_ratio(results: Results) -> float:
    """Spans per second, durable, compared with a collector that stores nothing."""
    ours, theirs = {"label": "OTLP over gRPC, requests of 1,000 spans"}, {"label": "collector with the debug exporter"}
    return ratio(results, "per_second", "receiving", ours, theirs)


def aged(results: Results, label: str) -> float:
    """Seconds for a table with many commits."""
    row = figures(results, "history", label=label)
    if row["count"] < AGED:
        raise KeyError("the table has too few commits")
    return float(row["seconds"])


def highest_peak(results: Results) -> float:
    """Highest PSS of all rows of Headrace, in GiB; parts without a peer are of Headrace alone."""
    rows = (row for part in results.values() for row in part["figures"] if "headrace" in row.get("peer", "headrace"))
    return max(float(row["peak_mib"]) for row in rows if row.get("peak_mib")) / 1024


def cold_ratio(key: str, peer: str, *, mine: str = "declared") -> Callable[[Results], float]:
    """Ratio of Headrace to a peer with declared columns, both on the large topic."""

    def measure(results: Results) -> float:
        count = max(row["records"] for row in results["cold"]["figures"])
        over, under = {"peer": "headrace", "label": mine}, {"peer": peer, "label": "declared"}
        return ratio(results, key, "cold", {**over, "records": count}, {**under, "records": count})

    return measure


def drain_spread(key: str) -> Callable[[Results], float]:
    """Highest ÷ lowest figure of the drains that differ only in headers and keys."""

    def measure(results: Results) -> float:
        values = [float(row[key]) for row in results["records"]["figures"] if "headers" in row["label"]]
        return max(values) / min(values)

    return measure


def size_ratio(label: str) -> Callable[[Results], float]:
    """CPU of Headrace ÷ that of the minimum, with records of the same size."""
    mine, other = {"peer": "headrace", "label": label}, {"peer": "floor", "label": label}
    return lambda results: ratio(results, "cpu_per_million", "records", mine, other)


def fresh(key: str, rate: int) -> Callable[[Results], float]:
    """Figure of Headrace at a rate; KeyError if the producer did not reach the rate."""

    def measure(results: Results) -> float:
        row = figures(results, "freshness", peer="headrace", rate=rate)
        if row["sent_per_second"] < REACHED * rate:
            raise KeyError("the producer was too slow")
        return float(row[key])

    return measure


def highest_ratio(part: str, prefix: str, other: Callable[[str], str]) -> Callable[[Results], float]:
    """Highest ratio of a figure whose label has the prefix to another figure."""

    def measure(results: Results) -> float:
        costs = {each["label"]: float(each["cpu_per_million"]) for each in results[part]["figures"]}
        ratios = [costs[label] / costs[other(label)] for label in costs if label.startswith(prefix)]
        if not ratios:
            raise KeyError(f"{part}: no figures for '{prefix}'")
        return max(ratios)

    return measure
