"""The world of the model: a store in memory that can fail at each call, a broker, and actors that move when told."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.delta import actions, log, snapshot
from headrace.errors import HeadraceError, StorageUnreachable
from headrace.faults import Abandoned
from headrace.storage.base import AlreadyExists, NotFound, ObjectMeta
from headrace.storage.store import Bucket, Profile, Store

CALLS_AT_MOST = 5000


class Violation(AssertionError):
    """An invariant does not hold."""


class Actor:
    """One instance of the pipeline in a thread of its own; it makes the calls it is allowed, then rests."""

    def __init__(self, world: World, life: Callable[[], None]) -> None:
        self._may, self._rests = threading.Lock(), threading.Lock()  # each is held by whoever waits for the other
        self._may.acquire()
        self._rests.acquire()
        self._life = life
        self._fates: Iterator[str] = iter(())
        self.ended: BaseException | str = ""
        self.next_put = ""  # the object that it creates next, while it rests before that call
        thread = threading.Thread(target=self._run, daemon=True)
        world.actors[thread] = self
        thread.start()

    def _run(self) -> None:
        self._may.acquire()
        try:
            self._life()
            self.ended = "done"
        except BaseException as error:
            self.ended = error
        finally:
            self._rests.release()

    def go(self, calls: int, fate: str) -> None:
        """Let it make some calls that go well, and then one that ends like this."""
        if not self.ended:
            self._fates = chain(repeat("go", calls), [fate])
            self._may.release()
            self._rests.acquire()

    def finish(self) -> None:
        """Let it go on to its end."""
        self.go(CALLS_AT_MOST, "go")
        if not self.ended:
            raise Violation("an instance does not come to an end")

    def fate(self) -> str:
        """Asked by its own thread before each call: how will it end? Rests until that is decided."""
        while (fate := next(self._fates, None)) is None:
            self._rests.release()
            self._may.acquire()
        return fate


@dataclass
class Topic:
    """A topic as the broker holds it: the kind of each record, and the first offset still there."""

    id: str
    partitions: list[list[str]] = field(default_factory=lambda: [[]])
    low: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class World:
    """All that outlives an instance."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.actors: dict[threading.Thread, Actor] = {}
        self.topics = {"x": Topic("x-0", [list("abcdfa")]), "y": Topic("y-0", [list("abd")])}
        self.ever: dict[str, Topic] = {topic.id: topic for topic in self.topics.values()}
        self.late: list[Callable[[], str]] = []  # calls that were given up and still may land
        self.past: list[dict[str, Any]] = []  # what was booked in ledgers that are lost
        self.archive: dict[str, tuple[bytes, str]] = {}  # versions that were cleaned away; only the oracle has them
        self.begun: dict[str, bytes] = {}  # intents by path, also those that were deleted
        self.expired: dict[str, int] = {}  # by table, the version up to which its txns are gone
        self.spec = 0
        self.count = 0
        self.on_commit: Callable[[str, bytes], None] = lambda path, data: None

    def number(self) -> int:
        """A new number each time."""
        self.count += 1
        return self.count

    def land(self) -> None:
        """What was on its way arrives."""
        late, self.late = self.late, []
        for call in late:
            with suppress(HeadraceError):
                call()

    def store(self, root: str) -> AnyStore:
        """A store that rests before each call when an actor makes it."""
        return ModelStore(self, root)

    def replace_topic(self, name: str) -> None:
        """Delete a topic and make it again, with more records than before."""
        old = self.topics[name]
        topic = Topic(f"{name}-{self.number()}", [["a"] * (len(part) + 1) for part in old.partitions])
        self.topics[name] = self.ever[topic.id] = topic


class ModelStore(Store):
    """The verbs of a store over the world's objects."""

    def __init__(self, world: World, root: str) -> None:
        self.profile, self.bucket, self.root = Profile(), Bucket("s3", "model"), root
        self.world = world
        self._backend = Gate(world, root)

    def child(self, path: str) -> ModelStore:
        """The store of a folder below."""
        return ModelStore(self.world, f"{self.root}/{path}")

    def raw(self, path: str) -> bytes | None:
        """The content, without resting; also of a version that was cleaned away."""
        name = f"{self.root}/{path}"
        found = self.world.objects.get(name) or self.world.archive.get(name)
        return found[0] if found else None


class DiskStore(Store):
    """The same on a real disk, read by the real delta-rs."""

    def child(self, path: str) -> DiskStore:
        """The store of a folder below."""
        return DiskStore(f"{self.root}/{path}")

    def raw(self, path: str) -> bytes | None:
        """The content, if there is any."""
        return self.get(path) if self.exists(path) else None


