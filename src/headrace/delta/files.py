"""Files as a Delta log tells them: what each commit added and took away, and those a version stands on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.delta.log import LOG, Commit, parse_commit, version_path
from headrace.delta.staged_file import StagedFile
from headrace.errors import StorageUnreachable, TableFeature
from headrace.storage.base import NotThere
from headrace.storage.store import Store

_ROWS = re.compile(r'"numRecords"\s*:\s*(\d+)')
_NAME = re.compile(rf"{LOG}/(\d{{20}})\.(json|checkpoint(?:\.\d+\.\d+)?\.parquet)$")
_AT_ONCE = 16  # commits fetched at the same time
_BLOCK = 256
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """A deletion vector: which rows of a file are no more."""

    kind: str  # "u": in a file below the table, "p": in a file anywhere, "i": in the log itself
    where: str
    offset: int | None
    rows: int  # that are deleted
    size: int = 0  # bytes

    @property
    def path(self) -> str | None:
        """Its file below the table's root; None where it has none there."""
        if self.kind != "u":
            return None
        prefix, coded = self.where[:-20], self.where[-20:]
        name = f"deletion_vector_{UUID(bytes=_decoded(coded))}.bin"
        return f"{prefix}/{name}" if prefix else name

    @property
    def address(self) -> str | None:
        """Its file as a whole address; None where the log does not give one."""
        return unquote(self.where) if self.kind == "p" else None

    @property
    def inline(self) -> bytes:
        """Its content, where that is in the log itself; what fills up its last word is at its end."""
        return _decoded(self.where)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> DeletionVector:
        """Out of a file's action."""
        size, rows = int(raw.get("sizeInBytes") or 0), int(raw["cardinality"])
        return cls(raw["storageType"], raw["pathOrInlineDv"], raw.get("offset"), rows, size)

    @property
    def action(self) -> dict[str, Any]:
        """As it stands in a file's action."""
        where = {} if self.offset is None else {"offset": self.offset}
        told = {"sizeInBytes": self.size, "cardinality": self.rows}
        return {"storageType": self.kind, "pathOrInlineDv": self.where, **where, **told}


def _decoded(text: str) -> bytes:
    """Z85, which Python has only from 3.13 on."""
    words = (text[at : at + 5] for at in range(0, len(text), 5))
    return b"".join(
        reduce(lambda total, mark: total * 85 + _Z85.index(mark), word, 0).to_bytes(4, "big") for word in words
    )


@dataclass(frozen=True, slots=True)
class File:
    """One data file of a table."""

    path: str  # below the table's root, as it is in the store; a whole address where the file is elsewhere
    spelled: str  # the same as the log writes it
    partition: Mapping[str, str | None]
    size: int
    held: int | None  # rows in the file, None where its statistics do not tell
    vector: DeletionVector | None = None
    stats: str = ""  # Delta's statistics as JSON, where the log has them so
    changes_data: bool = True  # false for files that only hold anew what others held
    modified: int = 0  # milliseconds; 0 where a log does not tell
    clustered: bool = False  # whether its rows are where the table's own clustering wants them

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from every other: the same file with another deletion vector is another one to a log."""
        return self.path, f"{self.vector.where}@{self.vector.offset}" if self.vector else ""

    @property
    def rows(self) -> int | None:
        """Rows that readers see."""
        return None if self.held is None else self.held - (self.vector.rows if self.vector else 0)

    @property
    def elsewhere(self) -> bool:
        """Whether it is not below the table's root, as those of a shallow clone."""
        return "://" in self.path or self.path.startswith(("/", "file:"))

    @property
    def paths(self) -> tuple[str, ...]:
        """All that a store holds of it: its own file, and that of its vector, as a whole address where it is one."""
        vector = self.vector.path or self.vector.address if self.vector else None
        return (self.path, vector) if vector else (self.path,)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> File:
        """Out of an `add` or `remove` action, of a commit or of a checkpoint."""
        vector = raw.get("deletionVector")
        return cls(
            unquote(raw["path"]),
            raw["path"],
            dict(raw.get("partitionValues") or {}),
            int(raw.get("size") or 0),
            _held(raw),
            DeletionVector.of(vector) if vector else None,
            raw.get("stats") or "",
            bool(raw.get("dataChange", True)),
            int(raw.get("modificationTime") or 0),
            bool(raw.get("clusteringProvider")),
        )


