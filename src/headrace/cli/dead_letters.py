"""`headrace dead-letters`: inspect, dry-run, replay and purge dead letters."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.plural import plural

if TYPE_CHECKING:
    from headrace.dead_letters.dry_run import DryRunResult
    from headrace.dead_letters.reader import DeadLetterGroup, Selection
    from headrace.spec import Spec

app = typer.Typer(
    name="dead-letters",
    help="Inspect, dry-run, replay and purge dead letters. Spark is started only if a replay writes a "
    "table that requires it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="Spec file.", exists=True, dir_okay=False)]
Reasons = Annotated[list[str] | None, typer.Option("--reason", help="Only dead letters with this reason; repeatable.")]
Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Only dead letters of this table (route or URI); repeatable.")
]
Since = Annotated[
    str | None, typer.Option(help="Only dead letters rejected since this RFC 3339 timestamp or age, such as 2h or 7d.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines to stdout.")]


@app.command("list")
def list_letters(
    spec: SpecFile,
    reason: Reasons = None,
    table: Tables = None,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """List unresolved dead letters by reason, step and table, with times and an example of each."""
    from headrace.cli.output import emit
    from headrace.dead_letters.reader import DeadLetters
    from headrace.validate.load import load

    for each in load(spec):
        groups = DeadLetters(each).groups(_selection(each, reason, table, since))
        total = sum(group.count for group in groups)
        if not as_json:
            _print_groups(each.pipeline, groups, total)
            continue
        for group in groups:
            emit({"event": "dead_letters", "pipeline": each.pipeline, **asdict(group)})
        emit({"event": "summary", "pipeline": each.pipeline, "dead_letters": total, "groups": len(groups)})


@app.command("show")
def show_letter(
    spec: SpecFile,
    position: Annotated[
        str, typer.Argument(help="topic/partition/offset, optionally followed by /table (route or URI).")
    ],
    most: Annotated[int, typer.Option("--bytes", help="Maximum bytes of the value to show; 0 for all.", min=0)] = 1024,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: its bytes as text and hex, the reason, and its replay history."""
    from headrace.cli.output import emit
    from headrace.dead_letters.reader import DeadLetters
    from headrace.errors import UsageError
    from headrace.validate.load import load

    shown = 0
    for each in load(spec):
        for letter in DeadLetters(each).find(_place(each, position)):
            shown += 1
            emit({"event": "dead_letter", **_plain(letter)}) if as_json else _print_letter(letter, most)
    if not shown:
        raise UsageError(
            f"No dead letter at {position}.", hint="List dead letters with `headrace dead-letters list SPEC`."
        )


