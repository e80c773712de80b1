"""A pipeline as small as can be: read, stage, begin, commit, book; recovery is the same from `begin` on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from headrace import faults, retry
from headrace.batch import Counts, Intent, Range, Receipt, StagedFile, TableIntent
from headrace.commit.marks import batch_mark
from headrace.commit.tail import Tail
from headrace.errors import SourceGap, SourceReplaced
from headrace.faults import Point
from headrace.ledger import KnownTable, Ledger
from model.world import World

T = TypeVar("T")
NAME = "p"
THEN = datetime(2026, 1, 1, tzinfo=UTC)
AT_MOST = 2  # records of a partition in a batch
FILTERED, DEAD = "", "dead"
ROUTES = [  # one row a spec: the table of each kind of record
    {"a": "A", "b": "B", "c": "A", "d": DEAD, "f": FILTERED},
    {"a": "B", "b": "B", "c": "C", "d": "A", "f": DEAD},
    {"a": "A", "b": "C", "c": DEAD, "d": FILTERED, "f": "A"},
    {"a": "C", "b": "C", "c": "C", "d": DEAD, "f": FILTERED},
]


def schema(*columns: str) -> str:
    """Delta's schema of nullable text columns."""
    fields = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in columns]
    return json.dumps({"type": "struct", "fields": fields})


COLUMNS = [schema("id"), schema("id"), schema("id", "extra"), schema("id")]  # one spec evolves its tables


class NoWait:
    """Tries again at once."""

    def wait(self, timeout: float) -> bool:
        """Never asked to stop."""
        return False


def tried(attempt: Callable[[], T]) -> T:
    """Each step is retried by itself and with the same arguments."""
    return retry.call(attempt, stop=NoWait())


class Driver:
    """One instance of the pipeline; it takes no lease, so whatever it may do must be safe without one."""

    def __init__(self, world: World) -> None:
        self.world, self.spec = world, world.spec
        self.state, self.lake = world.store("state"), world.store("lake")
        self.tails: dict[str, Tail] = {}
        self.token = f"token-{world.number()}"

    def live(self) -> None:
        """Recover, then read until nothing is left."""
        self.recover()
        while (ranges := self.plan()) is not None:
            faults.reach(Point.PLANNED)
            intent = self.stage(ranges)
            faults.reach(Point.ALL_STAGED)
            tried(lambda intent=intent: self.ledger.begin(intent))
            self.finish(intent)

    def resume(self) -> None:
        """Accept whatever the broker lost or replaced, then live."""
        self.recover()
        while self.accept():
            pass
        self.live()

    def recover(self) -> None:
        """Finish the open batch, if there is one, with what it began with."""
        self.ledger = tried(lambda: Ledger.open(self.state, NAME))
        begun = tried(self.ledger.open_batch)
        for path in self.ledger.known.tables:
            mark = self.tail(path).state.marks.get(batch_mark(NAME))
            tried(lambda path=path, mark=mark: self.ledger.check_mark(path, mark))
        if begun is not None:
            self.finish(begun)

    def accept(self) -> bool:
        """What `resume` does after SourceGap or SourceReplaced; true when there was something to accept."""
        position, known = self.ledger.position(), self.ledger.known.topics
        anew = [
            Range(name, part, 0, 0, self.world.topics[name].id)
            for name, part in position
            if known.get(name) != self.world.topics[name].id
        ]
        gone = {
            (name, part): low
            for name, topic in self.world.topics.items()
            for part, low in topic.low.items()
            if position.get((name, part), low) < low and known.get(name, topic.id) == topic.id
        }
        if anew or gone:
            self.ledger.decide("accepted", gone, anew)
        return bool(anew or gone)

    def plan(self) -> tuple[Range, ...] | None:
        """The next ranges, at most a few records of each partition."""
        position, ranges = self.ledger.position(), []
        for name, topic in self.world.topics.items():
            if self.ledger.known.topics.get(name, topic.id) != topic.id:
                raise SourceReplaced(name)
            for part, records in enumerate(topic.partitions):
                start = position.get((name, part), topic.low[part])
                if start < topic.low[part]:
                    raise SourceGap(name)
                until = min(start + AT_MOST, len(records))
                if until > start:
                    ranges.append(Range(name, part, start, until, topic.id))
        return tuple(ranges) or None

    def stage(self, ranges: tuple[Range, ...]) -> Intent:
        """Read the records and put one file per table."""
        rows: dict[str, list[str]] = defaultdict(list)
        for item in ranges:
            kinds = self.world.topics[item.topic].partitions[item.partition][item.start : item.until]
            for offset, kind in enumerate(kinds, item.start):
                rows[ROUTES[self.spec][kind]].append(f"{item.topic_id}/{item.partition}/{offset}")
        filtered, dead = rows.pop(FILTERED, []), rows.get(DEAD, [])
        tables = tuple(
            self.stage_table(name, rows[name]) for name in sorted(rows, key=lambda name: (name == DEAD, name))
        )
        read = sum(map(len, rows.values())) + len(filtered)
        counts = Counts(read, read - len(dead) - len(filtered), len(dead), len(filtered), reasons={"type": len(dead)})
        text = str(self.spec)
        return Intent(NAME, self.ledger.batch + 1, ranges, tables, counts, THEN, self.token, text, text, "0")

    def stage_table(self, name: str, ids: list[str]) -> TableIntent:
        """Put one file; the table it is for may not exist yet."""
        data, path = json.dumps(ids).encode(), f"f-{self.world.number()}"
        state = self.tail(name).state
        tried(lambda: self.lake.child(name).put(path, data))
        faults.reach(Point.SOME_STAGED)
        staged = StagedFile(name, path, (), len(data), len(ids), json.dumps({"numRecords": len(ids)}))
        table_id = state.table_id if state else f"id-{self.world.number()}"
        return TableIntent(name, table_id, state is None, COLUMNS[self.spec], (), {}, (staged,), letters=name == DEAD)

    def tail(self, name: str) -> Tail:
        """The table's tail, followed up to now."""
        if name not in self.tails:
            self.tails[name] = tried(lambda: Tail.open(self.lake.child(name), [batch_mark(NAME)]))
        else:
            tried(self.tails[name].follow)
        return self.tails[name]

    def finish(self, intent: Intent) -> None:
        """Commit what the intent says to every table that does not have it yet, then book."""
        receipts = []
        for number, table in enumerate(intent.tables):
            if table.letters:
                faults.reach(Point.LETTERS_NOT)
            receipts.append(self.commit(table, intent))
            if number == 0:
                faults.reach(Point.TABLE_A_DONE)
        seen = {table.path: self.tails[table.path].state.table_id for table in intent.tables}
        tried(lambda: self.ledger.known.remember(tables={path: KnownTable(id, "adopt") for path, id in seen.items()}))
        faults.reach(Point.LEDGER_NOT)
        tried(lambda: self.ledger.book(intent, receipts, THEN))
        faults.reach(Point.LEDGER_DONE)

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """One table's part of the batch, once."""
        tail, marks = self.tail(table.path), intent.marks()

        def attempt() -> Receipt:
            made = tail.create(table.schema, (), {}, table.table_id, table.files, marks, {})
            if made is not None:
                faults.reach(Point.TABLE_MADE)
                return made
            if tail.state.marks.get(batch_mark(NAME), 0) < intent.batch:
                tail.evolve(table.schema, {})
                faults.reach(Point.EVOLVED)
            expected = None if table.create else table.table_id
            landed = tail.append(table.files, marks, {}, schema=table.schema, table_id=expected)
            faults.reach(Point.COMMIT_LANDED)
            return landed

        return tried(attempt)
