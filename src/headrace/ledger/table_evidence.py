"""Evidence for a lost ledger: the txns and accounts in the logs of the tables.

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

_UNTOLD = "Restore the state folder, or set a new pipeline name and source.kafka.start."
ACCEPT = "Restore the state folder, or run `headrace resume SPEC --accept-lost-ledger`"


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
    mark = batch_txn(pipeline)
    found = {store.uri: (store, state) for store in stores if (state := snapshot.load_state(store, [mark])) is not None}
    marked = {uri: each for uri, each in found.items() if mark in each[1].txns}
    if not marked:
        return None
    batch = max(state.txns[mark] for _, state in marked.values())
    parts = {
        uri: newest_part(store, state.version, mark)
        for uri, (store, state) in marked.items()
        if state.txns[mark] == batch
    }
    marks: dict[str, int] = {}
    for uri in (uri for uri, part in parts.items() if part is None):
        marks |= all_txns(marked[uri][0], marked[uri][1].version)
    return TableEvidence(batch, {uri: state for uri, (_, state) in marked.items()}, parts, marks)


def rebuilt_position(
    found: TableEvidence, pipeline: str, letters: str, alone: bool, since: Mapping[str, int]
) -> RebuiltPosition:
    """Position to continue from: after the last batch if every table has it, else before it.

    `letters` is the dead-letter table, `alone` whether there is but one table beside it, `since` the batch that first
    met each topic: a later one than any table has tells that theirs was booked.
    """
    told = [part for part in found.parts.values() if part is not None]
    account = next((part for part in told if "ranges" in part.account), None)
    if account is None or len(told) < len(found.parts):
        raise TxnMismatch(
            f"The ledger of '{pipeline}' is lost, and the table logs do not show whether every table has batch "
            f"{found.batch}.",
            hint=f"{ACCEPT} to continue after that batch." if _last_marks(found, pipeline) else _UNTOLD,
        )
    after = position_of(account.txns, pipeline)
    if max(since.values(), default=0) > found.batch or _is_whole(found, account, letters, alone):
        return RebuiltPosition(found.batch, after)
    before = {(each.topic, each.partition): each.start for each in ranges_of(account)}
    return RebuiltPosition(found.batch - 1, after | before, account)


def topics(found: TableEvidence, pipeline: str) -> set[str]:
    """The topics whose offsets the marks are."""
    marks = [part.txns for part in found.parts.values() if part is not None]
    return {topic for each in (*marks, found.txns) for topic, _ in position_of(each, pipeline)}


def beyond(found: TableEvidence, pipeline: str) -> RebuiltPosition:
    """Position after the last batch, whether or not every table has it; only the operator may accept that."""
    marks = _last_marks(found, pipeline)
    if not marks:
        raise TxnMismatch(
            f"The ledger of '{pipeline}' is lost, and no table log has the offsets of batch {found.batch}.",
            hint=_UNTOLD,
        )
    return RebuiltPosition(found.batch, position_of(marks, pipeline))


def _last_marks(found: TableEvidence, pipeline: str) -> Mapping[str, int]:
    """The txns of the last batch, where some table tells them; tables that Spark writes have them in commits only."""
    commits = (part.txns for part in found.parts.values() if part is not None)
    return next((txns for txns in (*commits, found.txns) if position_of(txns, pipeline)), {})


def ranges_of(part: BatchCommit, topics: Mapping[str, str] | None = None) -> tuple[Range, ...]:
    """The ranges of the batch that a part belongs to."""
    known = topics or {}
    return tuple(
        Range(topic, partition, start, until, known.get(topic, ""))
        for topic, partition, start, until in part.account["ranges"]
    )


def counts_of(part: BatchCommit) -> Counts:
    """The account of the batch that a part belongs to."""
    return Counts(**{name: part.account[name] for name in RECORDS})


def _is_whole(found: TableEvidence, part: BatchCommit, letters: str, alone: bool) -> bool:
    """Whether every table is sure to have the batch: letters are committed last, and a refill has one table.

    Rows do not tell: a record may have become many.
    """
    return letters in found.parts or not part.account["ranges"] or (alone and not part.account["dead"])
