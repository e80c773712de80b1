"""`headrace run`: run the pipelines of one or more specs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from headrace.cli.console import emit
from headrace.cli.options import AsJson, SpecFiles, Wait
from headrace.errors import plural

if TYPE_CHECKING:
    from headrace.serve.runner import RunResult

STARTING = "Starting Spark…"


def run(
    spec_files: SpecFiles,
    until: Annotated[
        str | None,
        typer.Option(help="`latest`: process the records available at the start, then exit.", metavar="latest"),
    ] = None,
    as_json: AsJson = False,
    wait: Wait = False,
) -> None:
    """Stream records into tables.

    Runs until stopped (Ctrl-C or SIGTERM), or until --until is reached.
    """
    if not as_json:
        announce(until)
    with Signals() as signals:  # before the slow imports
        from headrace.cli.output import EventOutput
        from headrace.pipeline.spark_session import SharedSession
        from headrace.validate.load import load

        specs = [spec for file in spec_files for spec in load(file)]
        with EventOutput(as_json, announced=until is None) as output:
            signals.say = output.say
            shared = SharedSession(specs, signals.stop, output)
            if until is None and not wait:
                shared.prepare()  # before the slow imports; a drain first looks for new records
            from headrace.serve.runner import run_all

            results = run_all(
                specs, until=until, report=output, stop=signals.stop, wait=wait, abandon=signals.abandon, shared=shared
            )
        for result in results:
            event = summary_event(result)
            emit(event) if as_json else output.say(summary_text(event))
        if signals.stop.is_set():
            leave(exit_code(results))
    if code := exit_code(results):
        raise typer.Exit(code)


def announce(until: str | None) -> None:
    """Print what happens first: a continuous run starts Spark; a drain starts it only if there are new records."""
    _write(STARTING if until is None else "Checking for new records before starting Spark…")


def exit_code(results: Sequence[RunResult]) -> int:
    """Exit code of the worst result; an incomplete drain counts as an error."""
    return max(
        (result.error.exit_code if result.error else int(result.summary.drained is False) for result in results),
        default=0,
    )


def leave(code: int) -> NoReturn:
    """Exit at once, even with threads still running. The next run completes a batch; the JVM ends with this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Signals:
    """Signal handler: the first SIGTERM or Ctrl-C stops after the current batch, the second aborts the batch."""

    def __init__(self) -> None:
        self.stop, self.abandon = threading.Event(), threading.Event()
        self.say: Callable[[str], None] = _write
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, *_: object) -> None:
        if self.stop.is_set():
            self.abandon.set()
            return
        self.stop.set()
        self.say("Stopping after the current batch. Press Ctrl-C again to abort it.")


def _write(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def stops_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM or Ctrl-C."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summary_event(result: RunResult) -> dict[str, Any]:
    """Summary of a run as JSON."""
    summary = result.summary
    return {
        "event": "summary",
        "pipeline": summary.pipeline,
        "stopped": result.error.name if result.error else None,
        "drained": summary.drained,
        "abandoned": result.abandoned,
        "seconds": summary.seconds,
        "records_per_second": summary.rate,
        "batches": summary.batches,
        "recovered": summary.recovered,
        **summary.counts.counters(),
        "tables": summary.tables,
        "json_text": summary.json_text,
    }


def summary_text(event: dict[str, Any]) -> str:
    """Summary of a run as text; the last line has the totals."""
    batches = f"{event['batches']:,} {'batch' if event['batches'] == 1 else 'batches'}"
    head = f"{event['pipeline']}: {batches}; read {event['read']:,} = routed {event['routed']:,}"
    head += f" + dead {event['dead']:,} + filtered {event['filtered']:,} + skipped {event['skipped']:,}"
    head += f"; {event['seconds']:,.1f} s"
    head += f", {event['records_per_second']:,} records/s" if event["records_per_second"] else ""
    head += "; not drained: records remain" if event["drained"] is False else ""
    head += "; the current batch was aborted and will be completed by the next run" if event["abandoned"] else ""
    tables = [f"  {path}: {plural(rows, 'row')}" for path, rows in sorted(event["tables"].items())]
    reasons = [f"  dead letters, {reason}: {count:,}" for reason, count in sorted(event["reasons"].items())]
    ignored = [f"  ignored new field, {name}: {count:,}" for name, count in sorted(event["ignored"].items())]
    violations = [f"  expectation violations, {name}: {count:,}" for name, count in sorted(event["violations"].items())]
    rescued = [f"  rows with rescued values: {event['rescued']:,}"] if event["rescued"] else []
    duplicates = [f"  duplicates skipped, {path}: {count:,}" for path, count in sorted(event["duplicates"].items())]
    text = [
        f"  {path}, {name}: stored as JSON text because its values are {why}"
        for path, columns in sorted(event["json_text"].items())
        for name, why in columns.items()
    ]
    return "\n".join([*tables, *reasons, *ignored, *violations, *rescued, *duplicates, *text, head])
