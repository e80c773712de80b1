"""Batches: the path of one through the pipeline, and the durations of the recent ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from headrace.errors import plural
from headrace.serve.console.charts import Segment, stacked_bar
from headrace.serve.console.text import size_text
from headrace.serve.pipeline_view import BatchActivity

_BAR_WIDTH = 240.0
PHASES = ("stage", "check", "intent", "commit", "ledger")


@dataclass(frozen=True, slots=True)
class BatchStep:
    """A step of a batch: what goes on to the next step, and what leaves the path."""

    name: str
    amount: str
    notes: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()  # records that end here


def batch_path(
    row: Mapping[str, Any], dead_by_step: Mapping[str, int], phases: Mapping[str, float], dead_letters_uri: str
) -> list[BatchStep]:
    """The steps of a batch of the ledger. `dead_by_step`: its dead letters; `phases`: seconds, empty if unknown."""
    tables = [each for each in row["tables"] or () if each["path"] != dead_letters_uri]
    partitions = sum(each["until"] > each["from"] for each in row["ranges"] or ())
    files, size = (sum(each[name] or 0 for each in row["tables"] or ()) for name in ("files", "bytes"))
    leaving = {step: {"dead letter": count} for step, count in dead_by_step.items()}
    leaving["transform"] = {"filtered record": row["filtered"], **leaving.get("transform", {})}
    leaving["read"] = {"skipped record": row["skipped"]}
    steps, records = [], row["read"]
    for name in ("read", "decode", "transform", "route"):
        records -= sum(leaving.get(name, {}).values())
        steps.append(BatchStep(name, plural(records, "record"), (), _leaving_texts(leaving.get(name, {}))))
    steps[0] = replace(
        steps[0], amount=plural(row["read"], "record"), notes=(f"from {plural(partitions, 'partition')}",)
    )
    steps[2] = replace(steps[2], notes=tuple(_violations(row)))
    steps[3] = replace(steps[3], notes=(f"for {plural(len(tables), 'table')}",))
    staged = (f"{plural(files, 'file')}, {size_text(size)}", *_seconds(phases, "stage"))
    return [
        *steps,
        BatchStep("stage", plural(row["written"], "row"), staged, _leaving_texts(leaving.get("stage", {}))),
        BatchStep("commit", plural(len(row["tables"] or ()), "version"), _seconds(phases, "commit")),
        BatchStep("record", f"batch {row['batch']:,}", _seconds(phases, "ledger")),
    ]


def _leaving_texts(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(plural(count, noun) for noun, count in counts.items() if count)


def _violations(row: Mapping[str, Any]) -> Iterable[str]:
    for name, count in sorted((row["violations"] or {}).items()):
        yield f"{plural(count, 'violation')} of {name.rpartition(': ')[2]}"


def _seconds(phases: Mapping[str, float], name: str) -> tuple[str, ...]:
    return (f"{phases[name]:.2f} s",) if name in phases else ()


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A finished batch in the list of recent ones."""

    batch: int
    finished: datetime
    read: int
    dead: int
    seconds: float
    phases: Mapping[str, float]  # empty if unknown
    bar: tuple[Segment, ...]
    note: str = ""


def batch_lines(activities: Sequence[BatchActivity], rows: Sequence[Mapping[str, Any]]) -> list[BatchLine]:
    """Recent batches, newest first: those of this process with their phases, and those of the ledger before them."""
    own = {each.batch: each for each in activities}
    merged = {row["batch"]: (row, own.pop(row["batch"], None)) for row in rows}
    durations = [each.seconds for each in activities]
    durations += [(row["finished"] - row["started"]).total_seconds() for row in rows]
    scale = max(*durations, 0.001) if durations else 1.0
    lines = [_line_of_row(row, activity, scale) for row, activity in merged.values()]
    lines += [_line_of_activity(each, scale) for each in own.values()]
    return sorted(lines, key=lambda line: -line.batch)


def _line_of_row(row: Mapping[str, Any], activity: BatchActivity | None, scale: float) -> BatchLine:
    if activity is not None:
        return _line_of_activity(activity, scale)
    seconds = (row["finished"] - row["started"]).total_seconds()
    bar = stacked_bar({"total": seconds}, scale, _BAR_WIDTH)
    return BatchLine(row["batch"], row["finished"], row["read"], row["dead"], seconds, {}, bar, row["note"] or "")


def _line_of_activity(activity: BatchActivity, scale: float) -> BatchLine:
    phases = {name: activity.phases[name] for name in PHASES if name in activity.phases}
    other = max(0.0, activity.seconds - sum(phases.values()))
    bar = stacked_bar({**phases, "other": other}, scale, _BAR_WIDTH)
    return BatchLine(
        activity.batch, activity.finished, activity.read, activity.dead, activity.seconds, activity.phases, bar
    )
