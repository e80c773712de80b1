"""Output of running pipelines: live lines, plain lines or JSON lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from headrace.cli.console import console, emit
from headrace.cli.options import LogFormat
from headrace.cli.values import cell
from headrace.errors import plural

if TYPE_CHECKING:
    from headrace.cli.log_output import LogOutput

FIGURES = ("tick", "progress", "partitions", "table_files")  # in `/metrics`; too many for a log
_BAR = 10  # characters
_HANGING = timedelta(seconds=10)  # shorter transactions are normal for transactional producers
_DROPPED_FIRST = ("tables", "last commit", "rows/s", "progress", "read", "dead")


@dataclass
class StatusLine:
    """Figures of one pipeline."""

    read: int = 0  # by finished batches
    reading: int = 0  # by the current batch
    dead: int = 0
    rate: float = 0.0
    tables: set[str] = field(default_factory=set)
    lag: int | None = None
    lag_seconds: float | None = None
    batch: int = 0
    committed: float | None = None
    state: str = "starting"
    is_set_up: bool = False  # its first `setup` event was announced before
    change: str | None = None  # of the state that was printed last; None after the pipeline runs again
    done: float | None = None  # share of the drain that is read; of the batch in a continuous run
    seconds_left: float | None = None
    transaction: str | None = None  # start of the hanging transaction that was printed last

    def update_progress(self, event: Mapping[str, Any]) -> None:
        """Take over the progress of the current batch and of the drain."""
        self.reading, left = event["batch_read"] or 0, event["records_left"]
        self.rate = event["records_per_second"] or self.rate
        total = self.read + self.reading + left if left is not None else event["batch_records"]
        done = self.read + self.reading if left is not None else self.reading
        self.done, self.seconds_left = (done / total if total else None), event["seconds_left"]


class EventOutput:
    """Displays the events of pipelines; stdout is reserved for JSON."""

    def __init__(self, as_json: bool, announced: str | None = None) -> None:
        """`announced`: a first text of each pipeline that was printed before."""
        self.as_json = as_json
        self._announced = announced
        self.console = console(stderr=True)
        self.lines: dict[str, StatusLine] = {}
        self._lock = threading.RLock()  # reentrant: a signal handler may print while an event is printed
        self._live: Live | None = None

    def __enter__(self) -> EventOutput:
        if not self.as_json and self.console.is_terminal:
            self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print lines above the live display."""
        self.console.print(text, soft_wrap=True, markup=False)

    def endpoint(self, url: str, has_console: bool = False) -> None:
        """Report the URL of the HTTP endpoint."""
        what = "Console, metrics and health" if has_console else "Metrics and health"
        emit({"event": "endpoint", "address": url}) if self.as_json else self.say(f"{what}: {url}")

    def end(self, summary: dict[str, Any], text: str) -> None:
        """Report the end of a pipeline: its summary, which is `text` for people."""
        emit(summary) if self.as_json else self.say(text)

    def __call__(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._update(event)
            if self.as_json and event["event"] != "tick":
                emit(event)
            elif not self.as_json and (self._live is None or not _is_frequent(event)):
                self._say(event)

    def _update(self, event: Mapping[str, Any]) -> None:
        if event["pipeline"] is None:
            return  # of the process
        line = self.lines.setdefault(event["pipeline"], StatusLine())
        kind = event["event"]
        if kind == "batch":
            line.read += event["read"]
            line.dead += event["dead"]
            line.rate = event["read"] / max(event["seconds"], 0.001)
            line.tables |= set(event["tables"])
            line.batch, line.committed, line.state = event["batch"], time.monotonic(), "running"
            line.reading = 0
        elif kind == "setup":
            line.state = "starting"
        elif kind == "progress":
            line.lag, line.lag_seconds = event["lag"], event["lag_seconds"]
            line.update_progress(event)
            line.state = "waiting: open transaction" if hanging(event) else "running"
        elif kind == "retry":
            line.state = f"waiting: {event['error']}"
        elif kind == "error":
            line.state = f"stopped: {event['error']}"
        elif kind == "state" and event["state"] not in ("failed", "stopped"):
            line.state = event["state"]

    def _say(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "setup":
            is_printed = not self._was_announced(event)
        elif event["event"] == "state":
            is_printed = self._is_news(event)
        else:
            is_printed = event["event"] not in FIGURES or self._is_new_transaction(event)
        if is_printed:
            text = "\n".join(map(cell, sentence(event).split("\n")))  # without control characters of a message
            self.console.print(escape(text), soft_wrap=True)

    def _was_announced(self, event: Mapping[str, Any]) -> bool:
        """Whether the text was printed before the first `setup` event of the pipeline, which has the same text."""
        line = self.lines[event["pipeline"]]
        if event["text"] != self._announced or line.is_set_up:
            return False
        line.is_set_up = True
        return True

    def _is_news(self, event: Mapping[str, Any]) -> bool:
        """Whether a change of the state is printed: the start, the end and errors have events of their own."""
        line, state = self.lines[event["pipeline"]], event["state"]
        if state in ("paused", "restarting") or (state == "starting" and event["reason"]):
            line.change = state
            return True
        before, line.change = line.change, line.change if state == "starting" else None
        return state == "running" and before is not None

    def _is_new_transaction(self, event: Mapping[str, Any]) -> bool:
        """Whether a progress event is the first to report a hanging transaction."""
        line, since = self.lines[event["pipeline"]], hanging(event)
        before, line.transaction = line.transaction, since or line.transaction
        return since is not None and since != before

    def _table(self) -> Table:
        rows = [cells(name, line) for name, line in list(self.lines.items())]
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in fitting(rows, self.console.width):
            justify: Literal["left", "right"] = "left" if title in ("pipeline", "state") else "right"
            table.add_column(title, justify=justify, no_wrap=True)
        for row in rows:
            table.add_row(*(escape(row[str(column.header)]) for column in table.columns))
        return table


def event_output(as_json: bool, log_format: LogFormat | None, announced: str | None = None) -> EventOutput | LogOutput:
    """The output of a run: for people, or JSON on stdout, or a log on stderr; JSON and a log may be combined."""
    from headrace.cli.log_output import LogOutput

    if log_format is None:
        return EventOutput(as_json, announced)
    return LogOutput(log_format, as_json)


def cells(name: str, line: StatusLine) -> dict[str, str]:
    """Cells of a pipeline's live line, by title."""
    return {
        "pipeline": name,
        "state": line.state,
        "rows/s": f"{line.rate:,.0f}",
        "read": f"{line.read + line.reading:,}",
        "progress": progress_text(line.done, line.seconds_left),
        "dead": f"{line.dead:,}",
        "tables": str(len(line.tables)),
        "lag": lag_text(line.lag, line.lag_seconds),
        "last commit": _ago(line.committed),
    }


def fitting(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Titles that fit the width, in order; the least important are dropped first."""
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) + 2 for title in (rows[0] if rows else ())}
    for title in _DROPPED_FIRST:
        if title in widths and sum(widths.values()) - 2 > width:
            del widths[title]
    return list(widths)


def lag_text(records: int | None, seconds: float | None) -> str:
    """Lag as text."""
    if records is None:
        return "unknown"
    return f"{records:,}" if not records or seconds is None else f"{records:,} ({seconds:,.1f} s)"


def progress_text(done: float | None, seconds_left: float | None) -> str:
    """Bar, percentage and time left: `██████░░░░ 60 %, 12 s left`."""
    if done is None:
        return "–"
    filled = round(min(done, 1.0) * _BAR)
    left = "" if seconds_left is None else f", {seconds_left:,.0f} s left"
    return f"{'█' * filled}{'░' * (_BAR - filled)} {min(done, 1.0):.0%}{left}"


def transaction_text(transaction: Mapping[str, Any]) -> str:
    """Description of the records blocked by an open transaction."""
    since = f" since {transaction['since']}" if transaction["since"] else ""
    return f"an open transaction{since} blocks {plural(transaction['records'], 'record')}"


def hanging(event: Mapping[str, Any]) -> str | None:
    """Start of a transaction that has been open for unusually long."""
    since = (event.get("open_transaction") or {}).get("since")
    return since if since is not None and datetime.now(UTC) - datetime.fromisoformat(since) > _HANGING else None


def _ago(moment: float | None) -> str:
    return "–" if moment is None else f"{time.monotonic() - moment:.0f} s ago"


def sentence(event: Mapping[str, Any]) -> str:
    """Event as text."""
    name, kind = event["pipeline"] or "headrace", event["event"]
    texts = {"received": received_text, "hot_store": hot_store_text, "source_file": source_file_text}
    if kind in texts:
        return texts[kind](event)
    if kind == "batch":
        counts = f"read {event['read']:,} = routed {event['routed']:,} + dead {event['dead']:,}"
        counts += f" + filtered {event['filtered']:,}" + (
            f" + skipped {event['skipped']:,}" if event["skipped"] else ""
        )
        tables = plural(len(event["tables"]), "table")
        return f"{name}: batch {event['batch']}: {counts}; {tables}, {event['seconds']:.2f} s"
    if kind == "progress" and event.get("open_transaction"):
        return f"{name}: {transaction_text(event['open_transaction'])}"
    if kind == "retry":
        message = event["message"].rstrip()
        message += "" if message.endswith((".", "!", "?")) else "."
        return f"{name}: {event['error']}: {message} Retrying in {event['seconds']} s."
    if kind == "error":
        return f"{name}: stopped: {event['error']}. {event['message']} {event['hint']}".rstrip()
    if kind == "state":
        return f"{name}: {event['state']}" + (f": {event['reason']}" if event["reason"] else "")
    if kind == "listening":
        return f"{name}: receiving at {event['address']}"
    if kind == "recover":
        unfinished = f"batch {event['batch']}" if "batch" in event else f"replay {event['replay']}"
        return f"{name}: completing unfinished {unfinished}"
    if kind == "replay":
        counts = (
            f"{plural(event['dead_letters'], 'dead letter')} = replayed {event['replayed']:,} + still dead "
            f"{event['still_dead']:,}"
        )
        tables = ", ".join(
            f"{plural(result['rows'], 'row')} into {path}" for path, result in sorted(event["tables"].items())
        )
        return f"{name}: replay {event['replay']}: {counts} + filtered {event['filtered']:,}; {tables or 'no rows'}"
    if kind == "maintenance":
        error = f"; {event['message']}" if event["state"] == "failed" else ""
        return f"{name}: {event['state']}: {maintenance_text(event)}{error}"
    return f"{name}: {event['text']}" if "text" in event else f"{name}: {kind}"


def source_file_text(event: Mapping[str, Any]) -> str:
    """A file that needs attention; some of these events have no path."""
    return ": ".join(part for part in (event["pipeline"], event["path"], event["message"]) if part)


def received_text(event: Mapping[str, Any]) -> str:
    """What a receiver has stored since it was started."""
    text = f"{event['pipeline']}: received {plural(event['records'], 'record')}"
    text += f" in {plural(event['requests'], 'request')}"
    text += f", {event['duplicates']:,} repeated" if event["duplicates"] else ""
    text += f", {event['full']:,} refused because there was no room" if event["full"] else ""
    held = "waiting for Kafka" if event["destination"] == "kafka" else "spool"
    return f"{text}; {held}: {plural(event['spool_records'], 'record')}, {plural(event['spool_bytes'], 'byte')}"


def _is_frequent(event: Mapping[str, Any]) -> bool:
    """Whether an event is one of each batch, for which the live display has figures."""
    return (event["event"], event.get("state")) in (("batch", None), ("hot_store", "applied"))


def hot_store_text(event: Mapping[str, Any]) -> str:
    """What the hot store has written, or why it cannot."""
    name = event["pipeline"]
    if event["state"] == "failed":
        where = f" of {event['table']}" if event["table"] else ""
        return f"{name}: hot store{where}: {event['error']}: {event['message']} Retrying in {event['retry_in']:g} s."
    if event["state"] == "recovered":
        return f"{name}: hot store: has all commits again"
    text = f"{name}: hot store {event['hot_table']}: {event['state']} {plural(event['rows'], 'row')}"
    if event["state"] == "expired":
        return text
    text += f", removed {event['removed']:,}" if event["removed"] else ""
    text += f", rejected {event['rejected']:,} (see headrace_rejected)" if event["rejected"] else ""
    return f"{text} of version {event['version']}, {event['seconds']:.2f} s"


def maintenance_text(action: Mapping[str, Any]) -> str:
    """Maintenance operation as text."""
    size = f" ({plural(action['files'], 'file')}, {plural(action['bytes'], 'byte')})" if action["files"] else ""
    return f"{action['operation']} {action['table']}: {action['reason']}{size}"
