"""Report figures: tables for the terminal, docs/internals/bench.md with its chart, and the table in the README."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    ("headrace", "declared"): "Headrace",
    ("headrace", "inferred"): "Headrace, columns inferred",
    ("textbook", "declared"): "`readStream` → `from_json` → Delta sink",
    ("pandas", "declared"): "Python consumer, `json` + pandas",
    ("arrow", "declared"): "Python consumer, orjson + pyarrow",
    ("floor", "declared"): "minimum: Spark's Kafka source, counted in Python",
}
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
AGED = 10_000  # commits
Results = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Target:
    """Target of a figure, and its measured value."""

    name: str
    bound: str
    value: float
    met: bool


def load(folder: Path) -> Results:
    """Results of a folder by part."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def _figures(results: Results, part: str, **keys: Any) -> dict[str, Any]:
    """Figures with these values; raises KeyError if they were not measured."""
    for figures in results[part]["figures"]:
        if all(figures.get(key) == value for key, value in keys.items()):
            return dict(figures)
    raise KeyError(f"{part}: {keys}")


def _ratio(results: Results, key: str, part: str, over: dict[str, Any], under: dict[str, Any]) -> float:
    return float(_figures(results, part, **over)[key]) / float(_figures(results, part, **under)[key])


def _drain_ratio(key: str, peer: str) -> Callable[[Results], float]:
    mine, other = {"peer": "headrace", "label": "declared"}, {"peer": peer, "label": "declared"}
    return lambda results: _ratio(results, key, "drain", mine, other)


def _p95_by_age(results: Results, storage: str) -> list[float]:
    """p95 at each milestone of the growing table, without the first, which has too few commits."""
    figures = (each for each in results["commit"]["figures"] if each["storage"] == storage)
    return [float(each["p95"]) for each in figures if each["condition"].startswith("commit ")][1:]


def _label_ratio(key: str, part: str, over: str, under: str) -> Callable[[Results], float]:
    return lambda results: _ratio(results, key, part, {"label": over}, {"label": under})


def _late_commit(storage: str) -> Callable[[Results], float]:
    """Ratio of the last milestone to the first."""
    return lambda results: _p95_by_age(results, storage)[-1] / _p95_by_age(results, storage)[0]


def _commit(storage: str) -> Callable[[Results], float]:
    return lambda results: _p95_by_age(results, storage)[-2]


def _spark_ratio(part: str, work: str, label: str) -> Callable[[Results], float]:
    """Ratio of Headrace's time to the time in Spark SQL, with the same settings."""
    ours, theirs = ({"peer": f"{work} {peer}", "label": label} for peer in ("headrace", "spark"))
    return lambda results: _ratio(results, "seconds", part, ours, theirs)


def _aged(results: Results, label: str) -> float:
    figures = _figures(results, "history", label=label)
    if figures["count"] < AGED:
        raise KeyError("the table has too few commits")
    return float(figures["seconds"])


