"""What stores do to a pipeline: fail now and then, fill up, refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.dev.kafka import Broker
from headrace.errors import AuthenticationFailed, PermissionDenied, StorageFull
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from services.audit import audit
from services.kafka import produce
from services.pipelines import make_spec, records, storage
from services.s3 import S3
from services.s3gate import Gate, s3gate
from services.threads import drain, ids, numbered, one_table

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def gate(s3: S3) -> Iterator[Gate]:
    with s3gate(s3.endpoint) as opened:
        yield opened


def assert_whole(kafka: Broker, topic: str, bucket: str, s3: S3, records: int) -> None:
    """The audit asks the server itself: delta-rs would keep the gate, which lives in this process, from answering."""
    spec = make_spec(kafka.bootstrap, [topic], f"s3://{bucket}/lake", s3=s3)
    assert audit(kafka.bootstrap, [topic], spec).records == records


def behind(gate: Gate, s3: S3, **more: Any) -> dict[str, Any]:
    """Storage that is reached through the gate."""
    return {"s3": {**storage(s3), "endpoint": gate.endpoint, **more}}


def test_answers_that_fail_now_and_then_only_cost_time(
    kafka: Broker, topic: str, gate: Gate, s3: S3, bucket: str
) -> None:
    spec = make_spec(kafka.bootstrap, [topic], f"s3://{bucket}/lake", storage=behind(gate, s3))
    produce(kafka.bootstrap, topic, records(0, 200))
    drain(spec)
    refusals = [gate.on("*", "", "refuse", status=status, every=every) for status, every in ((500, 37), (503, 41))]
    burst = gate.on("PUT", "_delta_log|part-", "refuse", status=503, nth=2, times=12)  # longer than a client's patience
    for start in (200, 400):
        produce(kafka.bootstrap, topic, records(start, 200))
        drain(spec)
    assert burst.reached.is_set()
    assert all(rule.reached.is_set() for rule in refusals)
    assert_whole(kafka, topic, bucket, s3, 600)


def test_replies_that_are_lost_duplicate_nothing(kafka: Broker, topic: str, gate: Gate, s3: S3, bucket: str) -> None:
    spec = make_spec(kafka.bootstrap, [topic], f"s3://{bucket}/lake", storage=behind(gate, s3))
    gate.on("PUT", r"_delta_log/\d+\.json", "lose", every=2)
    gate.on("PUT", r"intents/", "lose", every=2)
    for start in (0, 100):
        produce(kafka.bootstrap, topic, records(start, 100))
        drain(spec)
    assert_whole(kafka, topic, bucket, s3, 200)


def test_a_wrong_key_stops_the_pipeline_after_three_tries(
    kafka: Broker, topic: str, gate: Gate, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "not-the-secret")
    wrong = behind(gate, s3, secret_access_key="${env:WRONG}")
    spec = make_spec(kafka.bootstrap, [topic], f"s3://{bucket}/lake", storage=wrong)
    with pytest.raises(AuthenticationFailed) as stop:
        drain(spec)
    assert bucket in stop.value.message
    assert "not-the-secret" not in f"{stop.value!r}"
    assert len(gate.requests) == 3


def test_a_refused_write_stops_the_pipeline_and_names_the_place(
    kafka: Broker, topic: str, gate: Gate, s3: S3, bucket: str
) -> None:
    spec = make_spec(kafka.bootstrap, [topic], f"s3://{bucket}/lake", storage=behind(gate, s3))
    produce(kafka.bootstrap, topic, records(0, 50))
    refused = gate.on("PUT", r"alpha/.*part-", "refuse", status=403, times=1000)
    with pytest.raises(PermissionDenied, match=rf"{bucket}/lake/alpha"):
        drain(spec)
    assert refused.seen in (3, 6)  # three runs of the batch, in one task or two
    gate.open()
    drain(spec)
    assert_whole(kafka, topic, bucket, s3, 50)


# ---- a full disk ----


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def in_own_namespace(test: Callable[..., None]) -> Callable[..., None]:
    """Who may not mount runs the test again where it may: in a user namespace of its own."""
    if os.geteuid() == 0:
        return test
    node = f"{__file__}::{test.__name__}"

    def again(kafka: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-m", "pytest", "-q", node]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-3000:]

    again.__name__ = test.__name__
    return again


def fill(disk: Path, spare: int = 0) -> Path:
    """Take all the space that is left but `spare` bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            file.truncate(max(0, file.tell() - spare))
    return ballast


def settled(spec: Spec, count: int) -> None:
    """All is in the table, and its log is whole."""
    drain(spec)
    table = DeltaTable(spec.uri_of(RouteId()))
    assert ids(table.table_uri.removeprefix("file://")) == list(range(count))
    assert table.to_pyarrow_table().num_rows == count


def full(spec: Spec, disk: Path, spare: int) -> StorageFull | None:
    """What stopped a run that found this much room."""
    ballast = fill(disk, spare)
    try:
        drain(spec)
    except StorageFull as stop:
        return stop
    finally:
        ballast.unlink()
    return None


def stops_when_full(spec: Spec, disk: Path) -> int:
    """Run with a little more room each time: full at the lease, the staged files, `begun`, the log, … then enough."""
    for tries in range(24):
        if (stop := full(spec, disk, tries * 8_192)) is None:
            return tries
        assert str(disk) in stop.message
        assert stop.hint
    raise AssertionError("it does not go on although there is room")


@in_own_namespace
def test_a_full_disk_stops_the_pipeline_with_the_path_and_space_lets_it_go_on(
    kafka: Broker, topic: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        spec = one_table(kafka.bootstrap, topic, disk / "lake" / "t")
        produce(kafka.bootstrap, topic, numbered(0, 100))
        drain(spec)
        produce(kafka.bootstrap, topic, numbered(100, 100))
        assert stops_when_full(spec, disk) >= 3
        settled(spec, 200)
