"""One table: schema history, versions, files, sample rows and the plan of maintenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.delta.snapshot import active_files
from headrace.errors import HeadraceError
from headrace.maintain.planner import Action
from headrace.maintain.table_plan import planned_rewrites
from headrace.serve.console.charts import Bin, size_histogram
from headrace.serve.console.schema_history import SchemaHistory, schema_history
from headrace.serve.console.state import StoredPipeline, TableLink
from headrace.serve.console.text import printable
from headrace.storage.store import Store
from headrace.table.history import HistoryEntry
from headrace.table.stats import Statistics, TableInfo

_MAX_VERSIONS = 30
_MAX_ROWS = 20

T = TypeVar("T")


@dataclass(frozen=True)
class PagePart(Generic[T]):
    """A part of a page: its content, or the error that occurred."""

    content: T | None
    error: str = ""

    @classmethod
    def of(cls, read: Callable[[], T]) -> PagePart[T]:
        """Read the content; an error of Headrace does not prevent the other parts of the page."""
        try:
            return cls(read())
        except HeadraceError as error:
            return cls(None, f"{error.name}: {error.message} {error.hint}".strip())


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A version with the account that Headrace has written into its commit."""

    entry: HistoryEntry
    account: str


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Rows of one version."""

    version: int
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Files of the newest version by size."""

    bins: tuple[Bin, ...]
    smallest: int | None
    largest: int | None


@dataclass(frozen=True, slots=True)
class TablePage:
    """All parts of the page of a table."""

    link: TableLink
    info: PagePart[TableInfo]
    statistics: PagePart[Statistics]
    schema: PagePart[SchemaHistory]
    versions: PagePart[list[VersionLine]]
    files: PagePart[FileSizes]
    sample: PagePart[SampleRows]
    plan: PagePart[list[Action]]


def table_page(stored: StoredPipeline, link: TableLink, version: int | None) -> TablePage:
    """Read a table; `version`: of the sample rows, by default the newest."""
    table, store = stored.table(link), Store(link.uri, stored.profile)
    newest = PagePart.of(table.resolve)
    return TablePage(
        link,
        PagePart.of(table.metadata),
        PagePart.of(table.statistics),
        PagePart.of(lambda: schema_history(store, newest.content or 0)),
        PagePart.of(lambda: [VersionLine(each, account_text(each.headrace)) for each in table.history(_MAX_VERSIONS)]),
        PagePart.of(lambda: _file_sizes(store, newest.content or 0)),
        PagePart.of(lambda: _sample(stored, link, version)),
        PagePart.of(lambda: planned_rewrites(stored.spec, store)),
    )


def _file_sizes(store: Store, version: int) -> FileSizes:
    sizes = [file.size for file in active_files(store, version).values()]
    return FileSizes(size_histogram(sizes), min(sizes, default=None), max(sizes, default=None))


def _sample(stored: StoredPipeline, link: TableLink, version: int | None) -> SampleRows:
    table = stored.table(link)
    version = table.resolve(version)
    rows = table.query().at(version=version).limit(_MAX_ROWS).arrow()
    cells = tuple(
        tuple("NULL" if value is None else printable(value, 120) for value in row.values()) for row in rows.to_pylist()
    )
    return SampleRows(version, tuple(rows.schema.names), cells)


def account_text(account: Mapping[str, Any]) -> str:
    """Headrace's account of a commit as one line; empty for commits of other writers."""
    if not account:
        return ""
    parts = [f"{name} {account[name]}" for name in ("pipeline", "batch", "replay") if name in account]
    counts = ("read", "routed", "dead", "filtered", "skipped")
    parts += [f"{name} {account[name]:,}" for name in counts if isinstance(account.get(name), int)]
    ranges = [each for each in account.get("ranges") or () if len(each) == 4 and each[2] < each[3]]
    parts += [
        f"{topic}/{partition} offsets {start:,} to {until - 1:,}" for topic, partition, start, until in ranges[:4]
    ]
    parts += [f"and {len(ranges) - 4} more ranges"] if len(ranges) > 4 else []
    return printable(", ".join(parts) or dict(account), 500)
