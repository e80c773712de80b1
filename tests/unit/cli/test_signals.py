"""Signals: acted on by a thread of their own, whatever the main thread is doing."""

import os
import signal
import threading

import pytest

from headrace import cli
from headrace.cli.signals import Signals, stops_on_signals
from services.wait import eventually


def test_the_first_signal_stops_and_the_second_aborts() -> None:
    said: list[str] = []
    with Signals() as signals:
        signals.say = said.append
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(signals.stop.is_set, 5, lambda: "the first signal")
        assert not signals.abandon.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        eventually(signals.abandon.is_set, 5, lambda: "the second signal")
    assert said == ["Stopping after the current batch. Press Ctrl-C again to abort it."]


def test_a_signal_waits_for_a_lock_of_the_main_thread() -> None:
    """The console is locked while it draws; a handler in the same thread would print in the middle of it."""
    drawing, said = threading.RLock(), []

    def say(text: str) -> None:
        with drawing:
            said.append(text)

    with Signals() as signals:
        signals.say = say
        with drawing:
            os.kill(os.getpid(), signal.SIGINT)
            eventually(signals.stop.is_set, 5, lambda: "the signal")
            assert said == []
        eventually(lambda: said, 5, lambda: "the announcement")


def test_a_signal_is_acted_on_while_the_lock_of_its_event_is_held() -> None:
    """`Event.wait` holds it for moments; `set` in a handler of the same thread would wait for itself."""
    stop = threading.Event()
    with stops_on_signals(stop):
        with stop._cond:
            os.kill(os.getpid(), signal.SIGTERM)
        eventually(stop.is_set, 5, lambda: "the signal")


def test_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    with Signals() as signals:
        signals.finish()
        os.kill(os.getpid(), signal.SIGINT)  # ignored: the command is about to end
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)) == before
    assert not signals.stop.is_set()


def test_an_interrupt_before_the_command_has_started_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == 130
    assert capsys.readouterr() == ("", "")