class DiskWorld(World):
    """A world whose store is a folder."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def store(self, root: str) -> DiskStore:
        """A store in the folder."""
        return DiskStore(str(self.root / root))


AnyStore = ModelStore | DiskStore


class Gate:
    """Where the fate of each call is met: go, die before or after it, lose it or its reply, or let it land late."""

    def __init__(self, world: World, root: str) -> None:
        self._world, self._root = world, root

    def _meet(self, call: Callable[[], str], read: bool = False) -> str:
        actor = self._world.actors.get(threading.current_thread())
        fate = actor.fate() if actor else "go"
        if fate == "die":
            raise Abandoned
        if fate == "fail" or (read and fate in ("lose", "late")):
            raise StorageUnreachable("nothing was done")
        if fate == "late":
            self._world.late.append(call)
            raise StorageUnreachable("given up, but still on its way")
        answer = call()
        if fate == "die-after":
            raise Abandoned
        if fate == "lose":
            raise StorageUnreachable("the reply was lost")
        return answer

    def _write(self, path: str, data: bytes) -> str:
        tag = str(self._world.number())
        if (name := f"{self._root}/{path}").startswith("state/intents/"):
            self._world.begun[name] = data
        self._world.objects[name] = (data, tag)
        return tag

    def _found(self, path: str) -> tuple[bytes, str]:
        try:
            return self._world.objects[f"{self._root}/{path}"]
        except KeyError:
            raise NotFound(path) from None

    def put(self, path: str, data: bytes) -> str:
        return self._meet(lambda: self._write(path, data))

    def put_new(self, path: str, data: bytes) -> str:
        def call() -> str:
            if f"{self._root}/{path}" in self._world.objects:
                raise AlreadyExists(path)
            if path.startswith(log.LOG):
                self._world.on_commit(self._root, data)
            return self._write(path, data)

        actor = self._world.actors.get(threading.current_thread()) or SimpleNamespace()
        actor.next_put = f"{self._root}/{path}"
        try:
            return self._meet(call)
        finally:
            actor.next_put = ""

    def get(self, path: str) -> bytes:
        self._meet(str, read=True)
        return self._found(path)[0]

    def tag(self, path: str) -> str | None:
        self._meet(str, read=True)
        found = self._world.objects.get(f"{self._root}/{path}")
        return found[1] if found else None

    def list(self, prefix: str, after: str | None) -> Iterator[ObjectMeta]:
        self._meet(str, read=True)
        below = f"{self._root}/{prefix}/" if prefix else f"{self._root}/"
        for path in sorted(path for path in self._world.objects if path.startswith(below)):
            data, tag = self._world.objects[path]
            yield ObjectMeta(path.removeprefix(f"{self._root}/"), len(data), 0.0, tag)

    def delete(self, paths: Sequence[str]) -> None:
        self._meet(lambda: str([self._world.objects.pop(f"{self._root}/{path}", None) for path in paths]))


def commits(store: AnyStore) -> Iterator[tuple[actions.Commit, bytes]]:
    """Every version of a table's log, without resting."""
    version = 0
    while (data := store.raw(log.version_path(version))) is not None:
        yield actions.parse_commit(version, data), data
        version += 1


def ledger_rows(world: World) -> list[dict[str, Any]]:
    """Every row of the ledger in the order of its log, without resting."""
    store = world.store("state").child("ledger")
    lines = (json.loads(line) for _, data in commits(store) for line in data.splitlines())
    found = [(line["add"]["path"], store.raw(line["add"]["path"])) for line in lines if "add" in line]
    if lacks := [path for path, data in found if data is None]:
        raise Violation(f"the ledger names {lacks}, which are not there")
    return [_row(data or b"") for _, data in found]


@lru_cache(maxsize=100)
def _row(data: bytes) -> dict[str, Any]:
    (row,) = pq.ParquetFile(pa.BufferReader(data)).read().to_pylist()
    return dict(row)


def load(store: ModelStore, txns: Sequence[str] = ()) -> snapshot.TableState | None:
    """What delta-rs answers elsewhere: the newest state, here by replaying the whole log."""
    store.exists(log.version_path(0))  # one call, at which an actor rests
    state: snapshot.TableState | None = None
    for commit, _ in commits(store):
        if state is None:
            assert commit.metadata is not None
            assert commit.protocol is not None
            state = snapshot.TableState(0, commit.metadata, commit.protocol)
        lost = commit.version <= store.world.expired.get(store.root, -1)
        state = snapshot.next_state(state, replace(commit, txns={}) if lost else commit)
    return state
