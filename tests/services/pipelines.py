"""Specs for tests, records whose fate a test can foretell, and the command line in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from headrace import run
from headrace.faults import Abandoned, Point, armed
from headrace.pipeline.events import Summary
from headrace.spec import Spec
from headrace.validate.load import loads
from headrace.write.intent import Intent
from services.audit import Audit, Verdict, audit, by_kind
from services.kafka import Seen, produce
from services.s3 import S3
from services.wait import eventually

HEADRACE = str(Path(sys.executable).with_name("headrace"))
FILTER = "coalesce(keep, true)"


def spec_text(
    bootstrap: str,
    topics: Iterable[str],
    lake: Path | str,
    *,
    s3: S3 | None = None,
    pipeline: str = "shop",
    **more: Any,
) -> str:
    """A spec as JSON (which is YAML): a table per `kind`, `keep: false` filtered; `more` replaces whole keys."""
    content: dict[str, Any] = {
        "pipeline": pipeline,
        "source": {"kafka": {"brokers": bootstrap, "topics": list(topics)}},
        "transform": [{"where": FILTER}],
        "allow_missing": ["keep"],
        "route": {"by": {"field": "kind"}},
        "table": {"path": f"{lake}/{{route}}", "infer": {"records": 1}},
        "flush": {"every": "200ms"},
        "retry": {"unreachable": {"initial_interval": "50ms", "max_interval": "500ms"}},
    }
    if s3 is not None:
        content["storage"] = {"s3": storage(s3)}
    return json.dumps(content | more)


def storage(s3: S3) -> dict[str, Any]:
    """How a spec reaches the test's S3 server; its secret is in the environment."""
    os.environ["HEADRACE_TEST_S3_SECRET"] = s3.secret
    return {
        "endpoint": s3.endpoint,
        "region": s3.region,
        "allow_http": True,
        "access_key_id": s3.key,
        "secret_access_key": "${env:HEADRACE_TEST_S3_SECRET}",
    }


def make_spec(bootstrap: str, topics: Iterable[str], lake: Path | str, **more: Any) -> Spec:
    """The spec itself."""
    return loads(spec_text(bootstrap, topics, lake, **more), Path.cwd())[0]


def records(start: int, count: int, kinds: Iterable[str] = ("alpha", "beta"), **extra: Any) -> Iterator[bytes]:
    """JSON events: every seventh is to be filtered, every ninth is no JSON; `extra` are fields that all others have."""
    names = list(kinds)
    for number in range(start, start + count):
        event = {"id": number, "kind": names[number % len(names)], "text": f"№ {number}", **extra}
        if number % 9 == 5:
            yield b'{"id": %d, "kind": ' % number
        elif number % 7 == 3:
            yield json.dumps({**event, "keep": False}).encode()
        else:
            yield json.dumps(event).encode()


