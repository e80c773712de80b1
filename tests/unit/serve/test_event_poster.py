"""Posts of events, here those of the webhook, received by a real HTTP server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.retry import Retry
from headrace.serve import event_poster as module
from headrace.serve.event_poster import EventPoster
from headrace.serve.webhook import state_json
from services.certs import Certificates
from services.monitored import batch, progress, retry, state
from services.wait import eventually
from services.webhook_receiver import PATH, Receiver, served


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.open.set()
    with served(receiver):
        yield receiver


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF", Retry(0.01, 0.05))


def poster(url: str, **options: Any) -> EventPoster:
    return EventPoster("--webhook", url, state_json, "application/json", **options)


@contextmanager
def started(url: str, token: str | None = None) -> Iterator[tuple[EventPoster, list[str]]]:
    """A webhook, and the texts of its warnings."""
    warnings: list[str] = []
    webhook = poster(url, token=token, report=lambda event: warnings.append(event["text"]))
    webhook.start()
    try:
        yield webhook, warnings
    finally:
        webhook.stop()


def test_changes_of_the_state_are_posted_in_order(receiver: Receiver) -> None:
    with started(receiver.url, "token-of-the-hook\n") as (webhook, warnings):
        for event in (state("starting"), progress(), batch(1), retry(), state("failed", "SourceGap: Gone.")):
            webhook(event)
        eventually(lambda: len(receiver.requests) == 2, 60, lambda: str(receiver.requests))
    (path, headers, first), (_, _, second) = receiver.requests
    assert path == PATH
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer token-of-the-hook"
    assert headers["User-Agent"].startswith("headrace/")
    assert first.pop("time").endswith("Z")
    assert first == {"event": "state", "pipeline": "shop", "state": "starting", "reason": None}
    assert (second["state"], second["reason"]) == ("failed", "SourceGap: Gone.")
    assert warnings == []


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_temporary_failure_is_retried_until_it_succeeds(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status] * 3
    with started(receiver.url) as (webhook, warnings):
        webhook(state("paused"))
        webhook(state("running"))
        eventually(lambda: len(receiver.requests) == 5, 60, lambda: str(receiver.requests))
    assert [each["state"] for each in receiver.posted()] == ["paused"] * 4 + ["running"]
    (warning,) = warnings
    assert warning == f"--webhook: 127.0.0.1:{receiver.port} responds with status {status}; retrying until it succeeds"


@pytest.mark.parametrize("status", [301, 400, 404])
def test_a_refused_event_is_dropped_with_a_warning(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    with started(receiver.url) as (webhook, warnings):
        webhook(state("paused"))
        webhook(state("running"))
        eventually(lambda: len(receiver.requests) == 2, 60, lambda: str(receiver.requests))
    (warning,) = warnings
    assert warning.endswith(f"responds with status {status}; an event of shop is dropped")
    assert "s3cr3t" not in warning


def test_a_server_that_starts_later_gets_the_events() -> None:
    receiver = Receiver()
    with served(receiver):
        pass  # its port is free now
    with started(receiver.url) as (webhook, warnings):
        webhook(state("failed"))
        eventually(lambda: warnings, 60, "a warning")
        with served(receiver):
            eventually(lambda: receiver.posted(), 60, "the event")
    assert len(warnings) == 1
    assert "does not respond" in warnings[0]


def test_a_server_that_hangs_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITING", 10)
    with served(Receiver()) as receiver, started(receiver.url) as (webhook, warnings):
        for number in range(100):  # returns although nothing is answered
            webhook(state("running", str(number)))
        assert receiver.requests == []
        receiver.open.set()
        eventually(lambda: [each["reason"] for each in receiver.posted()][-1:] == ["99"], 60, lambda: str(warnings))
        assert [each["reason"] for each in receiver.posted()][-10:] == [str(number) for number in range(90, 100)]
        assert len(receiver.requests) <= 11
    assert warnings == ["--webhook: 10 events wait; the oldest ones are dropped"]


def test_the_end_posts_what_waits_and_retries_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_SECONDS", 60.0)  # for slow machines
    with started(receiver.url) as (webhook, _):
        for name in ("starting", "running", "stopped"):
            webhook(state(name))
    assert [each["state"] for each in receiver.posted()] == ["starting", "running", "stopped"]
    receiver.statuses = [503] * 1_000
    with started(receiver.url) as (webhook, _):
        webhook(state("stopped"))
    assert len(receiver.requests) == 4


def test_tls_verifies_the_server(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    receiver = Receiver()
    receiver.open.set()
    with served(receiver, context):
        url = f"https://localhost:{receiver.port}{PATH}"
        with started(url) as (webhook, warnings):
            webhook(state("running"))
            eventually(lambda: warnings, 60, "a warning")
        assert "CERTIFICATE_VERIFY_FAILED" in warnings[0]
        assert receiver.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        with started(url) as (webhook, _):
            webhook(state("running"))
            eventually(lambda: receiver.posted(), 60, "the event")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://s3cr3t.example/hook", "invalid URL, which is not shown"),
        ("s3cr3t.example", "invalid URL"),
        ("https://ann:s3cr3t@hooks.example/x", "Set a token in its environment variable"),
        ("http://hooks.example:x/s3cr3t", "invalid URL"),
        ("http://hooks.example/s3cr3t", "events would be sent to hooks.example unencrypted"),
    ],
)
def test_an_invalid_url_is_not_shown(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        poster(url)
    assert "s3cr3t" not in str(raised.value)
    poster("http://hooks.example/s3cr3t", plaintext=True)
