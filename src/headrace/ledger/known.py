"""What a pipeline has seen: the ids of its tables and topics, so that one made anew is told from the one it knew."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        new_tables, new_topics = {**self.tables, **(tables or {})}, {**self.topics, **(topics or {})}
        if (new_tables, new_topics) == (self.tables, self.topics):
            return
        raw = {
            "format": FORMAT,
            "tables": {path: asdict(table) for path, table in sorted(new_tables.items())},
            "topics": dict(sorted(new_topics.items())),
        }
        self._tag = self._write(json.dumps(raw, indent=1).encode())
        self.tables, self.topics = new_tables, new_topics

    def _write(self, text: bytes) -> str:
        try:
            if self._tag is not None:
                return self._store.replace(KEY, text, self._tag)
            self._store.put_new(KEY, text)
        except (AlreadyThere, Changed):
            if self._store.get(KEY) != text:  # else it is ours, and only the reply was lost
                raise Fenced(f"Another driver changed {self._store.uri}/{KEY}.") from None
        return self._store.get_tagged(KEY)[1]
