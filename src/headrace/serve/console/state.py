"""What the console reads of a pipeline's state: the ledger, the tables, the lease."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dead_letters.reader import DeadLetters
from headrace.ledger.audit import AuditLog
from headrace.ledger.ledger import Ledger
from headrace.spec import Spec
from headrace.storage import lease
from headrace.storage.store import Profile, Store
from headrace.table.table import Table


@dataclass(frozen=True, slots=True)
class TableLink:
    """A table of a pipeline, with the key that URLs have for it."""

    uri: str
    name: str
    key: str
    has_dead_letters: bool = False

    @classmethod
    def of(cls, uri: str, spec: Spec) -> TableLink:
        """The link of a table: its name is its path below the directory of the tables."""
        name = uri.removeprefix(f"{spec.base_uri}/") if uri != spec.dead_letters_uri else "dead letters"
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-60:].strip("-.")
        return cls(
            uri, name, f"{readable}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}", uri == spec.dead_letters_uri
        )


class StoredPipeline:
    """The state of a pipeline. Opening it reads nothing."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.profile = Profile(**spec.storage_profile())
        self.store = Store(spec.state_uri, self.profile)
        self.audit = AuditLog(self.store)

    def ledger(self) -> Ledger:
        """The ledger as it is now."""
        return Ledger.open(self.store, self.spec.pipeline)

    def holder(self) -> dict[str, object] | None:
        """The process that runs the pipeline; None if none does."""
        return lease.holder(self.store)

    def dead_letters(self) -> DeadLetters:
        """Its dead letters."""
        return DeadLetters(self.spec)

    def links(self, ledger: Ledger) -> list[TableLink]:
        """Its tables; that of dead letters comes last."""
        links = (TableLink.of(uri, self.spec) for uri in ledger.known.tables)
        return sorted(links, key=lambda link: (link.has_dead_letters, link.name))

    def table(self, link: TableLink) -> Table:
        """One of its tables."""
        return Table(link.uri, self.profile, states={self.spec.pipeline: self.store.uri})


def row_of(rows: Sequence[dict[str, Any]], batch: int | None) -> dict[str, Any] | None:
    """The row of a batch, by default the newest one that read records."""
    candidates: Iterable[dict[str, Any]] = reversed(rows)
    if batch is not None:
        return next((row for row in candidates if row["batch"] == batch), None)
    return next((row for row in candidates if row["kind"] == "batch"), rows[-1] if rows else None)
