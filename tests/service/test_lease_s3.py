"""The lease on a real S3 server: conditional writes decide, also through a bad network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.errors import Fenced, LeaseHeld, StorageUnreachable
from headrace.ledger.ledger import Ledger
from headrace.storage.lease import Clock, Lease
from headrace.storage.numbered_objects import NumberedObjects
from headrace.storage.store import Profile, Store
from services.s3 import S3
from services.s3gate import Gate, s3gate
from services.wait import eventually

ROUNDS = 20
FAR = 3600.0


def profile(s3: S3, endpoint: str = "") -> Profile:
    where = endpoint or s3.endpoint
    return Profile({**s3.settings, "endpoint": where})


def note(state: Store) -> dict[str, Any]:
    """The newest note, as anybody reads it."""
    _, data = NumberedObjects(state, "lease").newest()
    found: dict[str, Any] = json.loads(data or b"{}")
    return found


@pytest.fixture
def state(s3: S3, bucket: str) -> Store:
    return Store(f"s3://{bucket}/state", profile(s3))


@pytest.fixture
def gate(s3: S3) -> Iterator[Gate]:
    with s3gate(s3.endpoint) as gate:
        yield gate


class Ahead(Clock):
    """A machine whose date is wrong."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return super().now() + self.seconds


def attempt(store: Store) -> Lease | None:
    try:
        return Lease.take(store, ttl=20, renew=FAR)
    except LeaseHeld:
        return None


def test_of_many_at_once_one_takes_it_and_of_many_heirs_one_inherits(s3: S3, bucket: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        for turn in range(ROUNDS):
            stores = [Store(f"s3://{bucket}/state-{turn}", profile(s3)) for _ in range(6)]
            for _ in range(2):
                (taken,) = [lease for lease in pool.map(attempt, stores) if lease]
                taken.abandon()


CHILD = """
import sys
from headrace.errors import Fenced
from headrace.storage.lease import Lease
from headrace.storage.store import Profile, Store
from headrace.storage.numbered_objects import NumberedObjects
endpoint, key, secret, uri = sys.argv[1:]
profile = Profile(dict(endpoint=endpoint, allow_http=True, access_key_id=key, secret_access_key=secret))
lease = Lease.take(Store(uri, profile), ttl=1.0, renew=0.2)
print("taken", flush=True)
sys.stdin.readline()
try:
    lease.check()
    print("still ours", flush=True)
except Fenced:
    print("fenced", flush=True)
"""


@pytest.fixture
def holder(s3: S3, state: Store) -> Iterator[subprocess.Popen[str]]:
    """Another process with the lease."""
    command = [sys.executable, "-c", CHILD, s3.endpoint, s3.key, s3.secret, state.uri]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "taken\n"
            yield started
        finally:
            started.kill()


def test_a_frozen_holder_loses_and_knows_it_when_it_wakes(state: Store, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGSTOP)
    with Lease.take(state, ttl=1.0, renew=0.2, wait=True) as taken:
        os.kill(holder.pid, signal.SIGCONT)
        answer, _ = holder.communicate("go\n", timeout=20)
        taken.check()
    assert answer == "fenced\n"


@pytest.mark.parametrize("ahead", [300.0, -300.0])
def test_a_holder_elsewhere_keeps_it_though_the_clocks_differ(
    state: Store, holder: subprocess.Popen[str], ahead: float
) -> None:
    with pytest.raises(LeaseHeld, match=f"pid {holder.pid}"):
        Lease.take(state, ttl=1.0, renew=0.2, clock=Ahead(ahead))
    answer, _ = holder.communicate("go\n", timeout=20)
    assert answer == "still ours\n"


def test_a_killed_holder_is_followed_at_once(state: Store, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    Lease.take(state, ttl=20, renew=FAR).release()


@pytest.mark.parametrize("deed", ["lose", "late"])
def test_a_renewal_whose_outcome_is_unknown_does_not_cost_the_lease(
    s3: S3, state: Store, gate: Gate, deed: str
) -> None:
    lease = Lease.take(Store(state.uri, profile(s3, gate.endpoint)), ttl=20, renew=FAR)
    gate.on("PUT", "lease", deed, times=100)
    with pytest.raises(StorageUnreachable):
        lease.renew()
    gate.open()
    eventually(lambda: note(state)["renewals"] == 1, say="the renewal has landed")
    lease.renew()
    lease.check()
    assert not lease.lost.is_set()
    assert attempt(state) is None
    lease.release()


def test_whoever_was_overtaken_is_fenced_before_the_next_commit(state: Store) -> None:
    lease = Lease.take(state, ttl=0.5, renew=FAR)
    state.put_new("lease/000000000002", json.dumps({**note(state), "token": "another"}).encode())
    with pytest.raises(Fenced):
        eventually(lambda: lease.check(), within=10, say="the next look at the lease")
    lease.release()
    assert note(state)["token"] == "another"


def test_the_ledger_is_the_same_on_s3(state: Store) -> None:
    ledger = Ledger.open(state, "shop")
    ledger.known.store(topics={"orders": "id-1"})
    ledger.decide("begin past what is known", {("orders", 0): 7})
    ledger.decide("and again", {("orders", 0): 3})
    again = Ledger.open(state, "shop")
    assert (again.batch, again.position(), again.known.topics) == (2, {("orders", 0): 3}, {"orders": "id-1"})
    assert [row["note"] for row in again.rows(5)] == ["begin past what is known", "and again"]
