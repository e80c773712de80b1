"""The pipelines of one process, each of which is started, paused, restarted and stopped without the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from headrace.dead_letters.reader import Selection
from headrace.dead_letters.replay import replay
from headrace.errors import HeadraceError, SpecError, StopRequested, UsageError
from headrace.maintain.scheduler import MaintenanceScheduler
from headrace.pipeline.context import HotStore
from headrace.pipeline.control import State
from headrace.pipeline.events import Report, Summary
from headrace.pipeline.overwrite import check_bounded
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark_session import SharedSession
from headrace.recovery.startup import StartupRecovery
from headrace.serve.monitor import Monitor
from headrace.serve.supervised_pipeline import RunResult, SupervisedPipeline, SupervisedState
from headrace.spec import Spec

_STOP_TIMEOUT = 28.0  # seconds; a request to stop is completed within 30
_TICK = 0.25  # seconds between checks for requests to stop, which signal handlers make


class Supervisor:
    """Pipelines on one Spark session, by name; its methods may be called from any thread."""

    def __init__(
        self,
        shared: SharedSession,
        *,
        until: str | None = None,
        report: Report = lambda event: None,
        stop: threading.Event | None = None,
        restarts: bool = False,
        monitor: Monitor | None = None,
    ) -> None:
        """`restarts`: start pipelines again after errors that a restart may resolve, with exponential backoff.

        `monitor`: observes the events of the run; it is told which pipelines there are.
        """
        if until not in (None, "latest"):
            raise UsageError(f"Invalid until: '{until}'.", hint="Use 'latest', or omit it to run continuously.")
        self.process_stop = stop or threading.Event()
        self.monitor = monitor or Monitor()
        self.is_endless = False  # whether it waits for further pipelines when all have ended
        self._shared, self._until, self._report, self._restarts = shared, until, report, restarts
        self._recovery = StartupRecovery()
        self._pipelines: dict[str, SupervisedPipeline] = {}
        self._removed: list[RunResult] = []
        self._turn = threading.RLock()
        self._changed = threading.Event()  # a pipeline has ended

    # ---- pipelines ----

    def start(self, specs: Sequence[Spec], wait: bool = False) -> None:
        """Start pipelines together: LeaseHeld if one lease is held, unless `wait`; then none of them starts."""
        added: list[SupervisedPipeline] = []
        try:
            for spec in specs:
                added.append(self._add(spec))
            for pipeline in added:
                pipeline.take_lease(wait)
        except BaseException as error:
            for pipeline in added:
                pipeline.release_lease()
            if isinstance(error, StopRequested):
                return
            raise
        for pipeline in added:
            pipeline.start()

    def expect(self, specs: Sequence[Spec]) -> None:
        """Prepare for pipelines that are about to be added: Spark starts once, with the jars that all of them need."""
        for spec in specs:
            self._shared.add(spec)

    def add(self, spec: Spec, reason: str | None = None) -> None:
        """Start one more pipeline; SpecError if its name or its state is in use."""
        with self._turn:
            self._forget_removed()
            if (removed := self._pipelines.get(spec.pipeline)) is not None and removed.is_removed:
                self.change(spec, reason)  # it has not ended yet
            else:
                self._add(spec).start(reason)

    def _add(self, spec: Spec) -> SupervisedPipeline:
        check_bounded(spec, self._until)
        with self._turn:
            self._check_distinct(spec)
            self._shared.add(spec)
            self.monitor.add(spec)
            pipeline = SupervisedPipeline(
                spec,
                self._build,
                bounded=self._until is not None,
                restarts=self._restarts,
                report=self._report,
                process_stop=self.process_stop,
                on_end=self._changed.set,
            )
            self._pipelines[spec.pipeline] = pipeline
            return pipeline

    def _check_distinct(self, spec: Spec, known: SupervisedPipeline | None = None) -> None:
        for pipeline in self._pipelines.values():
            if pipeline.is_removed or pipeline is known:
                continue
            if pipeline.spec.state_uri == spec.state_uri:
                raise SpecError(
                    f"Two specs have the same state: {spec.state_uri}.",
                    hint="Pass each pipeline once, or set `state` for one.",
                )
            if (spool := spec.source.spool_path) is not None and pipeline.spec.source.spool_path == spool:
                raise SpecError(f"Two specs have the same spool: {spool}.", hint="Set `spool.path` of one to another.")
            if pipeline.spec.pipeline == spec.pipeline:
                raise SpecError(
                    f"Two specs have the same pipeline name: {spec.pipeline}.", hint="Rename one of the pipelines."
                )

    def _build(self, supervised: SupervisedPipeline) -> Pipeline:
        spec = supervised.spec
        return Pipeline(
            spec,
            self._shared.get,
            recovery=self._recovery,
            maintenance=None if spec.maintenance is None else MaintenanceScheduler(spec.maintenance),
            hot_store=_hot_store(spec, self._report),
            until=self._until,
            report=self._report,
            stop=supervised.stop_request,
            pause=supervised.pause_request,
            on_state=supervised.on_state,
            summary=supervised.result.summary,
            prepare_spark=self._shared.prepare,
        )

    def change(self, spec: Spec, reason: str | None = None) -> None:
        """Restart a pipeline, by its name, with a changed spec after its current batch; a pause stays requested."""
        with self._turn:
            pipeline = self._get(spec.pipeline)
            self._check_distinct(spec, pipeline)
            self._shared.add(spec)
            self.monitor.add(spec)
            pipeline.restart(spec, reason)

    def remove(self, name: str, reason: str | None = None) -> None:
        """Stop a pipeline after its current batch; it is forgotten once it has ended."""
        self._get(name).stop(reason)
        self._changed.set()

    def pause(self, name: str) -> SupervisedState:
        """Pause a pipeline after its current batch; UsageError if it has ended."""
        pipeline = self._get(name)
        if pipeline.has_ended:
            raise _not_running(pipeline.state, "paused")
        pipeline.pause()
        return pipeline.state

    def resume(self, name: str) -> SupervisedState:
        """Continue a paused pipeline; UsageError if it has ended."""
        pipeline = self._get(name)
        if pipeline.has_ended:
            raise _not_running(pipeline.state, "resumed")
        pipeline.resume()
        return pipeline.state

    def restart(self, name: str) -> SupervisedState:
        """Stop a pipeline after its current batch and start it again; also one that an error has ended."""
        pipeline = self._get(name)
        pipeline.resume()
        pipeline.restart(reason="restart requested")
        return pipeline.state

    def replay(self, name: str, selection: Selection) -> Summary:
        """Replay dead letters between two runs of a pipeline; one that has ended is not started afterwards."""
        pipeline = self._get(name)
        result: Future[Summary] = Future()

        def interlude(is_ending: bool) -> None:
            if is_ending:
                result.set_exception(
                    UsageError(f"{name} ended before the replay.", hint="Replay after its next start.")
                )
                return
            try:
                result.set_result(
                    replay(pipeline.spec, selection, report=self._report, stop=self.process_stop, shared=self._shared)
                )
            except Exception as error:  # raised to the caller
                result.set_exception(error)

        pipeline.interrupt(interlude, "dead letters were replayed")
        return result.result()

    def _get(self, name: str) -> SupervisedPipeline:
        with self._turn:
            if (pipeline := self._pipelines.get(name)) is None:
                running = ", ".join(sorted(self._pipelines)) or "none"
                raise UsageError(f"This process has no pipeline '{name}'.", hint=f"Its pipelines: {running}.")
            return pipeline

    def states(self) -> list[SupervisedState]:
        """The states of all pipelines, by name."""
        with self._turn:
            return [self._pipelines[name].state for name in sorted(self._pipelines)]

    def specs(self) -> dict[str, Spec]:
        """The specs of all pipelines that are not being removed, by name."""
        with self._turn:
            return {name: each.spec for name, each in self._pipelines.items() if not each.is_removed}

    def spec_of(self, name: str) -> Spec:
        """The spec that a pipeline runs or will run next; UsageError for an unknown name."""
        return self._get(name).spec

    def _forget_removed(self) -> None:
        """Forget the pipelines that were removed and have ended."""
        with self._turn:
            for name, pipeline in list(self._pipelines.items()):
                if pipeline.is_removed and pipeline.has_ended:
                    del self._pipelines[name]
                    self._shared.remove(name)
                    self.monitor.remove(name)
                    self._removed.append(pipeline.result)

    # ---- the end ----

    def join(self, abandon: threading.Event | None = None) -> bool:
        """Wait until all pipelines have ended; False if some still run when `abandon` is set, or 28 s after a stop."""
        stopped_at: float | None = None
        while not self._is_over():
            self._changed.wait(_TICK)  # a wait without timeout would block signal handlers
            self._changed.clear()
            self._forget_removed()
            stopped_at = stopped_at or (time.monotonic() if self.process_stop.is_set() else None)
            late = stopped_at is not None and time.monotonic() - stopped_at > _STOP_TIMEOUT
            if abandon is not None and (abandon.is_set() or late):
                return self._is_over()
        return True

    def _is_over(self) -> bool:
        is_waiting = self.is_endless and not self.process_stop.is_set()
        return not is_waiting and all(pipeline.has_ended for pipeline in self._all())

    def results(self) -> list[RunResult]:
        """Results so far, in the order in which the pipelines were added; of removed ones first."""
        for pipeline in self._all():
            pipeline.result.aborted = not pipeline.has_ended
        return [*self._removed, *(pipeline.result for pipeline in self._all())]

    def _all(self) -> list[SupervisedPipeline]:
        with self._turn:
            return list(self._pipelines.values())


def _not_running(state: SupervisedState, what: str) -> HeadraceError:
    cause = f": {state.reason}" if state.reason else ""
    hint = f"{state.hint} " if state.hint else ""
    done = "failed" if state.state is State.FAILED else "stopped"
    return UsageError(
        f"{state.pipeline} cannot be {what}: it has {done}{cause}",
        hint=f"{hint}Then use `headrace restart {state.pipeline}`.",
    )


def _hot_store(spec: Spec, report: Report) -> HotStore | None:
    if spec.hot_store is None:
        return None
    from headrace.hot_store.hot_store import PostgresHotStore  # imports psycopg

    return PostgresHotStore(spec, report)
