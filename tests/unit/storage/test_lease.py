"""One writer at a time, whatever the clocks say; and whoever lost the lease knows before its next commit."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import Fenced, LeaseHeld, StopRequested, StorageUnreachable
from headrace.storage.lease import Clock, Lease, holder
from headrace.storage.store import Store
from services.wait import eventually

FAR = 3600.0  # a renewal thread that never comes to its turn: the tests renew by hand


class World:
    """One true time for several clocks that disagree about the date."""

    def __init__(self):
        self.time = 1_000_000.0
        self.waited = 0.0
        self.during = lambda: None

    def clock(self, ahead=0.0):
        return Skewed(self, ahead)


class Skewed(Clock):
    def __init__(self, world, ahead):
        self.world, self.ahead = world, ahead

    def now(self):
        return self.world.time + self.ahead

    def monotonic(self):
        return self.world.time

    def wait(self, event, seconds):
        self.world.time += seconds
        self.world.waited += seconds
        self.world.during()
        return event.is_set()


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "state"))


@pytest.fixture
def world():
    return World()


def take(store, world=None, ahead=0.0, **more):
    return Lease.take(store, ttl=20, renew=FAR, clock=world.clock(ahead) if world else None, **more)


def newest(store):
    return list(store.list("lease"))[-1].path


def note(store):
    return json.loads(store.get(newest(store)))


def change(store, **changed):
    store.put(newest(store), json.dumps({**note(store), **changed}).encode())


def elsewhere(store, **changed):
    """Let the lease look as if another host held it."""
    change(store, host="other", **changed)


def overtake(store):
    """Let another host have taken it."""
    number = int(newest(store).rpartition("/")[2]) + 1
    taken = {**note(store), "host": "other", "token": "another"}
    store.put_new(f"lease/{number:012}", json.dumps(taken).encode())


def test_a_second_taker_is_told_who_holds_it(store):
    with take(store), pytest.raises(LeaseHeld) as held:
        take(store)
    assert held.value.facts["pid"] == os.getpid()
    assert os.uname().nodename in str(held.value)
    assert held.value.facts["since"] in str(held.value)
    assert held.value.exit_code == 3


def test_a_released_lease_is_taken_at_once_by_a_new_token(store):
    with take(store) as first:
        pass
    assert note(store)["token"] == ""
    with take(store) as second:
        assert first.token != second.token


def test_status_can_tell_who_holds_it(store):
    assert holder(store) is None
    with take(store):
        assert holder(store)["pid"] == os.getpid()
    assert holder(store) is None


def test_the_state_folder_is_private(store):
    with take(store):
        assert Path(store.root).stat().st_mode & 0o777 == 0o700


def test_what_this_process_let_go_of_without_a_word_is_taken_at_once(store):
    take(store).abandon()
    take(store).release()


CHILD = """
import sys, threading
from headrace.errors import Fenced
from headrace.storage.lease import Lease
from headrace.storage.store import Store
lease = Lease.take(Store(sys.argv[1]), ttl=float(sys.argv[2]), renew=float(sys.argv[2]) / 4)
print(lease.token, flush=True)
sys.stdin.readline()
try:
    lease.check()
    print("still ours", flush=True)
except Fenced:
    print("fenced", flush=True)
