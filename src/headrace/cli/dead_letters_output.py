"""Output of `headrace dead-letters`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.cli.console import emit, say
from headrace.cli.values import cell, readable_value, utf8_text
from headrace.errors import plural

if TYPE_CHECKING:
    from headrace.dead_letters.dry_run import DryRunResult
    from headrace.dead_letters.reader import DeadLetterGroup

_OUTCOMES = {"replayed": "rows", "still_dead": "still dead", "filtered": "filtered"}


def print_line(text: str, style: str = "") -> None:
    """Print user data on a single line; control characters are escaped."""
    say(cell(text), style)


def print_groups(pipeline: str, groups: list[DeadLetterGroup], total: int) -> None:
    """Print groups of dead letters with an example of each."""
    print_line(f"{pipeline}: {plural(total, 'dead letter')}" if total else f"{pipeline}: no dead letters")
    for group in groups:
        print_line(f"{group.count:>10,}  {group.reason} · {group.step} · {group.table or 'no table yet'}", "bold")
        print_line(f"            {_time(group.first)} to {_time(group.last)} UTC")
        print_line(f"            {_position(group.sample)}: {group.sample['detail']}")


def print_dead_letter(dead_letter: dict[str, Any], max_bytes: int) -> None:
    """Print a dead letter with its bytes, at most `max_bytes` of each (0 for all)."""
    from headrace.reasons import MEANING, Reason

    reason, rejected = dead_letter["reason"], _time(dead_letter["rejected_at"])
    fields = {
        "table": dead_letter["table"] or "none yet",
        "step": dead_letter["step"],
        "reason": f"{reason}: {MEANING[Reason(reason)]}" if reason in set(Reason) else reason,
        "detail": dead_letter["detail"],
        "schema id": dead_letter["schema_id"],
        "rejected": f"{rejected} UTC by {dead_letter['pipeline']}, spec {dead_letter['spec'][:12]}",
        "timestamp": dead_letter["timestamp"],
    }
    print_line(_position(dead_letter), "bold")
    for name, value in fields.items():
        if value is not None:
            print_line(f"  {name:<10}{value}")
    for name, value in dead_letter["columns"].items():
        print_line(f"  column {name}: {'null' if value is None else cell(value)}")
    _print_bytes("key", dead_letter["key"], max_bytes)
    for header in dead_letter["headers"] or ():
        _print_bytes(f"header {header['key']}", header["value"], max_bytes)
    _print_bytes("value", dead_letter["value"], max_bytes)
    for outcome in dead_letter["outcomes"]:
        print_line(
            f"  {'replay ' + str(outcome['replay']) + ' ':<10}{_time(outcome['at'])} UTC: {_outcome_text(outcome)}"
        )


def _print_bytes(name: str, data: bytes | None, max_bytes: int) -> None:
    """Print bytes as text if they are UTF-8, and as a hex dump."""
    if data is None:
        print_line(f"  {name}: null")
        return
    head = data[: max_bytes or None]
    note = f", the first {len(head):,}" if len(head) < len(data) else ""
    print_line(f"  {name}: {plural(len(data), 'byte')}{note}")
    text = utf8_text(head)
    for line in text.split("\n") if text else ():
        print_line(f"    {line}")
    for offset in range(0, len(head), 16):
        part = head[offset : offset + 16]
        ascii_text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        print_line(f"    {offset:08x}  {part.hex(' '):<47}  {ascii_text}")


def dead_letter_event(dead_letter: dict[str, Any]) -> dict[str, Any]:
    """Dead letter as JSON: bytes as hex, and as text if they are UTF-8."""
    headers = [{**header, "value": _text_and_hex(header["value"])} for header in dead_letter["headers"] or ()]
    columns = {name: readable_value(value) for name, value in dead_letter["columns"].items()}
    payload = {"key": _text_and_hex(dead_letter["key"]), "value": _text_and_hex(dead_letter["value"])}
    return {"event": "dead_letter", **dead_letter, **payload, "headers": headers, "columns": columns}


def _text_and_hex(data: bytes | None) -> dict[str, Any] | None:
    return None if data is None else {"text": utf8_text(data), "hex": data.hex()}


def print_dry_run(results: list[DryRunResult]) -> None:
    """Print the outcome of each dead letter of a dry run, and the totals."""
    for result in results:
        print_line(f"{_position(result.dead_letter)}  {result.dead_letter['reason']}", "bold")
        for table, row in result.rows:
            print_line(f"  row of {table}: {cell(row)}")
        if not result.rows:
            print_line(f"  {_outcome_text(result.outcome)}")
    counts = " + ".join(f"{_OUTCOMES[name]} {count}" for name, count in _counts(results).items())
    print_line(f"processed {len(results)} = {counts}; nothing was written")


def emit_dry_run(pipeline: str, results: list[DryRunResult]) -> None:
    """Print a dry run as JSON lines."""
    for result in results:
        keys = ("topic", "partition", "offset", "table", "reason", "detail")
        dead_letter = {key: result.dead_letter[key] for key in keys}
        rows = [{"table": table, "row": readable_value(row)} for table, row in result.rows]
        outcome = {key: result.outcome[key] for key in ("outcome", "reason", "detail")}
        emit({"event": "dry_run", "pipeline": pipeline, "dead_letter": dead_letter, "outcome": outcome, "rows": rows})
    emit({"event": "summary", "pipeline": pipeline, "dead_letters": len(results), **_counts(results)})


def _counts(results: list[DryRunResult]) -> dict[str, int]:
    return {name: sum(result.outcome["outcome"] == name for result in results) for name in _OUTCOMES}


def _outcome_text(outcome: dict[str, Any]) -> str:
    if outcome["into"]:
        return f"{outcome['outcome']} into {', '.join(outcome['into'])}"
    cause = ": ".join(filter(None, (outcome["reason"], outcome["detail"])))
    return str(outcome["outcome"]).replace("_", " ") + (f": {cause}" if cause else "")


def _position(row: dict[str, Any]) -> str:
    return f"{row['topic']}/{row['partition']}/{row['offset']}"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
