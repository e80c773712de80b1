"""One or several pipelines in one process, on one Spark session."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, SpecError, UsageError
from headrace.generations import check_bounded
from headrace.maintain import maintained
from headrace.pipeline import Pipeline
from headrace.spec import Spec
from headrace.spec.load import load
from headrace.storage import Profile, Store
from headrace.summary import Report, Summary
from headrace.tables.adopt import may_adopt
from headrace.tables.log import load as load_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Outcome:
    """How one pipeline ended."""

    summary: Summary
    error: HeadraceError | None = None
    died: BaseException | None = None  # given up in a way that nothing answers: raised again to the caller


def run(spec: Spec | str | Path, until: str | None = None, report: Report = lambda event: None) -> Summary:
    """Run one pipeline; `until="latest"` drains what is there at the start. Raises what stopped it."""
    given = spec if isinstance(spec, Spec) else _only(load(Path(spec)))
    outcome = run_all([given], until=until, report=report)[0]
    if outcome.error is not None:
        raise outcome.error
    return outcome.summary


def _only(specs: Sequence[Spec]) -> Spec:
    if len(specs) != 1:
        raise UsageError(f"The file holds {len(specs)} pipelines; give one of them, as headrace.load(path)[n].")
    return specs[0]


def run_all(
    specs: Sequence[Spec],
    *,
    until: str | None = None,
    report: Report = lambda event: None,
    stop: threading.Event | None = None,
    wait: bool = False,
) -> list[Outcome]:
    """Run them side by side: a lease that is held keeps all from starting; one that stops leaves the others."""
    if until not in (None, "latest"):
        raise UsageError(f"until: '{until}' is not known.", next="Use 'latest', or leave it out to run for ever.")
    _distinct(specs)
    for spec in specs:
        check_bounded(spec, until)
    stop = stop or threading.Event()
    shared = SharedSession(specs)
    pipelines = [maintained(Pipeline(spec, shared.get, until=until, report=report, stop=stop)) for spec in specs]
    with ExitStack() as leases:
        for pipeline in pipelines:
            leases.enter_context(pipeline.take_lease(wait))
        outcomes = [Outcome(pipeline.summary) for pipeline in pipelines]
        threads = [
            threading.Thread(target=_run_one, args=each, name=each[0].spec.pipeline, daemon=True)
            for each in zip(pipelines, outcomes, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a bare join would keep signals from being answered
                thread.join(0.2)
    shared.close()
    for outcome in outcomes:
        if outcome.died is not None:
            raise outcome.died
    return outcomes


def _run_one(pipeline: Pipeline, outcome: Outcome) -> None:
    try:
        pipeline.run()
    except HeadraceError as error:
        outcome.error = error
        pipeline.report(stop_event(pipeline.spec.pipeline, error))
    except Exception as error:  # a fault of ours: named, shown, and never taken for an end
        outcome.error = HeadraceError(f"{type(error).__name__}: {error}", next="This is a bug in Headrace; report it.")
        outcome.error.__cause__ = error
        pipeline.report(stop_event(pipeline.spec.pipeline, outcome.error))
    except BaseException as error:
        outcome.died = error


def stop_event(pipeline: str, error: HeadraceError) -> dict[str, Any]:
    """A named stop, as programs read it."""
    return {"event": "stop", "pipeline": pipeline, "reason": error.name, "seen": error.seen, "next": error.next}


def _distinct(specs: Sequence[Spec]) -> None:
    states = [spec.state_uri for spec in specs]
    for spec in specs:
        if states.count(spec.state_uri) > 1:
            raise SpecError(f"Two specs share the state {spec.state_uri}: give each pipeline once, or its own state.")


class SharedSession:
    """The Spark session of all pipelines of a process, started when the first one needs it."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._specs = specs
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def close(self) -> None:
        """Let go of the session; its JVM ends with the last holder."""
        from headrace.runtime import session

        with self._lock:
            if self._spark is not None:
                session.stop(self._spark)
                self._spark = None

    def get(self) -> SparkSession:
        """The session; after its JVM died, a new one."""
        from headrace.runtime import jars, session

        with self._lock:
            if self._spark is None or not session.alive(self._spark):
                spark = self._specs[0].spark
                needs = [spec for spec in self._specs if spark_touches_s3(spec)]
                extra = jars.ensure("s3") if needs else []
                conf = Profile(**needs[0].storage_profile()).hadoop_conf() if needs else {}
                self._spark = session.start(
                    "headrace", cores=spark.cores, memory=spark.memory, extra_jars=extra, conf=conf
                )
            return self._spark


def spark_touches_s3(spec: Spec) -> bool:
    """Whether Spark itself must write a table on S3: one that the spec leaves to it, or that may not be adopted."""
    branches = [each for each in spec.branches().values() if each.table.path.startswith("s3://")]
    if any(rules.by_spark for each in branches for rules in each.all_rules()):
        return True
    profile = Profile(**spec.storage_profile())
    states = [load_table(Store(each.table.path, profile)) for each in branches if each.route.kind == "fixed"]
    return any(state is not None and may_adopt(state) is not None for state in states)
