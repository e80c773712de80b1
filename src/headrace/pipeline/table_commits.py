"""Commit of a batch to each table, and whether a table already has its part of it."""

from __future__ import annotations

from headrace import faults
from headrace.delta.batch_commits import newest_part
from headrace.delta.log import newest_version
from headrace.delta.log_writer import LogWriter
from headrace.delta.receipt import Receipt
from headrace.delta.snapshot import load_state
from headrace.delta.txn import batch_txn
from headrace.errors import TxnMismatch
from headrace.ledger.ledger import Ledger
from headrace.pipeline.open_tables import OpenTables
from headrace.pipeline.route_schemas import RouteSchemas
from headrace.pipeline.table_entry import OpenTable, batch_in_table, row_identity, staged_for_schema
from headrace.transform.sql.constraints import constraints_of
from headrace.write.intent import Intent, TableIntent
from headrace.write.table_writer import batch_account


class TableCommits:
    """Commits of batches to the tables of a pipeline."""

    def __init__(self, ledger: Ledger, tables: OpenTables, schemas: RouteSchemas) -> None:
        self._ledger, self._tables, self._schemas = ledger, tables, schemas

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """Commit one table's part of a batch; a part that the table already has changes nothing."""
        entry = self._tables.of(table)
        receipt = entry.writer.commit(table, intent)
        entry.rows, entry.committed = row_identity(table.merging), True
        if entry.writer.state is not None:
            entry.table_id = entry.writer.state.table_id  # Spark chooses the id of a table that it creates
        if table.create and receipt.version == 0:
            faults.reach(faults.Point.AFTER_TABLE_CREATION, batch=intent.batch)
        faults.reach(faults.Point.AFTER_COMMIT, batch=intent.batch)
        self._follow_foreign_txns(entry, table)
        schema = self._schemas.of(entry)
        if schema is not None and (
            schema.table != entry.existing or self._constraints(table) != tuple(map(str, schema.constraints))
        ):
            self._schemas.refresh_table(entry)  # another writer changed the table: the next batch follows
        return receipt

    def contains(self, table: TableIntent, intent: Intent) -> bool:
        """Whether a table already has its part of a batch."""
        state = self._tables.of(table).writer.state
        return state is not None and state.txns.get(batch_txn(intent.pipeline), 0) >= intent.batch

    def restore_txn(self, table: TableIntent, intent: Intent, accepted: bool) -> None:
        """Search a table for its part of an open batch where the txn has expired, and set the txn again.

        TxnMismatch where the log no longer tells, unless a person has `accepted` that the part is not there.
        """
        entry = self._tables.of(table)
        state = entry.writer.state
        if state is None or self.contains(table, intent) or not (table.create or state.table_id == table.table_id):
            return
        is_there = batch_in_table(entry.store, table, intent, state)
        if is_there:
            log = LogWriter.open(entry.store, [batch_txn(intent.pipeline)], lambda _: None)
            log.append((), {**intent.txns(), **table.foreign_txns()}, batch_account(intent, table.attempt))
            self._tables.close(entry)
        elif is_there is None and not accepted:
            raise TxnMismatch(
                f"{table.path} has no txn of '{intent.pipeline}', and its log no longer shows whether batch "
                f"{intent.batch} is in it ({_offsets(intent)}).",
                hint="Delete the rows with these offsets (column _source), if any; then run `headrace resume SPEC "
                "--accept-new-table` to add the rows of the batch to the table as it is now.",
            )

    def needs_restage(self, intent: Intent) -> bool:
        """Whether the files of an open batch no longer fit: a table is new, or has another writer or constraint."""
        for table in intent.tables:
            if self.contains(table, intent):
                continue
            if not table.dead_letters and self._constraints(table) != table.constraints:
                return True
            writer = self._tables.of(table).writer
            if not writer.commits_directly and any(file.table == table.path for file in table.files):
                return True
            state = writer.state
            is_new = table.create and table.path not in self._ledger.known.tables
            if is_new and state is not None and not staged_for_schema(table, state):
                return True
        return False

    def is_overtaken(self, intent: Intent) -> bool:
        """Whether kafka-delta-ingest has written to a table after the batch was staged for it."""
        for table in intent.tables:
            if not table.foreign or self.contains(table, intent):
                continue
            state = load_state(self._tables.of(table).store, table.foreign)
            txns = state.txns if state is not None else {}
            if any(txns.get(name, -1) != before for name, (before, _) in table.foreign.items()):
                return True
        return False

    def _follow_foreign_txns(self, entry: OpenTable, table: TableIntent) -> None:
        """TxnMismatch if kafka-delta-ingest still writes to a table whose txns are not kept current."""
        entry.foreign.check_stopped(entry.store.uri, entry.taken_over, entry.writer.state)
        entry.foreign_versions = {**entry.foreign_versions, **table.foreign_txns()}

    def attempt_of(self, table: TableIntent, intent: Intent) -> int:
        """The attempt of which a table has its part of a batch; the intent's where the log does not tell.

        TxnMismatch where the batch has several attempts and the commit does not tell which it belongs to.
        """
        store = self._tables.of(table).store
        version = newest_version(store)
        part = newest_part(store, version, batch_txn(intent.pipeline)) if version is not None else None
        if part is not None and not part.account and intent.attempt:
            raise TxnMismatch(
                f"{store.uri}: version {part.version} has the txn of batch {part.batch} of '{intent.pipeline}', but "
                f"its commitInfo has no Headrace batch entry, and the batch was staged {intent.attempt + 1} times: "
                "commitInfo.userMetadata was replaced.",
                hint=f'Set commitInfo.userMetadata of that version to the text {{"headrace": {{"attempt": N}}}}, where '
                f"intents/{intent.batch:012}.N of the state directory (0: no suffix) lists its files; then run again.",
            )
        return int(part.account.get("attempt", 0)) if part is not None else table.attempt

    def _constraints(self, table: TableIntent) -> tuple[str, ...]:
        """The constraints that a table has now."""
        entry = self._tables.of(table)
        return tuple(map(str, constraints_of(entry.store.uri, entry.writer.state, entry.rules)))


def _offsets(intent: Intent) -> str:
    ranges = [f"{each.topic}/{each.partition}: offsets {each.start} to {each.until - 1}" for each in intent.ranges]
    return "; ".join(ranges) or "it reads no records"
