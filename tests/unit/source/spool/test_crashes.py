"""Two thousand crashes: nothing acknowledged is lost, nothing readable changes, no offset is used twice."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import cast

import pyarrow as pa
import pytest

from headrace.errors import Fenced, SpoolDamaged, StorageUnreachable
from headrace.source.ranges import Range
from headrace.source.spool.base import BlockLog, BlockReader, WriteUnsettled
from headrace.source.spool.block import BLOCK_SCHEMA, Request
from headrace.source.spool.log import NewBlock, SegmentLog
from headrace.source.spool.object_log import ObjectLog
from headrace.source.spool.object_reader import ObjectReader
from headrace.source.spool.reader import SpoolReader, record_batches
from headrace.source.spool.window import RequestWindow
from headrace.storage.store import Store
from unit.source.spool.crashing_disk import Crash, CrashingDisk
from unit.source.spool.crashing_store import CrashingStore

Storage = CrashingDisk | CrashingStore

CRASHES = 2_000
TOPICS = ("orders", "/default/clicks")
SEGMENT_BYTES = 3_000
AGE = 60.0  # seconds in which a producer repeats a request


def batch(values: list[bytes]) -> pa.RecordBatch:
    rows = [
        {"key": None, "value": value, "headers": None, "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
        for value in values
    ]
    return pa.RecordBatch.from_pylist(rows, BLOCK_SCHEMA)


@dataclass
class World:
    """Producers that repeat requests until they are acknowledged, a spool, and a pipeline that commits."""

    rng: random.Random
    clock: float = 1_000_000.0
    sequence: int = 0
    unacknowledged: list[tuple[str, str, list[bytes]]] = field(default_factory=list)
    acknowledged: dict[str, tuple[str, int, list[bytes]]] = field(default_factory=dict)  # topic, first offset, values
    readable: dict[tuple[str, int], bytes] = field(default_factory=dict)  # as seen by the pipeline at any time
    highest: dict[str, int] = field(default_factory=dict)
    position: dict[str, int] = field(default_factory=dict)
    crashes: int = 0

    def start(self, storage: Storage) -> None:
        self.storage = storage
        self.log, self.reader = self.opened(storage)
        self.window = RequestWindow(10_000, int(AGE * 1000))
        for each in self.log.recover():
            self.window.add(each.topic, each.request, each.time)
        ends = self.log.ends()
        for topic, end in self.highest.items():
            assert ends[topic] >= end, "an acknowledged or readable offset is missing"
        self.check_acknowledged()

    def opened(self, storage: Storage) -> tuple[BlockLog, BlockReader]:
        if isinstance(storage, CrashingDisk):
            log = SegmentLog(storage, segment_bytes=SEGMENT_BYTES, request_age=AGE, clock=lambda: self.clock)
            return log, SpoolReader(storage, "memory")
        store = cast(Store, storage)
        objects = ObjectLog(
            store, segment_bytes=SEGMENT_BYTES, request_age=AGE, trim_seconds=3, clock=lambda: self.clock
        )
        return objects, ObjectReader(store)

    def step(self) -> None:
        self.clock += self.rng.random()
        action = self.rng.choices((self.append, self.read, self.commit), (6, 2, 1))[0]
        with suppress(StorageUnreachable):
            action()

    def append(self) -> None:
        """A group of requests, new ones and repeated ones."""
        group = [self.new_request() for _ in range(self.rng.randrange(3))]
        group += [self.unacknowledged.pop(0) for _ in range(min(2, len(self.unacknowledged)))]
        self.unacknowledged += group
        if self.acknowledged and self.rng.random() < 0.2:  # its response was lost: sent again
            sequence = self.rng.choice(list(self.acknowledged)[-20:])
            topic, first, values = self.acknowledged[sequence]
            stored = self.window.find((topic, "p", sequence), 0, int(self.clock * 1000))
            assert stored is not None, "an acknowledged request would be stored twice"
            assert (stored.first, stored.count) == (first, len(values))
        blocks: dict[str, NewBlock] = {}
        requests: dict[str, list[tuple[str, list[bytes], Request]]] = {}
        for topic, sequence, values in group:
            stored = self.window.find((topic, "p", sequence), 0, int(self.clock * 1000))
            if stored is not None:  # stored before a crash, but not acknowledged
                self.acknowledge(topic, sequence, stored.first, values)
                continue
            items = requests.setdefault(topic, [])
            start = sum(len(each[1]) for each in items)
            items.append((sequence, values, Request("p", sequence, 0, start, len(values))))
        for topic, items in requests.items():
            blocks[topic] = NewBlock([batch(values) for _, values, _ in items], [each[2] for each in items])
        acknowledges = True
        try:
            firsts = self.log.write(blocks)
        except WriteUnsettled as error:
            firsts, acknowledges = settled(error), False
        for topic, items in requests.items():
            assert firsts[topic] >= self.highest.get(topic, 0), "an offset is used twice"
            for sequence, values, request in items:
                first = firsts[topic] + request.first
                self.window.add(topic, Request("p", sequence, 0, first, len(values)), int(self.clock * 1000))
                if acknowledges:
                    self.acknowledge(topic, sequence, first, values)

    def new_request(self) -> tuple[str, str, list[bytes]]:
        self.sequence += 1
        values = [
            b"%d-%d " % (self.sequence, each) * self.rng.randrange(1, 20) for each in range(self.rng.randrange(1, 6))
        ]
        return self.rng.choice(TOPICS), str(self.sequence), values

    def acknowledge(self, topic: str, sequence: str, first: int, values: list[bytes]) -> None:
        self.unacknowledged = [each for each in self.unacknowledged if each[1] != sequence]
        self.acknowledged[sequence] = (topic, first, values)
        self.highest[topic] = max(self.highest.get(topic, 0), first + len(values))

    def read(self) -> None:
        """The pipeline reads from its position on; what it has read once must stay the same."""
        for topic, end in self.reader.ends().items():
            start = self.position.get(topic, 0)
            if start < end:
                for offset, value in self.values(topic, start, end):
                    assert self.readable.setdefault((topic, offset), value) == value, "a readable record has changed"
            self.highest[topic] = max(self.highest.get(topic, 0), end)

    def observe(self) -> None:
        """What another process can read at the moment of a crash must still be there after it."""
        for topic, end in self.reader.ends().items():
            self.highest[topic] = max(self.highest.get(topic, 0), end)

    def values(self, topic: str, start: int, end: int) -> list[tuple[int, bytes]]:
        read = [
            pair
            for records in record_batches(self.reader, Range(topic, 0, start, end))
            for pair in zip(records["offset"].to_pylist(), records["value"].to_pylist(), strict=True)
        ]
        assert [offset for offset, _ in read] == list(range(start, end))
        return read

    def commit(self) -> None:
        """The ledger records a batch, and the spool deletes what is before it."""
        self.read()
        for topic, end in self.reader.ends().items():
            start = max(self.position.get(topic, 0), end - 20)
            self.position[topic] = self.rng.randint(start, end)
        self.reader.commit(self.position)
        self.log.trim(self.position, is_full=self.rng.random() < 0.3)
        for topic, offset in self.position.items():
            assert self.reader.first(topic) <= offset, "a record was deleted before it was committed"

    def forget_committed(self) -> None:
        """Keep what must still be readable, and the last requests, which may be repeated."""
        for sequence in list(self.acknowledged)[:-20]:
            topic, first, values = self.acknowledged[sequence]
            if first + len(values) <= self.position.get(topic, 0):
                del self.acknowledged[sequence]

    def check_acknowledged(self) -> None:
        """Every acknowledged record that is not committed has its value at its offset."""
        ends = self.log.ends()
        stored = {
            topic: dict(self.values(topic, self.position.get(topic, 0), end))
            for topic, end in ends.items()
            if end > self.position.get(topic, 0)
        }
        offsets: set[tuple[str, int]] = set()
        for topic, first, values in self.acknowledged.values():
            for offset, value in enumerate(values, first):
                assert (topic, offset) not in offsets, "two requests have the same offset"
                offsets.add((topic, offset))
                if offset >= self.position.get(topic, 0):
                    assert stored[topic][offset] == value, "an acknowledged record is lost"
        for records in stored.values():
            texts = list(records.values())
            assert len(texts) == len(set(texts)), "a request is stored twice"


def settled(error: WriteUnsettled) -> dict[str, int]:
    """The producers are told that the outcome is unknown, and repeat their requests when it is known."""
    while True:
        with suppress(StorageUnreachable):
            return error.settle()


@pytest.mark.parametrize("seed", range(8))
def test_crashes_lose_nothing_that_was_acknowledged(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    world.start(CrashingDisk(lambda: world.clock))
    while world.crashes < CRASHES // 8:
        world.storage.crash_after = rng.randrange(1, 60)
        try:
            while True:
                world.step()
        except Crash:
            world.crashes += 1
            world.observe()
        disk = world.storage.crash(rng, process_only=rng.random() < 0.3)
        if rng.random() < 0.2:  # and once more during the recovery
            disk.crash_after = rng.randrange(8)
            try:
                world.start(disk)
            except Crash:
                disk = disk.crash(rng)
                world.start(disk)
        else:
            world.start(disk)
        world.forget_committed()
    assert world.sequence > 100
    assert world.position


@pytest.mark.parametrize("seed", range(8))
def test_crashes_lose_nothing_that_an_object_store_has_acknowledged(seed: int) -> None:
    """With requests without a response, requests that take effect late, and earlier writers that go on.

    They also go on while the next writer starts.
    """
    rng = random.Random(seed)
    world = World(rng)
    storage = CrashingStore(lambda: world.clock, rng)
    world.start(storage)
    earlier: list[BlockLog] = []
    refused = 0
    while world.crashes < CRASHES // 8:
        storage.crash_after, storage.unreachable = rng.randrange(1, 60), rng.choice((0.0, 0.1, 0.3))
        try:
            while True:
                world.step()
                if earlier and rng.random() < 0.1:
                    refused += continue_writing(rng.choice(earlier), world)
        except Crash:
            world.crashes += 1
        storage.crash(rng)
        earlier = [*earlier[-5:], world.log]
        storage.unreachable = rng.choice((0.0, 0.02))
        if rng.random() < 0.2:  # and once more during the recovery
            storage.crash_after = rng.randrange(4)
            with suppress(Crash, StorageUnreachable):
                world.start(storage)
            storage.crash(rng)
        for nth in range(rng.choice((0, 2))):
            storage.meanwhile.append(partial(end_writing, earlier[-1], world, nth))
        while True:
            with suppress(StorageUnreachable):
                world.start(storage)
                break
        storage.meanwhile.clear()
        world.forget_committed()
    assert world.sequence > 100
    assert world.position
    assert refused > 10


def continue_writing(log: BlockLog, world: World) -> bool:
    """An earlier writer that was suspended, and not ended, acknowledges nothing, and deletes nothing that is needed."""
    try:
        if world.rng.random() < 0.5:
            log.trim(world.position, is_full=world.rng.random() < 0.5)
        log.write({TOPICS[0]: NewBlock([batch([b"of an earlier writer"])])})
    except StorageUnreachable:
        return False
    except Fenced:
        return True
    raise AssertionError("an earlier writer has stored records")


def end_writing(log: BlockLog, world: World, nth: int) -> None:
    """The writer before the one that starts: its writes succeed until it is fenced."""
    with suppress(StorageUnreachable, Fenced):
        for value in range(world.rng.randrange(4)):
            log.write({TOPICS[0]: NewBlock([batch([b"%d-%d during start %d" % (nth, value, world.crashes)])])})
        log.trim(world.position, is_full=True)


def test_a_store_without_put_if_absent_is_noticed() -> None:
    """The test of the test: if the number of an object is free again, earlier writers go on."""
    rng = random.Random(1)
    world = World(rng)

    class Replacing(CrashingStore):
        put_new = CrashingStore.put

    storage = Replacing(lambda: world.clock, rng)
    world.start(storage)
    earlier = world.log
    world.start(storage)
    with pytest.raises(AssertionError, match="an earlier writer has stored records"):
        any(continue_writing(earlier, world) is None for _ in range(20))  # some look for a successor, and end


def test_a_disk_that_ignores_syncs_is_noticed() -> None:
    """The test of the test: without syncs, acknowledged records are lost, and the spool says so."""
    rng = random.Random(1)
    world = World(rng)

    class Ignoring(CrashingDisk):
        def crash(self, rng: random.Random, *, process_only: bool = False) -> CrashingDisk:
            for file in self.files.values():
                file.durable = b""
            return super().crash(rng)

    world.start(Ignoring(lambda: world.clock))
    for _ in range(200):
        world.append()
    with pytest.raises((AssertionError, SpoolDamaged)):
        restarts(world, rng)


def restarts(world: World, rng: random.Random) -> None:
    for _ in range(20):
        world.start(world.storage.crash(rng))
