"""`headrace preview`: process sample records without Spark and without writing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.arguments import file_content
from headrace.cli.console import console, emit, say
from headrace.cli.options import AsJson, SpecFile
from headrace.cli.values import cell, readable_value
from headrace.errors import plural

if TYPE_CHECKING:
    from headrace.pipeline.preview import Preview


def preview(
    spec_file: SpecFile,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="File with payloads to use instead of the source, one per line; - for stdin."
        ),
    ] = None,
    records: Annotated[int, typer.Option(help="Number of records per topic.", min=1, max=10_000)] = 10,
    position: Annotated[str, typer.Option("--from", help="start, end, or an RFC 3339 timestamp.")] = "end",
    raw: Annotated[bool, typer.Option("--raw", help="Treat the file as a single payload.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the rows and dead letters that sample records produce. Writes nothing."""
    from headrace.pipeline.preview import preview_records
    from headrace.validate.load import load

    specs = load(spec_file)
    file_records = payloads(file, raw) if file is not None else None
    for spec in specs:
        result = preview_records(spec, file_records, records, position)
        _print_json(result) if as_json else _print(result)


def payloads(file: str, raw: bool) -> Any:
    """Lines of a file, or the whole file, as records."""
    import pyarrow as pa

    from headrace.delta.schema import RECORD_SCHEMA

    data = file_content(file)
    values = [data] if raw else [line for line in data.split(b"\n") if line.strip()]
    now = datetime.now(UTC)
    rows = [
        {"topic": "preview", "partition": 0, "offset": offset, "timestamp": now, "timestamp_type": 0, "value": value}
        for offset, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, RECORD_SCHEMA)


def _print_json(result: Preview) -> None:
    for note in result.notes:
        emit({"event": "note", "text": note})
    for columns in result.inferred:
        emit(columns.event(result.pipeline))
    for uri, rows in result.tables.items():
        for row in rows.to_pylist():
            emit({"event": "row", "table": uri, "row": readable_value(row)})
    for dead_letter in result.dead_letters.to_pylist():
        emit({"event": "dead_letter", **{key: readable_value(value) for key, value in dead_letter.items()}})
    emit({"event": "summary", "pipeline": result.pipeline, **result.counts.records()})


def _print(result: Preview) -> None:
    for note in (*result.notes, *result.inferred):
        say(cell(str(note)), "dim")
    for uri, rows in result.tables.items():
        say(f"{uri} · {plural(len(rows), 'row')}", "bold")
        for row in rows.to_pylist():
            _print_row(row)
    dead_letters = result.dead_letters.to_pylist()
    if dead_letters:
        say(plural(len(dead_letters), "dead letter"), "bold")
    several = len({row["table"] for row in dead_letters}) > 1
    for row in dead_letters:
        head = {"record": f"{row['topic']}/{row['partition']}/{row['offset']}"}
        head |= {"table": row["table"] or "none yet"} if several else {}
        _print_row(head | {key: row[key] for key in ("step", "reason", "detail", "value")})
    counts = result.counts
    say(f"read {counts.read} = routed {counts.routed} + dead {counts.dead} + filtered {counts.filtered}")


def _print_row(row: Mapping[str, Any]) -> None:
    """Print lines of name and value, truncated to the width of a terminal, and an empty line."""
    out = console()
    name_width = max(len(name) for name in row)
    for name, value in row.items():
        line = f"  {cell(name):<{name_width}}  {'NULL' if value is None else cell(value)}"
        say(f"{line[: out.width - 1]}…" if out.is_terminal and len(line) > out.width else line)
    say("")
