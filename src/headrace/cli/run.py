"""`headrace run`: the pipelines of one or several specs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from headrace.serve.runner import RunResult

STARTING = "Starting Spark…"


def run(
    specs: Annotated[list[Path], typer.Argument(help="Spec files.", exists=True, dir_okay=False)],
    until: Annotated[
        str | None, typer.Option(help="`latest`: drain what is there at the start, then exit.", metavar="latest")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Events and a summary as JSON lines on stdout.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for a lease that is held instead of exiting with 3.")] = False,
) -> None:
    """Stream records into tables until stopped (Ctrl-C or SIGTERM), or until the drain's end."""
    if not as_json:
        announce(until)
    with Signals() as signals:  # before what takes long to import
        from headrace.cli.output import EventOutput, emit
        from headrace.serve.runner import run_all
        from headrace.validate.load import load

        loaded = [spec for path in specs for spec in load(path)]
        with EventOutput(as_json, announced=until is None) as show:
            signals.say = show.say
            outcomes = run_all(loaded, until=until, report=show, stop=signals.stop, wait=wait, abandon=signals.abandon)
        for outcome in outcomes:
            event = summary_event(outcome)
            emit(event) if as_json else show.say(summary_text(event))
        if any(outcome.abandoned for outcome in outcomes):
            leave(exit_code(outcomes))
    if code := exit_code(outcomes):
        raise typer.Exit(code)


def announce(until: str | None) -> None:
    """Say in the first second what comes: a run needs Spark, a drain only where records wait."""
    _write(STARTING if until is None else "Checking for new records before starting Spark…")


def exit_code(outcomes: Sequence[RunResult]) -> int:
    """That of the worst outcome; a drain that did not come to its end is one."""
    return max(
        (each.error.exit_code if each.error else int(each.summary.drained is False) for each in outcomes), default=0
    )


def leave(code: int) -> NoReturn:
    """End this process at once, with threads at work: what they began, the next run finishes. The JVM dies with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Signals:
    """SIGTERM and Ctrl-C: the first asks for an end after the batch at hand, the second abandons the batch."""

    def __init__(self) -> None:
        self.stop, self.abandon = threading.Event(), threading.Event()
        self.say: Callable[[str], None] = _write
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._asked) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, *_: object) -> None:
        if self.stop.is_set():
            self.abandon.set()
            return
        self.stop.set()
        self.say("Stopping after this batch; press Ctrl-C again to abandon it.")


def _write(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def ends_when_asked(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C ask for an end instead of making one."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summary_event(outcome: RunResult) -> dict[str, Any]:
    """The last line of a run, as programs read it."""
    summary = outcome.summary
    return {
        "event": "summary",
        "pipeline": summary.pipeline,
        "stopped": outcome.error.name if outcome.error else None,
        "drained": summary.drained,
        "abandoned": outcome.abandoned,
        "seconds": summary.seconds,
        "records_per_second": summary.rate,
        "batches": summary.batches,
        "recovered": summary.recovered,
        **summary.counts.counters(),
        "tables": summary.tables,
        "json_text": summary.json_text,
    }


def summary_text(event: dict[str, Any]) -> str:
    """The last lines of a run, as people read them; the very last is the whole of it."""
    head = f"{event['pipeline']}: {event['batches']} batches; read {event['read']:,} = routed {event['routed']:,}"
    head += f" + dead {event['dead']:,} + filtered {event['filtered']:,} + skipped {event['skipped']:,}"
    head += f"; {event['seconds']:,.1f} s"
    head += f", {event['records_per_second']:,} records/s" if event["records_per_second"] else ""
    head += "; not drained: records are left" if event["drained"] is False else ""
    head += "; the batch at hand was abandoned, the next run finishes it" if event["abandoned"] else ""
    tables = [f"  {path}: {rows:,} rows" for path, rows in sorted(event["tables"].items())]
    reasons = [f"  dead letters, {reason}: {count:,}" for reason, count in sorted(event["reasons"].items())]
    ignored = [f"  ignored new field, {name}: {count:,}" for name, count in sorted(event["ignored"].items())]
    violations = [
        f"  expectation not fulfilled, {name}: {count:,}" for name, count in sorted(event["violations"].items())
    ]
    rescued = [f"  rows with something rescued: {event['rescued']:,}"] if event["rescued"] else []
    duplicates = [f"  duplicates left out, {path}: {count:,}" for path, count in sorted(event["duplicates"].items())]
    text = [
        f"  {path}, {name}: kept as JSON text, its values are {why}"
        for path, columns in sorted(event["json_text"].items())
        for name, why in columns.items()
    ]
    return "\n".join([*tables, *reasons, *ignored, *violations, *rescued, *duplicates, *text, head])
