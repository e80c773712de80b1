"""What a pipeline has seen: the ids of its tables and topics, so that one made anew is told from the one it knew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import Fenced, Stop
from headrace.storage import AlreadyThere, Changed, NotThere, Store

FORMAT = 1
KEY = "known"


class NewerFormat(Stop):
    """The state was written by a newer Headrace than this one."""


def check_format(store: Store, found: object) -> None:
    """NewerFormat unless this Headrace knows the state's format."""
    if str(found) != str(FORMAT):
        raise NewerFormat(
            f"The state at {store.uri} has format {found}; this Headrace knows format {FORMAT}.",
            next="Run the Headrace that wrote it, or a newer one.",
        )


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table as it was when the pipeline last wrote to it."""

    id: str
    committer: str  # "adopt" or "spark": one kind for good


class Known:
    """The content of `known`; replaced only when something changes, and never over another driver's."""

    def __init__(self, store: Store, raw: Mapping[str, Any], tag: str | None) -> None:
        self._store, self._tag = store, tag
        self.tables = {path: KnownTable(**item) for path, item in raw.get("tables", {}).items()}
        self.topics: dict[str, str] = dict(raw.get("topics", {}))

    @classmethod
    def load(cls, store: Store) -> Known:
        """What is there, or nothing yet."""
        try:
            data, tag = store.get_tagged(KEY)
        except NotThere:
            return cls(store, {}, None)
        raw = json.loads(data)
        check_format(store, raw.get("format"))
        return cls(store, raw, tag)

    def remember(
        self, *, tables: Mapping[str, KnownTable] | None = None, topics: Mapping[str, str] | None = None
    ) -> None:
        """Add or change tables and topics; Fenced when another driver wrote meanwhile."""
        self._become({**self.tables, **(tables or {})}, {**self.topics, **(topics or {})})

    def forget(self, path: str) -> None:
        """Let a table be made anew where there was one."""
        self._become({key: table for key, table in self.tables.items() if key != path}, self.topics)

    def _become(self, tables: dict[str, KnownTable], topics: dict[str, str]) -> None:
        if (tables, topics) == (self.tables, self.topics):
            return
        raw = {
            "format": FORMAT,
            "tables": {path: asdict(table) for path, table in sorted(tables.items())},
            "topics": dict(sorted(topics.items())),
        }
        self._tag = self._write(json.dumps(raw, indent=1).encode())
        self.tables, self.topics = tables, topics

    def _write(self, text: bytes) -> str:
        with suppress(AlreadyThere, Changed):
            if self._tag is not None:
                return self._store.replace(KEY, text, self._tag)
            self._store.put_new(KEY, text)
        found, tag = self._store.get_tagged(KEY)
        if found != text:  # else it is ours: it was just made, or only a reply was lost
            raise Fenced(f"Another driver changed {self._store.uri}/{KEY}.")
        return tag
