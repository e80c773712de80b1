"""Report figures: a table for the terminal, docs/internals/bench.md with its drawing, and the table in the README."""

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
    ("floor", "declared"): "floor: Spark's Kafka source, counted in Python",
}
LAKES = {
    "headrace": "Headrace",
    "spark": "by hand on Spark",
    "delta-rs": "delta-rs",
    "headrace-spark": "Headrace, by Spark alone",
    "headrace-vectors": "Headrace with deletion vectors",
    "spark-vectors": "by hand on Spark with deletion vectors",
}
AGED = 10_000  # commits
Results = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Target:
    """A figure that was promised, and what it is."""

    what: str
    bound: str
    value: float
    met: bool


def load(folder: Path) -> Results:
    """What was measured so far, by part."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def _find(found: Results, part: str, **wanted: Any) -> dict[str, Any]:
    """One set of figures; KeyError when it has not been measured."""
    for figures in found[part]["figures"]:
        if all(figures.get(key) == value for key, value in wanted.items()):
            return dict(figures)
    raise KeyError(f"{part}: {wanted}")


def _ratio(found: Results, key: str, part: str, over: dict[str, Any], under: dict[str, Any]) -> float:
    return float(_find(found, part, **over)[key]) / float(_find(found, part, **under)[key])


def _drained(key: str, peer: str) -> Callable[[Results], float]:
    mine, other = {"peer": "headrace", "label": "declared"}, {"peer": peer, "label": "declared"}
    return lambda found: _ratio(found, key, "drain", mine, other)


def _grown(found: Results, storage: str) -> list[float]:
    """p95 of the commits before each age of one table; the first age has too few of them to count."""
    figures = (each for each in found["commit"]["figures"] if each["storage"] == storage)
    return [float(each["p95"]) for each in figures if each["condition"].startswith("commit ")][1:]


def _labelled(key: str, part: str, over: str, under: str) -> Callable[[Results], float]:
    return lambda found: _ratio(found, key, part, {"label": over}, {"label": under})


def _late_commit(storage: str) -> Callable[[Results], float]:
    """The oldest age over the new table."""
    return lambda found: _grown(found, storage)[-1] / _grown(found, storage)[0]


def _commit(storage: str) -> Callable[[Results], float]:
    return lambda found: _grown(found, storage)[-2]


def _on_table(part: str, work: str, label: str) -> Callable[[Results], float]:
    """Our time over that of the same by hand, on the same Spark."""
    ours, theirs = ({"peer": f"{work} {peer}", "label": label} for peer in ("headrace", "spark"))
    return lambda found: _ratio(found, "seconds", part, ours, theirs)


def _aged(found: Results, label: str) -> float:
    figures = _find(found, "history", label=label)
    if figures["count"] < AGED:
        raise KeyError("too young a table to say")
    return float(figures["seconds"])


_TARGETS: tuple[tuple[str, str, float, Callable[[Results], float]], ...] = (
    ("records/s ÷ textbook", "≥", 2.0, _drained("per_second", "textbook")),
    ("records/s ÷ consumer with pandas", "≥", 4.0, _drained("per_second", "pandas")),
    ("records/s ÷ consumer with pyarrow", "≥", 1.7, _drained("per_second", "arrow")),
    ("CPU-s per million ÷ textbook", "≤", 0.5, _drained("cpu_per_million", "textbook")),
    ("CPU-s per million ÷ floor", "≤", 2.2, _drained("cpu_per_million", "floor")),
    (
        "micro-batch at 1,000 records/s ÷ textbook",
        "≤",
        0.35,
        lambda found: _ratio(found, "median_ms", "micro", {"peer": "headrace"}, {"peer": "textbook"}),
    ),
    ("commit p95 on disk, ms", "≤", 5.0, _commit("local")),
    ("commit p95 on S3, ms", "≤", 15.0, _commit("s3")),
    ("commit p95, oldest ÷ new table, disk", "≤", 1.5, _late_commit("local")),
    ("commit p95, oldest ÷ new table, S3", "≤", 1.5, _late_commit("s3")),
    (
        "CPU-s per million, 50 tables ÷ one",
        "≤",
        1.5,
        _labelled("cpu_per_million", "tables", "50 tables, by a field", "one table"),
    ),
    (
        "highest PSS of the tree, GiB",
        "≤",
        2.0,
        lambda found: _find(found, "drain", peer="headrace", label="declared")["peak_mib"] / 1024,
    ),
    (
        "records/s, 10 % poison ÷ clean",
        "≥",
        0.8,
        _labelled("per_second", "poison", "10 % poison", "clean"),
    ),
    ("records/s, Avro by a registry ÷ JSON", "≥", 0.7, _labelled("per_second", "formats", "avro", "json")),
    ("records/s, Protobuf by a registry ÷ JSON", "≥", 0.7, _labelled("per_second", "formats", "protobuf", "json")),
    (
        "time, ten JMESPath transforms ÷ none",
        "≤",
        1.25,
        _labelled("per_second", "jmespath", "without", "ten transforms"),
    ),
    ("records/s, 200 types in one topic ÷ one", "≥", 0.6, _labelled("per_second", "types", "200 types", "one type")),
    ("upsert, keys everywhere: time ÷ MERGE by hand", "≤", 1.0, _on_table("upsert", "merge", "everywhere")),
    ("upsert, keys at the end: time ÷ MERGE by hand", "≤", 1.0, _on_table("upsert", "merge", "at the end")),
    ("upsert, a thousandth: time ÷ MERGE by hand", "≤", 1.0, _on_table("upsert", "merge", "a thousandth of them")),
    ("append and compact: time ÷ by hand", "≤", 1.0, _on_table("compact", "compact", "append and compact")),
    ("history of 10,000 commits, s", "≤", 2.0, lambda found: _aged(found, "history")),
    ("statistics of 10,000 commits, s", "≤", 2.0, lambda found: _aged(found, "statistics")),
)


def targets(found: Results) -> Iterator[Target]:
    """Every target whose parts were measured."""
    for what, sign, bound, value in _TARGETS:
        try:
            is_now = value(found)
        except (KeyError, StopIteration, IndexError):
            continue
        yield Target(what, f"{sign} {bound:g}", is_now, is_now >= bound if sign == "≥" else is_now <= bound)


# ---- tables ----

_DRAINED = {
    "poison": "Poison",
    "tables": "Tables (batches of 250,000)",
    "types": "Types in one topic",
    "formats": "Formats (Avro and Protobuf by a schema registry)",
    "jmespath": "JMESPath (ten transforms, and the ten columns that they make)",
    "growth": "Growth",
}


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _drains(figures: list[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> list[str]:
    head = ["", "records/s", "CPU-seconds per million", "highest memory, MiB"]
    rows = [[name(e), f"{e['per_second']:,}", f"{e['cpu_per_million']:.1f}", f"{e['peak_mib']:,}"] for e in figures]
    return _table(head, rows)


def _peer_name(figures: dict[str, Any]) -> str:
    return NAMES[figures["peer"], figures["label"]]


def _sections(found: Results) -> Iterator[str]:
    if measured := list(targets(found)):
        yield "### Targets\n"
        rows = [[each.what, each.bound, f"{each.value:.2f}", "yes" if each.met else "**no**"] for each in measured]
        yield from _table(["figure", "target", "measured", "met"], rows)
    if "drain" in found:
        yield f"### One topic, drained ({found['drain']['figures'][0]['records']:,} records, 4 partitions)\n"
        yield from _drains(found["drain"]["figures"], _peer_name)
    if "micro" in found:
        yield "### Micro-batches (1,000 records/s, one batch a second)\n"
        rows = [
            [_peer_name({**each, "label": "declared"}), f"{each['median_ms']:.0f}", f"{each['cpu_per_second']:.2f}"]
            for each in found["micro"]["figures"]
        ]
        yield from _table(["", "median of a trigger, ms", "CPU-seconds per second"], rows)
    for part, title in _DRAINED.items():
        if part in found:
            yield f"### {title}\n"
            yield from _drains(found[part]["figures"], lambda each: str(each["label"]))
    yield from _table_sections(found)
    yield from _small_sections(found)


def _table_sections(found: Results) -> Iterator[str]:
    """What is done to tables."""
    titles = {
        "upsert": "Upsert ({:,} changed keys into fifty times as many rows)",
        "compact": "Append and compact ({:,} rows in pieces of 20,000)",
        "history": "History and statistics ({:,} commits)",
    }
    for part, title in titles.items():
        if part in found:
            figures = found[part]["figures"]
            yield f"### {title.format(figures[0]['count'])}\n"
            rows = [
                [
                    f"{LAKES[each['peer'].partition(' ')[2]]}, {each['label']}",
                    f"{each['seconds']:.2f}",
                    f"{each['cpu']:.2f}",
                    f"{each['peak_mib']:,}",
                ]
                for each in figures
            ]
            yield from _table(["", "seconds", "CPU-seconds", "highest memory, MiB"], rows)


def _small_sections(found: Results) -> Iterator[str]:
    if "commit" in found:
        yield "### Commits (milliseconds of one table's commit)\n"
        keys = ("storage", "condition", "p50", "p95", "p99")
        yield from _table(list(keys), [[str(each[key]) for key in keys] for each in found["commit"]["figures"]])
    if "preview" in found:
        seen = found["preview"]["figures"][0]
        yield f"### Preview\n\n`headrace preview` of a topic: {seen['seconds']:.2f} s, {seen['cpu']:.2f} CPU-s.\n"
    for part, title in (("plan", "The plan alone"), ("decode", "The decode alone")):
        if part in found:
            yield f"### {title} (one thread)\n"
            rows = [[each["label"], f"{each['cpu_per_million']:.2f}"] for each in found[part]["figures"]]
            yield from _table(["", "CPU-seconds per million"], rows)


def _machine(found: Results) -> str:
    runs = list(found.values())
    first = runs[0]["machine"]
    times = "once" if runs[0]["turns"] == 1 else f"medians of {runs[0]['turns']}"
    load = max(run["machine"]["load"][0] for run in runs)
    return (
        f"{min(run['at'] for run in runs)[:10]}, {first['cores']} cores ({first['cpu']}), "
        f"{first['memory_gib']:g} GiB, Python {first['python']}; {times}; load average at most {load:g}"
        f"{'; a quick run' if runs[0]['quick'] else ''}.\n"
    )


def text(folder: Path) -> str:
    """All that a folder of results says."""
    found = load(folder)
    return "\n".join([_machine(found), *_sections(found)]) if found else "Nothing was measured yet."


# ---- the drawing ----


def draw(found: Results, file: Path) -> None:
    """Throughput and CPU of every peer, side by side."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    figures = found["drain"]["figures"]
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


