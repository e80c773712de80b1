"""Overview: all pipelines with state, lag and rates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.serve.console.charts import Sparkline, sparkline
from headrace.serve.console.text import number_text, seconds_text
from headrace.serve.health import problems_of
from headrace.serve.pipeline_view import LagView, PipelineState, PipelineView

_STATE_SHAPES = {  # shape and tone of each state; the word is always beside it
    PipelineState.RUNNING: ("disc", "good"),
    PipelineState.STARTING: ("ring", "calm"),
    PipelineState.PAUSED: ("bars", "calm"),
    PipelineState.STOPPED: ("square", "calm"),
    PipelineState.RETRYING: ("triangle", "warning"),
    PipelineState.RESTARTING: ("triangle", "warning"),
    PipelineState.FAILED: ("cross", "bad"),
}


@dataclass(frozen=True, slots=True)
class StateMark:
    """A state as a word with a shape, so that it is recognised without color."""

    word: str
    shape: str  # disc, ring, bars, square, triangle or cross
    tone: str  # good, calm, warning or bad

    @classmethod
    def of(cls, state: PipelineState) -> StateMark:
        """The mark of a state."""
        return cls(state.value, *_STATE_SHAPES[state])


@dataclass(frozen=True, slots=True)
class OverviewRow:
    """One pipeline of the overview."""

    view: PipelineView
    state: StateMark
    lag: str
    problems: tuple[str, ...]
    rate_chart: Sparkline
    lag_chart: Sparkline


def overview_rows(views: Iterable[PipelineView]) -> list[OverviewRow]:
    """The rows of the overview, unhealthy pipelines first."""
    rows = [overview_row(view) for view in views]
    return sorted(rows, key=lambda row: (not row.problems, row.view.name))


def overview_row(view: PipelineView) -> OverviewRow:
    """A pipeline with its charts."""
    return OverviewRow(
        view,
        StateMark.of(view.state),
        _lag_text(view.lag),
        tuple(problems_of(view)),
        sparkline([each.records_per_second for each in view.samples], "records/s"),
        sparkline([each.lag for each in view.samples], "lag in records"),
    )


def _lag_text(lag: LagView) -> str:
    """Unread records and the age of the oldest one."""
    if lag.records is None:
        return number_text(None)
    age = "" if lag.seconds is None or not lag.records else f", {seconds_text(lag.seconds)}"
    return f"{number_text(lag.records)}{age}"
