"""Output of `headrace table`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from headrace.cli.console import console
from headrace.cli.plural import plural
from headrace.cli.preview import cell, readable_value
from headrace.spec.types import type_name

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.source.ranges import Range
    from headrace.table import Damage, HistoryEntry, Reingest, Repaired, Statistics, TableInfo
    from headrace.table.history import Latency
    from headrace.table.schema_changes import SchemaChange
    from headrace.table.sql import SqlResult

_MOST = 20  # paths that a person is shown
_HUGE = pa.decimal128(38, 0)  # how DuckDB's sums of whole numbers arrive


def info_text(found: TableInfo) -> dict[str, Any]:
    """Metadata of a table as plain values."""
    columns = [
        {"name": item.name, "type": type_name(item.type), "nullable": item.nullable, "comment": _comment(item)}
        for item in found.schema
    ]
    said = {name: getattr(found, name) for name in found.__slots__ if name != "schema"}
    return {**said, "partition_by": list(found.partition_by), "features": list(found.features), "columns": columns}


def _comment(item: pa.Field) -> str | None:
    said = (item.metadata or {}).get(b"comment")
    return said.decode() if said else None


def counted(found: Statistics) -> dict[str, Any]:
    """Statistics of a table as plain values."""
    return {**asdict(found), "small_share": round(found.small_share, 4)}


def pairs(said: Mapping[str, Any]) -> None:
    """Names and values, one per line; lists with one item per line."""
    out = console()
    longest = max(map(len, said))
    for name, value in said.items():
        lines = [_item(each) for each in value] if isinstance(value, list) else [_plain(value)]
        for at, line in enumerate(lines or ["–"]):
            out.print(escape(f"{'' if at else name:<{longest}}  {line}"), soft_wrap=True)


def _item(value: Any) -> str:
    if not isinstance(value, Mapping) or "type" not in value:
        return cell(value)
    required = "" if value["nullable"] else " NOT NULL"
    said = f": {value['comment']}" if value["comment"] else ""
    return cell(f"{value['name']} {value['type']}{required}{said}")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{cell(name)}={cell(inner)}" for name, inner in value.items()) or "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "–" if value is None else cell(value)


def figures(said: Mapping[str, Any]) -> str:
    """Result of an operation, on one line."""
    return ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in said.items())


def versions(entries: Sequence[HistoryEntry]) -> None:
    """History, one line per version."""
    grid = Grid("version", "timestamp", "operation", "rows written", "rows after", "by", "batch", box=None)
    for each in entries:
        at = "" if each.timestamp is None else each.timestamp.isoformat(timespec="milliseconds")
        batch = f"{each.account['pipeline']} {each.account['batch']}" if "pipeline" in each.account else ""
        cells = (str(each.version), at, each.operation, _plain(each.rows_written), _plain(each.rows_after))
        grid.add_row(*(escape(cell(text)) for text in (*cells, each.user or "", batch)))
    console().print(grid)


def latencies(took: Mapping[str, Latency]) -> None:
    """Metrics in seconds, one line per operation."""
    grid = Grid("operation", "count", "last", "mean", "longest", box=None)
    for operation, each in took.items():
        seconds = (f"{value:.3f} s" for value in (each.last, each.mean, each.longest))
        grid.add_row(escape(cell(operation)), f"{each.count:,}", *seconds)
    console().print(grid if took else "no commit has duration metrics")


def plan_text(path: str, change: SchemaChange) -> None:
    """Schema changes as text."""
    added = change.add if isinstance(change.add, Mapping) else {x.name: type_name(x.type) for x in change.add or ()}
    words = [f"add {name} {kind}" for name, kind in added.items()]
    words += [f"comment on {name}" for name in change.comment or ()]
    words += [f"widen {name} to {kind}" for name, kind in (change.widen or {}).items()]
    words += [f"rename {old} to {new}" for old, new in (change.rename or {}).items()]
    words += [f"drop {name} and its values" for name in change.drop]
    list_text(f"{path}: columns to change:", words)


def grid(rows: pa.Table, vertical: bool = False, note: str = "") -> None:
    """Rows as a table with one line per row, or with one line per column if requested or too wide."""
    out = console()
    names = [cell(name) for name in rows.column_names]
    texts = [
        [cell("" if value is None else value) for value in row.values()]
        for row in rows.to_pylist(maps_as_pydicts="strict")
    ]
    width = sum(max(map(cell_len, column)) + 2 for column in zip(names, *texts, strict=True))
    if names and (vertical or (out.is_terminal and width > out.width)):
        _records(out, names, texts)
    else:
        shown = Grid(*map(escape, names), box=None)
        for row in texts:
            shown.add_row(*map(escape, row))
        console(width=None if out.is_terminal else max(width, out.width)).print(shown)
    out.print(f"{plural(len(rows), 'row')}{note}", style="dim")


def _records(out: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows as lines of name and value, not truncated."""
    longest = max(map(cell_len, names))
    for number, row in enumerate(rows, 1):
        out.print(f"── row {number:,} ──", style="bold")
        for name, text in zip(names, row, strict=True):
            head = f"{name}{' ' * (longest - cell_len(name))}  "
            out.print(Text.assemble((head, "dim"), text), soft_wrap=True)