"""


@contextmanager
def child(store, ttl=20.0):
    """Another process with the lease; it does not outlive the block, frozen or not."""
    command = [sys.executable, "-c", CHILD, store.uri, str(ttl)]
    env = {**os.environ, "PYTHONPATH": "src"}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout.readline()
            yield started
        finally:
            started.kill()


def test_the_lease_of_a_killed_process_is_taken_at_once(store, world):
    with child(store) as holder:
        with pytest.raises(LeaseHeld, match=f"pid {holder.pid}"):
            take(store)
        holder.kill()
        holder.wait()
    take(store, world).release()
    assert world.waited == 0


def test_a_pid_used_again_does_not_keep_the_lease(store, world):
    take(store, world).abandon()
    change(store, pid=os.getppid(), start_ticks=1)
    take(store, world).release()
    assert world.waited == 0


def test_the_same_pid_in_another_boot_or_container_proves_nothing(store, world):
    take(store, world).abandon()
    change(store, boot_id="another pid:[1]")
    with pytest.raises(LeaseHeld):
        take(store, world)


def test_another_hosts_lease_is_watched_for_a_whole_ttl_once_it_has_run_out(store, world):
    take(store, world).abandon()
    elsewhere(store)
    world.time += 25
    take(store, world).release()
    assert 20 < world.waited <= 30


@pytest.mark.parametrize("ahead", [300.0, -300.0, 10 * 365 * 86400.0, -86400.0])
def test_a_holder_that_renews_keeps_it_however_the_clocks_differ(store, world, ahead):
    holder = take(store, world)
    elsewhere(store)
    world.during = lambda: renewed_elsewhere(store, holder)
    with pytest.raises(LeaseHeld):
        take(store, world, ahead)
    assert world.waited <= 10
    holder.abandon()


def renewed_elsewhere(store, holder):
    elsewhere(store, renewals=note(store)["renewals"] + 1)


@pytest.mark.parametrize("ahead", [300.0, -300.0, 10 * 365 * 86400.0, -86400.0])
def test_a_dead_holder_loses_it_however_the_clocks_differ(store, world, ahead):
    take(store, world, ahead).abandon()
    elsewhere(store)
    taken = take(store, world, wait=True)
    assert 20 < world.waited <= 30
    taken.release()


def test_waiting_ends_with_the_release(store, world):
    holder = take(store, world)
    world.during = holder.release
    take(store, world, wait=True).release()
    assert world.waited <= 5


def test_waiting_ends_with_a_request_to_stop(store, world):
    stop = threading.Event()
    world.during = stop.set
    with take(store, world), pytest.raises(StopRequested):
        take(store, world, wait=True, stop=stop)


def test_whoever_was_overtaken_learns_it_before_the_next_commit(store, world):
    first = take(store, world)
    overtake(store)
    first.check()
    world.time += 15
    with pytest.raises(Fenced):
        first.check()
    assert first.lost.is_set()
    first.release()
    assert note(store)["token"] == "another"


def test_a_note_that_somebody_deleted_is_written_again(store, world):
    lease = take(store, world)
    store.delete([newest(store)])
    lease.renew()
    lease.check()
    with pytest.raises(LeaseHeld):
        take(store, world)
    lease.release()


def test_a_taker_that_slept_does_not_take_a_number_of_the_past(store, world, monkeypatch):
    take(store, world).release()
    landed = store.put_new

    def sleep_first(*args):
        monkeypatch.setattr(store, "put_new", landed)
        for _ in range(6):
            take(store, world).release()
        holders.append(take(store, world))
        assert not store.exists("lease/000000000002")
        return landed(*args)

    holders = []
    monkeypatch.setattr(store, "put_new", sleep_first)
    with pytest.raises(LeaseHeld):
        take(store, world)
    holders[0].renew()
    holders[0].check()
    holders[0].release()


def test_an_unreachable_store_is_not_a_lost_lease(store, world, monkeypatch):
    lease = take(store, world)

    def unreachable(*args):
        raise StorageUnreachable("no answer")

    world.time += 60
    with monkeypatch.context() as patch:
        patch.setattr(store, "put", unreachable)
        with pytest.raises(StorageUnreachable):
            lease.check()
    lease.check()
    lease.release()


def test_a_lease_nobody_can_read_is_only_taken_after_a_watch(store, world):
    store.put("lease/000000000001", b"\xff garbage")
    take(store, world).release()
    assert 20 < world.waited <= 30


def test_a_frozen_holder_loses_and_knows_it_when_it_wakes(store):
    with child(store, ttl=0.4) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        with Lease.take(store, ttl=0.4, renew=0.1, wait=True):
            os.kill(holder.pid, signal.SIGCONT)
            answer, _ = holder.communicate("go\n", timeout=20)
        assert answer == "fenced\n"


def test_a_holder_that_lives_renews_by_itself(store):
    with child(store, ttl=0.4) as holder:
        token = note(store)["token"]
        eventually(lambda: note(store)["renewals"] >= 4, say="four renewals")
        assert note(store)["token"] == token
        answer, _ = holder.communicate("go\n", timeout=20)
        assert answer == "still ours\n"


def test_of_many_at_once_one_takes_it(tmp_path):
    def attempt(uri):
        try:
            return Lease.take(Store(uri), ttl=20, renew=FAR)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(8) as pool:
        for turn in range(20):
            uri = str(tmp_path / f"state-{turn}")
            leases = [lease for lease in pool.map(attempt, [uri] * 8) if lease]
            assert len(leases) == 1
            leases[0].release()