_TARGETS: tuple[tuple[str, str, float, Callable[[Results], float]], ...] = (
    ("records/s ÷ textbook", "≥", 2.0, _drain_ratio("per_second", "textbook")),
    ("records/s ÷ consumer with pandas", "≥", 4.0, _drain_ratio("per_second", "pandas")),
    ("records/s ÷ consumer with pyarrow", "≥", 1.7, _drain_ratio("per_second", "arrow")),
    ("CPU-s per million ÷ textbook", "≤", 0.5, _drain_ratio("cpu_per_million", "textbook")),
    ("CPU-s per million ÷ minimum", "≤", 2.2, _drain_ratio("cpu_per_million", "floor")),
    (
        "micro-batch at 1,000 records/s ÷ textbook",
        "≤",
        0.35,
        lambda results: _ratio(results, "median_ms", "micro", {"peer": "headrace"}, {"peer": "textbook"}),
    ),
    ("commit p95 on disk, ms", "≤", 5.0, _commit("local")),
    ("commit p95 on S3, ms", "≤", 15.0, _commit("s3")),
    ("commit p95, oldest ÷ new table, disk", "≤", 1.5, _late_commit("local")),
    ("commit p95, oldest ÷ new table, S3", "≤", 1.5, _late_commit("s3")),
    (
        "CPU-s per million, 50 tables ÷ one",
        "≤",
        1.5,
        _label_ratio("cpu_per_million", "tables", "50 tables, by a field", "one table"),
    ),
    (
        "peak PSS of the process tree, GiB",
        "≤",
        2.0,
        lambda results: _figures(results, "drain", peer="headrace", label="declared")["peak_mib"] / 1024,
    ),
    (
        "records/s, 10 % poison ÷ clean",
        "≥",
        0.8,
        _label_ratio("per_second", "poison", "10 % poison", "clean"),
    ),
    ("records/s, Avro with a registry ÷ JSON", "≥", 0.7, _label_ratio("per_second", "formats", "avro", "json")),
    ("records/s, Protobuf with a registry ÷ JSON", "≥", 0.7, _label_ratio("per_second", "formats", "protobuf", "json")),
    (
        "time, ten JMESPath transforms ÷ none",
        "≤",
        1.25,
        _label_ratio("per_second", "jmespath", "without", "ten transforms"),
    ),
    ("records/s, 200 types in one topic ÷ one", "≥", 0.6, _label_ratio("per_second", "types", "200 types", "one type")),
    ("upsert, random keys: time ÷ Spark SQL", "≤", 1.0, _spark_ratio("upsert", "merge", "everywhere")),
    ("upsert, highest keys: time ÷ Spark SQL", "≤", 1.0, _spark_ratio("upsert", "merge", "at the end")),
    (
        "upsert, 0.1 % of the highest keys: time ÷ Spark SQL",
        "≤",
        1.0,
        _spark_ratio("upsert", "merge", "a thousandth of them"),
    ),
    ("append and compact: time ÷ Spark SQL", "≤", 1.0, _spark_ratio("compact", "compact", "append and compact")),
    ("history of 10,000 commits, s", "≤", 2.0, lambda results: _aged(results, "history")),
    ("statistics of 10,000 commits, s", "≤", 2.0, lambda results: _aged(results, "statistics")),
)


def targets(results: Results) -> Iterator[Target]:
    """Targets whose parts were measured."""
    for name, sign, bound, measure in _TARGETS:
        try:
            value = measure(results)
        except (KeyError, StopIteration, IndexError):
            continue
        yield Target(name, f"{sign} {bound:g}", value, value >= bound if sign == "≥" else value <= bound)


# ---- tables ----

