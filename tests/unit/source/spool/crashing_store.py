"""An object store in memory: what was put is durable, but responses are lost, and requests arrive late."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from headrace.errors import StorageUnreachable
from headrace.storage.base import AlreadyExists, NotFound, ObjectMeta
from unit.source.spool.crashing_disk import Crash


@dataclass
class CrashingStore:
    """Objects by path. A request that changes something may crash its process before or after it takes effect.

    Any request may have no response.
    """

    now: Callable[[], float]
    rng: random.Random
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    crash_after: int = 2**60  # requests
    unreachable: float = 0.0  # share of requests without a response
    late: list[Callable[[], object]] = field(default_factory=list)  # requests that take effect later
    meanwhile: list[Callable[[], object]] = field(default_factory=list)  # what others do before a later request
    guard: threading.Lock = field(default_factory=threading.Lock)
    uri: str = "memory"

    def crash(self, rng: random.Random, *, process_only: bool = False) -> CrashingStore:
        """The same store for the next process."""
        self.crash_after = 2**60
        return self

    def _request(self, effect: Callable[[], None]) -> None:
        self._let_others_go_on()
        with self.guard:
            self._change(effect)

    def _let_others_go_on(self) -> None:
        """One after the other: what goes on has requests too."""
        with self.guard:
            waiting = [] if self.rng.random() < 0.8 else self.meanwhile[-1:]
            others, self.meanwhile = self.meanwhile[:-1], [] if waiting else self.meanwhile
        for go_on in waiting:
            go_on()
            self.meanwhile = others

    def _read(self) -> None:
        self._let_others_go_on()
        with self.guard:
            if self.rng.random() < self.unreachable / 10:  # a step has many reads, and some steps must succeed
                raise StorageUnreachable("No response.")

    def _change(self, effect: Callable[[], None]) -> None:
        while self.late and self.rng.random() < 0.5:
            self.late.pop(0)()
        if self.rng.random() < self.unreachable:
            self.rng.choice((effect, lambda: self.late.append(effect), lambda: None))()
            raise StorageUnreachable("No response.")
        self.crash_after -= 1
        if self.crash_after < 0:
            self.rng.choice((effect, lambda: self.late.append(effect), lambda: None))()
            raise Crash
        effect()

    # ---- the operations of `Store` ----

    def put_new(self, path: str, data: bytes) -> str:
        existed: list[str] = []

        def effect() -> None:
            if path in self.objects:
                existed.append(path)
            else:
                self.objects[path] = (data, self.now())

        self._request(effect)
        if existed:
            raise AlreadyExists(path)
        return ""

    def put(self, path: str, data: bytes) -> str:
        self._request(lambda: self.objects.__setitem__(path, (data, self.now())))
        return ""

    def delete(self, paths: Iterable[str]) -> None:
        for path in self.rng.sample(sorted(paths), len(list(paths))):  # in no order, and maybe not all
            self._request(lambda path=path: self.objects.pop(path, None) and None)  # type: ignore[misc]

    def get(self, path: str) -> bytes:
        self._read()
        try:
            return self.objects[path][0]
        except KeyError:
            raise NotFound(path) from None

    def read(self, path: str, start: int, until: int) -> bytes:
        return self.get(path)[start:until]

    def list(self, prefix: str = "", after: str | None = None) -> Iterator[ObjectMeta]:
        self._read()
        for path, (data, modified) in sorted(self.objects.copy().items()):
            if path.startswith(f"{prefix}/") and (after is None or path > after):
                yield ObjectMeta(path, len(data), modified, "")

    def exists(self, path: str) -> bool:
        self._read()
        return path in self.objects
