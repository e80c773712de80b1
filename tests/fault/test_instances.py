"""Two instances of one pipeline, an instance that sleeps too long, and instances that are asked to end."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import Broker
from headrace.errors import LeaseHeld
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from headrace.spec import Spec
from headrace.storage.lease import Lease, Note
from headrace.storage.store import Store
from headrace.validate.load import load
from services import concurrent_writers as twins
from services.audit import audit
from services.kafka import produce
from services.pipelines import Running, environment, make_spec, records, run_cli, spec_text, start_cli
from services.s3 import S3
from services.threads import drain_all, numbered, one_table
from services.wait import eventually

SHORT = {"ttl": "2s", "renew": "500ms"}


def saved(folder: Path, text: str) -> Path:
    """A spec as a file."""
    path = folder / f"{json.loads(text)['pipeline']}.yaml"
    path.write_text(text)
    return path


# ---- two at once ----


def start_at_once(path: str, round_: int, log: str) -> tuple[int, dict[str, object] | None]:
    """Start the pipeline at the same moment as the rival, as far as its lease: (our pid, who holds it if not we)."""
    (spec,) = load(Path(path) / f"{round_}.yaml")
    twins._gate.wait(30)
    try:
        with Pipeline(spec, lambda: None, recovery=StartupRecovery()).take_lease():  # type: ignore[arg-type, return-value]
            begin = time.monotonic_ns()
            twins._gate.wait(30)  # the other has its answer
            with Path(log).open("a") as file:
                file.write(f"{begin} {time.monotonic_ns()}\n")
        return os.getpid(), None
    except LeaseHeld as held:
        twins._gate.wait(30)
        return os.getpid(), {**held.facts, "exit": held.exit_code}


def test_of_two_that_start_at_once_one_runs_and_the_other_names_it(tmp_path: Path) -> None:
    rounds = 20
    for number in range(rounds):
        text = spec_text("localhost:1", ["t"], tmp_path / f"lake-{number}")
        (tmp_path / f"{number}.yaml").write_text(text)
    log = tmp_path / "log"
    with twins.rivals() as run:
        for number in range(rounds):
            answers = run(start_at_once, [str(tmp_path)] * 2, [number] * 2, [str(log)] * 2)
            (winner,) = [pid for pid, held in answers if held is None]
            (holder,) = [held for _, held in answers if held is not None]
            assert (holder["host"], holder["pid"], holder["exit"]) == (socket.gethostname(), winner, 3)
    held = sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines())
    assert len(held) == rounds
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(held)), "no overlap"


def test_of_two_commands_that_start_at_once_one_works_and_the_other_exits_with_3(tmp_path: Path) -> None:
    """Twenty starts of two real processes; no broker answers the one that goes on, so it needs no JVM."""
    paths = [tmp_path / f"{number}.yaml" for number in range(20)]
    for path in paths:
        path.write_text(spec_text("localhost:1", ["t"], tmp_path / path.stem))
    command = [sys.executable, "-m", "services.starts", *map(str, paths)]
    env = environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["code"], each["alive"]) for each in rounds] == [(3, True)] * 20, rounds
    for each in rounds:
        assert f"{socket.gethostname()} as pid {each['other']}" in each["said"]


def test_the_command_exits_with_3_and_says_who_runs_it(tmp_path: Path, lake: Path) -> None:
    path = saved(tmp_path, spec_text("localhost:1", ["t"], lake))
    (spec,) = load(path)
    with Lease.take(Store(spec.state_uri)):
        done = run_cli(["run", path, "--until", "latest"])
        decided = run_cli(["resume", path, "--accept-gap"])
    assert (done.returncode, decided.returncode) == (3, 3)
    for said in (done.stderr, decided.stderr):
        assert f"{socket.gethostname()} as pid {os.getpid()}" in said


@pytest.mark.parametrize("skew", [10 * 365 * 86400, -86400, 300, -300])
def test_a_holder_elsewhere_is_believed_whatever_its_clock_says(lake: Path, skew: float) -> None:
    """It renews: it lives. It does not: its lease ends after one time-to-live of our own clock."""
    spec = one_table("localhost:1", "t", lake / "t", lease={"ttl": "1s", "renew": "200ms"})
    store = Store(spec.state_uri)
    with Lease.take(store, ttl=1, renew=60) as theirs:
        now = time.time() + skew
        note = replace(theirs._note, host="elsewhere", boot_id="another", acquired_at=now, expires_at=now + 1)
        write(store, note)
        begin = time.monotonic()
        with Pipeline(spec, lambda: None, recovery=StartupRecovery()).take_lease():  # type: ignore[arg-type, return-value]
            assert time.monotonic() - begin >= 1


def write(store: Store, note: Note) -> None:
    from dataclasses import asdict

    (newest,) = store.list("lease")
    store.put(newest.path, json.dumps(asdict(note)).encode())


# ---- one that sleeps ----


def test_a_holder_that_was_frozen_comes_back_and_changes_nothing(
    spark: Any, kafka: Broker, new_topic: Callable[..., str], lake: Path, s3: S3, bucket: str, tmp_path: Path
) -> None:
    topic = new_topic(2)
    texts = [
        spec_text(kafka.bootstrap, [topic], lake, pipeline="disk", lease=SHORT),
        spec_text(kafka.bootstrap, [topic], f"s3://{bucket}/lake", s3=s3, pipeline="bucket", lease=SHORT),
    ]
    paths = [saved(tmp_path, text) for text in texts]
    specs = [spec for path in paths for spec in load(path)]
    produce(kafka.bootstrap, topic, records(0, 300))
    with start_cli(
        ["run", *paths, "--restart", "never"], env={"HEADRACE_FAULT": "before_ledger_write:nth=3=stop-self"}
    ) as frozen:
        feed_until_frozen(frozen, kafka, topic)
        produce(kafka.bootstrap, topic, records(10_000, 200))
        assert drain_all(specs, wait=True) == {"disk": None, "bucket": None}, "the heirs wait out both leases"
        frozen.child.send_signal(signal.SIGCONT)
        assert frozen.wait(60) == 1
        stops = {event["pipeline"]: event["error"] for event in frozen.of("error")}
    assert stops == {"disk": "Fenced", "bucket": "Fenced"}
    assert drain_all(specs) == {"disk": None, "bucket": None}
    for spec in specs:
        audit(kafka.bootstrap, [topic], spec)


def feed_until_frozen(running: Running, kafka: Broker, topic: str) -> None:
    """Records come until it stands still in the middle of a batch."""
    fed = 300

    def stands_still() -> bool:
        nonlocal fed
        state = Path(f"/proc/{running.child.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "T" and running.read() >= fed:
            fed += produce(kafka.bootstrap, topic, records(fed, 50))
        return state == "T"

    eventually(stands_still, 120, lambda: f"it froze; {running.said()}")


# ---- asked to end ----


def ended_well(running: Running, number: int, java: list[Any]) -> None:
    """Exit 0 within 30 seconds, and nothing of it is left."""
    began = time.monotonic()
    code = running.stop(number, within=40)
    assert code == 0, running.said()
    assert time.monotonic() - began < 30
    assert running.of("summary")
    eventually(lambda: not any(process.is_running() for process in java), 10, "no JVM is left")


def feed(kafka: Broker, topic: str, spec: Spec, path: Path, rng: random.Random, number: int, round_: int) -> None:
    with start_cli(["run", path]) as running:
        java = [running.java()]
        deadline = time.monotonic() + rng.uniform(0, 12)
        begin = 100_000 * round_
        while time.monotonic() < deadline:
            begin += produce(kafka.bootstrap, topic, records(begin, 500))
        ended_well(running, number, java)
    audit(kafka.bootstrap, [topic], spec, drained=False)


def test_a_request_to_end_is_answered_and_nothing_is_lost(
    kafka: Broker, new_topic: Callable[..., str], lake: Path, tmp_path: Path
) -> None:
    topic = new_topic(2)
    path = saved(tmp_path, spec_text(kafka.bootstrap, [topic], lake))
    (spec,) = load(path)
    with start_cli(["run", path]) as running:
        java = [running.java()]
        produce(kafka.bootstrap, topic, records(0, 2000))
        running.until_read(1)
        produce(kafka.bootstrap, topic, records(2000, 2000))
        ended_well(running, signal.SIGTERM, java)
    audit(kafka.bootstrap, [topic], spec, drained=False)


@pytest.mark.slow
def test_requests_to_end_at_random_moments(
    kafka: Broker, new_topic: Callable[..., str], lake: Path, tmp_path: Path
) -> None:
    topic, rng = new_topic(2), random.Random(7)
    path = saved(tmp_path, spec_text(kafka.bootstrap, [topic], lake))
    (spec,) = load(path)
    for round_, number in enumerate([signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGTERM]):
        feed(kafka, topic, spec, path, rng, number, round_)
    assert make_spec(kafka.bootstrap, [topic], lake).digest == spec.digest
    assert run_cli(["run", path, "--until", "latest"]).returncode == 0
    audit(kafka.bootstrap, [topic], spec)


def test_a_request_to_end_before_spark_is_up_is_answered_too(
    kafka: Broker, new_topic: Callable[..., str], lake: Path, tmp_path: Path
) -> None:
    topic = new_topic(1)
    produce(kafka.bootstrap, topic, numbered(0, 10))
    path = saved(tmp_path, spec_text(kafka.bootstrap, [topic], lake))
    (spec,) = load(path)
    with start_cli(["run", path]) as running:
        eventually(lambda: list(Path(spec.state_uri).glob("lease/*")), 30, "it holds the lease")
        ended_well(running, signal.SIGINT, running.tree())
