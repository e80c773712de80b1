"""Opening of a table: its writer, and whether it is still the table that the ledger knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.decode.inference import Structure
from headrace.delta.evolution import check_fits
from headrace.delta.features import WriterKind, append_blocker, declared_writer
from headrace.delta.log import LogWalk
from headrace.delta.log_errors import check_txns_last, set_back, table_stop, unreached
from headrace.delta.restores import Restores, restored_since
from headrace.delta.snapshot import TableState, active_files
from headrace.delta.txn import batch_txn
from headrace.errors import TableChanged, TableFeature, TableGone, TableReplaced, TableRestored
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Ledger
from headrace.ledger.replays import writer as replays_writer
from headrace.pipeline.foreign_txns import NO_FOREIGN_TXNS, ForeignTxns, takeover_required, txns_of, undecided
from headrace.plan.branch import CompiledBranch
from headrace.plan.route_schema import Offsets
from headrace.spec import Spec, TableSpec
from headrace.spec.route_id import RouteId
from headrace.spec.txn import KAFKA_DELTA_INGEST
from headrace.storage.store import Store
from headrace.write.append import AppendWriter
from headrace.write.intent import Intent, MergeRules, Scd2Columns, TableIntent
from headrace.write.table_writer import TableWriter


@dataclass
class OpenTable:
    """A table of the pipeline, its writer, and what this run knows about it."""

    route_id: RouteId | None  # None: the dead-letter table, or a table that no route of the spec leads to
    branch: CompiledBranch
    store: Store
    rules: TableSpec
    writer: TableWriter
    table_id: str
    dead_letters: bool = False
    inferred: Structure | None = None  # fields of its records that were new in this run
    floors: Offsets = field(default_factory=dict)  # records up to these offsets are skipped
    taken_over: Offsets = field(default_factory=dict)  # records that the table had before the first batch
    foreign: ForeignTxns = NO_FOREIGN_TXNS  # of kafka-delta-ingest
    foreign_versions: Mapping[str, int] = field(default_factory=dict)  # of these txns, as read or written last
    rows: str = ""  # row identity, as last written
    scanned: int = -1  # the log was searched for RESTOREs up to this version
    committed: bool = False  # whether this run has committed to it
    planned: pa.Schema | None = None  # columns of an earlier plan of the batch, where the table already has it

    @property
    def writer_kind(self) -> WriterKind:
        """The kind of writer that the ledger records."""
        if self.writer.commits_directly:
            return WriterKind.DIRECT
        return WriterKind.MERGE if self.rules.merges else WriterKind.SPARK

    @property
    def existing(self) -> pa.Schema | None:
        """The table's columns that rows may fill; None while it does not exist."""
        if self.planned is not None:
            return self.planned
        return None if self.writer.state is None else self.writer.writable()

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns: the table's own once it exists, else those of the spec."""
        return self.rules.partitions if self.writer.state is None else tuple(self.writer.state.partition_by)


