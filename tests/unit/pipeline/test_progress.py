"""Progress within a batch and a drain."""

from __future__ import annotations

from headrace.cli.output import StatusLine, progress_text
from headrace.pipeline.progress import Progress


def test_a_drain_has_a_rate_and_an_end():
    now = [100.0]
    progress = Progress(lambda: now[0])
    unknown = {"records_per_second": None, "records_left": None, "seconds_left": None}
    none = {"batch": None, "batch_records": None, "batch_read": None}
    assert progress.event() == none | unknown
    progress.begin(1, 100, left=1000)
    now[0] += 2
    assert progress.event(40) == {
        "batch": 1, "batch_records": 100, "batch_read": 40,
        "records_per_second": 20, "records_left": 960, "seconds_left": 48.0,
    }  # fmt: skip
    progress.end()
    now[0] += 60  # between batches, the rate is that of the last one
    assert progress.event() == none | {"records_per_second": 50, "records_left": 900, "seconds_left": 18.0}
    progress.begin(2, 900, left=900)
    now[0] += 2
    assert progress.event(700) == {
        "batch": 2, "batch_records": 900, "batch_read": 700,
        "records_per_second": 200, "records_left": 200, "seconds_left": 1.0,
    }  # fmt: skip
    assert progress.event(10_000)["batch_read"] == 900  # a batch that is staged again reads records twice


def test_a_continuous_run_has_no_end():
    progress = Progress(lambda: 0.0)
    progress.begin(7, 10, left=None)
    assert progress.event(3) | {
        "batch": 7,
        "batch_read": 3,
        "records_left": None,
        "seconds_left": None,
    } == progress.event(3)


def test_the_line_shows_the_share_of_the_drain():
    line = StatusLine(read=200)
    event = {
        "batch_read": 100,
        "batch_records": 400,
        "records_per_second": 50,
        "records_left": 300,
        "seconds_left": 6.0,
    }
    line.update_progress(event)
    assert (line.done, line.seconds_left, line.rate) == (0.5, 6.0, 50)
    line.update_progress(event | {"records_left": None, "seconds_left": None})
    assert (line.done, line.seconds_left) == (0.25, None)
    assert progress_text(0.5, 6.4) == "█████░░░░░ 50%, 6 s left"
    assert progress_text(1.2, None) == "██████████ 100%"
    assert progress_text(None, None) == "–"