def as_file(staged: StagedFile) -> File:
    """A staged file as it will be once its table has it."""
    return File(staged.path, staged.path, dict(staged.partition), staged.size, staged.rows, stats=staged.stats)


def _held(raw: Mapping[str, Any]) -> int | None:
    if found := _ROWS.search(raw.get("stats") or ""):
        return int(found[1])
    told = (raw.get("stats_parsed") or {}).get("numRecords")
    return None if told is None else int(told)


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """One version of a log with its files."""

    version: int
    info: Mapping[str, Any]  # commitInfo
    added: tuple[File, ...]
    removed: tuple[File, ...]
    marks: Mapping[str, int]
    metadata: Mapping[str, Any] | None
    fed: tuple[File, ...] = ()  # of change data

    @property
    def changes(self) -> bool:
        """Whether rows or columns are others than before."""
        return self.metadata is not None or any(file.changes_data for file in (*self.added, *self.removed))

    @property
    def operation(self) -> str:
        """What the writer says it did."""
        return str(self.info.get("operation", ""))

    @property
    def timestamp(self) -> int:
        """When, in milliseconds; 0 where nothing tells."""
        return int(self.info.get("inCommitTimestamp") or self.info.get("timestamp") or 0)

    @property
    def account(self) -> Mapping[str, Any]:
        """Headrace's own account of the commit; empty where there is none."""
        if isinstance(own := self.info.get("headrace"), dict):
            return own
        try:
            told = json.loads(self.info.get("userMetadata") or "{}")
        except ValueError:
            return {}
        own = told.get("headrace") if isinstance(told, dict) else None
        return own if isinstance(own, dict) else {}


def parse_files(version: int, data: bytes) -> CommitFiles:
    """Read one version's JSON; StorageUnreachable while it is not whole."""
    facts: dict[str, Any] = {}
    named: dict[str, list[File]] = {"add": [], "remove": [], "cdc": []}
    marks: dict[str, int] = {}
    try:
        for line in filter(None, map(bytes.strip, data.split(b"\n"))):
            for kind, content in json.loads(line).items():
                if kind in named:
                    named[kind].append(File.of(content))
                elif kind == "txn":
                    marks[content["appId"]] = content["version"]
                else:
                    facts[kind] = content
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageUnreachable(f"Version {version} of a log is no whole commit: {error}.") from error
    added, removed, fed = map(tuple, named.values())
    return CommitFiles(version, facts.get("commitInfo") or {}, added, removed, marks, facts.get("metaData"), fed)


def read(store: Store, version: int) -> CommitFiles | None:
    """One version of the log; None when it is not there."""
    data = _content(store, version)
    return parse_files(version, data) if data else None


def back(store: Store, version: int, most: int | None = None) -> Iterator[CommitFiles]:
    """The log from a version back to its first, or to where it was cleaned away, many commits at once."""
    last = -1 if most is None else max(-1, version - most)
    for start in range(version, last, -_BLOCK):
        block = range(start, max(last, start - _BLOCK), -1)
        found = [parse_files(at, data) for at, data in zip(block, _contents(store, block), strict=False)]
        yield from found
        if len(found) < len(block):
            return


def commits(store: Store, newest: int, above: int = -1) -> Iterator[Commit]:
    """The commits of a log, newest first, down to the version after `above` or to where the log was cleaned up.

    Few at first and then more at once: most who ask find what they look for in the newest.
    """
    at_once = 1
    while newest > above:
        block = range(newest, max(above, newest - at_once), -1)
        found = _contents(store, block)
        yield from (parse_commit(version, data) for version, data in zip(block, found, strict=False))
        if len(found) < len(block):
            return
        newest, at_once = newest - len(block), min(2 * at_once, _BLOCK)


def _contents(store: Store, versions: range) -> list[bytes]:
    """The JSON of these versions up to the first that is not there; from a bucket many at once, as each is a wait."""
    if store.local:
        return list(takewhile(bool, (_content(store, at) for at in versions)))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-log") as pool:
        return list(takewhile(bool, pool.map(lambda at: _content(store, at), versions)))


def _content(store: Store, version: int) -> bytes:
    try:
        return store.get(version_path(version))
    except NotThere:
        return b""