@app.command("dry-run")
def try_letters(
    spec: SpecFile,
    sample: Annotated[
        int, typer.Option(help="Number of dead letters, of as many different kinds as possible.", min=1, max=10_000)
    ] = 10,
    reason: Reasons = None,
    table: Tables = None,
    since: Since = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Override a spec key, as key.path=value; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Process some dead letters with the spec, or with overrides, and show the result. Writes nothing."""
    from headrace.dead_letters.dry_run import dry_run
    from headrace.validate.load import load
    from headrace.validate.override import amended

    for each in load(spec):
        tried = dry_run(each, amended(each, changes or ()), _selection(each, reason, table, since), sample)
        _emit_tried(each.pipeline, tried) if as_json else _print_tried(tried)


@app.command("replay")
def replay_letters(
    spec: SpecFile,
    reason: Reasons = None,
    table: Tables = None,
    since: Since = None,
    wait: Annotated[bool, typer.Option(help="Wait if another instance holds the lease.")] = False,
    as_json: AsJson = False,
) -> None:
    """Process dead letters with the current spec and write their rows, exactly once. The pipeline must be stopped."""
    from headrace.cli.output import emit, sentence
    from headrace.dead_letters.replay import replay
    from headrace.validate.load import load

    def report(event: dict[str, Any]) -> None:
        emit(event) if as_json else _say(sentence(event))

    for each in load(spec):
        done = replay(each, _selection(each, reason, table, since), report=report, wait=wait)
        counts = done.counts
        if as_json:
            said: dict[str, Any] = {"dead_letters": counts.read, "replayed": counts.routed, "still_dead": counts.dead}
            said |= {"filtered": counts.filtered, "reasons": dict(counts.reasons), "tables": done.tables}
            emit({"event": "summary", "pipeline": each.pipeline, "plans": done.batches, **said})
        elif not done.batches:
            typer.echo(f"{each.pipeline}: no dead letters to replay")


@app.command("purge")
def purge_letters(
    spec: SpecFile,
    older_than: Annotated[
        str | None, typer.Option(help="Age in days, such as 30d. Default: dead_letters.retention of the spec.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete old dead letters, in whole days. Shows what will be deleted and asks for confirmation."""
    from headrace.cli.confirm import agreed
    from headrace.cli.output import emit
    from headrace.dead_letters.reader import DeadLetters
    from headrace.dead_letters.replay import purge
    from headrace.ledger.ledger import Ledger
    from headrace.storage.store import Profile, Store
    from headrace.validate.load import load
    from headrace.write.retention import due, first_day_kept

    for each in load(spec):
        ledger = Ledger.open(Store(each.state_uri, Profile(**each.storage_profile())), each.pipeline)
        before = first_day_kept(_age(each, older_than), ledger.proved_time(datetime.now(UTC)))
        planned = due(DeadLetters(each).store, before)
        if not as_json:
            typer.echo(f"{each.pipeline}: {planned}")
        done = bool(planned.files) and agreed("Delete permanently?", yes, as_json)
        gone = purge(each, before) if done else planned
        if as_json:
            said = {"before": before, "dead_letters": gone.letters, "bytes": gone.bytes, "first": gone.first}
            emit({"event": "summary", "pipeline": each.pipeline, "purged": done, **said, "last": gone.last})
        elif done:
            typer.echo(f"{each.pipeline}: purged")


# ---- what was asked ----


def _selection(spec: Spec, reasons: list[str] | None, tables: list[str] | None, since: str | None) -> Selection:
    from headrace.dead_letters.reader import Selection
    from headrace.errors import UsageError
    from headrace.reasons import Reason

    known = {reason.value for reason in Reason}
    if strange := [reason for reason in reasons or () if reason not in known]:
        raise UsageError(f"Unknown reason: '{strange[0]}'.", hint=f"Valid reasons: {', '.join(sorted(known))}.")
    named = tuple(dict.fromkeys(uri for each in tables or () for uri in (each, _table(spec, each))))
    return Selection(tuple(reasons or ()), named, None if since is None else _moment(since))


def _table(spec: Spec, text: str) -> str:
    """Table by route, by branch (optionally with a route: `items/eu`), or by URI."""
    from headrace.spec.routing import NAME

    name, _, route = text.partition("/")
    if (branch := spec.branch_specs().get(f"{name}/")) is not None:
        return branch.uri_of(route) if route else branch.table.path
    named = all(map(NAME.fullmatch, text.split(":")))  # with {topic} in the path, `topic:route`
    return spec.uri_of(text) if named and spec.route.kind != "fixed" else text


def _moment(text: str) -> datetime:
    from headrace.errors import UsageError
    from headrace.spec.units import duration, moment

    for read in (moment, lambda given: datetime.now(UTC) - duration(given)):
        try:
            return read(text).astimezone(UTC)
        except ValueError:
            continue
    raise UsageError(
        f"--since: invalid time: '{text}'.",
        hint="Use an RFC 3339 timestamp such as 2026-01-31T12:00:00Z, or an age such as 2h or 7d.",
    )


def _place(spec: Spec, text: str) -> Any:
    from headrace.dead_letters.reader import RecordPosition
    from headrace.errors import UsageError

    found = re.fullmatch(r"([^/]+)/(\d{1,9})[/@](\d{1,18})(?:/(.+))?", text)
    if found is None:
        raise UsageError(f"Invalid record position: '{text}'.", hint="Use topic/partition/offset, such as orders/0/42.")
    return RecordPosition(found[1], int(found[2]), int(found[3]), found[4] and _table(spec, found[4]))


def _age(spec: Spec, older_than: str | None) -> timedelta:
    from headrace.errors import UsageError
    from headrace.spec.units import duration

    if older_than is None:
        if spec.dead_letters.retention is None:
            raise UsageError(
                "No age specified.",
                hint="Specify --older-than, such as 30d, or set dead_letters.retention in the spec.",
            )
        return spec.dead_letters.retention
    try:
        age = duration(older_than)
    except ValueError:
        age = timedelta(0)
    if age < timedelta(days=1):
        raise UsageError(
            f"--older-than: invalid age: '{older_than}'; the minimum is 1d.", hint="Use an age in days, such as 30d."
        )
    return age


# ---- what people see ----


def _at(row: dict[str, Any]) -> str:
    return f"{row['topic']}/{row['partition']}/{row['offset']}"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _say(text: str, **how: Any) -> None:
    """Value as a single printable line."""
    from rich.markup import escape

    from headrace.cli.console import console
    from headrace.cli.preview import cell

    console().print(escape(cell(text)), soft_wrap=True, **how)


def _print_groups(pipeline: str, groups: list[DeadLetterGroup], total: int) -> None:
    _say(f"{pipeline}: {plural(total, 'dead letter')}" if total else f"{pipeline}: no dead letters")
    for group in groups:
        _say(f"{group.count:>10,}  {group.reason} · {group.step} · {group.table or 'no table yet'}", style="bold")
        _say(f"            {_time(group.first)} to {_time(group.last)} UTC")
        _say(f"            {_at(group.sample)}: {group.sample['detail']}")


def _print_letter(letter: dict[str, Any], most: int) -> None:
    from headrace.cli.preview import cell
    from headrace.reasons import MEANING, Reason

    reason = letter["reason"]
    said = {
        "table": letter["table"] or "none yet",
        "step": letter["step"],
        "reason": f"{reason}: {MEANING[Reason(reason)]}" if reason in set(Reason) else reason,
        "detail": letter["detail"],
        "schema id": letter["schema_id"],
        "rejected": f"{_time(letter['rejected_at'])} UTC by {letter['pipeline']}, spec {letter['spec'][:12]}",
        "timestamp": letter["timestamp"],
    }
    _say(_at(letter), style="bold")
    for name, value in said.items():
        if value is not None:
            _say(f"  {name:<10}{value}")
    for name, value in letter["columns"].items():
        _say(f"  column {name}: {'null' if value is None else cell(value)}")
    _print_bytes("key", letter["key"], most)
    for header in letter["headers"] or ():
        _print_bytes(f"header {header['key']}", header["value"], most)
    _print_bytes("value", letter["value"], most)
    for outcome in letter["outcomes"]:
        _say(f"  {'plan ' + str(outcome['plan']):<10}{_time(outcome['at'])} UTC: {_became(outcome)}")


def _became(outcome: dict[str, Any]) -> str:
    if outcome["into"]:
        return f"{outcome['outcome']} into {', '.join(outcome['into'])}"
    why = ": ".join(filter(None, (outcome["reason"], outcome["detail"])))
    return f"{outcome['outcome']}".replace("_", " ") + (f": {why}" if why else "")


def _print_bytes(name: str, data: bytes | None, most: int) -> None:
    if data is None:
        _say(f"  {name}: null")
        return
    shown = data[: most or None]
    _say(f"  {name}: {len(data):,} bytes" + (f", the first {len(shown):,}" if len(shown) < len(data) else ""))
    for line in _text_lines(shown):
        _say(f"    {line}")
    for at in range(0, len(shown), 16):
        part = shown[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        _say(f"    {at:08x}  {part.hex(' '):<47}  {letters}")


def _text_lines(data: bytes) -> list[str]:
    """Bytes as text if they are UTF-8; control characters are escaped on output."""
    try:
        return data.decode().split("\n") if data else []
    except UnicodeDecodeError:
        return []


def _print_tried(tried: list[DryRunResult]) -> None:
    from headrace.cli.preview import cell

    for each in tried:
        _say(f"{_at(each.letter)}  {each.letter['reason']}", style="bold")
        for table, row in each.rows:
            _say(f"  row of {table}: {cell(row)}")
        if not each.rows:
            _say(f"  {_became(each.outcome)}")
    counts = {name: sum(each.outcome["outcome"] == name for each in tried) for name in _OUTCOMES}
    said = " + ".join(f"{word} {counts[name]}" for name, word in _OUTCOMES.items())
    _say(f"processed {len(tried)} = {said}; nothing was written")


_OUTCOMES = {"replayed": "rows", "still_dead": "still dead", "filtered": "filtered"}


def _emit_tried(pipeline: str, tried: list[DryRunResult]) -> None:
    from headrace.cli.output import emit
    from headrace.cli.preview import readable_value

    for each in tried:
        said = {key: each.letter[key] for key in ("topic", "partition", "offset", "table", "reason", "detail")}
        rows = [{"table": table, "row": readable_value(row)} for table, row in each.rows]
        would = {key: each.outcome[key] for key in ("outcome", "reason", "detail")}
        emit({"event": "dry_run", "pipeline": pipeline, "dead_letter": said, "outcome": would, "rows": rows})
    counts = {name: sum(each.outcome["outcome"] == name for each in tried) for name in _OUTCOMES}
    emit({"event": "summary", "pipeline": pipeline, "dead_letters": len(tried), **counts})


def _plain(letter: dict[str, Any]) -> dict[str, Any]:
    """Dead letter as JSON: bytes as hex, and as text if they are UTF-8."""
    from headrace.cli.preview import readable_value

    headers = [{"key": each["key"], "value": _both(each["value"])} for each in letter["headers"] or ()]
    columns = {name: readable_value(value) for name, value in letter["columns"].items()}
    both = {"key": _both(letter["key"]), "value": _both(letter["value"])}
    return {**letter, **both, "headers": headers, "columns": columns}


def _both(data: bytes | None) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        return {"text": data.decode(), "hex": data.hex()}
    except UnicodeDecodeError:
        return {"text": None, "hex": data.hex()}
