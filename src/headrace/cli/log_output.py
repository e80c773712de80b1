"""Events as log lines on stderr: one line for each, as text or as JSON, with time and level."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

from headrace.cli.console import emit
from headrace.cli.options import LogFormat
from headrace.cli.output import FIGURES, sentence
from headrace.cli.values import cell, cell_text

_WARNINGS = ("retry", "warning", "restage")


class LogOutput:
    """Writes the events of pipelines to stderr as a log."""

    def __init__(self, log_format: LogFormat, as_json: bool = False) -> None:
        """`as_json`: also print each event as JSON on stdout."""
        self._format, self._as_json = log_format, as_json
        self._lock = threading.RLock()  # reentrant: a signal handler may write while an event is written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Write an event as a line; figures are left out."""
        if self._as_json and event["event"] not in ("tick", "message"):
            emit(event)
        if event["event"] not in FIGURES:
            self._write(event)

    def _write(self, event: Mapping[str, Any]) -> None:
        line = self._json(event) if self._format is LogFormat.JSON else self._text(event)
        with self._lock:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Write a message of the process."""
        self({"event": "message", "text": text})

    def endpoint(self, url: str, has_console: bool = False) -> None:
        """Write the URL of the HTTP endpoint."""
        what = "console, metrics and health" if has_console else "metrics and health"
        self({"event": "endpoint", "address": url, "text": f"{what}: {url}"})

    def end(self, summary: Mapping[str, Any], text: str) -> None:
        """Write the end of a pipeline: its summary, which is `text` for people."""
        if self._as_json:
            emit(summary)
        self._write({**summary, "text": text.splitlines()[-1]} if self._format is LogFormat.TEXT else summary)

    def _json(self, event: Mapping[str, Any]) -> str:
        return json.dumps({"time": _now(), "level": level(event), **event}, default=cell_text)

    def _text(self, event: Mapping[str, Any]) -> str:
        text = sentence(event) if "pipeline" in event and event["event"] != "summary" else event["text"]
        return f"{_now()} {level(event):<7} {event['event']:<11} {cell(text)}"


def level(event: Mapping[str, Any]) -> str:
    """The level of an event: error, warning or info."""
    kind, state = event["event"], event.get("state")
    if kind == "error":
        return "error"
    if kind in _WARNINGS or state == "failed" or (kind == "source_file" and state != "late"):
        return "warning"
    return "info"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