# ---- the pages ----


def write(folder: Path) -> None:
    """Put what was measured into the pages; a quick run's figures only where there are no others."""
    found = load(folder) or load(folder / "quick")
    if not found:
        raise SystemExit(f"{folder} holds no results: run `make bench` first.")
    figures = "\n".join([_machine(found), *_sections(found)])
    if "drain" in found:
        draw(found, ROOT / "docs" / "internals" / "bench.svg")
        figures = f"![Throughput and CPU of each peer](bench.svg)\n\n{figures}"
        head = [each for each in found["drain"]["figures"] if each["peer"] != "floor" and each["label"] == "declared"]
        rows = [[_peer_name(e), f"{e['per_second']:,}", f"{e['cpu_per_million']:.1f}"] for e in head]
        table = _table(["", "records/s", "CPU-seconds per million"], rows)
        _fill(ROOT / "README.md", "bench", "\n".join(table[:-1]).replace("|  |", "| |", 1))
    _fill(ROOT / "docs" / "internals" / "bench.md", "figures", figures.rstrip())


def _fill(page: Path, mark: str, content: str) -> None:
    """Replace what stands between a page's markers."""
    marked = re.compile(rf"(<!-- {mark}: begin[^>]*-->\n).*?(<!-- {mark}: end -->)", re.DOTALL)
    before = page.read_text()
    if not marked.search(before):
        raise SystemExit(f"{page} has no markers for {mark}.")
    page.write_text(marked.sub(lambda found: f"{found[1]}{content}\n{found[2]}", before))
