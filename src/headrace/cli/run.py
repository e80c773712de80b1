"""`headrace run`: the pipelines of one or several specs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.show import Show, emit


def run(
    specs: Annotated[list[Path], typer.Argument(help="Spec files.", exists=True, dir_okay=False)],
    until: Annotated[
        str | None, typer.Option(help="`latest`: drain what is there at the start, then exit.", metavar="latest")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Events and a summary as JSON lines on stdout.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for a lease that is held instead of exiting with 3.")] = False,
) -> None:
    """Stream records into tables until stopped (Ctrl-C or SIGTERM), or until the drain's end."""
    from headrace.runner import run_all
    from headrace.spec.load import load

    loaded = [spec for path in specs for spec in load(path)]
    stop = threading.Event()
    with ends_when_asked(stop), Show(as_json) as show:
        outcomes = run_all(loaded, until=until, report=show, stop=stop, wait=wait)
    for outcome in outcomes:
        event = summary_event(outcome)
        emit(event) if as_json else show.console.print(summary_text(event), soft_wrap=True, markup=False)
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(max(outcome.error.exit_code for outcome in outcomes if outcome.error))


@contextmanager
def ends_when_asked(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C ask for an end instead of making one."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summary_event(outcome: Any) -> dict[str, Any]:
    """The last line of a run, as programs read it."""
    summary, counts = outcome.summary, outcome.summary.counts
    return {
        "event": "summary",
        "pipeline": summary.pipeline,
        "stopped": outcome.error.name if outcome.error else None,
        "batches": summary.batches,
        "recovered": summary.recovered,
        "read": counts.read,
        "routed": counts.routed,
        "dead": counts.dead,
        "filtered": counts.filtered,
        "held": counts.held,
        "reasons": dict(counts.reasons),
        "ignored": dict(counts.ignored),
        "unmet": dict(counts.unmet),
        "rescued": counts.rescued,
        "doubled": dict(counts.doubled),
        "tables": summary.tables,
        "json_text": summary.json_text,
    }


def summary_text(event: dict[str, Any]) -> str:
    """The last lines of a run, as people read them."""
    head = f"{event['pipeline']}: {event['batches']} batches; read {event['read']:,} = routed {event['routed']:,}"
    head += f" + dead {event['dead']:,} + filtered {event['filtered']:,} + held {event['held']:,}"
    tables = [f"  {path}: {rows:,} rows" for path, rows in sorted(event["tables"].items())]
    reasons = [f"  dead letters, {reason}: {count:,}" for reason, count in sorted(event["reasons"].items())]
    ignored = [f"  ignored new field, {name}: {count:,}" for name, count in sorted(event["ignored"].items())]
    unmet = [f"  expectation not fulfilled, {name}: {count:,}" for name, count in sorted(event["unmet"].items())]
    rescued = [f"  rows with something rescued: {event['rescued']:,}"] if event["rescued"] else []
    doubled = [f"  doubles left out, {path}: {count:,}" for path, count in sorted(event["doubled"].items())]
    text = [
        f"  {path}, {name}: kept as JSON text, its values are {why}"
        for path, columns in sorted(event["json_text"].items())
        for name, why in columns.items()
    ]
    return "\n".join([head, *tables, *reasons, *ignored, *unmet, *rescued, *doubled, *text])
