"""Evidence for a lost ledger: the txns and counts in the logs of the tables.

A batch starts only after the one before it is in every table. So with N as the highest txn of any table, all tables
have every batch below N, and each commit of N has the position of every partition after it. Only N itself may be in
some tables and not in others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.delta import snapshot
from headrace.delta.batch_commits import BatchCommit, newest_part
from headrace.delta.snapshot import TableState, all_txns
from headrace.delta.txn import batch_txn
from headrace.errors import TxnMismatch
from headrace.ledger.ledger import Position, position_of
from headrace.plan.accounting import RECORDS, Counts
from headrace.source.ranges import Range
from headrace.storage.store import Store

_UNTOLD = "Restore the state directory, or set a new pipeline name and source.kafka.start."
ACCEPT = "Restore the state directory, or run `headrace resume SPEC --accept-lost-ledger`"


@dataclass(frozen=True, slots=True)
class TableEvidence:
    """Txns and commits of a pipeline in its tables."""

    batch: int  # the highest of their txns
    tables: Mapping[str, TableState]
    parts: Mapping[str, BatchCommit | None]  # of the tables at that batch; None where the log no longer tells it
    txns: Mapping[str, int]  # the txns of a table at that batch, which outlive its commits


@dataclass(frozen=True, slots=True)
class RebuiltPosition:
    """Start of a rebuilt ledger."""

    batch: int  # the last one that every table has
    position: Position
    half: BatchCommit | None = None  # one table's part of the next batch, which others may lack


def traces(stores: Iterable[Store], pipeline: str) -> TableEvidence | None:
    """Evidence from the tables; None when no table has a txn of the pipeline."""
    txn = batch_txn(pipeline)
    tables = {store.uri: (store, state) for store in stores if (state := snapshot.load_state(store, [txn])) is not None}
    tables_with_txn = {uri: each for uri, each in tables.items() if txn in each[1].txns}
    if not tables_with_txn:
        return None
    batch = max(state.txns[txn] for _, state in tables_with_txn.values())
    parts = {
        uri: newest_part(store, state.version, txn)
        for uri, (store, state) in tables_with_txn.items()
        if state.txns[txn] == batch
    }
    txns: dict[str, int] = {}
    for uri in (uri for uri, part in parts.items() if part is None):
        txns |= all_txns(tables_with_txn[uri][0], tables_with_txn[uri][1].version)
    return TableEvidence(batch, {uri: state for uri, (_, state) in tables_with_txn.items()}, parts, txns)


def rebuilt_position(
    evidence: TableEvidence, pipeline: str, dead_letters_path: str, is_only_table: bool, since: Mapping[str, int]
) -> RebuiltPosition:
    """Position to continue from: after the last batch if every table has it, else before it.

    `dead_letters_path` is the dead-letter table, `is_only_table` whether there is but one table beside it, `since` the
    batch that first met each topic: a later one than any table has tells that theirs was recorded.
    """
    commits = [part for part in evidence.parts.values() if part is not None]
    account = next((part for part in commits if "ranges" in part.account), None)
    if account is None or len(commits) < len(evidence.parts):
        raise TxnMismatch(
            f"The ledger of '{pipeline}' is lost, and the table logs do not show whether every table has batch "
            f"{evidence.batch}.",
            hint=f"{ACCEPT} to continue after that batch." if _last_txns(evidence, pipeline) else _UNTOLD,
        )
    after = position_of(account.txns, pipeline)
    if max(since.values(), default=0) > evidence.batch or _is_whole(
        evidence, account, dead_letters_path, is_only_table
    ):
        return RebuiltPosition(evidence.batch, after)
    before = {(each.topic, each.partition): each.start for each in ranges_of(account)}
    return RebuiltPosition(evidence.batch - 1, after | before, account)


def topics(evidence: TableEvidence, pipeline: str) -> set[str]:
    """The topics whose offsets the txns are."""
    txns = [part.txns for part in evidence.parts.values() if part is not None]
    return {topic for each in (*txns, evidence.txns) for topic, _ in position_of(each, pipeline)}


def beyond(evidence: TableEvidence, pipeline: str) -> RebuiltPosition:
    """Position after the last batch, whether or not every table has it; only the operator may accept that."""
    txns = _last_txns(evidence, pipeline)
    if not txns:
        raise TxnMismatch(
            f"The ledger of '{pipeline}' is lost, and no table log has the offsets of batch {evidence.batch}.",
            hint=_UNTOLD,
        )
    return RebuiltPosition(evidence.batch, position_of(txns, pipeline))


def _last_txns(evidence: TableEvidence, pipeline: str) -> Mapping[str, int]:
    """The txns of the last batch, where some table tells them; tables that Spark writes have them in commits only."""
    commits = (part.txns for part in evidence.parts.values() if part is not None)
    return next((txns for txns in (*commits, evidence.txns) if position_of(txns, pipeline)), {})


def ranges_of(part: BatchCommit, topics: Mapping[str, str] | None = None) -> tuple[Range, ...]:
    """The ranges of the batch that a part belongs to."""
    known = topics or {}
    return tuple(
        Range(topic, partition, start, until, known.get(topic, ""))
        for topic, partition, start, until in part.account["ranges"]
    )


def counts_of(part: BatchCommit) -> Counts:
    """The counts of the batch that a part belongs to."""
    return Counts(**{name: part.account[name] for name in RECORDS})


def _is_whole(evidence: TableEvidence, part: BatchCommit, dead_letters_path: str, is_only_table: bool) -> bool:
    """Whether every table is sure to have the batch: dead letters are committed last, and a refill has one table.

    Rows do not tell: a record may have become many.
    """
    return (
        dead_letters_path in evidence.parts
        or not part.account["ranges"]
        or (is_only_table and not part.account["dead"])
    )
