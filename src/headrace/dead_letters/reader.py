"""Read dead letters page by page, without Spark and without those that a replay has settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from headrace.delta.log import newest_version
from headrace.delta.rows import filesystem
from headrace.delta.schema import DEAD_LETTERS
from headrace.delta.snapshot import open_at
from headrace.engine import duck
from headrace.errors import StorageUnreachable, TableFeature
from headrace.ledger.replays import DEAD_LETTER_KEY, OUTCOMES, ReplayOutcome, Replays
from headrace.spec import Spec
from headrace.storage.store import Profile, Store

_PAGE_ROWS = 8192
_PAGE_BYTES = 64 * 1024 * 1024
_SAME = " AND ".join(f"one.{duck.quote(name)} IS NOT DISTINCT FROM two.{duck.quote(name)}" for name in DEAD_LETTER_KEY)
_GROUP = ("reason", "step", "table")


@dataclass(frozen=True, slots=True)
class Selection:
    """Filter for dead letters; empty selects all."""

    reasons: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    since: datetime | None = None

    def expression(self) -> pc.Expression | None:
        """The filter as an Arrow expression, by which a dataset skips whole days and files."""
        conditions = []
        if self.reasons:
            conditions.append(pc.field("reason").isin(list(self.reasons)))
        if self.tables:
            conditions.append(pc.field("table").isin(list(self.tables)))
        if self.since is not None:
            conditions += [pc.field("date") >= self.since.date(), pc.field("rejected_at") >= self.since]
        return reduce(and_, conditions) if conditions else None


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Position of a record in its topic; `table` selects one of several dead letters of a record."""

    topic: str
    partition: int
    offset: int
    table: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with the same reason, step and table."""

    reason: str
    step: str
    table: str | None
    count: int
    first: datetime
    last: datetime
    sample: dict[str, Any]  # position and detail of the newest


class DeadLetters:
    """The dead-letter table of a pipeline and the outcomes of replays."""

    def __init__(self, spec: Spec) -> None:
        profile = Profile(**spec.storage_profile())
        self.store = Store(spec.dead_letters_uri, profile)
        self._outcomes = Store(spec.state_uri, profile).child(Replays.folder)

    def version(self) -> int | None:
        """Newest version of the table; None if there is no table."""
        return newest_version(self.store)

    def pages(self, selection: Selection, version: int | None = None) -> Iterator[pa.Table]:
        """Unsettled dead letters, in pages that fit into memory."""
        settled = self._settled()
        for page in self._scan(DEAD_LETTERS.names, selection.expression(), version):
            yield from _split(page.take(_matching("ANTI", page, settled)), _PAGE_BYTES)

    def groups(self, selection: Selection) -> list[DeadLetterGroup]:
        """Unsettled dead letters by reason, step and table, most frequent first; only small columns are read."""
        names = [*dict.fromkeys((*DEAD_LETTER_KEY, *_GROUP, "detail"))]
        groups = _grouped(self._scan(names, selection.expression()), self._settled(), names)
        return [DeadLetterGroup(**row) for row in groups.to_pylist()]

    def counts_by_step(self, ranges: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """Dead letters of offset ranges (as in a row of the ledger) by step, settled ones included."""
        conditions = [
            (pc.field("topic") == each["topic"])
            & (pc.field("partition") == each["partition"])
            & (pc.field("offset") >= each["from"])
            & (pc.field("offset") < each["until"])
            for each in ranges
            if each["until"] > each["from"]
        ]
        counts: Counter[str] = Counter()
        for page in self._scan(("step",), reduce(or_, conditions)) if conditions else ():
            counts.update(page["step"].to_pylist())
        return dict(counts)

    def sample(self, selection: Selection, count: int) -> pa.Table:
        """Up to `count` unsettled dead letters, from as many groups as possible, newest first."""
        names = [*dict.fromkeys((*DEAD_LETTER_KEY, *_GROUP))]
        keys = _spread(self._scan(names, selection.expression()), self._settled(), names, count)
        offsets = pc.field("offset").isin(keys["offset"].combine_chunks().unique())
        pages = [page.take(_matching("SEMI", page, keys)) for page in self._scan(DEAD_LETTERS.names, offsets)]
        return pa.concat_tables(pages) if pages else DEAD_LETTERS.empty_table()

    def find(self, position: RecordPosition) -> list[dict[str, Any]]:
        """The dead letters of a record, oldest first, each with its custom columns and its outcomes."""
        condition = (
            (pc.field("topic") == position.topic)
            & (pc.field("partition") == position.partition)
            & (pc.field("offset") == position.offset)
        )
        if position.table is not None:
            condition &= pc.field("table") == position.table
        rows = [row for page in _batches(self.store, DEAD_LETTERS, None, condition) for row in page.to_pylist()]
        outcomes = [
            row for page in _batches(self._outcomes, OUTCOMES, OUTCOMES.names, condition) for row in page.to_pylist()
        ]
        for row in rows:
            row["columns"] = {name: row.pop(name) for name in list(row) if name not in DEAD_LETTERS.names}
            row["outcomes"] = sorted(
                (outcome for outcome in outcomes if all(outcome[name] == row[name] for name in DEAD_LETTER_KEY)),
                key=lambda outcome: outcome["replay"],
            )
        return sorted(rows, key=lambda row: row["rejected_at"])

    def _scan(
        self, names: Sequence[str], where: pc.Expression | None, version: int | None = None
    ) -> Iterator[pa.Table]:
        return _batches(self.store, DEAD_LETTERS, names, where, version)

    def _settled(self) -> pa.Table:
        """Keys of the dead letters whose outcome is final."""
        final = pc.field("outcome") != ReplayOutcome.STILL_DEAD.value
        schema = pa.schema([OUTCOMES.field(name) for name in DEAD_LETTER_KEY])
        pages = list(_batches(self._outcomes, OUTCOMES, DEAD_LETTER_KEY, final))
        return pa.concat_tables(pages) if pages else schema.empty_table()


def dataset(store: Store, version: int | None = None) -> ds.Dataset | None:
    """Open a Delta table as a dataset that skips files by partition and statistics; None if there is no table."""
    version = newest_version(store) if version is None else version
    if version is None:
        return None
    try:
        # Not through delta-rs's file system: Arrow's threads call it in Python, and a thread that still runs when
        # Python exits aborts the process.
        return open_at(store, version).to_pyarrow_dataset(filesystem=filesystem(store))
    except DeltaError as error:
        raise TableFeature(f"{store.uri} cannot be read without Spark: {str(error).splitlines()[0]}") from error


def _batches(
    store: Store,
    schema: pa.Schema,
    names: Sequence[str] | None,
    where: pc.Expression | None,
    version: int | None = None,
) -> Iterator[pa.Table]:
    """Rows in pages; without names all columns, also those that the schema lacks."""
    source = dataset(store, version)
    if source is None:
        return
    names = source.schema.names if names is None else names
    target = pa.schema([(schema if name in schema.names else source.schema).field(name) for name in names])
    scanner = source.scanner(list(names), filter=where, batch_size=_PAGE_ROWS, batch_readahead=2, fragment_readahead=1)
    try:
        for batch in scanner.to_batches():
            if len(batch):
                yield pa.Table.from_batches([batch]).cast(target)
    except OSError as error:
        raise StorageUnreachable(f"{store.uri} cannot be read: {str(error).splitlines()[0][:300]}") from error


def _split(page: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    """Split a page into halves until no part exceeds `max_bytes`."""
    if len(page) > 1 and page.nbytes > max_bytes:
        half = len(page) // 2
        yield from _split(page.slice(0, half).combine_chunks(), max_bytes)
        yield from _split(page.slice(half).combine_chunks(), max_bytes)
    elif len(page):
        yield page


def _matching(join: str, page: pa.Table, others: pa.Table) -> pa.Array:
    """Positions of the dead letters that are among others (SEMI join), or that are not (ANTI join)."""
    numbered = page.select(DEAD_LETTER_KEY).append_column("nth", pa.array(range(len(page)), pa.int64()))
    sql = f"SELECT nth FROM page AS one {join} JOIN others AS two ON {_SAME} ORDER BY nth"  # noqa: S608 our own names
    return duck.query(sql, page=numbered, others=others.select(DEAD_LETTER_KEY))["nth"].combine_chunks()


def _reader(pages: Iterable[pa.Table], names: Sequence[str]) -> pa.RecordBatchReader:
    schema = pa.schema([DEAD_LETTERS.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (each for page in pages for each in page.to_batches()))


def _grouped(pages: Iterable[pa.Table], settled: pa.Table, names: Sequence[str]) -> pa.Table:
    shown = ", ".join(f"{duck.quote(name)} := one.{duck.quote(name)}" for name in (*DEAD_LETTER_KEY, "detail"))
    sql = f"""
        SELECT reason, step, "table", count(*) AS count, min(rejected_at) AS first, max(rejected_at) AS last,
               arg_max(struct_pack({shown}), rejected_at) AS sample
        FROM pages AS one ANTI JOIN settled AS two ON {_SAME}
        GROUP BY reason, step, "table" ORDER BY count DESC, reason, step, "table"
    """  # noqa: S608 our own names
    return duck.query(sql, pages=_reader(pages, names), settled=settled)


def _spread(pages: Iterable[pa.Table], settled: pa.Table, names: Sequence[str], count: int) -> pa.Table:
    columns = ", ".join(f"one.{duck.quote(name)}" for name in DEAD_LETTER_KEY)
    sql = f"""
        SELECT {columns} FROM pages AS one ANTI JOIN settled AS two ON {_SAME}
        ORDER BY row_number() OVER (PARTITION BY reason, step, "table" ORDER BY rejected_at DESC, "offset" DESC),
                 reason, step, "table"
        LIMIT {int(count)}
    """  # noqa: S608 our own names
    return duck.query(sql, pages=_reader(pages, names), settled=settled)