@dataclass(frozen=True)
class TableOpener:
    """Opens tables; raises where one is no longer the table that the ledger knows."""

    ledger: Ledger
    spark_table: Callable[[Store], TableWriter]
    spec: Spec
    writer: str  # the name in the txns of the commits

    def open(self, store: Store, rules: TableSpec | None, by_spark: bool) -> TableWriter:
        """Open a table with its options in the spec (None: it has none); `by_spark`: its files are staged elsewhere."""
        foreign = self.foreign_txns(store.uri, rules)
        uri, append_writer = store.uri, AppendWriter.open(store, self.writer, foreign.names)
        known = self.ledger.known.tables.get(uri)
        by_spark = by_spark or (rules is not None and rules.by_spark)
        committer: TableWriter = append_writer
        if append_writer.state is not None or by_spark:
            committer = self._of_its_kind(append_writer, store, known, by_spark, rules)
        if rules is not None and rules.overwrites and not committer.commits_directly:
            raise TableFeature(
                f"{uri} is written by Spark, but mode: {rules.mode} requires direct commits.",
                hint="Write to a new table, or use mode: append.",
            )
        if foreign.are_current and not committer.commits_directly:
            raise TableFeature(
                f"{uri} is written by Spark, but the txns of {KAFKA_DELTA_INGEST} require direct commits.",
                hint="Remove table.txn, or write to a new table.",
            )
        self._check(store, committer, known)
        if known is None or not known.writers:
            self._check_taken_over(store, rules, committer.state)
        if committer.state is None and rules is not None and rules.create == "never":
            raise TableGone(f"There is no table at {uri}, and the spec has create: never.", hint="Create it first.")
        return committer

    def _check(self, store: Store, committer: TableWriter, known: KnownTable | None) -> None:
        check_identity(store.uri, committer.state, known)
        self._check_restored(store, committer, known)
        if committer.state is not None:
            check_txns_last(store.uri, committer.state)
            # With an older ledger, the next batch would be skipped as already applied.
            self.ledger.check_txn(store.uri, committer.state.txns.get(batch_txn(self.writer)))

    def foreign_txns(self, uri: str, rules: TableSpec | None) -> ForeignTxns:
        """The txns of kafka-delta-ingest in a table."""
        if rules is None:
            return NO_FOREIGN_TXNS
        return ForeignTxns.of(self.spec, rules, self.ledger.known.taken_over.get(uri), self.ledger.position())

    def taken_over(self, uri: str) -> Offsets:
        """The last offsets of the records that the table had when it was taken over."""
        taken_over = self.ledger.known.taken_over.get(uri)
        return taken_over.offsets if taken_over is not None else {}

    def _check_taken_over(self, store: Store, rules: TableSpec | None, state: TableState | None) -> None:
        """Stop at the first batch for a table with records of kafka-delta-ingest, unless that is decided."""
        if rules is None or state is None or self.spec.source.kafka is None:
            return
        if batch_txn(self.writer) in state.txns or store.uri in self.ledger.known.taken_over:
            return
        numbers = {number for _, number in self.ledger.position()}
        if txns := undecided(rules, txns_of(store, state.version), numbers):
            raise takeover_required(store.uri, txns)

    def _check_restored(self, store: Store, committer: TableWriter, known: KnownTable | None) -> None:
        """Txns survive a RESTORE, so the rows that it removed would be lost without an error."""
        if known is None or committer.state is None:
            return
        version = committer.state.version
        if version < (before := last_seen_version(known, self.ledger, store.uri)):
            raise set_back(store.uri, version, before)
        restores = restores_of(store, committer.state, known, self.spec.pipeline)
        if restores.newest is not None:
            raise table_stop(
                TableRestored,
                f"{store.uri} was restored in version {restores.newest}, after the last commit of the pipeline.",
            )
        if not restores.reached:
            raise unreached(store.uri, known.scanned)

    def _of_its_kind(
        self,
        append_writer: TableWriter,
        store: Store,
        known: KnownTable | None,
        by_spark: bool,
        rules: TableSpec | None,
    ) -> TableWriter:
        """Writer of a table: the kind that it was first written with (`by_spark`: Spark).

        Only `Table.enable_feature` changes it from direct commits to Spark, and records that in the table.
        """
        state = append_writer.state
        why_not = append_blocker(state) if state is not None else None
        by_decision = state is not None and declared_writer(state) == WriterKind.SPARK
        spec_requires_spark = by_spark and not why_not
        if spec_requires_spark:
            merges = rules is not None and rules.merges is not None
            needs = "merges rows, which direct commits cannot do"
            why_not = f"the spec {needs if merges else 'requires features that only Spark may write'}"
        if known is not None and known.writer == WriterKind.DIRECT and why_not and not by_decision:
            raise TableFeature(
                f"{store.uri} was written by direct commits, which are no longer possible: {why_not}.",
                hint=_spec_hint(rules)
                if spec_requires_spark
                else "Remove the feature and run again, or run `headrace resume SPEC --accept-new-table` to write the "
                "table with Spark from now on.",
            )
        if why_not or (known is not None and known.writer in (WriterKind.MERGE, WriterKind.SPARK)):
            return self.spark_table(store)
        return append_writer


