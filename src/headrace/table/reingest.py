"""Repair with the rows put back: under the lease of the pipeline that had written them, as a batch of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import faults
from headrace.delta.actions import File
from headrace.delta.log import newest_version
from headrace.delta.receipt import Receipt
from headrace.delta.snapshot import active_files, all_txns
from headrace.errors import LeaseHeld, UsageError
from headrace.pipeline.events import Report
from headrace.pipeline.lease import Lease
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark_session import SharedSession
from headrace.recovery.file_origins import file_origins
from headrace.recovery.rebuild_ledger import rebuild
from headrace.recovery.reingest import facts_of, reingest_intent
from headrace.recovery.reingest_plan import Reingest, check_alone, check_kind, plan
from headrace.recovery.startup import StartupRecovery
from headrace.spec import Spec
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, existing_table, held_by
from headrace.table.repair import Repaired, repair
from headrace.validate.load import load
from headrace.write.intent import Intent, IntentKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHAT = "repair with reingest"


def reingested(
    store: Store,
    writers: Callable[[], TableOwners],
    given: Spec | str | os.PathLike[str],
    *,
    dry_run: bool = False,
    deep: bool = False,
    spark: SparkSession | None = None,
    report: Report = lambda event: None,
) -> Repaired:
    """Repair the table, then read again what it has lost, now or by earlier repairs, and put it back."""
    spec = _spec(given, store)
    check_kind(spec, store.uri, existing_table(store).schema.names)
    writers().beside_appends(WHAT)
    shared = SharedSession([spec])
    work = Reingesting(spec, (lambda: spark) if spark else shared.get, store, report=report)
    try:
        if dry_run:
            return work.planned(repair(store, writers(), dry_run=True, deep=deep))
        with _leased(work):
            work.damage = lambda: repair(store, writers(), deep=deep)
            work.run()
            return work.done
    finally:
        work.source.close()
        shared.close()


def _spec(given: Spec | str | os.PathLike[str], store: Store) -> Spec:
    """The one spec of a file that has this table."""
    if isinstance(given, Spec):
        return given
    specs = [each for each in load(Path(given)) if each.route_of(store.uri) is not None]
    if len(specs) != 1:
        raise UsageError(
            f"{given}: {len(specs) or 'none'} of its pipelines write{'' if specs else 's'} {store.uri}.",
            hint="Give the spec of the pipeline that wrote the lost rows.",
        )
    return specs[0]


def _leased(work: Reingesting) -> Lease:
    try:
        return work.take_lease()
    except LeaseHeld as held:
        raise held_by(work.store.uri, work.spec.pipeline, WHAT, held.facts) from None


class Reingesting(Pipeline):
    """A pipeline that reads nothing new: only what one of its tables has lost."""

    damage: Callable[[], Repaired]

    def __init__(self, spec: Spec, spark: Callable[[], Any], store: Store, *, report: Report) -> None:
        super().__init__(spec, spark, recovery=StartupRecovery(), report=report)
        self.store = store
        self._repaired: Repaired | None = None
        self._put_back = 0
        self._version: int | None = None
        self.done = Repaired((), (), (), (), ())

    def planned(self, damage: Repaired) -> Repaired:
        """What could be read again, if the missing files were out of the log."""
        self.open_ledger()
        gone = {each.path for each in damage.missing}
        at = newest_version(self.store) or 0
        missing = [file for file in active_files(self.store, at).values() if file.path in gone]
        return replace(damage, reingest=self._plan(missing))

    def _plan(self, missing: list[File]) -> Reingest:
        state = existing_table(self.store)
        self._trace = file_origins(self.store, state, missing, forgotten=True)
        wanted = plan(self.spec, self._trace, facts_of(self.source, self.ledger))
        check_alone(self.spec, self.store.uri, all_txns(self.store, state.version), wanted.ranges)
        return wanted

    def _attempt(self) -> None:
        """Finish what was begun, be it another reingest; take missing files out of the log; put back what is lost."""
        self.open_ledger()
        rebuild(self.context)
        self.finish_open_batch()
        self._repaired = self._repaired or self.damage()
        wanted = self._plan([])
        if wanted.ranges:
            self._put(wanted)
        said = replace(wanted, put_back=self._put_back, version=self._version)
        self.done = replace(self._repaired, reingest=said)

    def _put(self, wanted: Reingest) -> None:
        batch, started = self.ledger.batch + 1, datetime.now(UTC)
        faults.reach(faults.Point.BEFORE_STAGING, batch=batch)
        intent = reingest_intent(self.context, self.store.uri, wanted, self._trace, batch, started)
        if not intent.tables:
            return
        faults.reach(faults.Point.AFTER_STAGING, batch=batch)
        self._same_topics(wanted.ranges)
        self.execute(intent)

    def _tell(self, intent: Intent, receipts: Sequence[Receipt]) -> None:
        """What was put back, also by one that died before it could say so."""
        super()._tell(intent, receipts)
        for each in receipts if intent.kind is IntentKind.REINGEST else ():
            if each.path == self.store.uri:
                self._put_back, self._version = self._put_back + each.rows, each.version