def active(store: Store, version: int) -> dict[tuple[str, str], File]:
    """The files that a version stands on, by their keys."""
    checkpoint, parts = _checkpoint(store, version)
    files: dict[tuple[str, str], File] = {}
    for part in parts:
        files |= {file.key: file for file in _checkpointed(store, part)}
    return _after(files, _since(store, version, checkpoint))


def _after(files: dict[tuple[str, str], File], commits: Iterable[CommitFiles]) -> dict[tuple[str, str], File]:
    for commit in commits:
        for file in commit.removed:
            files.pop(file.key, None)
        files |= {file.key: file for file in commit.added}
    return files


class ActiveFiles:
    """The files that a table stands on, followed from version to version: only what is new is read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = -1
        self._files: dict[tuple[str, str], File] = {}

    def at(self, version: int) -> list[File]:
        """Those of a version."""
        if not 0 <= self._version <= version < self._version + _BLOCK or not self._follow(version):
            self._files = active(self._store, version)
        self._version = version
        return list(self._files.values())

    def _follow(self, version: int) -> bool:
        """Whether all commits since are still there."""
        try:
            self._files = _after(self._files, _since(self._store, version, self._version))
        except StorageUnreachable:
            return False
        return True


def tombstones(store: Store, version: int, since: int) -> set[str]:
    """What the newest log checkpoint up to a version calls removed, since a moment in milliseconds; vectors as well."""
    _, parts = _checkpoint(store, version)
    gone = (item for part in parts for item in _column(store, part, "remove"))
    late = (File.of(item) for item in gone if (item.get("deletionTimestamp") or 0) >= since)
    return {path for file in late for path in file.paths}


def all_marks(store: Store, version: int) -> dict[str, int]:
    """Every mark that a version carries, whoever made it."""
    checkpoint, parts = _checkpoint(store, version)
    marks: dict[str, int] = {}
    for part in parts:
        marks |= {item["appId"]: item["version"] for item in _column(store, part, "txn")}
    for commit in _since(store, version, checkpoint):
        marks |= commit.marks
    return marks


def reaches(store: Store) -> tuple[int, int] | None:
    """The first and the last version that can still be read; None where there is no log."""
    versions, checkpoints = _listed(store)
    if not versions and not checkpoints:
        return None
    newest = max([*versions, *checkpoints])
    run = newest
    while run in versions:
        run -= 1
    whole = [at for at in checkpoints if run <= at]  # from a checkpoint on, each version has its commit
    return (0 if run < 0 else min(whole, default=newest)), newest


def _listed(store: Store) -> tuple[set[int], dict[int, list[str]]]:
    versions: set[int] = set()
    checkpoints: dict[int, list[str]] = {}
    for item in store.list(LOG):
        if found := _NAME.match(item.path):
            if found[2] == "json":
                versions.add(int(found[1]))
            else:
                checkpoints.setdefault(int(found[1]), []).append(item.path)
    return versions, checkpoints


def _checkpoint(store: Store, version: int) -> tuple[int, Sequence[str]]:
    """The newest log checkpoint at or below a version, and its files; (-1, none) where all commits are there."""
    versions, checkpoints = _listed(store)
    usable = [at for at in checkpoints if at <= version]
    if usable:
        return max(usable), checkpoints[max(usable)]
    if 0 not in versions:
        raise TableFeature(f"{store.uri}: the checkpoints of its log are of a kind that only Spark reads.")
    return -1, ()


def _since(store: Store, version: int, checkpoint: int) -> list[CommitFiles]:
    """The commits past a checkpoint, oldest first."""
    found = list(back(store, version, version - checkpoint))
    if len(found) < version - checkpoint:
        raise StorageUnreachable(f"{store.uri}: version {version - len(found)} of its log cannot be read.")
    return found[::-1]


def _checkpointed(store: Store, part: str) -> Iterator[File]:
    return map(File.of, _column(store, part, "add"))  # the pairs of a map become a dictionary there


def _column(store: Store, part: str, name: str) -> list[dict[str, Any]]:
    found = pq.ParquetFile(pa.BufferReader(store.get(part)))
    if name not in found.schema_arrow.names:
        return []
    column = found.read(columns=[name], use_threads=False)[name]  # see `parquet.rows_in`
    return [item for item in column.drop_null().to_pylist() if item]
