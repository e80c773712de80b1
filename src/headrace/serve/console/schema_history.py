"""History of the columns of a table, as differences between versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.delta.actions import Commit
from headrace.delta.log import LogWalk
from headrace.storage.store import Store

_MAX_COMMITS = 2_000  # to look through, locally
_MAX_REMOTE_COMMITS = 300


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """A column that a version added, removed or changed."""

    kind: str  # "added", "removed" or "changed"
    column: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version that changed the columns."""

    version: int
    at: datetime | None
    operation: str
    differences: tuple[ColumnDifference, ...]


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """Versions that changed the columns, newest first."""

    versions: tuple[SchemaVersion, ...]
    oldest: int  # the oldest version that was read
    is_complete: bool  # whether the log was read from the creation of the table


def schema_history(store: Store, newest: int) -> SchemaHistory:
    """Read the log from the newest version back; the first known schema has its columns as additions."""
    count = _MAX_COMMITS if store.local else _MAX_REMOTE_COMMITS
    walk = LogWalk(store, newest, max(-1, newest - count))
    commits = [commit for commit in walk if commit.metadata is not None]
    versions, before = [], dict[str, str]()
    for commit in reversed(commits):
        columns = columns_of(json.loads(commit.metadata.schema_json)) if commit.metadata else {}
        if differences := differences_between(before, columns):
            versions.append(_version(commit, differences))
        before = columns
    return SchemaHistory(tuple(reversed(versions)), walk.oldest, walk.oldest == 0)


def _version(commit: Commit, differences: tuple[ColumnDifference, ...]) -> SchemaVersion:
    at = datetime.fromtimestamp(commit.timestamp / 1000, UTC) if commit.timestamp else None
    return SchemaVersion(commit.version, at, commit.operation, differences)


def columns_of(schema: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The columns of a Delta schema by path, nested ones included, with their types."""
    columns: dict[str, str] = {}
    for item in schema["fields"]:
        path = f"{prefix}{item['name']}"
        columns[path] = _type_text(item["type"]) + ("" if item["nullable"] else " NOT NULL")
        if isinstance(item["type"], dict) and item["type"]["type"] == "struct":
            columns |= columns_of(item["type"], f"{path}.")
    return columns


def _type_text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return "struct"
    if kind["type"] == "array":
        return f"array<{_type_text(kind['elementType'])}>"
    return f"map<{_type_text(kind['keyType'])}, {_type_text(kind['valueType'])}>"


def differences_between(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ColumnDifference, ...]:
    """What changes from one set of columns to another."""
    added = [ColumnDifference("added", name, "", kind) for name, kind in after.items() if name not in before]
    removed = [ColumnDifference("removed", name, kind, "") for name, kind in before.items() if name not in after]
    changed = [
        ColumnDifference("changed", name, before[name], kind)
        for name, kind in after.items()
        if name in before and before[name] != kind
    ]
    return (*added, *changed, *removed)
