"""Posts what is reported to an HTTP server, from a thread of its own: for webhooks, traces and lineage."""

from __future__ import annotations

import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import UsageError
from headrace.pipeline.events import Report
from headrace.retry import Retry
from headrace.spec.uris import is_loopback
from headrace.version import VERSION

_WAITING = 1_000  # events; of more, the oldest are dropped
_TIMEOUT = 10.0  # seconds for a response
_LAST_SECONDS = 2.0  # at the end of the process, for the events that wait
_BACKOFF = Retry(initial_interval=1.0, max_interval=60.0)
_TEMPORARY = (408, 425, 429)  # and 5xx: the same request may succeed later

Encode = Callable[[Mapping[str, Any]], bytes | None]


@dataclass(frozen=True, slots=True)
class _Target:
    """Where events are posted to."""

    is_tls: bool
    host: str
    port: int | None
    path: str  # with the query

    @property
    def name(self) -> str:
        """The host for messages, without the path."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    def connection(self) -> HTTPConnection:
        """A new connection."""
        if self.is_tls:
            return HTTPSConnection(self.host, self.port, timeout=_TIMEOUT, context=ssl.create_default_context())
        return HTTPConnection(self.host, self.port, timeout=_TIMEOUT)


@dataclass(frozen=True, slots=True)
class _Post:
    """A request that waits."""

    pipeline: str
    body: bytes


def _target(option: str, url: str, plaintext: bool) -> _Target:
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https") or parts.username is not None:
        raise UsageError(
            f"{option}: invalid URL, which is not shown, as it may be a secret.",
            hint="Use https://host/path. Set a token in its environment variable, not in the URL.",
        )
    if parts.scheme == "http" and not plaintext and not is_loopback(host):
        raise UsageError(
            f"{option}: events would be sent to {host} unencrypted.", hint="Use https://, or add --export-plaintext."
        )
    path = parts.path or "/"
    return _Target(parts.scheme == "https", host, port, f"{path}?{parts.query}" if parts.query else path)


class EventPoster:
    """Takes the events of a run (`Report`) and posts them in order; it never waits."""

    def __init__(
        self,
        option: str,
        url: str,
        encode: Encode,
        media_type: str,
        *,
        token: str | None = None,
        plaintext: bool = False,
        report: Report = lambda event: None,
    ) -> None:
        """UsageError for an invalid URL, and for an unencrypted one to another host unless `plaintext`.

        `encode`: the body of a post; None for events that are not posted. `option`: the one that has the URL. The URL
        itself is not shown: those of many services are secrets. `report`: gets a warning when a post fails.
        """
        self.report = report
        self._option, self._encode = option, encode
        self._target = _target(option, url, plaintext)
        self._headers = {"Content-Type": media_type, "User-Agent": f"headrace/{VERSION}"}
        if token:
            self._headers["Authorization"] = f"Bearer {token.strip()}"
        self._posts: deque[_Post] = deque()
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._intervals: Iterator[float] | None = None  # of retries, while posts fail
        self._is_dropping = False
        self._thread = threading.Thread(target=self._run, name=f"headrace{option}", daemon=True)

    def start(self) -> None:
        """Post from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Post what waits, for at most two seconds, and end."""
        self._ending.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take an event."""
        if (body := self._encode(event)) is None:
            return
        with self._changed:
            self._posts.append(_Post(event["pipeline"], body))
            is_full = len(self._posts) > _WAITING
            is_new = is_full and not self._is_dropping
            self._is_dropping = is_full
            if is_full:
                self._posts.popleft()
            self._changed.notify_all()
        if is_new:
            self._warn(f"{_WAITING:,} events wait; the oldest ones are dropped")

    # ---- the thread ----

    def _run(self) -> None:
        while (post := self._oldest()) is not None:
            problem, is_temporary = self._send(post)
            if problem is None or not is_temporary:
                self._finish(post, problem)
            elif self._ending.is_set():
                return
            else:
                self._wait_after(problem)

    def _oldest(self) -> _Post | None:
        """The next post, once there is one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._posts or self._ending.is_set())
            return self._posts[0] if self._posts else None

    def _finish(self, post: _Post, problem: str | None) -> None:
        """Forget a post that was sent or cannot be."""
        self._intervals = None
        with self._changed:
            if self._posts and self._posts[0] is post:  # not dropped meanwhile
                self._posts.popleft()
        if problem is not None:
            self._warn(f"{problem}; an event of {post.pipeline} is dropped")

    def _wait_after(self, problem: str) -> None:
        if self._intervals is None:
            self._intervals = _BACKOFF.intervals()
            self._warn(f"{problem}; retrying until it succeeds")
        self._ending.wait(next(self._intervals))

    def _send(self, post: _Post) -> tuple[str | None, bool]:
        """Send a post; returns what went wrong (None: nothing), and whether another attempt may succeed."""
        try:
            with closing(self._target.connection()) as connection:
                connection.request("POST", self._target.path, post.body, self._headers)
                status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            return f"{self._target.name} does not respond: {error}", True
        if 200 <= status < 300:
            return None, False
        return f"{self._target.name} responds with status {status}", status >= 500 or status in _TEMPORARY

    def _warn(self, text: str) -> None:
        self.report({"event": "warning", "pipeline": None, "text": f"{self._option}: {text}"})
