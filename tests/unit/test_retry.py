"""Retrying and the crash points: both decide who dies when."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace import faults, retry
from headrace.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    CommitConflict,
    Fenced,
    PermissionDenied,
    StopRequested,
    StorageUnreachable,
    UsageError,
)
from headrace.faults import Abandoned, Point, reach
from headrace.retry import Retry


class Watch:
    """Waits without waiting, and remembers for how long; set after `ends` waits."""

    def __init__(self, ends=None):
        self.waited, self.ends = [], ends

    def wait(self, timeout):
        self.waited.append(timeout)
        return self.ends is not None and len(self.waited) >= self.ends


def failing(*errors):
    left = list(errors)

    def attempt():
        if left:
            raise left.pop(0)
        return "done"

    return attempt


def test_what_cannot_be_reached_is_tried_until_it_answers():
    watch, seen = Watch(), []
    answer = retry.call(
        failing(*[StorageUnreachable("no answer")] * 50, *[BrokerUnreachable("no answer")] * 50),
        stop=watch,
        on_wait=lambda name, seconds, error: seen.append((name, seconds, error.message)),
    )
    assert answer == "done"
    assert len(watch.waited) == 100
    assert [name for name, _, _ in seen] == ["StorageUnreachable"] * 50 + ["BrokerUnreachable"] * 50
    assert [seconds for _, seconds, _ in seen] == watch.waited


def test_waits_double_up_to_the_longest_and_are_spread():
    steps = Retry(initial_interval=1, max_interval=60).intervals(jitter=lambda: 0.0)
    assert [next(steps) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    spread = Retry(initial_interval=8).intervals()
    assert 4 <= next(spread) <= 8


@pytest.mark.parametrize(
    ("error", "tries"), [(PermissionDenied, 3), (AuthenticationFailed, 3), (CommitConflict, 5), (Fenced, 1)]
)
def test_what_is_refused_ends_after_its_tries(error, tries):
    watch = Watch()
    with pytest.raises(error):
        retry.call(failing(*[error("no")] * 10), stop=watch)
    assert len(watch.waited) == tries - 1


def test_two_refusals_with_an_outage_between_do_not_stop():
    errors = [PermissionDenied("no"), StorageUnreachable("no answer"), PermissionDenied("no")]
    assert retry.call(failing(*errors), stop=Watch()) == "done"


def test_what_we_did_not_raise_is_not_tried_again():
    watch = Watch()
    with pytest.raises(KeyError):
        retry.call(failing(KeyError("a bug")), stop=watch)
    assert watch.waited == []


def test_a_request_to_stop_ends_the_wait_at_once():
    asked = threading.Event()
    asked.set()
    with pytest.raises(StopRequested, match="no answer"):
        retry.call(failing(StorageUnreachable("no answer")), Retry(initial_interval=3600), stop=asked)


@pytest.fixture(autouse=True)
def _nothing_armed():
    yield
    faults.disarm()


def test_an_armed_point_strikes_once_at_its_batch_and_turn():
    faults.arm_from("before_ledger_write:batch=2:nth=2=abandon")
    reach(Point.BEFORE_LEDGER_WRITE, batch=1)
    reach(Point.BEFORE_LEDGER_WRITE, batch=2)
    reach(Point.AFTER_STAGING, batch=2)
    with pytest.raises(Abandoned):
        reach(Point.BEFORE_LEDGER_WRITE, batch=2)
    reach(Point.BEFORE_LEDGER_WRITE, batch=2)


def test_a_lost_reply_looks_like_an_unreachable_store_and_a_function_is_just_called():
    called = []
    with faults.armed("after_commit", "lost-reply"), pytest.raises(StorageUnreachable):
        reach(Point.AFTER_COMMIT)
    with faults.armed("before_staging", lambda: called.append(1)):
        reach(Point.BEFORE_STAGING)
    with faults.armed("before_staging", "abandon"):
        pass
    reach(Point.BEFORE_STAGING)
    assert called == [1]


@pytest.mark.parametrize(
    "text", ["nowhere=kill", "before_staging=explode", "before_staging:day=3=kill", "before_staging:nth=x=kill"]
)
def test_a_fault_that_cannot_be_is_refused(text):
    with pytest.raises(UsageError):
        faults.arm_from(text)


CHILD = """
import subprocess, sys
from headrace.faults import reach, Point
below = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True)
print(below.pid, flush=True)
reach(Point.AFTER_STAGING, batch=1)
print("alive", flush=True)
"""


def child(fault):
    env = {**os.environ, "HEADRACE_FAULT": fault, "PYTHONPATH": "src"}
    return subprocess.Popen([sys.executable, "-c", CHILD], env=env, stdout=subprocess.PIPE, text=True)


def test_kill_takes_the_whole_tree_even_other_process_groups():
    with child("after_staging=kill") as started:
        below = int(started.stdout.readline())
        assert started.stdout.read() == ""
        assert started.wait(10) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while not gone(below):
        assert time.monotonic() < deadline


def gone(pid):
    """Whether nothing, or nothing but a zombie, is left of a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_stop_self_freezes_until_it_is_continued():
    with child("after_staging=stop-self") as started:
        started.stdout.readline()
        _, status = os.waitpid(started.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(started.pid, signal.SIGCONT)
        assert started.stdout.readline() == "alive\n"
        assert started.wait(10) == 0


def test_a_transient_error_after_a_good_while_is_counted_again():
    ticks = iter(range(0, 100_000, 301))  # each attempt lasts a good while
    tries = []

    def attempt():
        tries.append(1)
        if len(tries) < 6:
            raise AuthenticationFailed("refused")
        return "well"

    assert (
        retry.call(attempt, Retry(initial_interval=0.001, max_interval=60, access_denied=3), clock=lambda: next(ticks))
        == "well"
    )
