"""Dead letters: by reason, with samples, and dry runs of a changed spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.dead_letters.dry_run import DryRunResult, dry_run
from headrace.dead_letters.reader import DeadLetterGroup, Selection
from headrace.reasons import MEANING, Reason
from headrace.serve.console.rejected_values import RejectedValue, masked_detail, rejected_value
from headrace.serve.console.state import StoredPipeline
from headrace.serve.console.text import printable
from headrace.spec import Spec

_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class DeadLetterSample:
    """A dead letter as the console shows it."""

    position: str
    table: str | None
    step: str
    reason: str
    detail: str
    rejected_at: Any
    value: RejectedValue
    download: Mapping[str, str]  # query of its raw value


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Dead letters with the same reason, step and table."""

    group: DeadLetterGroup
    meaning: str
    detail: str  # of the newest


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """The groups, and samples of the selected ones."""

    groups: tuple[ReasonGroup, ...]
    total: int
    samples: tuple[DeadLetterSample, ...]


def selection_of(reason: str, table: str) -> Selection:
    """The selection of a reason and a table; empty texts select all."""
    return Selection((reason,) if reason else (), (table,) if table else ())


def dead_letter_page(stored: StoredPipeline, selection: Selection, *, masked: bool) -> DeadLetterPage:
    """Read the unresolved dead letters. `masked`: for visitors who may not see records."""
    dead_letters = stored.dead_letters()
    groups = tuple(_group(each, masked) for each in dead_letters.groups(Selection()))
    rows = dead_letters.sample(selection, _SAMPLES).to_pylist() if groups else []
    total = sum(each.group.count for each in groups)
    return DeadLetterPage(groups, total, tuple(_sample(row, masked) for row in rows))


def _group(group: DeadLetterGroup, masked: bool) -> ReasonGroup:
    meaning = MEANING[Reason(group.reason)] if group.reason in set(Reason) else ""
    detail = group.sample["detail"] or ""
    return ReasonGroup(group, meaning, masked_detail(detail) if masked else detail)


def _sample(row: Mapping[str, Any], masked: bool) -> DeadLetterSample:
    detail = row["detail"] or ""
    return DeadLetterSample(
        f"{row['topic']}/{row['partition']}/{row['offset']}",
        row["table"],
        row["step"],
        row["reason"],
        masked_detail(detail) if masked else detail,
        row["rejected_at"],
        rejected_value(row["value"], detail, masked=masked),
        {name: str(row[name]) for name in ("topic", "partition", "offset")},
    )


@dataclass(frozen=True, slots=True)
class DryRunLine:
    """The outcome of one dead letter of a dry run."""

    position: str
    before: str  # the reason of the dead letter
    outcome: str
    detail: str
    rows: tuple[tuple[str, str], ...]  # table and row


def dry_run_lines(stored: StoredPipeline, changed: Spec, selection: Selection) -> list[DryRunLine]:
    """What a replay of some dead letters with a changed spec would do."""
    results = dry_run(stored.spec, changed, selection, _SAMPLES * 5)
    return [_line(result) for result in results]


def _line(result: DryRunResult) -> DryRunLine:
    row, outcome = result.dead_letter, result.outcome
    cause = ": ".join(filter(None, (outcome["reason"], outcome["detail"])))
    return DryRunLine(
        f"{row['topic']}/{row['partition']}/{row['offset']}",
        row["reason"],
        str(outcome["outcome"]).replace("_", " "),
        cause,
        tuple((table, printable(content, 2000)) for table, content in result.rows),
    )
