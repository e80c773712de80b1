"""Batches that a RESTORE removed from a table, and the ranges to read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.delta.restores import undone
from headrace.errors import TableRestored
from headrace.source.ranges import Range
from headrace.storage.store import Store
from headrace.write.intent import IntentKind

_Row = Mapping[str, Any]
KEEP = "Run `headrace resume SPEC --table-restored=keep` to continue without the undone rows"


@dataclass(frozen=True, slots=True)
class UndoneRows:
    """Rows that a RESTORE removed, and the ranges of their records."""

    rows: int = 0
    ranges: tuple[Range, ...] = ()


def undone_rows(
    store: Store, newest: int, oldest: int, txn: str, digest: str, rows_from: Callable[[int], Sequence[_Row]]
) -> UndoneRows:
    """Rows that the RESTOREs from version `oldest` to `newest` undid; TableRestored if another spec wrote them.

    Another spec may route a record to another table: it would then be in neither table, or in both.
    """
    rows, ledger_rows = _undone(store, newest, oldest, txn, rows_from)
    for batch in rows:
        if batch not in ledger_rows:
            raise TableRestored(
                f"{store.uri}: the ledger no longer has the offsets of the undone batch {batch}.", hint=f"{KEEP}."
            )
        if ledger_rows[batch]["spec"] != digest:
            raise TableRestored(
                f"{store.uri}: the undone batch {batch} was written with another spec "
                f"(digest {ledger_rows[batch]['spec'][:12]}; this one has {digest[:12]}).",
                hint=f"{KEEP}, or run the refill with that spec.",
            )
    return UndoneRows(sum(rows.values()), _ranges_of(rows, ledger_rows, digest))


def _undone(
    store: Store, newest: int, oldest: int, txn: str, rows_from: Callable[[int], Sequence[_Row]]
) -> tuple[dict[int, int], dict[int, _Row]]:
    """Rows of the table by undone batch, and the rows of the ledger from the first of these batches on.

    An undone refill is not counted itself: the batches that it had repeated are undone again. Rows that a reingest had
    restored are missing again; `table repair --reingest` restores them.
    """
    refills: set[int] = set()
    while True:
        parts = [part for part in undone(store, newest, oldest, txn, refills) if not part.account.get("reingested")]
        first = min((part.batch for part in parts), default=0)
        ledger_rows = {row["batch"]: row for row in rows_from(first)} if parts else {}
        refill_batches = {part.batch for part in parts if _kind(ledger_rows, part.batch) == IntentKind.REFILL}
        if refill_batches <= refills:
            counts = Counter[int]()
            for part in parts:
                if _kind(ledger_rows, part.batch) != IntentKind.REINGEST:
                    counts[part.batch] += part.rows
            # A commit that only sets an expired txn again repeats its batch without rows. If nothing else of the batch
            # is undone, its rows are still in the table and must not be read again.
            return {batch: rows for batch, rows in counts.items() if rows and batch not in refills}, ledger_rows
        refills |= refill_batches


def _kind(ledger_rows: Mapping[int, _Row], batch: int) -> str | None:
    return ledger_rows[batch]["kind"] if batch in ledger_rows else None


def _ranges_of(batches: Mapping[int, int], ledger_rows: Mapping[int, _Row], digest: str) -> tuple[Range, ...]:
    """Ranges of these batches, joined if adjacent.

    Batches of the same spec between them are included, even if they have no rows of this table: one range is read then.
    """
    pieces: list[dict[tuple[str, int], Range]] = []
    joined = False
    for number in range(min(batches, default=0), max(batches, default=-1) + 1):
        row = ledger_rows.get(number)
        if row is not None and not row["ranges"]:
            continue  # a decision or a refill, which read no new offsets
        ranges = _ranges(row) if row is not None and row["spec"] == digest else {}
        joined = joined and bool(ranges) and _all_meet(pieces[-1], ranges)
        if not joined and number not in batches:
            continue
        if not joined:
            pieces.append({})
        for at, each in ranges.items():
            pieces[-1][at] = Range(*at, pieces[-1].get(at, each).start, each.until, each.topic_id)
        joined = True
    return tuple(piece[at] for piece in pieces for at in sorted(piece))


def _ranges(row: _Row) -> dict[tuple[str, int], Range]:
    return {
        (raw["topic"], raw["partition"]): Range(
            raw["topic"], raw["partition"], raw["from"], raw["until"], raw["topic_id"]
        )
        for raw in row["ranges"]
    }


def _all_meet(piece: Mapping[tuple[str, int], Range], ranges: Mapping[tuple[str, int], Range]) -> bool:
    return all(
        at not in piece or (piece[at].until, piece[at].topic_id) == (each.start, each.topic_id)
        for at, each in ranges.items()
    )
