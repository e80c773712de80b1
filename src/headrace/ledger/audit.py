"""Audit log: what people have changed in a pipeline through the console. Entries are only ever added."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum

from headrace.storage.base import NotFound
from headrace.storage.store import Store

AUDIT = "audit"  # the folder in the state


class AuditPhase(StrEnum):
    """Phase of a change."""

    REQUESTED = "requested"  # recorded before anything is changed
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One phase of a change; both phases have the same id."""

    change: str  # the id
    at: datetime
    pipeline: str
    role: str
    address: str  # of the client
    action: str
    subject: str  # what is changed: the pipeline, or a table
    phase: AuditPhase
    state: str  # before the change if it is requested, else after it

    def to_json(self) -> str:
        """The entry as one line of JSON."""
        return json.dumps({**asdict(self), "at": self.at.isoformat(timespec="milliseconds")}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> AuditEntry:
        """Parse an entry."""
        raw = json.loads(text)
        return cls(**{**raw, "at": datetime.fromisoformat(raw["at"]), "phase": AuditPhase(raw["phase"])})


class AuditLog:
    """The entries of one pipeline, in its state: an object for each, with a name of its own."""

    def __init__(self, state: Store) -> None:
        self._store = state.child(AUDIT)

    def add(self, entry: AuditEntry) -> None:
        """Record an entry durably."""
        name = f"{entry.at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{uuid.uuid4().hex[:8]}.json"
        self._store.put_new(name, entry.to_json().encode())

    def newest(self, count: int) -> list[AuditEntry]:
        """The newest entries, newest first."""
        names = sorted(item.path for item in self._store.list() if item.path.endswith(".json"))
        entries = []
        for name in reversed(names[-count:]):
            try:
                entries.append(AuditEntry.from_json(self._store.get(name)))
            except NotFound:
                continue
        return entries
