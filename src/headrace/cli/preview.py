"""`headrace preview`: process sample records without Spark and without writing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.plural import plural


def preview(
    spec: Annotated[Path, typer.Argument(help="Spec file.", exists=True, dir_okay=False)],
    file: Annotated[
        str | None, typer.Argument(help="File with payloads to use instead of the source, one per line; - for stdin.")
    ] = None,
    records: Annotated[int, typer.Option(help="Number of records per topic.", min=1, max=10_000)] = 10,
    where: Annotated[str, typer.Option("--from", help="start, end, or an RFC 3339 timestamp.")] = "end",
    raw: Annotated[bool, typer.Option(help="Treat the file as a single payload.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")] = False,
) -> None:
    """Show the rows and dead letters that sample records produce. Writes nothing."""
    from headrace.pipeline.preview import preview_records
    from headrace.validate.load import load

    loaded = load(spec)
    envelopes = payloads(file, raw) if file is not None else None
    for each in loaded:
        found = preview_records(each, envelopes, records, where)
        _print_json(found) if as_json else _print(found)


def payloads(file: str, raw: bool) -> Any:
    """Lines of a file, or the whole file, as records."""
    import pyarrow as pa

    from headrace.delta.schema import ENVELOPE

    data = sys.stdin.buffer.read() if file == "-" else _content(Path(file))
    values = [data] if raw else [line for line in data.split(b"\n") if line.strip()]
    now = datetime.now(UTC)
    rows = [
        {"topic": "preview", "partition": 0, "offset": offset, "timestamp": now, "timestamp_type": 0, "value": value}
        for offset, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, ENVELOPE)


def _content(path: Path) -> bytes:
    from headrace.errors import UsageError

    try:
        return path.read_bytes()
    except OSError as trouble:
        raise UsageError(f"Cannot read {path}: {trouble.strerror}.", hint="Specify a file, or - for stdin.") from None


def _print_json(found: Any) -> None:
    from headrace.cli.output import emit

    for note in found.notes:
        emit({"event": "note", "text": note})
    for each in found.inferred:
        emit(each.event(found.pipeline))
    for uri, rows in found.tables.items():
        for row in rows.to_pylist():
            emit({"event": "row", "table": uri, "row": readable_value(row)})
    for letter in found.letters.to_pylist():
        emit({"event": "dead_letter", **{key: readable_value(value) for key, value in letter.items()}})
    emit({"event": "summary", "pipeline": found.pipeline, **found.account})


def _print(found: Any) -> None:
    from rich.markup import escape

    from headrace.cli.console import console

    out = console()
    width = out.width if out.is_terminal else None
    for note in found.notes:
        out.print(escape(note), style="dim")
    for each in found.inferred:
        out.print(escape(cell(str(each))), style="dim", soft_wrap=True)
    for uri, rows in found.tables.items():
        out.print(escape(f"{uri} · {plural(len(rows), 'row')}"), style="bold")
        for row in rows.to_pylist():
            out.print(escape(_block(row, width)), soft_wrap=True)
    if len(found.letters):
        out.print(f"dead letters · {len(found.letters)}", style="bold")
        letters = found.letters.to_pylist()
        several = len({row["table"] for row in letters}) > 1
        for row in letters:
            where = {"record": f"{row['topic']}/{row['partition']}@{row['offset']}"}
            where |= {"table": row["table"] or "none yet"} if several else {}
            said = {**where, "step": row["step"], "reason": row["reason"], "detail": row["detail"]}
            out.print(escape(_block({**said, "value": row["value"]}, width)), soft_wrap=True)
    account = found.account
    out.print(
        f"read {account['read']} = routed {account['routed']} + dead {account['dead']} + filtered {account['filtered']}"
    )


def _block(row: Mapping[str, Any], width: int | None) -> str:
    """Row as lines of name and value, truncated to the terminal width."""
    longest = max(len(name) for name in row)
    lines = [f"  {cell(name):<{longest}}  {cell(value)}" for name, value in row.items()]
    return "\n".join(line if width is None or len(line) <= width else f"{line[: width - 1]}…" for line in lines) + "\n"


def cell(value: Any) -> str:
    """Value as a single printable line: control characters are escaped, bytes shown as text if they are UTF-8."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else cell_text(value)
    text = json.dumps(value, default=cell_text, ensure_ascii=False) if isinstance(value, dict | list) else text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def cell_text(value: object) -> str:
    """Text form of values that JSON cannot represent; timestamps as RFC 3339."""
    return value.isoformat() if isinstance(value, date) else str(value)


def readable_value(value: Any) -> Any:
    """Bytes as text if they are UTF-8, otherwise as hex."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, list):
        return [readable_value(item) for item in value]
    return {key: readable_value(item) for key, item in value.items()} if isinstance(value, dict) else value
