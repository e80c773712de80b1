"""The batch protocol under every misfortune at once: each record is in its table exactly once, whatever happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headrace import faults
from headrace.delta import actions, log, restores, snapshot
from headrace.delta import log_writer as tail_module
from headrace.errors import (
    Fenced,
    HeadraceError,
    SourceGap,
    SourceReplaced,
    StorageUnreachable,
    TableRestored,
    TxnMismatch,
)
from headrace.faults import Abandoned, Point
from headrace.ledger import ledger, table_evidence, undone_batches
from headrace.ledger.row import row
from headrace.pipeline import table_entry
from headrace.storage.base import AlreadyExists
from headrace.write.intent import Intent, IntentKind
from model.audit import FOREIGN, audit, booked, stands_on, watch
from model.driver import TABLES, Driver
from model.world import Actor, DiskWorld, Violation, World, commits, load

REAL_LOAD = snapshot.load_state
EXPECTED_ENDS = (Fenced, TxnMismatch, SourceGap, SourceReplaced, TableRestored, Abandoned, StorageUnreachable)
KINDS = st.text("abcdf", min_size=1, max_size=4)
TOPIC, PART = st.sampled_from("xy"), st.integers(0, 2)
SLOT, CALLS = st.integers(0, 2), st.integers(0, 60)
FATE = st.sampled_from(["go", "go", "die", "die-after", "lose", "fail", "late"])

RUN = st.tuples(st.just("run"), SLOT, CALLS, FATE)
PRODUCE = st.tuples(st.just("produce"), TOPIC, PART, KINDS)
ACTION = st.one_of(
    *[RUN] * 7,
    *[PRODUCE] * 3,
    st.just(("land",)),
    *[st.tuples(st.just("spec"), st.integers(0, 3))] * 2,
    st.tuples(st.just("resume"), SLOT, CALLS, FATE),
    st.tuples(st.just("partition"), TOPIC),
    st.tuples(st.just("append"), st.sampled_from(TABLES)),
    st.tuples(st.just("column"), st.sampled_from(TABLES)),
    st.tuples(st.just("restore"), st.sampled_from(TABLES), st.integers(0, 3)),
    st.tuples(st.just("expire"), st.sampled_from(TABLES)),
    st.tuples(st.just("clean"), st.sampled_from(TABLES)),
    st.tuples(st.just("lose"), st.sampled_from(["ledger", "intents", "state"])),
    st.sampled_from([("replace", "x"), *[("truncate", topic, part, 2) for topic in "xy" for part in range(3)]]),
)
HISTORY = st.lists(ACTION, min_size=10, max_size=40)


class Play:
    """One history: what happens to the world, and who runs in it when."""

    def __init__(self, driver: type[Driver] = Driver) -> None:
        self.world, self.driver = World(), driver
        self.slots: dict[int, Actor] = {}
        self.everyone: list[Actor] = []
        self.drivers: dict[Actor, Driver] = {}
        self.calm = False  # the broker keeps what may have to be read again
        watch(self.world)

    def start(self, life: str) -> Actor:
        """A new instance, with nothing but what the store holds."""
        driver = self.driver(self.world)
        actor = Actor(self.world, getattr(driver, life))
        self.drivers[actor] = driver
        self.everyone.append(actor)
        return actor

    def run(self, slot: int, calls: int, fate: str, life: str = "live") -> None:
        """Let an instance make some calls and then meet its fate; one that rests goes on where it was."""
        if slot not in self.slots or self.slots[slot].ended:
            self.slots[slot] = self.start(life)
        self.slots[slot].go(calls, fate)

    def resume(self, slot: int, calls: int, fate: str) -> None:
        """The same for a person who accepts what the broker lost."""
        self.run(slot, calls, fate, "resume")

    def land(self) -> None:
        """What was given up and still on its way arrives."""
        self.world.land()

    def produce(self, topic: str, part: int, kinds: str) -> None:
        """Records arrive."""
        partitions = self.world.topics[topic].partitions
        partitions[part % len(partitions)].extend(kinds)

    def spec(self, number: int) -> None:
        """The next instance to start has another spec."""
        self.world.spec = number

    def partition(self, topic: str) -> None:
        """The topic grows."""
        self.world.topics[topic].partitions.append([])

    def truncate(self, topic: str, part: int, count: int) -> None:
        """The broker deletes its oldest records, read or not."""
        if self.calm:
            return
        found = self.world.topics[topic]
        part %= len(found.partitions)
        found.low[part] = min(found.low[part] + count, len(found.partitions[part]))

    def replace(self, topic: str) -> None:
        """The topic is deleted and made again."""
        if not self.calm:
            self.world.replace_topic(topic)

    def restore(self, table: str, back: int) -> None:
        """Somebody restores a table, unless what that undoes cannot be read again: then a person may only keep it."""
        target, store = self.version(table) - 2 - back, self.world.store("lake").child(table)
        if target < 0 or any(any(topic.low.values()) for topic in self.world.topics.values()):
            return
        states = [actions.parse_commit(0, store.raw(log.version_path(number)) or b"") for number in range(target + 1)]
        metadata = next(state.metadata for state in reversed(states) if state.metadata)
        info = {"operation": "RESTORE", "operationParameters": {"version": str(target)}}
        lines = [{"commitInfo": info}, metadata.action()]
        path = log.version_path(self.version(table))
        store.put_new(path, "\n".join(map(json.dumps, lines)).encode())
        if self.can_refill(table):
            self.calm = True
        else:
            self.world.objects.pop(f"lake/{table}/{path}")

    def can_refill(self, table: str) -> bool:
        """Whether one spec wrote all that is undone, from topics that are still there, and no refill is under way."""
        person = self.driver(self.world)
        person.ledger = ledger.Ledger.open(person.state, "p")
        begun, known = person.ledger.open_batch(), person.ledger.known.tables.get(table)
        version = person.restored().get(table)
        lost_now = person.ledger.is_new and self.world.past
        if known is None or version is None or lost_now or (begun and begun.kind is IntentKind.REFILL):
            return False
        try:
            due = person.owed(table, version, known.refill if known.refill >= 0 else version)[1]
        except TableRestored:
            return False
        return all(self.world.topics[item.topic].id == item.topic_id for item in due.ranges)

    def lose(self, what: str) -> None:
        """All instances die; then the ledger is lost, or `begun` too, or the whole state."""
        person = self.driver(self.world)
        self.close()
        self.world.land()
        person.ledger = ledger.Ledger.open(person.state, "p")
        known, ids = person.ledger.known, {name: topic.id for name, topic in self.world.topics.items()}
        as_ever = all(topic_id.endswith("-0") for topic_id in ids.values())
        restored = any(
            "RESTORE" in [commit.operation for commit, _ in commits(person.lake.child(name))] for name in TABLES
        )
        cut = any(any(topic.low.values()) for topic in self.world.topics.values())
        if self.world.archive or self.world.expired:
            return  # the tables no longer tell enough
        if restored or (what != "ledger" and (cut or known.topics.items() - ids.items())):
            return
        if not as_ever and (what == "state" or (what == "intents" and ids.keys() - known.topics.keys())):
            return  # marks do not tell a topic from one that was made again, so a person is asked
        self.calm = True
        if not (person.ledger.is_new and self.world.past):
            begun = person.ledger.open_batch()  # it may be in every table already
            open_one = [row(begun, (), begun.started, "")] if begun else []
            self.world.past = booked(self.world) + open_one
        folders = {
            "ledger": ("ledger",),
            "intents": ("ledger", "intents"),
            "state": ("ledger", "intents", "known_tables"),
        }
        for path in list(self.world.objects):
            if path.startswith(tuple(f"state/{folder}/" for folder in folders[what])):
                del self.world.objects[path]

    def expire(self, table: str) -> None:
        """A log checkpoint drops the txns of a table that lets them expire."""
        if not self.world.past and self.version(table):
            self.world.expired[f"lake/{table}"] = self.version(table) - 1

    def clean(self, table: str) -> None:
        """The log is cleaned up to its newest version, after a checkpoint; not where a RESTORE is to be answered."""
        store, newest = self.world.store("lake").child(table), self.version(table) - 1
        if self.world.past or any(commit.operation == "RESTORE" for commit, _ in commits(store)):
            return
        if self.is_being_created(table) or self.is_being_written(table) or self.world.late:
            return
        for path in (f"lake/{table}/{log.version_path(version)}" for version in range(newest)):
            if path in self.world.objects:
                self.world.archive[path] = self.world.objects.pop(path)

    def is_being_created(self, table: str) -> bool:
        """Whether an instance that rests has seen no table and may write version 0.

        It would also write it into a log whose version 0 was cleaned up, below the checkpoint that readers start from.
        That is out of scope: it would have slept for the whole log retention.
        """
        resting = [driver for actor, driver in self.drivers.items() if not actor.ended]
        return any(table in driver.tails and driver.tails[table].state is None for driver in resting)

    def is_being_written(self, table: str) -> bool:
        """Whether an instance rests between its check of the log and its put, which would land below the checkpoint.

        That is out of scope as well: the few milliseconds in between would last as long as the log retention.
        """
        return any(actor.next_put.startswith(f"lake/{table}/{log.LOG}") for actor in self.everyone if not actor.ended)

    def append(self, table: str) -> None:
        """Somebody else makes the table, or appends to it."""
        store, version = self.world.store("lake").child(table), self.version(table)
        path = f"f-{self.world.number()}"
        store.put(path, json.dumps([FOREIGN]).encode())
        lines = [{"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}}]
        if version == 0:
            lines += [actions.Protocol().action(), actions.MetadataAction(f"foreign-{path}", COLUMNS).action()]
        self.foreign(table, lines)

    def column(self, table: str) -> None:
        """Somebody else adds a column."""
        if self.version(table) == 0:
            return
        metadata = load(self.world.store("lake").child(table)).metadata
        schema = json.loads(metadata.schema_json)
        schema["fields"].append({"name": f"c{self.world.number()}", "type": "long", "nullable": True, "metadata": {}})
        changed = actions.MetadataAction(metadata.table_id, json.dumps(schema), (), metadata.properties)
        self.foreign(table, [changed.action()])

    def version(self, table: str) -> int:
        """The version that comes next."""
        found = load(self.world.store("lake").child(table))
        return found.version + 1 if found else 0

    def foreign(self, table: str, lines: list[dict]) -> None:
        """A commit that is not ours."""
        text = "\n".join(map(json.dumps, [{"commitInfo": {"operation": "WRITE"}}, *lines])).encode()
        self.world.store("lake").child(table).put_new(log.version_path(self.version(table)), text)

    def end(self) -> None:
        """An instance alone finishes everything; then all that rested wake up; then again one alone."""
        self.alone()
        self.world.land()
        resting = [actor for actor in self.everyone if not actor.ended]
        for actor in resting:
            actor.finish()
        self.world.land()
        self.alone()
        for actor in self.everyone:
            if isinstance(actor.ended, BaseException) and not isinstance(actor.ended, EXPECTED_ENDS):
                raise actor.ended

    def alone(self) -> None:
        """Without faults and without a human but for what the broker lost, all is read and booked."""
        actor = self.start("resume")
        actor.finish()
        if isinstance(actor.ended, BaseException):
            raise actor.ended
        audit(self.world)
        position = ledger.Ledger.open(self.world.store("state"), "p").position()
        for name, topic in self.world.topics.items():
            for part, records in enumerate(topic.partitions):
                if position.get((name, part), topic.low[part]) != len(records):
                    raise Violation(f"{name}/{part} is not read to its end")

    def close(self) -> None:
        """Let no thread stay behind."""
        for actor in self.everyone:
            actor.go(0, "die")


COLUMNS = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "string", "nullable": True, "metadata": {}}]})


def play(history: list[tuple], driver: type[Driver] = Driver) -> None:
    """The whole history, then the end."""
    told = Play(driver)
    try:
        for name, *how in history:
            getattr(told, name)(*how)
        told.end()
    finally:
        told.close()


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch):
    monkeypatch.setattr(snapshot, "load_state", load)
    monkeypatch.setattr(table_entry, "active_files", stands_on)
    monkeypatch.setattr(table_evidence, "all_txns", lambda store, version: load(store).txns)
    monkeypatch.setattr(ledger, "_FORGET_EVERY", 1)
    yield
    faults.disarm()


CALM = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


# One instance meets a fate at each of its calls in turn ("go": it falls asleep there); another goes on with a spec
# that leaves two of the tables alone; whoever slept wakes up at the end.
SWEEP = [
    [
        ("run", 0, call, fate),
        ("spec", 3),
        ("run", 1, 400, "go"),
        ("produce", "x", 0, "abd"),
        ("land",),
        ("run", 1, 400, "go"),
    ]
    for call in range(70)
    for fate in ("go", "die", "die-after", "lose", "late")
]


Random(1).shuffle(SWEEP)


# Two fall asleep, each at its own call; what the first leaves behind when it is fenced is no decision for the second.
SLEEPERS = [
    [("run", 0, first, "go"), ("spec", 3), ("run", 1, second, "go")] for first in range(0, 40, 2) for second in range(8)
]


# The state is lost after each call, and the next to come has another spec.
LOSSES = [
    [("run", 0, call, "die"), ("lose", what), ("spec", 3), ("run", 1, 400, "go"), ("produce", "x", 0, "abd")]
    for call in range(70)
    for what in ("ledger", "intents", "state")
]


# A table is restored; whoever answers meets a fate at each call, and the table is restored once more before the next.
RESTORES = [
    [
        ("run", 0, 400, "go"),
        ("restore", table, back),
        ("produce", "x", 0, "abd"),
        ("resume", 0, call, fate),
        ("restore", table, back + call % 3),
        ("resume", 1, 400, "go"),
        ("restore", table, call % 4),
    ]
    for table, back in (("A", 0), ("A", 1), ("B", 0), ("dead", 0))
    for call in range(0, 60, 2)
    for fate in ("die", "die-after")
]


# A topic is replaced while a batch of it is under way; the new one is accepted, and then all that told of it is lost.
REPLACED = [
    [("resume", 0, before, "go"), ("replace", "x"), ("run", 0, 0, "go"), ("resume", 0, after, "go"), ("lose", what)]
    for before in (28, 34, 40)
    for after in range(10, 40, 3)
    for what in ("ledger", "intents")
]


# The txns of a table expire after each call, or its log is cleaned up, or both; then somebody else goes on.
EXPIRED = [
    [("run", 0, call, "die"), *(((each, table)) for each in what), ("resume", 1, 400, "go"), ("produce", "x", 0, "abd")]
    for call in range(20, 70, 2)
    for table in ("A", "dead")
    for what in (("expire",), ("clean",), ("expire", "clean"))
]


def test_txns_that_expire_and_logs_that_are_cleaned_up_after_each_single_call():
    for history in EXPIRED:
        play(history)


# A txn expires and is set again by a commit without rows; a RESTORE undoes that commit, and batches after it.
SET_AGAIN = [
    [("run", 0, call, "die"), ("expire", "A"), ("resume", 0, 59, "go"), ("run", 0, 43, "go"), ("restore", "A", back)]
    for call in range(15, 45, 3)
    for back in range(5)
]
# The same with the RESTORE before the txn is set again, and with an instance that saw the table before it was created.
SET_AGAIN += [[("run", 0, call, "go"), ("expire", "A"), ("restore", "A", 0)] for call in range(15, 60, 4)]
SET_AGAIN += [[("run", 1, 43, "go"), ("run", 0, 0, "go"), ("run", 0, 33, "go"), ("expire", "dead")]]

# It is set again by an instance that slept until the intent of the batch was deleted.
SET_AGAIN += [
    [
        ("resume", 0, 26, "go"),
        ("expire", "B"),
        ("resume", 1, 25, "go"),
        ("run", 2, 16, "go"),
        ("run", 1, 24, "go"),
        ("expire", "B"),
    ]
]


def test_a_txn_that_expired_and_was_set_again_before_a_restore():
    for history in SET_AGAIN:
        play(history)


def test_a_state_that_is_lost_after_each_single_call():
    for history in LOSSES:
        play(history)


def test_a_state_that_is_lost_after_a_topic_was_replaced():
    for history in REPLACED:
        play(history)


def test_a_restored_table_is_refilled_whatever_happens_to_the_refill():
    for history in RESTORES:
        play(history)


def test_two_sleepers_at_each_pair_of_calls():
    for history in SLEEPERS:
        play(history)


def test_a_misfortune_at_each_single_call():
    for history in SWEEP:
        play(history)


@settings(max_examples=150, **CALM)
@given(HISTORY)
def test_whatever_happens_each_record_is_in_its_table_once(history):
    play(history)


@pytest.mark.slow
@settings(max_examples=20_000, **CALM)
@given(HISTORY)
def test_whatever_happens_in_many_more_histories(history):
    play(history)


@pytest.mark.parametrize("then", [None, *Point])
@pytest.mark.parametrize("point", list(Point))
@pytest.mark.parametrize("action", ["abandon", "lost-reply"])
def test_each_crash_point_and_each_during_recovery(point, then, action):
    world = World()
    watch(world)
    crash_and_recover(world, point, then, action)


@pytest.mark.parametrize("point", list(Point))
def test_each_crash_point_on_disk_with_the_real_snapshots(point, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "load_state", REAL_LOAD)
    crash_and_recover(DiskWorld(tmp_path), point, point, "abandon")


def crash_and_recover(world, point, then, action):
    """Crash once, again while recovering, then recover; nothing is lost, doubled or left unread."""
    first = faults.arm(point, action)
    run(world)
    assert first.nth == 0
    if then is not None:
        with faults.armed(then, "abandon"):
            run(world)
    run(world)
    audit(world)
    assert ledger.Ledger.open(world.store("state"), "p").position() == {("x", 0): 6, ("y", 0): 3}


def run(world):
    """One instance from its start to its end, each with another spec."""
    world.spec = (world.spec + 1) % 4
    with suppress(Abandoned, StorageUnreachable):
        Driver(world).live()


class BooksBeforeTheLetters(Driver):
    """Broken: says that a batch is done before it is."""

    def finish(self, intent):
        letters = tuple(table for table in intent.tables if table.dead_letters)
        rest = tuple(table for table in intent.tables if not table.dead_letters)
        super().finish(replace(intent, tables=rest))
        for table in letters:
            self.commit(table, intent)


class FinishesWithTheNewSpec(Driver):
    """Broken: an open batch is staged again by whatever spec there is now."""

    def recover(self, decide=lambda: None):
        self.ledger = ledger.Ledger.open(self.state, "p")
        begun = self.ledger.open_batch()
        if begun is not None and begun.digest:
            begun = self.stage(begun.ranges)
        if begun is not None:
            self.finish(begun)


class CommitsBeforeItBegins(Driver):
    """Broken: rows are visible before the decision is durable."""

    def stage(self, ranges):
        intent = super().stage(ranges)
        self.commit(intent.tables[0], intent)
        return intent


class NeverLooksAtAnOpenBatch(Driver):
    """Broken: takes the next number, as if nothing had been begun."""

    def recover(self, decide=lambda: None):
        self.ledger = ledger.Ledger.open(self.state, "p")
        if self.ledger.open_batch() is not None:
            self.state.delete([f"intents/{self.ledger.batch + 1:012}"])


def marks_do_not_count(patch):
    """Broken: a table that has the batch gets it again."""
    patch.setattr(tail_module, "_has_batch", lambda *_: False)


def anybody_may_begin(patch):
    """Broken: a batch that another driver has begun is begun over it."""

    def begin(self, intent):
        self._store.put(f"intents/{intent.batch:012}", intent.to_json().encode())

    patch.setattr(ledger.Ledger, "begin", begin)


def a_sleeper_may_begin(patch):
    """Broken: nobody looks whether the batch is booked and its `begun` forgotten."""

    def begin(self, intent):
        try:
            self._store.put_new(f"intents/{intent.batch:012}", intent.to_json().encode())
        except AlreadyExists:
            if self._intent_text(intent.batch) != intent.to_json().encode():
                raise Fenced("begun by another") from None

    patch.setattr(ledger.Ledger, "begin", begin)


def whatever_is_begun_is_open(patch):
    """Broken: a `begun` that a sleeper put after its batch was booked is taken for a decision."""

    def open_batch(self):
        text = self._intent_text(self.batch + 1)
        return Intent.from_json(text.decode()) if text else None

    patch.setattr(ledger.Ledger, "open_batch", open_batch)


def a_booking_forgets_other_partitions(patch):
    """Broken: a booking carries only the marks of the partitions it read."""
    whole = ledger._last_commit

    def newest(table, state, name):
        marks, versions = whole(table, state, name)
        last = max(marks.items(), key=lambda item: item[0].count(":"))
        return {name: state.txns[name], last[0]: last[1]}, versions

    patch.setattr(ledger, "_last_commit", newest)


class ForgetsWhatItOwes(Driver):
    """Broken: a refill is decided, but nothing durable says so while it is not done."""

    def answer(self):
        for name, version in self.restored().items():
            known = self.ledger.known.tables[name]
            self.ledger.known.store(tables={name: replace(known, restored=version)})


class RefillsEveryTable(Driver):
    """Broken: what one table lost is given to all of them again."""

    def stage(self, ranges, only=None):
        intent = super().stage(ranges, only)
        return intent if only is None else replace(super().stage(ranges), ranges=(), batch=intent.batch)


class TakesAHalfBatchForWhole(Driver):
    """Broken: goes on after the highest mark, whether or not every table has it."""

    def rebuild_from(self, found):
        where = table_evidence.beyond(found, "p")
        self.ledger.known.store(topics={name: topic.id for name, topic in self.world.topics.items()})
        self.ledger.assume(where.batch, where.position)


def an_undone_refill_is_a_batch_like_any_other(patch):
    """Broken: a RESTORE that undoes a refill is taken to undo its own rows only."""
    kind_of = undone_batches._kind

    def kind_but_refill(rows, batch):
        kind = kind_of(rows, batch)
        return None if kind == IntentKind.REFILL else kind

    patch.setattr(undone_batches, "_kind", kind_but_refill)


def what_was_undone_is_what_came_last(patch):
    """Broken: a RESTORE to a version that was itself restored is not followed back."""
    patch.setattr(restores, "_target", lambda store, commit: commit.version - 2)


def commits_tell_only_what_they_read(patch):
    """Broken: a commit does not say where the partitions stand that its batch does not read."""
    patch.setattr(ledger.Ledger, "idle_ranges", lambda self, excluded=(): ())


class TrustsTxnsAlone(Driver):
    """Broken: a batch whose txn is gone is taken for one that was never committed."""

    def find(self, table, begun):
        pass


BROKEN: list[Callable] = [
    TrustsTxnsAlone,
    ForgetsWhatItOwes,
    RefillsEveryTable,
    TakesAHalfBatchForWhole,
    an_undone_refill_is_a_batch_like_any_other,
    what_was_undone_is_what_came_last,
    commits_tell_only_what_they_read,
    BooksBeforeTheLetters,
    FinishesWithTheNewSpec,
    CommitsBeforeItBegins,
    NeverLooksAtAnOpenBatch,
    marks_do_not_count,
    anybody_may_begin,
    a_sleeper_may_begin,
    whatever_is_begun_is_open,
    a_booking_forgets_other_partitions,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_protocol_is_caught(broken, monkeypatch):
    driver = broken if isinstance(broken, type) else Driver
    if driver is Driver:
        broken(monkeypatch)

    @settings(max_examples=1000, phases=[Phase.generate], **CALM)
    @seed(7)
    @given(HISTORY)
    def random_ones(history):
        play(history, driver)

    def all_of_them():
        told = EXPIRED + SLEEPERS + SWEEP + LOSSES + RESTORES
        for history in Random(2).sample(told, len(told)):
            play(history, driver)
        random_ones()

    with pytest.raises((Violation, HeadraceError, AssertionError)):
        all_of_them()