def _spec_hint(rules: TableSpec | None) -> str:
    """How to continue with a table with direct commits whose spec requires Spark."""
    others = "Remove that from the spec or write to a new table, then run again."
    if rules is None or rules.features != ("typeWidening",) or rules.merges is not None or rules.cluster_by:
        return others
    return f"Run `headrace table enable-feature PATH typeWidening`, then run again. {others}"


def last_seen_version(known: KnownTable, ledger: Ledger, uri: str) -> int:
    """The newest version of a table that the pipeline has certainly read."""
    return max(known.scanned, known.restored, ledger.version_of(uri, known.id))


def restores_of(store: Store, state: TableState, known: KnownTable, pipeline: str) -> Restores:
    """RESTOREs of a table that were not accepted yet."""
    checked_version = max(known.scanned, known.restored)
    txns = [batch_txn(pipeline), batch_txn(replays_writer(pipeline))]
    restores = restored_since(store, state, *txns, checked=checked_version)
    return restores if known.writers else replace(restores, reached=True)  # it has no rows of this pipeline


def batch_in_table(store: Store, table: TableIntent, intent: Intent, state: TableState) -> bool | None:
    """Whether a table without the txn of an open batch has its part all the same; None if unknown.

    Txns expire. A commit of the batch can only be past the version at which it was planned; where the log no longer
    reaches back to that, the files of the batch tell, as long as nobody has rewritten them.
    """
    txn, walk = batch_txn(intent.pipeline), LogWalk(store, state.version, table.version)
    for commit in walk:
        if commit.txns.get(txn) == intent.batch:
            return True
    if walk.complete:
        return False
    paths = {file.path for file in active_files(store, state.version).values()}
    return True if any(file.table == table.path and file.path in paths for file in table.files) else None


def staged_for_schema(table: TableIntent, state: TableState) -> bool:
    """Whether the staged files of a batch still fit a table."""
    is_direct_commit = all(file.table == table.path for file in table.files)
    if is_direct_commit and (append_blocker(state) is not None or table.partition_by != state.partition_by):
        return False
    try:
        check_fits(table.schema, state)
    except TableChanged:
        return False
    return True


def merging_of(rules: TableSpec) -> MergeRules | None:
    """The merge rules of a table, as an intent stores them."""
    if rules.merges is None:
        return None
    update, retention = rules.merges.update, rules.merges.tombstone_retention.total_seconds()
    columns, ignore_nulls = (update.columns, update.ignore_nulls) if update else ((), False)
    own = rules.merges.scd2
    scd2 = Scd2Columns(*own.columns, own.track) if own else None
    keys, sequence = rules.merges.keys, rules.merges.sequence_by
    return MergeRules(keys, sequence, update is not None, columns, ignore_nulls, retention, scd2)


def row_identity(merging: MergeRules | None) -> str:
    """Description of what identifies a row of a table."""
    return merging.rows if merging else "append-only rows"


def check_row_identity(uri: str, rules: TableSpec, known: KnownTable | None) -> None:
    """TableFeature where existing rows have another identity than the spec asks for."""
    identity = row_identity(merging_of(rules))
    if known is not None and known.rows not in ("", identity):
        raise TableFeature(
            f"{uri} has {known.rows}, but the spec requires {identity}.",
            hint="Change table.mode and table.merge back, or write to a new table.",
        )


def check_identity(uri: str, state: TableState | None, known: KnownTable | None) -> None:
    """TableGone or TableReplaced where a table is not the one in the ledger."""
    if known is None:
        return
    if state is None:
        raise TableGone(
            f"The table {uri} was deleted.",
            hint="Recover the table, or run `headrace resume SPEC --accept-new-table` to fill a new one from here on.",
        )
    if state.table_id != known.id:
        raise TableReplaced(
            f"The table {uri} was replaced: its id is {state.table_id}, it was {known.id}.",
            hint="Recover the old table, or run `headrace resume SPEC --accept-new-table` to continue with this one.",
        )
