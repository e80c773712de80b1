"""Repair a table and read its lost rows from the source again, as a batch of the pipeline that wrote them."""

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
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark_session import SharedSession
from headrace.recovery.file_origins import file_origins
from headrace.recovery.rebuild_ledger import rebuild
from headrace.recovery.reingest import build_reingest_intent, facts_of
from headrace.recovery.reingest_plan import Reingest, check_kind, check_sole_writer, plan_reingest
from headrace.recovery.startup import StartupRecovery
from headrace.spec import Spec
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, existing_table, pipeline_is_running
from headrace.table.repair import Repaired, repair
from headrace.validate.load import load
from headrace.write.intent import Intent, IntentKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPERATION = "repair with reingest"


def repair_and_reingest(
    store: Store,
    owners: Callable[[], TableOwners],
    spec_file: Spec | str | os.PathLike[str],
    *,
    dry_run: bool = False,
    deep: bool = False,
    spark: SparkSession | None = None,
    report: Report = lambda event: None,
) -> Repaired:
    """Repair the table, then read the rows that it lost now or in earlier repairs, and insert them."""
    spec = _spec(spec_file, store)
    check_kind(spec, store.uri, existing_table(store).schema.names)
    owners().beside_appends(_OPERATION)
    shared = SharedSession([spec])
    pipeline = ReingestPipeline(spec, (lambda: spark) if spark else shared.get, store, report=report)
    try:
        if dry_run:
            return pipeline.dry_run(repair(store, owners(), dry_run=True, deep=deep))
        with _lease(pipeline):
            pipeline.repair = lambda: repair(store, owners(), deep=deep)
            pipeline.run()
            return pipeline.result
    finally:
        pipeline.source.close()
        shared.close()


def _spec(file: Spec | str | os.PathLike[str], store: Store) -> Spec:
    """The spec in a file that writes this table."""
    if isinstance(file, Spec):
        return file
    specs = [spec for spec in load(Path(file)) if spec.route_of(store.uri) is not None]
    if len(specs) != 1:
        raise UsageError(
            f"{file}: {len(specs) or 'no'} pipelines write {store.uri}.",
            hint="Specify the spec of the pipeline that wrote the lost rows.",
        )
    return specs[0]


def _lease(pipeline: ReingestPipeline) -> Lease:
    try:
        return pipeline.take_lease()
    except LeaseHeld as error:
        raise pipeline_is_running(pipeline.store.uri, pipeline.spec.pipeline, _OPERATION, error.facts) from None


class ReingestPipeline(Pipeline):
    """A pipeline that reads no new records: only those whose rows one of its tables has lost."""

    repair: Callable[[], Repaired]

    def __init__(self, spec: Spec, spark: Callable[[], Any], store: Store, *, report: Report) -> None:
        super().__init__(spec, spark, recovery=StartupRecovery(), report=report)
        self.store = store
        self._repaired: Repaired | None = None
        self._rows = 0
        self._version: int | None = None
        self.result = Repaired((), (), (), (), ())

    def dry_run(self, repaired: Repaired) -> Repaired:
        """Plan the reingest as if the missing files were removed from the log."""
        self.open_ledger()
        paths = {damage.path for damage in repaired.missing}
        files = active_files(self.store, newest_version(self.store) or 0).values()
        return replace(repaired, reingest=self._plan([file for file in files if file.path in paths]))

    def _plan(self, missing: list[File]) -> Reingest:
        state = existing_table(self.store)
        self._origins = file_origins(self.store, state, missing, earlier_repairs=True)
        reingest = plan_reingest(self.spec, self._origins, facts_of(self.source, self.ledger))
        check_sole_writer(self.spec, self.store.uri, all_txns(self.store, state.version), reingest.ranges)
        return reingest

    def _attempt(self) -> None:
        """Finish the open batch, which may be another reingest; remove missing files from the log; insert lost rows."""
        self.open_ledger()
        rebuild(self.context)
        self.finish_open_batch()
        self._repaired = self._repaired or self.repair()
        reingest = self._plan([])
        if reingest.ranges:
            self._reingest(reingest)
        reingest = replace(reingest, rows_restored=self._rows, version=self._version)
        self.result = replace(self._repaired, reingest=reingest)

    def _reingest(self, reingest: Reingest) -> None:
        batch, started = self.ledger.batch + 1, datetime.now(UTC)
        faults.reach(faults.Point.BEFORE_STAGING, batch=batch)
        intent = build_reingest_intent(self.context, self.store.uri, reingest, self._origins, batch, started)
        if not intent.tables:
            return
        faults.reach(faults.Point.AFTER_STAGING, batch=batch)
        self._same_topics(reingest.ranges)
        self.execute(intent)

    def _report_batch(self, intent: Intent, receipts: Sequence[Receipt]) -> None:
        """Count the inserted rows, also those of a reingest that a failed process had begun."""
        super()._report_batch(intent, receipts)
        for receipt in receipts if intent.kind is IntentKind.REINGEST else ():
            if receipt.path == self.store.uri:
                self._rows, self._version = self._rows + receipt.rows, receipt.version