def answer(found: SqlResult, limit: int, vertical: bool, as_json: bool) -> None:
    """Print rows of a query: at most `limit`, 0 for all; JSON rows are streamed."""
    from headrace.cli.output import emit

    whole = [item.name for item in found.schema if item.type == _HUGE]
    shown, more, batches = 0, False, []
    for batch in found.batches:
        part = batch.slice(0, limit - shown) if limit else batch
        more = len(part) < len(batch)
        shown += len(part)
        if as_json:
            for row in part.to_pylist(maps_as_pydicts="strict"):
                numbers = {name: None if row[name] is None else int(row[name]) for name in whole}
                emit({"event": "row", "row": readable_value(row | numbers)})
        else:
            batches.append(part)
        if more:
            break
    if as_json:
        emit({"event": "summary", "rows": shown, "more": more})
    else:
        grid(pa.Table.from_batches(batches, found.schema), vertical, "; more rows with --limit 0" if more else "")


def list_text(head: str, paths: Iterable[str]) -> None:
    """Some paths, and the number of others."""
    out, names = console(), list(paths)
    out.print(escape(head), soft_wrap=True)
    for path in names[:_MOST]:
        out.print(escape(f"  {cell(path)}"), soft_wrap=True)
    if len(names) > _MOST:
        out.print(f"  … and {len(names) - _MOST:,} more")


def damage_text(path: str, found: Repaired) -> None:
    """Problems of a table as text."""
    if found.whole:
        list_text(f"{path}: no problems found", ())
    _spoiled("files are missing", found.missing)
    _spoiled("files cannot be read", found.unreadable)
    _spoiled("files lack a deletion vector", found.vectors)
    for each in found.lost:
        whose = "not from a pipeline" if each.pipeline is None else f"of '{each.pipeline}', batch {each.batch}"
        list_text(f"lost rows of version {each.version}, {whose}", [_offsets(item) for item in each.ranges])
    if found.untold:
        list_text("the log no longer has the origin of these files:", found.untold)
    if found.reingest is not None:
        _readable(found.reingest)


def _readable(plan: Reingest) -> None:
    """Rows that can be read again and rows that cannot."""
    lost = "an unknown number of" if plan.rows is None else f"{plan.rows:,}"
    if not (plan.ranges or plan.unread or plan.untold):
        list_text("no lost rows can be read again", ())
    if plan.ranges:
        list_text(f"{lost} rows are lost; these can be read again:", [_offsets(each) for each in plan.ranges])
    for each in plan.unread:
        whose = "" if each.pipeline is None else f" of '{each.pipeline}', batch {each.batch},"
        list_text(
            f"rows of version {each.version}{whose} cannot be recovered: {each.why}",
            [_offsets(item) for item in each.ranges],
        )


def _offsets(each: Range) -> str:
    return f"{each.topic}/{each.partition} from {each.start} to {each.until - 1}"


def repair_text(done: Repaired) -> dict[str, Any]:
    """Result of a repair."""
    said: dict[str, Any] = {} if done.version is None else {"version": done.version}
    if done.reingest is None:
        return said
    return {**said, "rows put back": done.reingest.put_back, "by version": done.reingest.version}


def _spoiled(what: str, found: Sequence[Damage]) -> None:
    if found:
        list_text(f"{len(found):,} {what}:", [f"{each.path}: {each.why}" for each in found])


def damage_event(found: Repaired) -> dict[str, Any]:
    """Same as JSON."""
    return {**asdict(found), "rows": found.rows, "whole": found.whole}
