"""A pipeline as small as can be: read, stage, begin, commit, book; recovery is the same from `begin` on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from headrace import faults, retry
from headrace.delta import snapshot
from headrace.delta.log_writer import LogWriter
from headrace.delta.receipt import Receipt
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_txn
from headrace.errors import SourceGap, SourceReplaced, TableRestored
from headrace.faults import Point
from headrace.ledger import table_evidence
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Ledger
from headrace.ledger.row import row
from headrace.ledger.undone_batches import UndoneRows, undone_rows
from headrace.pipeline.table_entry import batch_in_table, restores_of
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.write.intent import Intent, IntentKind, TableIntent
from headrace.write.table_writer import batch_account
from model.world import World, ledger_rows

T = TypeVar("T")
NAME = "p"
THEN = datetime(2026, 1, 1, tzinfo=UTC)
AT_MOST = 2  # records of a partition in a batch
FILTERED, DEAD = "", "dead"
TABLES = ("A", "B", "C", DEAD)
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
        self.tails: dict[str, LogWriter] = {}
        self.seen: dict[str, int] = {}
        self.token = f"token-{world.number()}"

    def live(self) -> None:
        """Recover, then read until nothing is left."""
        self.recover()
        self.refill()
        while (ranges := self.plan()) is not None:
            faults.reach(Point.BEFORE_STAGING)
            intent = self.stage(ranges)
            faults.reach(Point.AFTER_STAGING)
            tried(lambda intent=intent: self.ledger.begin(intent))
            self.finish(intent)

    def resume(self) -> None:
        """Have restored tables refilled, accept whatever the broker lost or replaced, then live."""
        self.recover(self.answer)
        self.refill()
        while self.accept_source():
            pass
        self.live()

    def recover(self, decide: Callable[[], None] = lambda: None) -> None:
        """Finish the open batch, if there is one, with what it began with."""
        self.ledger = tried(lambda: Ledger.open(self.state, NAME))
        self.rebuild()
        decide()
        begun = tried(self.ledger.open_batch)
        for path in self.ledger.known.tables:
            mark = self.tail(path).state.txns.get(batch_txn(NAME))
            tried(lambda path=path, mark=mark: self.ledger.check_txn(path, mark))
        if begun is not None:
            for table in begun.tables:
                self.find(table, begun)
            self.finish(begun)

    def find(self, table: TableIntent, begun: Intent) -> None:
        """Set a txn again that expired after its batch was committed."""
        tail = self.tail(table.path)
        if tail.state is None or tail.state.txns.get(batch_txn(NAME), 0) >= begun.batch:
            return
        if tried(partial(batch_in_table, self.lake.child(table.path), table, begun, tail.state)):
            tried(partial(tail.append, (), begun.txns(), batch_account(begun)))

    def rebuild(self) -> None:
        """Write a lost ledger anew; a person who is asked for the old spec has it."""
        if not self.ledger.is_new:
            return
        begun = tried(self.ledger.newest_intent)
        found = tried(lambda: table_evidence.traces([self.lake.child(name) for name in TABLES], NAME))
        highest = found.batch if found else 0
        if max(highest, begun.batch if begun else 0) <= 1 and (begun or not found):
            return
        if begun is not None and begun.batch >= highest:
            stood = (*begun.idle_ranges, *begun.ranges)
            self.ledger.assume(begun.batch - 1, {(item.topic, item.partition): item.start for item in stood})
        else:
            self.rebuild_from(found)
        tables = {store.root.rpartition("/")[2]: state for store, state in self.found(found)}
        made = {name: KnownTable(state.table_id, "direct", writers=(NAME,)) for name, state in tables.items()}
        tried(lambda: self.ledger.known.store(tables={**made, **self.ledger.known.tables}))
        tried(lambda: self.ledger.rebuild("lost"))

    def found(self, traces: table_evidence.TableEvidence | None) -> list[tuple]:
        """The tables that have marks of ours."""
        stores = {self.lake.child(name).uri: self.lake.child(name) for name in TABLES}
        return [(stores[uri], state) for uri, state in traces.tables.items()] if traces else []

    def rebuild_from(self, found: table_evidence.TableEvidence) -> None:
        """From the tables alone, and the ids of the topics as far as they are known."""
        since = self.ledger.known.since
        where = table_evidence.rebuilt_position(
            found, NAME, self.lake.child(DEAD).uri, is_only_table=False, since=since
        )
        ids = {name: topic.id for name, topic in self.world.topics.items()}
        tried(lambda: self.ledger.known.store(topics={**ids, **self.ledger.known.topics}))
        anew = {at: 0 for at in where.position if since.get(at[0], 0) > found.batch}
        self.ledger.assume(where.batch, where.position | anew, half=where.half is not None)
        if where.half is None:
            return
        spec, self.spec = self.spec, int(where.half.account["spec"])
        ranges = table_evidence.ranges_of(where.half, ids)
        intent = self.stage(ranges)
        self.spec = spec
        assert intent.counts.read == table_evidence.counts_of(where.half).read
        tried(lambda: self.ledger.begin(intent))

    def restored(self) -> dict[str, int]:
        """The tables with a RESTORE that nobody has answered."""
        found = {}
        for name, known in self.ledger.known.tables.items():
            store = self.lake.child(name)
            state = tried(lambda store=store: snapshot.load_state(store))
            version = tried(partial(restores_of, store, state, known, NAME)).newest
            if version is not None:
                found[name] = version
        return found

    def answer(self) -> None:
        """What `resume --table-restored=refill` writes down."""
        for name, known in dict(self.ledger.known.tables).items():
            self.accept(name, known)
        for name, version in self.restored().items():
            known = self.ledger.known.tables[name]
            oldest = known.refill if known.refill >= 0 else version
            _, due = self.owed(name, version, oldest)
            owes = replace(known, restored=version, refill=oldest if due.rows else -1)
            tried(lambda name=name, owes=owes: self.ledger.known.store(tables={name: owes}))

    def accept(self, name: str, known: KnownTable) -> None:
        """What `--accept-new-table` and `--table-restored=keep` do once a person has found the table to be whole."""
        store = self.lake.child(name)
        state = tried(lambda: snapshot.load_state(store, [batch_txn(NAME)]))
        writers = known.writers if batch_txn(NAME) in state.txns else ()
        reached = tried(partial(restores_of, store, state, known, NAME)).reached
        seen = known.scanned if reached else state.version
        tried(lambda: self.ledger.known.store(tables={name: replace(known, writers=writers, scanned=seen)}))

    def owed(self, name: str, newest: int, oldest: int) -> tuple[int, UndoneRows]:
        """What a table is owed, and the spec that wrote it."""
        for spec in range(len(ROUTES)):
            try:
                return spec, undone_rows(
                    self.lake.child(name), newest, oldest, batch_txn(NAME), str(spec), self.rows_from
                )
            except TableRestored as stop:
                refused = stop
        raise refused

    def rows_from(self, batch: int) -> list[dict]:
        """The ledger's rows, as the store has them now, and that of the open batch."""
        begun = tried(self.ledger.open_batch)
        to_come = [] if begun is None else [row(begun, (), THEN, "")]
        return [each for each in ledger_rows(self.world) if each["batch"] >= batch] + to_come

    def refill(self) -> None:
        """Give each restored table what it is owed, in a batch that moves no partition."""
        for name, known in dict(self.ledger.known.tables).items():
            if known.refill < 0:
                continue
            spec, self.spec = self.spec, self.owed(name, known.restored, known.refill)[0]
            due = self.owed(name, known.restored, known.refill)[1]
            intent = self.stage(list(due.ranges), only=name)
            self.spec = spec
            assert intent.tables[0].files[0].rows == due.rows
            tried(lambda intent=intent: self.ledger.begin(intent))
            self.finish(intent)

    def accept_source(self) -> bool:
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

    def stage(self, ranges: Sequence[Range], only: str | None = None) -> Intent:
        """Read the records and put one file per table; or for one table alone, which is then refilled."""
        rows: dict[str, list[str]] = defaultdict(list)
        for item in ranges:
            kinds = self.world.topics[item.topic].partitions[item.partition][item.start : item.until]
            for offset, kind in enumerate(kinds, item.start):
                rows[ROUTES[self.spec][kind]].append(f"{item.topic_id}/{item.partition}/{offset}")
        filtered, dead = rows.pop(FILTERED, []), rows.get(DEAD, [])
        read = sum(map(len, rows.values())) + len(filtered)
        if only is not None:
            rows, dead, ranges = {only: rows[only]}, rows[only] if only == DEAD else [], ()
        tables = tuple(
            self.stage_table(name, rows[name]) for name in sorted(rows, key=lambda name: (name == DEAD, name))
        )
        routed = sum(map(len, rows.values())) - len(dead)
        held = read - routed - len(dead) - len(filtered)
        counts = Counts(read, routed, len(dead), len(filtered), held, reasons={"type": len(dead)})
        text, number = str(self.spec), self.ledger.batch + 1
        rests = self.ledger.idle_ranges({(item.topic, item.partition) for item in ranges})
        kind = IntentKind.BATCH if only is None else IntentKind.REFILL
        intent = Intent(NAME, number, tuple(ranges), tables, counts, THEN, self.token, text, text, "0", kind=kind)
        return replace(intent, idle_ranges=rests)

    def stage_table(self, name: str, ids: list[str]) -> TableIntent:
        """Put one file; the table it is for may not exist yet."""
        data, path = json.dumps(ids).encode(), f"f-{self.world.number()}"
        state = self.tail(name).state
        tried(lambda: self.lake.child(name).put(path, data))
        faults.reach(Point.DURING_STAGING)
        staged = StagedFile(name, path, (), len(data), len(ids), json.dumps({"numRecords": len(ids)}))
        table_id = state.table_id if state else f"id-{self.world.number()}"
        version = state.version if state else -1
        part = TableIntent(
            name, table_id, state is None, COLUMNS[self.spec], (), {}, (staged,), dead_letters=name == DEAD
        )
        return replace(part, version=version)

    def tail(self, name: str) -> LogWriter:
        """The table's tail, followed up to now."""
        if name not in self.tails:
            self.tails[name] = tried(lambda: LogWriter.open(self.lake.child(name), [batch_txn(NAME)]))
            known, state = self.ledger.known.tables.get(name), self.tails[name].state
            if known is not None and state is not None:
                restores = tried(partial(restores_of, self.lake.child(name), state, known, NAME))
                if restores.newest is not None or not restores.reached:
                    raise TableRestored(name)
                self.seen[name] = state.version
        else:
            tried(self.tails[name].follow)
        return self.tails[name]

    def finish(self, intent: Intent) -> None:
        """Commit what the intent says to every table that does not have it yet, then book."""
        receipts = []
        for number, table in enumerate(intent.tables):
            if table.dead_letters:
                faults.reach(Point.BEFORE_DEAD_LETTERS)
            receipts.append(self.commit(table, intent))
            if number == 0:
                faults.reach(Point.AFTER_FIRST_TABLE)
        seen = {table.path: self.tails[table.path].state.table_id for table in intent.tables}
        known = {path: self.ledger.known.tables.get(path, KnownTable("", "direct")) for path in seen}
        known = {
            path: replace(each, id=seen[path], writers=(NAME,), scanned=max(each.scanned, self.seen.get(path, -1)))
            for path, each in known.items()
        }
        if intent.kind is IntentKind.REFILL:
            known = {path: replace(each, refill=-1) for path, each in known.items()}
        tried(lambda: self.ledger.known.store(tables=known))
        faults.reach(Point.BEFORE_LEDGER_WRITE)
        tried(lambda: self.ledger.record(intent, receipts, THEN))
        faults.reach(Point.AFTER_LEDGER_WRITE)

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """One table's part of the batch, once."""
        tail, marks = self.tail(table.path), intent.txns()

        def attempt() -> Receipt:
            made = tail.create(table.schema, (), {}, table.table_id, table.files, marks, batch_account(intent))
            if made is not None:
                faults.reach(Point.AFTER_TABLE_CREATION)
                return made
            if tail.state.txns.get(batch_txn(NAME), 0) < intent.batch:
                tail.evolve(table.schema, {})
                faults.reach(Point.AFTER_SCHEMA_CHANGE)
            expected = None if table.create else table.table_id
            landed = tail.append(table.files, marks, batch_account(intent), schema=table.schema, table_id=expected)
            faults.reach(Point.AFTER_COMMIT)
            return landed

        return tried(attempt)
