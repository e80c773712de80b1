"""Dead letters, read back: page by page, without Spark, leaving out those that a replay has settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from headrace.delta.log import newest_version
from headrace.delta.rows import filesystem
from headrace.delta.schema import DEAD_LETTERS, ENVELOPE
from headrace.delta.snapshot import open_at
from headrace.engine import duck
from headrace.errors import StorageUnreachable, TableFeature
from headrace.ledger.replays import LETTER, OUTCOMES, ReplayOutcome, Replays
from headrace.spec import Spec
from headrace.storage.store import Profile, Store

_PAGE = 8192  # letters
_PAGE_BYTES = 64 * 1024 * 1024
_SAME = " AND ".join(f"one.{duck.quote(name)} IS NOT DISTINCT FROM two.{duck.quote(name)}" for name in LETTER)
_GROUP = ("reason", "step", "table")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters are meant; empty means all."""

    reasons: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    since: datetime | None = None

    def expression(self) -> pc.Expression | None:
        """The same for a dataset, which leaves out whole days and files by it."""
        parts = []
        if self.reasons:
            parts.append(pc.field("reason").isin(list(self.reasons)))
        if self.tables:
            parts.append(pc.field("table").isin(list(self.tables)))
        if self.since is not None:
            parts += [pc.field("date") >= self.since.date(), pc.field("rejected_at") >= self.since]
        return reduce(and_, parts) if parts else None


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """A record's place in its topic; `table` tells its letters apart where there are several."""

    topic: str
    partition: int
    offset: int
    table: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Letters with one reason, step and table."""

    reason: str
    step: str
    table: str | None
    count: int
    first: datetime
    last: datetime
    sample: dict[str, Any]  # the newest one's place and detail


class DeadLetters:
    """The dead-letter table of a pipeline and what became of its letters."""

    def __init__(self, spec: Spec) -> None:
        profile = Profile(**spec.storage_profile())
        self.store = Store(spec.dead_letters_uri, profile)
        self._outcomes = Store(spec.state_uri, profile).child(Replays.folder)

    def version(self) -> int | None:
        """The table's newest version; None while there is none."""
        return newest_version(self.store)

    def pages(self, selection: Selection, version: int | None = None) -> Iterator[pa.Table]:
        """The letters that are not settled, in pages that fit into memory."""
        settled = self._settled()
        for page in self._scan(DEAD_LETTERS.names, selection.expression(), version):
            unsettled = page.take(_apart(page, settled))
            yield from _within(unsettled, _PAGE_BYTES)

    def groups(self, selection: Selection) -> list[DeadLetterGroup]:
        """What is dead, by reason, step and table, the most frequent first; only small columns are read."""
        names = [*dict.fromkeys((*LETTER, *_GROUP, "detail"))]
        found = _grouped(self._scan(names, selection.expression()), self._settled(), names)
        return [DeadLetterGroup(**row) for row in found.to_pylist()]

    def sample(self, selection: Selection, count: int) -> pa.Table:
        """Some letters that are not settled, of as many groups as can be, the newest of each first."""
        names = [*dict.fromkeys((*LETTER, *_GROUP))]
        places = _spread(self._scan(names, selection.expression()), self._settled(), names, count)
        wanted = pc.field("offset").isin(places["offset"].combine_chunks().unique())
        pages = [page.take(_common(page, places)) for page in self._scan(DEAD_LETTERS.names, wanted)]
        return pa.concat_tables(pages) if pages else DEAD_LETTERS.empty_table()

    def find(self, place: RecordPosition) -> list[dict[str, Any]]:
        """The letters of one record, each with the columns of the user's own and its outcomes so far, oldest first."""
        here = (
            (pc.field("topic") == place.topic)
            & (pc.field("partition") == place.partition)
            & (pc.field("offset") == place.offset)
        )
        if place.table is not None:
            here &= pc.field("table") == place.table
        found = [letter for page in _batches(self.store, DEAD_LETTERS, None, here) for letter in page.to_pylist()]
        outcomes = [
            row for page in _batches(self._outcomes, OUTCOMES, OUTCOMES.names, here) for row in page.to_pylist()
        ]
        for letter in found:
            letter["columns"] = {name: letter.pop(name) for name in list(letter) if name not in DEAD_LETTERS.names}
            letter["outcomes"] = sorted(
                (row for row in outcomes if all(row[name] == letter[name] for name in LETTER)),
                key=lambda row: row["plan"],
            )
        return sorted(found, key=lambda letter: letter["rejected_at"])

    def _scan(
        self, names: Sequence[str], where: pc.Expression | None, version: int | None = None
    ) -> Iterator[pa.Table]:
        return _batches(self.store, DEAD_LETTERS, names, where, version)

    def _settled(self) -> pa.Table:
        """The letters that are dead no more."""
        final = pc.field("outcome") != ReplayOutcome.STILL_DEAD.value
        schema = pa.schema([OUTCOMES.field(name) for name in LETTER])
        pages = list(_batches(self._outcomes, OUTCOMES, LETTER, final))
        return pa.concat_tables(pages) if pages else schema.empty_table()