@dataclass
class Shop:
    """A topic of two partitions, a spec over it, and a lake; each run has a work folder of its own."""

    bootstrap: str
    topic: str
    lake: str
    scratch: Path
    s3: S3 | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sent: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    on_event: Callable[[dict[str, Any]], Any] = lambda event: None

    @property
    def spec(self) -> Spec:
        """The spec as it is now; `options` replace its keys."""
        return make_spec(self.bootstrap, [self.topic], self.lake, s3=self.s3, **self.options)

    @property
    def place(self) -> Path:
        """Where the lake is on this machine's disk, also when S3 serves it."""
        return Path(self.lake) if self.s3 is None else self.s3.folder / "data" / self.lake.removeprefix("s3://")

    def send(self, count: int, kinds: Iterable[str] = ("alpha", "beta"), **extra: Any) -> None:
        """Half of the records into each partition."""
        values = list(records(self.sent, count, kinds, **extra))
        for partition in (0, 1):
            produce(self.bootstrap, self.topic, values[partition::2], partition)
        self.sent += count

    def send_values(self, values: Iterable[Any], partition: int = 0) -> None:
        """Records whose fate the test tells by itself."""
        self.sent += produce(self.bootstrap, self.topic, values, partition)

    def run(self) -> Summary:
        """Drain the topic on a machine that has never seen the pipeline."""
        with self.elsewhere():
            return run(self.spec, until="latest", report=self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.on_event(event)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """A machine without any file of an earlier run."""
        with TemporaryDirectory(dir=self.scratch) as folder, pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", folder)
            yield

    def die(self, point: Point, batch: int | None = None) -> None:
        """Run into a crash point."""
        with armed(point, "abandon", batch=batch), pytest.raises(Abandoned):
            self.run()

    def audit(self, judge: Callable[[Seen], Verdict] = by_kind, *, drained: bool = True) -> Audit:
        """Everything in its place, or an AssertionError."""
        return audit(self.bootstrap, [self.topic], self.spec, judge, drained=drained)

    def begun(self, batch: int) -> Intent:
        """What a batch was decided to be."""
        return Intent.from_json((self.place / f"_headrace/shop/intents/{batch:012}").read_text())

    def write_spec(self) -> Path:
        """The spec as a file, for the command line."""
        path = self.scratch / "shop.yaml"
        path.write_text(self.spec.text)
        return path


def eventful(shop: Shop) -> Shop:
    """Two batches ahead: an ordinary one; one with a new table, a new field in two others, and dead letters."""
    shop.options |= {"limits": {"batch_rows": 60}, "flush": {"rows": 60, "every": "200ms"}}
    shop.send(60)
    shop.send(60, kinds=("alpha", "beta", "gamma"), note="new")
    return shop


# ---- the command line ----


def environment(**more: str) -> dict[str, str]:
    """Ours, with the source tree to import from."""
    source = str(Path(__file__).parents[2] / "src")
    return {**os.environ, "PYTHONPATH": source, "PYTHONUNBUFFERED": "1", **more}


def run_cli(arguments: Iterable[str | Path], env: Mapping[str, str] | None = None, within: float = 180) -> Any:
    """`headrace …` to its end: a CompletedProcess with text."""
    command = [HEADRACE, *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**(env or {})), capture_output=True, text=True, timeout=within, check=False
    )


class Running:
    """A `headrace` at work; its JSON events are read as they come."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_events(self) -> None:
        for line in self.child.stdout or ():
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        self.errors.extend(self.child.stderr or ())

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [event for event in self.events if event["event"] == kind]

    def tree(self) -> list[psutil.Process]:
        """Every process below it."""
        return psutil.Process(self.child.pid).children(recursive=True)

    def java(self) -> psutil.Process:
        """Its JVM, once it runs."""
        return eventually(lambda: next((p for p in self.tree() if p.name() == "java"), None), 60, "a JVM runs")

    def read(self) -> int:
        """Records of all batches booked so far."""
        return sum(event["read"] for event in self.of("batch"))

    def until_read(self, count: int, within: float = 120) -> None:
        """Wait until it has booked that many records."""
        eventually(
            lambda: self._alive() and self.read() >= count, within, lambda: f"{count} records read: {self.said()}"
        )

    def _alive(self) -> bool:
        if self.child.poll() is not None:
            raise RuntimeError(f"headrace ended with {self.child.returncode}: {self.said()}")
        return True

    def said(self) -> str:
        """Its last words."""
        return f"{self.events[-3:]} {''.join(self.errors)[-2000:]}"

    def stop(self, number: int = signal.SIGTERM, within: float = 40) -> int:
        """Ask it to end (SIGTERM unless told) and wait: its exit code."""
        self.child.send_signal(number)
        return self.wait(within)

    def wait(self, within: float = 120) -> int:
        """Its exit code, once all it said is read."""
        code = self.child.wait(within)
        for reader in self._readers:
            reader.join(5)
        return code


@contextmanager
def start_cli(arguments: Iterable[str | Path], env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """`headrace … --json` in the background; whatever is left of it dies with the block."""
    command = [HEADRACE, *map(str, arguments), "--json"]
    child = subprocess.Popen(
        command, env=environment(**(env or {})), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    running = Running(child)
    left: list[psutil.Process] = []
    try:
        yield running
        if child.poll() is None:
            left = running.tree()
    finally:
        child.kill()
        for process in left:
            if process.is_running():
                process.kill()
        running.wait(10)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
