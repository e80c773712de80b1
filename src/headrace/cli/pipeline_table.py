"""Pipelines of running processes as a table that fits a terminal, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from headrace.cli.values import cell
from headrace.errors import plural

if TYPE_CHECKING:
    from headrace.serve.live_pipelines import LivePipeline, LivePipelines

_UNKNOWN = "–"
_BARS = "▁▂▃▄▅▆▇█"
_TREND = 6  # characters
_NAME = 13  # characters of a name at least; narrower tables lose columns first
_WIDEST = {"state": 10, "lag": 8, "rec/s": 5}  # usual texts: columns do not move when a text gets longer
_LEFT = ("pipeline", "state")
_DROPPED_FIRST = ("trend", "memory", "tables", "batch", "dead", "commit", "rec/s", "lag")
_STYLES = {"running": "green", "failed": "bold red", "stopped": "red"}


def table_lines(live: LivePipelines, width: int, now: datetime | None = None) -> list[Text]:
    """A line with the time and the number of pipelines, then titles and one line per pipeline, followed by its reason;
    pipelines with problems are first."""
    now = now or datetime.now(UTC)
    lines = [Text(_summary(live, now))]
    pipelines = sorted(live.pipelines, key=lambda each: each.healthy)
    rows = [_cells(each, now) for each in pipelines]
    if rows:
        widths = _column_widths(rows, width)
        lines.append(Text(_line({title: title for title in widths}, widths), style="bold"))
        for pipeline, row in zip(pipelines, rows, strict=True):
            lines += _pipeline_lines(pipeline, row, widths, width)
    lines += [Text(cell(text), style="red") for text in live.warnings]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _pipeline_lines(
    pipeline: LivePipeline, row: Mapping[str, str], widths: Mapping[str, int], width: int
) -> Iterator[Text]:
    """The figures of a pipeline, and its reason in at most three lines."""
    line = Text(_line(row, widths))
    state_at = widths["pipeline"] + 1
    style = _STYLES.get(pipeline.state, "yellow") if pipeline.healthy else _STYLES["failed"]
    line.stylize(style, state_at, state_at + widths["state"])
    yield line
    for line_of_reason in wrap(cell(pipeline.reason or ""), max(20, width - 2), max_lines=3, placeholder=" …"):
        yield Text(f"  {line_of_reason}")


def _summary(live: LivePipelines, now: datetime) -> str:
    unhealthy = sum(not each.healthy for each in live.pipelines)
    problems = f", {unhealthy:,} unhealthy" if unhealthy else ""
    return f"{now.astimezone():%H:%M:%S}  {plural(len(live.pipelines), 'pipeline')}{problems}"


def _cells(pipeline: LivePipeline, now: datetime) -> dict[str, str]:
    commit = None if pipeline.last_commit is None else datetime.fromisoformat(pipeline.last_commit)
    return {
        "pipeline": cell(pipeline.pipeline),
        "state": pipeline.state,
        "lag": _lag(pipeline.lag, pipeline.lag_seconds),
        "rec/s": _count(pipeline.records_per_second),
        "trend": _sparkline(pipeline.rates),
        "batch": _UNKNOWN if pipeline.batch is None else str(pipeline.batch),
        "commit": _age(None if commit is None else (now - commit).total_seconds()),
        "dead": _count(pipeline.dead),
        "tables": _count(pipeline.tables),
        "memory": _bytes(pipeline.memory_bytes),
    }


def _column_widths(rows: Sequence[Mapping[str, str]], width: int) -> dict[str, int]:
    """Widths of the columns that fit, in order: the least important ones are dropped; names get what is left."""
    widths = {
        title: max(len(title), _WIDEST.get(title, 0), *(cell_len(row[title]) for row in rows)) for title in rows[0]
    }
    name = widths["pipeline"]
    widths["pipeline"] = min(name, _NAME)
    for title in _DROPPED_FIRST:
        if _total(widths) > width:
            del widths[title]
    widths["pipeline"] = min(name, max(_NAME, widths["pipeline"] + width - _total(widths)))
    return widths


def _total(widths: Mapping[str, int]) -> int:
    """Width of a line, with a space between two columns."""
    return sum(widths.values()) + len(widths) - 1


def _line(row: Mapping[str, str], widths: Mapping[str, int]) -> str:
    return " ".join(_padded(row[title], width, title in _LEFT) for title, width in widths.items())


def _padded(text: str, width: int, is_left: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - cell_len(text))
    return text + padding if is_left else padding + text


def _lag(records: int | None, seconds: float | None) -> str:
    if records is None:
        return "unknown"
    return _count(records) if not records or seconds is None else f"{_count(records)} {_age(seconds)}"


def _count(count: float | None) -> str:
    """A number in at most five characters: 950, 9.5k, 950k, 1.2M."""
    if count is None:
        return _UNKNOWN
    return next(_scaled(count, 1000, ("", "k", "M", "G", "T", "P")))


def _bytes(count: float | None) -> str:
    return _UNKNOWN if count is None else next(_scaled(count, 1024, ("", "K", "M", "G", "T", "P")))


def _scaled(number: float, base: int, units: Sequence[str]) -> Iterator[str]:
    for unit in units:
        if round(number) < base or unit == units[-1]:
            yield f"{number:.1f}{unit}" if unit and round(number, 1) < 10 else f"{number:.0f}{unit}"
        number /= base


def _age(seconds: float | None) -> str:
    """A duration in its largest unit, rounded down: 41s, 3m, 2h, 5d."""
    if seconds is None:
        return _UNKNOWN
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(0, int(seconds))}s"


def _sparkline(rates: Sequence[float | None]) -> str:
    """The latest rates as bars, relative to the highest one; a space where the rate is unknown."""
    latest = rates[-_TREND:]
    highest = max((rate for rate in latest if rate is not None), default=0)
    bars = ""
    for rate in latest:
        level = 0 if not rate or not highest else round(rate / highest * (len(_BARS) - 1))
        bars += " " if rate is None else _BARS[level]
    return bars.rjust(_TREND)
