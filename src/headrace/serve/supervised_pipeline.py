"""One pipeline of a process: start, pause and stop it, and start it again after an error that a restart may resolve."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from headrace.errors import HeadraceError, PipelineStopped, StopRequested
from headrace.pipeline.control import PauseRequest, State, StopRequest
from headrace.pipeline.events import Report, Summary
from headrace.pipeline.pipeline import Pipeline
from headrace.retry import Retry
from headrace.spec import Spec
from headrace.storage.lease import Lease

DRAINED = "all records that were available at the start are processed"
BACKOFF = Retry(initial_interval=1.0, max_interval=60.0)  # between restarts; up to half is subtracted at random
_STABLE_SECONDS = 300.0  # a run that lasted longer had got past the earlier error: the next delay is the first again


@dataclass
class RunResult:
    """Result of one pipeline."""

    summary: Summary
    error: HeadraceError | None = None
    aborted: bool = False  # still running when the process ends; the next run finishes its open batch
    died: BaseException | None = None  # not an Exception; raised again to the caller


@dataclass(frozen=True, slots=True)
class SupervisedState:
    """A pipeline of a process as commands show it."""

    pipeline: str
    state: State
    reason: str | None  # why it is in this state; of an error, its name and message
    hint: str | None  # how to resolve the error
    since: datetime
    restarts: int  # after errors, since the process has started
    is_pausing: bool = False  # whether a pause is requested and its current batch has not ended yet
    is_restarting: bool = False  # whether a restart is requested and its current batch has not ended yet

    def event(self) -> dict[str, Any]:
        """The event of a change to this state."""
        return {"event": "state", "pipeline": self.pipeline, "state": self.state.value, "reason": self.reason}


BuildPipeline = Callable[["SupervisedPipeline"], Pipeline]
Interlude = Callable[[bool], None]  # work between two runs; gets whether the process is ending instead


class SupervisedPipeline:
    """A spec that runs in a thread of its own, under the lease of the pipeline."""

    def __init__(
        self,
        spec: Spec,
        build: BuildPipeline,
        *,
        bounded: bool,
        restarts: bool,
        report: Report,
        process_stop: threading.Event,
        on_end: Callable[[], None],
    ) -> None:
        """`restarts`: after errors that a restart may resolve. `bounded`: a run that ends by itself."""
        self.spec = spec
        self.result = RunResult(Summary(spec.pipeline, drained=False if bounded else None))
        self.pause_request = PauseRequest()
        self.stop_request = StopRequest(process_stop)
        self._build, self._restarts, self._report = build, restarts, report
        self._process_stop, self._on_end = process_stop, on_end
        self._turn = threading.RLock()
        self.is_removed = False  # whether it was removed and never starts again
        self._is_asked_again = False
        self._reason: str | None = None  # why it was asked to start again
        self._leased: tuple[Pipeline, Lease] | None = None  # for the first run, if its lease was taken before
        self._thread: threading.Thread | None = None
        self._interludes: list[Interlude] = []  # to call without the lease, before the next start
        self._intervals = BACKOFF.intervals()
        self._state = SupervisedState(spec.pipeline, State.STARTING, None, None, datetime.now(UTC), 0)

    # ---- requests ----

    @property
    def state(self) -> SupervisedState:
        """The state now."""
        pausing = self.pause_request.is_set and self._state.state is not State.PAUSED
        pausing = pausing and not self.has_ended
        return replace(self._state, is_pausing=pausing, is_restarting=self._is_asked_again)

    @property
    def has_ended(self) -> bool:
        """Whether it neither runs nor will be started again by itself."""
        return self._thread is None

    def take_lease(self, wait: bool) -> None:
        """Take the lease in the thread of the caller, for a start that depends on the leases of several pipelines."""
        pipeline = self._build(self)
        self._leased = pipeline, pipeline.take_lease(wait)

    def release_lease(self) -> None:
        """Release a lease that was taken for a start that does not happen."""
        if self._leased is not None:
            self._leased[1].__exit__(None, None, None)
            self._leased = None

    def start(self, reason: str | None = None) -> None:
        """Start in a new thread."""
        with self._turn:
            self._set_state(State.STARTING, reason)
            self._thread = threading.Thread(target=self._work, name=self.spec.pipeline, daemon=True)
            self._thread.start()

    def stop(self, reason: str | None = None) -> None:
        """Stop after the current batch, and do not start again."""
        with self._turn:
            self.is_removed, self._is_asked_again = True, False
            self.stop_request.set()
            if self._thread is None:
                self._set_state(State.STOPPED, reason)

    def restart(self, spec: Spec | None = None, reason: str | None = None) -> None:
        """Stop after the current batch and start again, with another spec if one is given; also after an error."""
        with self._turn:
            self.spec, self.is_removed = spec or self.spec, False
            self._intervals = BACKOFF.intervals()
            if self._thread is None:
                self.stop_request = StopRequest(self._process_stop)
                self.start(reason)
            else:
                self._is_asked_again, self._reason = True, reason
                self.stop_request.set()

    def interrupt(self, interlude: Interlude, reason: str) -> None:
        """Stop after the current batch, call the interlude and start again; one that has ended is not started."""
        with self._turn:
            if self._thread is not None:
                self._interludes.append(interlude)
                self._is_asked_again, self._reason = True, reason
                self.stop_request.set()
                return
        interlude(False)

    def pause(self) -> None:
        """Pause after the current batch; the lease is kept."""
        self.pause_request.set()

    def resume(self) -> None:
        """End a pause."""
        self.pause_request.lift()

    # ---- the thread ----

    def _work(self) -> None:
        while True:
            began = time.monotonic()
            error = self.result.error = self._run_once()
            if time.monotonic() - began > _STABLE_SECONDS:
                self._intervals = BACKOFF.intervals()
            is_restarted = error is not None and self._is_restarted(error)
            if error is not None and is_restarted:
                self._set_state(State.RESTARTING, error_reason(error), error.hint, restarts=self._state.restarts + 1)
                self.stop_request.wait(next(self._intervals))
            while interludes := self._proceed(error, is_restarted):
                for interlude in interludes:
                    interlude(not self._is_continued(is_restarted))
            if self.has_ended:
                break
        self._on_end()

    def _proceed(self, error: HeadraceError | None, is_restarted: bool) -> list[Interlude]:
        """Start again, or end; returns the interludes that must be called before."""
        with self._turn:
            interludes, self._interludes = self._interludes, []
            if interludes:
                return interludes
            if self._is_continued(is_restarted):
                self._is_asked_again = False
                self.stop_request = StopRequest(self._process_stop)
                self._set_state(State.STARTING, self._reason)
                self._reason = None
            else:
                self._end(error)
            return []

    def _run_once(self) -> HeadraceError | None:
        """Run to the end; the error that ended it."""
        error: HeadraceError | None = None
        try:
            pipeline, lease = self._leased or self._under_lease()
            self._leased = None
            with lease:
                pipeline.run()
        except StopRequested:
            return None
        except HeadraceError as failure:
            error = failure
        except Exception as bug:  # reported, and not taken for a normal end
            error = HeadraceError(f"{type(bug).__name__}: {bug}", hint="This is a bug in Headrace; report it.")
            error.__cause__ = bug
        except BaseException as death:
            self.result.died = death
        if error is not None:
            self._report(error_event(self.spec.pipeline, error))
        return error

    def _under_lease(self) -> tuple[Pipeline, Lease]:
        pipeline = self._build(self)
        return pipeline, pipeline.take_lease()

    def _is_restarted(self, error: HeadraceError) -> bool:
        return self._restarts and restart_may_help(error) and not self.stop_request.is_set()

    def _is_continued(self, is_restarted: bool) -> bool:
        """Whether it is started again, after an error or by request."""
        if self.is_removed or self._process_stop.is_set() or self.result.died is not None:
            return False
        return self._is_asked_again or is_restarted

    def _end(self, error: HeadraceError | None) -> None:
        if error is None or self.stop_request.is_set():
            self._set_state(State.STOPPED, DRAINED if self.result.summary.drained else None)
        else:
            self._set_state(State.FAILED, error_reason(error), error.hint)
        self._thread = None

    def on_state(self, state: State) -> None:
        """Take over a state that the running pipeline reports."""
        if state is not self._state.state:
            self._set_state(state)

    def _set_state(
        self, state: State, reason: str | None = None, hint: str | None = None, *, restarts: int | None = None
    ) -> None:
        restarts = self._state.restarts if restarts is None else restarts
        self._state = SupervisedState(self.spec.pipeline, state, reason, hint or None, datetime.now(UTC), restarts)
        self._report(self._state.event())


def restart_may_help(error: HeadraceError) -> bool:
    """Whether a pipeline that this error has stopped is worth a restart: nobody has to decide or change anything.

    Failures without a name of their own, which are bugs and unknown failures of Spark, may not occur again either.
    """
    return error.restartable or type(error) in (HeadraceError, PipelineStopped)


def error_reason(error: HeadraceError) -> str:
    """An error as the reason of a state."""
    return f"{error.name}: {error.message}"


def error_event(pipeline: str, error: HeadraceError) -> dict[str, Any]:
    """An error as an event."""
    return {"event": "error", "pipeline": pipeline, "error": error.name, "message": error.message, "hint": error.hint}