_DRAINED = {
    "poison": "Poison",
    "tables": "Tables (batches of 250,000)",
    "types": "Types in one topic",
    "formats": "Formats (Avro and Protobuf with a schema registry)",
    "jmespath": "JMESPath (ten transforms into ten columns)",
    "growth": "Partitions and record sizes",
}


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _drains(figures: list[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> list[str]:
    head = ["", "records/s", "CPU-seconds per million", "peak memory, MiB"]
    rows = [[name(e), f"{e['per_second']:,}", f"{e['cpu_per_million']:.1f}", f"{e['peak_mib']:,}"] for e in figures]
    return _table(head, rows)


def _label(label: str) -> str:
    return LABELS.get(label, re.sub(r"^faithful\b", "Headrace", label))


def _peer_name(figures: dict[str, Any]) -> str:
    return NAMES[figures["peer"], figures["label"]]


def _sections(results: Results) -> Iterator[str]:
    if measured := list(targets(results)):
        yield "### Targets\n"
        rows = [[each.name, each.bound, f"{each.value:.2f}", "yes" if each.met else "**no**"] for each in measured]
        yield from _table(["figure", "target", "measured", "met"], rows)
    if "drain" in results:
        yield f"### One topic ({results['drain']['figures'][0]['records']:,} records, 4 partitions)\n"
        yield from _drains(results["drain"]["figures"], _peer_name)
    if "micro" in results:
        yield "### Micro-batches (1,000 records/s, one batch per second)\n"
        rows = [
            [_peer_name({**each, "label": "declared"}), f"{each['median_ms']:.0f}", f"{each['cpu_per_second']:.2f}"]
            for each in results["micro"]["figures"]
        ]
        yield from _table(["", "median per trigger, ms", "CPU-seconds per second"], rows)
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
            yield from _table(["", "seconds", "CPU-seconds", "peak memory, MiB"], rows)


def _small_sections(results: Results) -> Iterator[str]:
    if "commit" in results:
        yield "### Commits (milliseconds per commit of one table)\n"
        keys = ("storage", "condition", "p50", "p95", "p99")
        yield from _table(
            list(keys), [[_label(str(each[key])) for key in keys] for each in results["commit"]["figures"]]
        )
    if "preview" in results:
        figures = results["preview"]["figures"][0]
        yield f"### Preview\n\n`headrace preview` of a topic: {figures['seconds']:.2f} s, {figures['cpu']:.2f} CPU-s.\n"
    for part, title in (("plan", "Plan only"), ("decode", "Decoding only")):
        if part in results:
            yield f"### {title} (one thread)\n"
            rows = [[_label(each["label"]), f"{each['cpu_per_million']:.2f}"] for each in results[part]["figures"]]
            yield from _table(["", "CPU-seconds per million"], rows)


def _machine(results: Results) -> str:
    runs = list(results.values())
    first = runs[0]["machine"]
    times = "once" if runs[0]["turns"] == 1 else f"medians of {runs[0]['turns']}"
    load = max(run["machine"]["load"][0] for run in runs)
    return (
        f"{min(run['at'] for run in runs)[:10]}, {first['cores']} cores ({first['cpu']}), "
        f"{first['memory_gib']:g} GiB, Python {first['python']}; {times}; load average at most {load:g}"
        f"{'; a quick run' if runs[0]['quick'] else ''}.\n"
    )


def text(folder: Path) -> str:
    """Report of a folder of results."""
    results = load(folder)
    return "\n".join([_machine(results), *_sections(results)]) if results else "No results."


# ---- chart ----


def draw(results: Results, file: Path) -> None:
    """Draw throughput and CPU of all peers."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    figures = results["drain"]["figures"]
    names = [_peer_name(each).replace("`", "").replace(": ", ":\n").replace(", ", ",\n") for each in figures]
    colours = ["#1f6f8b" if each["peer"] == "headrace" else "#b8b8b8" for each in figures]
    picture, axes = pyplot.subplots(1, 2, figsize=(11, 3.6), sharey=True, layout="constrained")
    for axis, key, title in zip(
        axes, ("per_second", "cpu_per_million"), ("records per second", "CPU-seconds per million records"), strict=True
    ):
        bars = axis.barh(names, [each[key] for each in figures], color=colours)
        axis.bar_label(bars, fmt=lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.1f}", padding=3)
        axis.set_title(title)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.18)
    axes[0].invert_yaxis()
    picture.savefig(file, metadata={"Date": None})
    pyplot.close(picture)


# ---- pages ----


def write(folder: Path) -> None:
    """Write the figures into the pages; those of a quick run only if there are no others."""
    results = load(folder) or load(folder / "quick")
    if not results:
        raise SystemExit(f"{folder} has no results. Run `make bench`.")
    figures = "\n".join([_machine(results), *_sections(results)])
    if "drain" in results:
        draw(results, ROOT / "docs" / "internals" / "bench.svg")
        figures = f"![Throughput and CPU of each peer](bench.svg)\n\n{figures}"
        head = [each for each in results["drain"]["figures"] if each["peer"] != "floor" and each["label"] == "declared"]
        rows = [[_peer_name(e), f"{e['per_second']:,}", f"{e['cpu_per_million']:.1f}"] for e in head]
        table = _table(["", "records/s", "CPU-seconds per million"], rows)
        _fill(ROOT / "README.md", "bench", "\n".join(table[:-1]).replace("|  |", "| |", 1))
    _fill(ROOT / "docs" / "internals" / "bench.md", "figures", figures.rstrip())


def _fill(page: Path, name: str, content: str) -> None:
    """Replace the text between the markers of a page."""
    section = re.compile(rf"(<!-- {name}: begin[^>]*-->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    text = page.read_text()
    if not section.search(text):
        raise SystemExit(f"{page} has no markers for {name}.")
    page.write_text(section.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text))