def envelopes_of(letters: pa.Table) -> pa.Table:
    """The records that the letters hold, as they came; which clock set the timestamp is not kept."""
    unknown = pa.nulls(len(letters), ENVELOPE.field("timestamp_type").type)
    columns = [unknown if name == "timestamp_type" else letters.column(name) for name in ENVELOPE.names]
    return pa.table(columns, schema=ENVELOPE)


def dataset(store: Store, version: int | None = None) -> ds.Dataset | None:
    """A Delta table as a dataset that leaves out files by partition and statistics; None where there is no table."""
    at = newest_version(store) if version is None else version
    if at is None:
        return None
    try:
        # Not through delta-rs's own file system: that is Python called from Arrow's threads, and one of these that is
        # still at it when Python ends aborts the process.
        return open_at(store, at).to_pyarrow_dataset(filesystem=filesystem(store))
    except DeltaError as error:
        raise TableFeature(f"{store.uri} cannot be read without Spark: {str(error).splitlines()[0]}") from error


def _batches(
    store: Store,
    schema: pa.Schema,
    names: Sequence[str] | None,
    where: pc.Expression | None,
    version: int | None = None,
) -> Iterator[pa.Table]:
    """Rows by the page; without names all columns, also those that the schema does not know."""
    found = dataset(store, version)
    if found is None:
        return
    names = found.schema.names if names is None else names
    wanted = pa.schema([(schema if name in schema.names else found.schema).field(name) for name in names])
    scanner = found.scanner(list(names), filter=where, batch_size=_PAGE, batch_readahead=2, fragment_readahead=1)
    try:
        for batch in scanner.to_batches():
            if len(batch):
                yield pa.Table.from_batches([batch]).cast(wanted)
    except OSError as error:
        raise StorageUnreachable(f"{store.uri} cannot be read: {str(error).splitlines()[0][:300]}") from error


def _within(page: pa.Table, most: int) -> Iterator[pa.Table]:
    """The page, halved until no part is larger."""
    if len(page) > 1 and page.nbytes > most:
        half = len(page) // 2
        yield from _within(page.slice(0, half).combine_chunks(), most)
        yield from _within(page.slice(half).combine_chunks(), most)
    elif len(page):
        yield page


def _apart(page: pa.Table, others: pa.Table) -> pa.Array:
    """Positions of the letters that are not among others."""
    return _matched("ANTI", page, others)


def _common(page: pa.Table, others: pa.Table) -> pa.Array:
    """Positions of the letters that are among others."""
    return _matched("SEMI", page, others)


def _matched(kind: str, page: pa.Table, others: pa.Table) -> pa.Array:
    numbered = page.select(LETTER).append_column("nth", pa.array(range(len(page)), pa.int64()))
    sql = f"SELECT nth FROM page AS one {kind} JOIN others AS two ON {_SAME} ORDER BY nth"  # noqa: S608 our own names
    return duck.query(sql, page=numbered, others=others.select(LETTER))["nth"].combine_chunks()


def _reader(pages: Iterable[pa.Table], names: Sequence[str]) -> pa.RecordBatchReader:
    schema = pa.schema([DEAD_LETTERS.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (each for page in pages for each in page.to_batches()))


def _grouped(pages: Iterable[pa.Table], settled: pa.Table, names: Sequence[str]) -> pa.Table:
    shown = ", ".join(f"{duck.quote(name)} := one.{duck.quote(name)}" for name in (*LETTER, "detail"))
    sql = f"""
        SELECT reason, step, "table", count(*) AS count, min(rejected_at) AS first, max(rejected_at) AS last,
               arg_max(struct_pack({shown}), rejected_at) AS sample
        FROM pages AS one ANTI JOIN settled AS two ON {_SAME}
        GROUP BY reason, step, "table" ORDER BY count DESC, reason, step, "table"
    """  # noqa: S608 our own names
    return duck.query(sql, pages=_reader(pages, names), settled=settled)


def _spread(pages: Iterable[pa.Table], settled: pa.Table, names: Sequence[str], count: int) -> pa.Table:
    columns = ", ".join(f"one.{duck.quote(name)}" for name in LETTER)
    sql = f"""
        SELECT {columns} FROM pages AS one ANTI JOIN settled AS two ON {_SAME}
        ORDER BY row_number() OVER (PARTITION BY reason, step, "table" ORDER BY rejected_at DESC, "offset" DESC),
                 reason, step, "table"
        LIMIT {int(count)}
    """  # noqa: S608 our own names
    return duck.query(sql, pages=_reader(pages, names), settled=settled)
