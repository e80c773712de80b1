"""Output of `headrace table`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace.cli.console import console, emit, print_table, say, table_width
from headrace.cli.values import cell, readable_value
from headrace.errors import plural

if TYPE_CHECKING:  # pyarrow takes long to import, and `headrace --help` imports this module
    import pyarrow as pa

    from headrace.source.ranges import Range
    from headrace.table import Damage, HistoryEntry, Reingest, Repaired, Statistics, TableInfo
    from headrace.table.enable_feature import EnabledFeature
    from headrace.table.history import Latency
    from headrace.table.query import RowQuery
    from headrace.table.schema_changes import SchemaChange
    from headrace.table.sql import SqlResult

_MAX_PATHS = 20


def info_fields(info: TableInfo) -> dict[str, Any]:
    """Metadata of a table as plain values."""
    from headrace.spec.types import type_name

    columns = [
        {"name": field.name, "type": type_name(field.type), "nullable": field.nullable, "comment": _comment(field)}
        for field in info.schema
    ]
    fields = {name: getattr(info, name) for name in info.__slots__ if name != "schema"}
    return {**fields, "partition_by": list(info.partition_by), "features": list(info.features), "columns": columns}


def _comment(field: pa.Field) -> str | None:
    comment = (field.metadata or {}).get(b"comment")
    return comment.decode() if comment else None


def statistics_fields(statistics: Statistics) -> dict[str, Any]:
    """Statistics of a table as plain values."""
    return {**asdict(statistics), "small_share": round(statistics.small_share, 4)}


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one per line; lists with one item per line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        lines = [_item(item) for item in value] if isinstance(value, list) else [_plain(value)]
        for number, line in enumerate(lines or ["–"]):
            say(f"{'' if number else name:<{width}}  {line}")


def _item(value: Any) -> str:
    if not isinstance(value, Mapping) or "type" not in value:
        return cell(value)
    not_null = "" if value["nullable"] else " NOT NULL"
    comment = f": {value['comment']}" if value["comment"] else ""
    return cell(f"{value['name']} {value['type']}{not_null}{comment}")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{cell(name)}={cell(inner)}" for name, inner in value.items()) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return ", ".join(map(cell, value)) or "–"
    return "–" if value is None else cell(value)


def print_result(operation: str, path: str, fields: Mapping[str, Any], as_json: bool) -> None:
    """Print the result of an operation: a JSON object or one line."""
    if as_json:
        emit({"event": "summary", "operation": operation, "table": path, **fields})
        return
    figures = ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in fields.items())
    say(f"{path}: {operation}: {figures}")


def print_history(entries: Sequence[HistoryEntry]) -> None:
    """Print the history, one line per version."""
    titles = ("version", "timestamp", "operation", "rows written", "rows after", "by", "batch")
    rows = []
    for entry in entries:
        timestamp = entry.timestamp and entry.timestamp.isoformat(timespec="milliseconds")
        batch = f"{entry.headrace['pipeline']} {entry.headrace['batch']}" if "pipeline" in entry.headrace else ""
        counts = _plain(entry.rows_written), _plain(entry.rows_after)
        rows.append((str(entry.version), timestamp, entry.operation, *counts, entry.user, batch))
    print_table(titles, rows, numbers=("version", "rows written", "rows after"))


def print_latencies(latencies: Mapping[str, Latency]) -> None:
    """Print durations in seconds, one line per operation."""
    if not latencies:
        say("no commit has duration metrics")
        return
    titles = ("operation", "count", "last", "mean", "longest")
    rows = [
        (operation, latency.count, *(f"{value:.3f} s" for value in (latency.last, latency.mean, latency.longest)))
        for operation, latency in latencies.items()
    ]
    print_table(titles, rows, numbers=titles[1:])


def print_schema_change(path: str, change: SchemaChange) -> None:
    """Print schema changes, one per line."""
    from headrace.spec.types import type_name

    added = change.add if isinstance(change.add, Mapping) else {x.name: type_name(x.type) for x in change.add or ()}
    lines = [f"add {name} {kind}" for name, kind in added.items()]
    lines += [f"comment on {name}" for name in change.comment or ()]
    lines += [f"widen {name} to {kind}" for name, kind in (change.widen or {}).items()]
    lines += [f"rename {old} to {new}" for old, new in (change.rename or {}).items()]
    lines += [f"drop {name} and its values" for name in change.drop]
    print_list(f"{path}: columns to change:", lines)


def print_client_access(path: str, plan: EnabledFeature) -> None:
    """Print who can read and write a table before and after a feature is enabled."""
    say(f"{path}: enable {plan.feature}")
    if plan.pipelines:
        say(f"pipelines of the table: {', '.join(plan.pipelines)}")
    titles = ("client", "reads", "reads afterwards", "writes", "writes afterwards")
    rows = [
        (before.client, before.read, after.read, before.write, after.write)
        for before, after in zip(plan.before, plan.after, strict=True)
    ]
    print_table(titles, rows)


def print_enabled_feature(path: str, result: EnabledFeature, as_json: bool) -> None:
    """Print that a feature was enabled, and how clients read and write the table from now on."""
    fields = asdict(result)
    if as_json:
        print_result("enable-feature", path, {**fields, "pipelines": list(result.pipelines)}, as_json)
        return
    say(
        f"{path}: {result.feature} {'enabled in' if result.enabled else 'is enabled; current'} version {result.version}"
    )
    print_table(("client", "reads", "writes"), [(each.client, each.read, each.write) for each in result.after])


def print_query(query: RowQuery, vertical: bool, as_json: bool) -> None:
    """Print the rows of a query; JSON rows are streamed."""
    if not as_json:
        _print_rows(query.arrow(), vertical)
        return
    count = 0
    for batch in query.batches():
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            emit({"event": "row", "row": readable_value(row)})
        count += len(batch)
    emit({"event": "summary", "rows": count})


def print_sql_result(result: SqlResult, limit: int, vertical: bool, as_json: bool) -> None:
    """Print the rows of a SELECT statement: at most `limit`, 0 for all; JSON rows are streamed."""
    import pyarrow as pa

    hugeints = [field.name for field in result.schema if field.type == pa.decimal128(38, 0)]  # DuckDB's sum of integers
    count, more, batches = 0, False, []
    for batch in result.batches:
        part = batch.slice(0, limit - count) if limit else batch
        more = len(part) < len(batch)
        count += len(part)
        if as_json:
            for row in part.to_pylist(maps_as_pydicts="strict"):
                integers = {name: None if row[name] is None else int(row[name]) for name in hugeints}
                emit({"event": "row", "row": readable_value(row | integers)})
        else:
            batches.append(part)
        if more:
            break
    if as_json:
        emit({"event": "summary", "rows": count, "more": more})
    else:
        note = "; more rows with --limit 0" if more else ""
        _print_rows(pa.Table.from_batches(batches, result.schema), vertical, note)


def _print_rows(rows: pa.Table, vertical: bool = False, note: str = "") -> None:
    """Print one line per row, or one line per column if requested or too wide for the terminal."""
    out = console()
    names = [cell(name) for name in rows.column_names]
    texts = [
        [cell("" if value is None else value) for value in row.values()]
        for row in rows.to_pylist(maps_as_pydicts="strict")
    ]
    if names and (vertical or (out.is_terminal and table_width(names, texts) > out.width)):
        from rich.cells import cell_len
        from rich.text import Text

        name_width = max(map(cell_len, names))
        for number, row in enumerate(texts, 1):
            out.print(f"── row {number:,} ──", style="bold")
            for name, text in zip(names, row, strict=True):
                head = f"{name}{' ' * (name_width - cell_len(name))}  "
                out.print(Text.assemble((head, "dim"), text), soft_wrap=True)
    else:
        print_table(names, texts)
    say(f"{plural(len(rows), 'row')}{note}", "dim")


def print_list(head: str, items: Iterable[str]) -> None:
    """Print some items, and the number of others."""
    lines = list(items)
    say(head)
    for line in lines[:_MAX_PATHS]:
        say(f"  {cell(line)}")
    if len(lines) > _MAX_PATHS:
        say(f"  … and {len(lines) - _MAX_PATHS:,} more")


def print_damage(path: str, repaired: Repaired) -> None:
    """Print the problems of a table."""
    if repaired.intact:
        say(f"{path}: no problems found")
    _print_damaged_files("missing file", repaired.missing)
    _print_damaged_files("unreadable file", repaired.unreadable)
    _print_damaged_files("unreadable deletion vector", repaired.vectors)
    for each in repaired.lost:
        origin = "not from a pipeline" if each.pipeline is None else f"of '{each.pipeline}', batch {each.batch}"
        print_list(f"lost rows of version {each.version}, {origin}", map(_offsets, each.ranges))
    if repaired.unknown_origin:
        print_list("the log no longer has the origin of these files:", repaired.unknown_origin)
    if repaired.reingest is not None:
        _print_reingest(repaired.reingest)


def _print_damaged_files(noun: str, files: Sequence[Damage]) -> None:
    if files:
        print_list(f"{plural(len(files), noun)}:", [f"{file.path}: {file.why}" for file in files])


def _print_reingest(plan: Reingest) -> None:
    """Print the rows that can be read again and those that cannot."""
    lost = "lost rows" if plan.rows is None else plural(plan.rows, "lost row")
    if not (plan.ranges or plan.unrecoverable or plan.unknown_origin):
        say("no lost rows can be read again")
    if plan.ranges:
        print_list(f"{lost} can be read again:", map(_offsets, plan.ranges))
    for each in plan.unrecoverable:
        origin = "" if each.pipeline is None else f" of '{each.pipeline}', batch {each.batch},"
        print_list(
            f"rows of version {each.version}{origin} cannot be recovered: {each.why}", map(_offsets, each.ranges)
        )


def _offsets(offsets: Range) -> str:
    return f"{offsets.topic}/{offsets.partition}: offsets {offsets.start} to {offsets.until - 1}"


def repair_fields(repaired: Repaired) -> dict[str, Any]:
    """Result of a repair, for people."""
    fields: dict[str, Any] = {} if repaired.version is None else {"version": repaired.version}
    if repaired.reingest is None:
        return fields
    return {**fields, "rows written again": repaired.reingest.rows_restored, "in version": repaired.reingest.version}


def damage_event(repaired: Repaired) -> dict[str, Any]:
    """Result of a repair as JSON."""
    return {**asdict(repaired), "rows": repaired.rows, "intact": repaired.intact}
