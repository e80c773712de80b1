"""The batch protocol under every misfortune at once: each record is in its table exactly once, whatever happened."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import faults, ledger
from headrace.errors import Fenced, SourceGap, SourceReplaced, StorageUnreachable
from headrace.faults import Abandoned
from headrace.tables import log
from model.audit import FOREIGN, TABLES, audit, watch
from model.driver import Driver
from model.world import Actor, Violation, World, load

EXPECTED_ENDS = (Fenced, SourceGap, SourceReplaced, Abandoned, StorageUnreachable)
KINDS = st.text("abcdf", min_size=1, max_size=4)
TOPIC, PART = st.sampled_from("xy"), st.integers(0, 2)
SLOT, CALLS = st.integers(0, 2), st.integers(0, 60)
FATE = st.sampled_from(["go", "go", "die", "die-after", "lose", "fail"])

RUN = st.tuples(st.just("run"), SLOT, CALLS, FATE)
PRODUCE = st.tuples(st.just("produce"), TOPIC, PART, KINDS)
ACTION = st.one_of(
    *[RUN] * 7,
    *[PRODUCE] * 3,
    *[st.tuples(st.just("spec"), st.integers(0, 2))] * 2,
    st.tuples(st.just("resume"), SLOT, CALLS, FATE),
    st.tuples(st.just("partition"), TOPIC),
    st.tuples(st.just("append"), st.sampled_from(TABLES)),
    st.tuples(st.just("column"), st.sampled_from(TABLES)),
    st.sampled_from([("replace", "x"), *[("truncate", topic, part, 2) for topic in "xy" for part in range(3)]]),
)
HISTORY = st.lists(ACTION, min_size=10, max_size=40)


class Play:
    """One history: what happens to the world, and who runs in it when."""

    def __init__(self, driver: type[Driver] = Driver) -> None:
        self.world, self.driver = World(), driver
        self.slots: dict[int, Actor] = {}
        self.everyone: list[Actor] = []
        watch(self.world)

    def start(self, life: str) -> Actor:
        """A new instance, with nothing but what the store holds."""
        driver = self.driver(self.world)
        actor = Actor(self.world, getattr(driver, life))
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
        found = self.world.topics[topic]
        part %= len(found.partitions)
        found.low[part] = min(found.low[part] + count, len(found.partitions[part]))

    def replace(self, topic: str) -> None:
        """The topic is deleted and made again."""
        self.world.replace_topic(topic)

    def append(self, table: str) -> None:
        """Somebody else makes the table, or appends to it."""
        store, version = self.world.store("lake").child(table), self.version(table)
        path = f"f-{self.world.number()}"
        store.put(path, json.dumps([FOREIGN]).encode())
        lines = [{"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}}]
        if version == 0:
            lines += [log.Protocol().action(), log.Metadata(f"foreign-{path}", COLUMNS).action()]
        self.foreign(table, lines)

    def column(self, table: str) -> None:
        """Somebody else adds a column."""
        if self.version(table) == 0:
            return
        metadata = load(self.world.store("lake").child(table)).metadata
        schema = json.loads(metadata.schema_json)
        schema["fields"].append({"name": f"c{self.world.number()}", "type": "long", "nullable": True, "metadata": {}})
        changed = log.Metadata(metadata.table_id, json.dumps(schema), (), metadata.properties)
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
        for actor in self.everyone:
            actor.finish()
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
    monkeypatch.setattr(log, "load", load)
    monkeypatch.setattr(ledger, "_FORGET_EVERY", 1)
    yield
    faults.disarm()


CALM = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


@settings(max_examples=300, **CALM)
@given(HISTORY)
def test_whatever_happens_each_record_is_in_its_table_once(history):
    play(history)
