"""The hot store of a running pipeline: a thread that follows the Delta tables, beside the batches.

Nothing of it is in the path of a batch, so neither delays the other. With `policy: required` a batch waits, before it
starts, until PostgreSQL has all earlier ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg

from headrace.errors import HeadraceError, HotStoreTableInvalid, StopRequested, TransientError
from headrace.hot_store import analytics
from headrace.hot_store.follower import Step, TableFollower
from headrace.hot_store.positions import TablePosition
from headrace.hot_store.postgres import Connection, connect, named_errors
from headrace.retry import Retry
from headrace.spec import Spec
from headrace.spec.hot_store import fixed_table_name
from headrace.storage.store import Profile, Store

_POLL = 5.0  # seconds; between two looks at commits of other writers
_EXPIRE_INTERVAL = 60.0
_REFRESH_INTERVAL = 60.0  # of the summary view
_GRACE = 5.0  # seconds for the last commits when the pipeline ends


def hot_table_name(spec: Spec, uri: str) -> str | None:
    """The hot table of a Delta table; None if the pipeline writes no rows of records there."""
    if (route_id := spec.route_of(uri)) is None or spec.hot_store is None:
        return None
    settings = spec.hot_store.postgres
    if settings.table is not None:
        return settings.table
    if settings.preset == "analytics":
        return analytics.DEFAULT_TABLE
    return fixed_table_name(spec.branch_specs()[route_id.branch].base_uri, uri)


class PostgresHotStore:
    """Follows the tables of one pipeline; `catch_up` without the thread, or the thread from `start` to `close`."""

    def __init__(self, spec: Spec, report: Callable[[dict[str, Any]], None]) -> None:
        assert spec.hot_store is not None  # noqa: S101
        self._pipeline, self._spec = spec, spec.hot_store.postgres
        self._report = report
        self._profile = Profile(**spec.storage_profile())
        unreachable = spec.retry.unreachable
        self._policy = Retry(unreachable.initial_interval.total_seconds(), unreachable.max_interval.total_seconds())
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._followers: dict[str, TableFollower] = {}
        self._connection: Connection | None = None
        self._expired_at = self._refreshed_at = float("-inf")
        self._needs_refresh = False
        # Calls of `follow`, and up to which of them PostgreSQL has everything, or an attempt has failed.
        self._wanted, self._done, self._failed = 0, 0, 0
        self._failure: HeadraceError | None = None
        self._thread: threading.Thread | None = None

    # ---- for the pipeline ----

    def follow(self, tables: Iterable[str]) -> None:
        """Follow these tables from now on; their newest commits are written as soon as possible."""
        self.add(tables)
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()
        if self._thread is None:
            name = f"hot store of {self._pipeline.pipeline}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()

    def add(self, tables: Iterable[str]) -> None:
        """Follow these tables, too."""
        followers = dict(self._followers)
        for uri in tables:
            name = hot_table_name(self._pipeline, uri)
            if name is not None and uri not in followers:
                store = Store(uri, self._profile)
                followers[uri] = TableFollower(self._spec, self._pipeline.pipeline, store, name, self._stop)
        self._followers = followers  # replaced as a whole: the thread may iterate over the old ones

    def wait(self, stop: threading.Event) -> None:
        """With `required`: wait until PostgreSQL has every commit so far; raises the error that prevents it."""
        if self._spec.policy == "required":
            self._wait(stop)

    def finish(self, stop: threading.Event) -> None:
        """At the end of a bounded run: wait for the last commits; with `best_effort`, for one attempt."""
        if self._spec.policy == "required":
            self._wait(stop)
        else:
            self._wait_for_attempt(stop)

    def close(self) -> None:
        """Write the last commits if that takes no longer than a few seconds, and disconnect."""
        if self._thread is not None:
            self._wait_for_attempt(threading.Event(), _GRACE)
            self._stop.set()
            with self._changed:
                self._changed.notify_all()
            self._thread.join(_GRACE)

    def _wait(self, stop: threading.Event) -> None:
        with self._changed:
            wanted = self._wanted
            while self._done < wanted:
                if self._failure is not None and not isinstance(self._failure, TransientError):
                    raise self._failure
                if stop.is_set():
                    raise StopRequested("Stopped while waiting for the hot store.")
                self._changed.wait(0.1)

    def _wait_for_attempt(self, stop: threading.Event, seconds: float = float("inf")) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            wanted = self._wanted
            while max(self._done, self._failed) < wanted and not stop.is_set() and time.monotonic() < until:
                self._changed.wait(0.1)

    # ---- the thread ----

    def _work(self) -> None:
        intervals = self._policy.intervals()
        while not self._stop.is_set():
            wanted = self._wanted
            failure = self._attempt()
            if failure is None and self._failure is not None and not self._stop.is_set():
                self._report({"event": "hot_store", "pipeline": self._pipeline.pipeline, "state": "recovered"})
            with self._changed:
                self._failure = failure
                if failure is None:
                    self._done = wanted
                else:
                    self._failed = wanted
                self._changed.notify_all()
            if failure is None:
                intervals = self._policy.intervals()
                self._wait_for_commits(wanted)
            elif not self._stop.is_set():
                self._stop.wait(self._retry_in(failure, intervals))
        self.disconnect()

    def _wait_for_commits(self, wanted: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted != wanted or self._stop.is_set(), _POLL)

    def _retry_in(self, failure: HeadraceError, intervals: Iterator[float]) -> float:
        """Seconds until the next attempt; reports the failure."""
        transient = isinstance(failure, TransientError)
        seconds = next(intervals) if transient else self._policy.max_interval
        event = {"pipeline": self._pipeline.pipeline, "error": failure.name, "message": str(failure)}
        if transient:
            self._report({"event": "retry", **event, "seconds": round(seconds, 1)})
        else:
            table = failure.facts.get("table")
            self._report({"event": "hot_store", "state": "failed", "table": table, **event, "retry_in": seconds})
        return seconds

    def _attempt(self) -> HeadraceError | None:
        try:
            self.catch_up()
        except StopRequested:
            return None
        except HeadraceError as error:
            self.disconnect()
            return error
        except Exception as error:  # a bug: reported, and batches continue
            self.disconnect()
            return HeadraceError(f"{type(error).__name__}: {error}", hint="This is a bug in Headrace; report it.")
        return None

    def catch_up(self) -> None:
        """Write all commits that PostgreSQL does not have. A table that cannot be written does not stop the others."""
        connection = self._connected()
        failure: HotStoreTableInvalid | None = None
        for uri, follower in self._followers.items():
            try:
                while not self._stop.is_set() and (step := follower.step(connection)):
                    self._needs_refresh = True
                    self._report(self._event(uri, follower, step))
            except HotStoreTableInvalid as error:
                failure = failure or HotStoreTableInvalid(error.message, hint=error.hint, table=uri)
        if failure is not None:
            raise failure
        self._expire(connection)
        self._refresh(connection)

    def _event(self, uri: str, follower: TableFollower, step: Step) -> dict[str, Any]:
        return {
            "event": "hot_store",
            "pipeline": self._pipeline.pipeline,
            "state": "loaded" if step.loaded else "applied",
            "table": uri,
            "hot_table": f"{self._spec.schema_name}.{follower.name}",
            "version": step.version,
            "rows": step.rows,
            "removed": step.removed,
            "rejected": step.rejected,
            "lag_commits": step.lag_commits,
            "lag_seconds": round(step.lag_seconds, 3),
            "seconds": round(step.seconds, 3),
        }

    def _expire(self, connection: Connection) -> None:
        """Delete what is older than `retention`, in steps; new commits come first."""
        if self._spec.retention is None or time.monotonic() - self._expired_at < _EXPIRE_INTERVAL:
            return
        wanted = self._wanted
        for uri, follower in self._followers.items():
            deleted = 0
            while rows := follower.expire(connection, datetime.now(UTC)):
                deleted += rows
                if self._stop.is_set() or wanted != self._wanted:
                    return
            if deleted:
                self._report(
                    {
                        "event": "hot_store",
                        "pipeline": self._pipeline.pipeline,
                        "state": "expired",
                        "table": uri,
                        "hot_table": f"{self._spec.schema_name}.{follower.name}",
                        "rows": deleted,
                    }
                )
        self._expired_at = time.monotonic()

    def _refresh(self, connection: Connection) -> None:
        """Refresh the summary view of the preset, after changes."""
        is_due = time.monotonic() - self._refreshed_at >= _REFRESH_INTERVAL
        if self._spec.preset == "analytics" and self._needs_refresh and is_due:
            with named_errors(self._spec):
                analytics.refresh_summary(connection, self._spec.schema_name)
            self._needs_refresh, self._refreshed_at = False, time.monotonic()

    # ---- connection ----

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = connect(self._spec, self._pipeline.pipeline)
            try:
                with named_errors(self._spec):
                    TablePosition.prepare(connection, self._spec)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def disconnect(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
