"""Report figures: tables for the terminal, docs/internals/bench.md with its chart, and the table in the README."""

from __future__ import annotations

import re
from pathlib import Path

from bench.markdown import peer_name, table
from bench.results import Results, load
from bench.sections import sections

ROOT = Path(__file__).resolve().parent.parent


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
    return "\n".join([_machine(results), *sections(results)]) if results else "No results."


# ---- chart ----


def draw(results: Results, file: Path) -> None:
    """Draw throughput and CPU of all peers."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot

    figures = results["drain"]["figures"]
    names = [peer_name(each).replace("`", "").replace(": ", ":\n").replace(", ", ",\n") for each in figures]
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
    figures = "\n".join([_machine(results), *sections(results)])
    if "drain" in results:
        draw(results, ROOT / "docs" / "internals" / "bench.svg")
        figures = f"![Throughput and CPU of each peer](bench.svg)\n\n{figures}"
        head = [each for each in results["drain"]["figures"] if each["peer"] != "floor" and each["label"] == "declared"]
        rows = [[peer_name(e), f"{e['per_second']:,}", f"{e['cpu_per_million']:.1f}"] for e in head]
        head_table = table(["", "records/s", "CPU-seconds per million"], rows)
        _fill(ROOT / "README.md", "bench", "\n".join(head_table[:-1]).replace("|  |", "| |", 1))
    _fill(ROOT / "docs" / "internals" / "bench.md", "figures", figures.rstrip())


def _fill(page: Path, name: str, content: str) -> None:
    """Replace the text between the markers of a page."""
    section = re.compile(rf"(<!-- {name}: begin[^>]*-->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    text = page.read_text()
    if not section.search(text):
        raise SystemExit(f"{page} has no markers for {name}.")
    page.write_text(section.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text))
