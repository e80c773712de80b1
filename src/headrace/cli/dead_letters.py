"""`headrace dead-letters`: inspect, dry-run, replay and purge dead letters."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.confirm import confirmed
from headrace.cli.console import emit
from headrace.cli.dead_letters_output import (
    dead_letter_event,
    emit_dry_run,
    print_dead_letter,
    print_dry_run,
    print_groups,
    print_line,
)
from headrace.cli.options import AsJson, SpecFile, Wait, Yes
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.dead_letters.reader import RecordPosition, Selection
    from headrace.spec import Spec

app = typer.Typer(
    name="dead-letters",
    help="Inspect, dry-run, replay and purge dead letters. Spark is started only if a replay writes a "
    "table that requires it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Reasons = Annotated[list[str] | None, typer.Option("--reason", help="Only dead letters with this reason; repeatable.")]
Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Only dead letters of this table (route or URI); repeatable.")
]
Since = Annotated[
    str | None, typer.Option(help="Only dead letters rejected since this RFC 3339 timestamp or age, such as 2h or 7d.")
]


@app.command("list")
def list_dead_letters(
    spec_file: SpecFile, reason: Reasons = None, table: Tables = None, since: Since = None, as_json: AsJson = False
) -> None:
    """List unresolved dead letters by reason, step and table.

    Shows the time range and an example of each group.
    """
    from headrace.dead_letters.reader import DeadLetters
    from headrace.validate.load import load

    for spec in load(spec_file):
        groups = DeadLetters(spec).groups(_selection(spec, reason, table, since))
        total = sum(group.count for group in groups)
        if not as_json:
            print_groups(spec.pipeline, groups, total)
            continue
        for group in groups:
            emit({"event": "dead_letters", "pipeline": spec.pipeline, **asdict(group)})
        emit({"event": "summary", "pipeline": spec.pipeline, "dead_letters": total, "groups": len(groups)})


@app.command()
def show(
    spec_file: SpecFile,
    position: Annotated[
        str,
        typer.Argument(
            metavar="POSITION", help="topic/partition/offset, optionally followed by /table (route or URI)."
        ),
    ],
    max_bytes: Annotated[
        int, typer.Option("--bytes", help="Maximum bytes of the value to show; 0 for all.", min=0)
    ] = 1024,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter.

    Shows its bytes as text and hex, the reason, and its replay history.
    """
    from headrace.dead_letters.reader import DeadLetters
    from headrace.validate.load import load

    dead_letters = [each for spec in load(spec_file) for each in DeadLetters(spec).find(_position(spec, position))]
    if not dead_letters:
        raise UsageError(
            f"No dead letter at {position}.", hint="List dead letters with `headrace dead-letters list SPEC`."
        )
    for dead_letter in dead_letters:
        emit(dead_letter_event(dead_letter)) if as_json else print_dead_letter(dead_letter, max_bytes)


@app.command()
def dry_run(
    spec_file: SpecFile,
    sample: Annotated[
        int, typer.Option(help="Number of dead letters, sampled across reasons, steps and tables.", min=1, max=10_000)
    ] = 10,
    reason: Reasons = None,
    table: Tables = None,
    since: Since = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a spec key, as key.path=value; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a replay of some dead letters would write.

    Processes them with the spec, or with overrides. Writes nothing.
    """
    from headrace.dead_letters.dry_run import dry_run
    from headrace.validate.load import load
    from headrace.validate.override import override_spec

    for spec in load(spec_file):
        results = dry_run(spec, override_spec(spec, overrides or ()), _selection(spec, reason, table, since), sample)
        emit_dry_run(spec.pipeline, results) if as_json else print_dry_run(results)


@app.command()
def replay(
    spec_file: SpecFile,
    reason: Reasons = None,
    table: Tables = None,
    since: Since = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Replay dead letters into their tables, exactly once.

    Processes them with the current spec. The pipeline must be stopped.
    """
    from headrace.cli.output import sentence
    from headrace.dead_letters.replay import replay, replay_counters
    from headrace.validate.load import load

    def report(event: dict[str, Any]) -> None:
        emit(event) if as_json else print_line(sentence(event))

    for spec in load(spec_file):
        result = replay(spec, _selection(spec, reason, table, since), report=report, wait=wait)
        if as_json:
            fields = {**replay_counters(result.counts), "tables": result.tables}
            emit({"event": "summary", "pipeline": spec.pipeline, "replays": result.batches, **fields})
        elif not result.batches:
            typer.echo(f"{spec.pipeline}: no dead letters to replay")


@app.command()
def purge(
    spec_file: SpecFile,
    older_than: Annotated[
        str | None, typer.Option(help="Age in days, such as 30d. Default: dead_letters.retention of the spec.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete old dead letters, in whole days.

    Shows what will be deleted and asks for confirmation.
    """
    from headrace.dead_letters.reader import DeadLetters
    from headrace.dead_letters.replay import purge
    from headrace.ledger.ledger import Ledger
    from headrace.storage.store import Profile, Store
    from headrace.validate.load import load
    from headrace.write.retention import purge_preview, retention_day

    for spec in load(spec_file):
        ledger = Ledger.open(Store(spec.state_uri, Profile(**spec.storage_profile())), spec.pipeline)
        before = retention_day(_age(spec, older_than), ledger.proved_time(datetime.now(UTC)))
        plan = purge_preview(DeadLetters(spec).store, before)
        if not as_json:
            typer.echo(f"{spec.pipeline}: {plan}")
        purged = bool(plan.files) and confirmed("Delete permanently?", yes, as_json)
        result = purge(spec, before) if purged else plan
        if as_json:
            fields = {"before": before, "dead_letters": result.rows, "bytes": result.bytes, "first": result.first}
            emit({"event": "summary", "pipeline": spec.pipeline, "purged": purged, **fields, "last": result.last})
        elif purged:
            typer.echo(f"{spec.pipeline}: purged")


# ---- parsing of arguments ----


def _selection(spec: Spec, reasons: list[str] | None, tables: list[str] | None, since: str | None) -> Selection:
    from headrace.dead_letters.reader import Selection
    from headrace.reasons import Reason

    valid = {reason.value for reason in Reason}
    if unknown := [reason for reason in reasons or () if reason not in valid]:
        raise UsageError(f"Unknown reason: '{unknown[0]}'.", hint=f"Valid reasons: {', '.join(sorted(valid))}.")
    uris = tuple(dict.fromkeys(uri for table in tables or () for uri in (table, _table(spec, table))))
    return Selection(tuple(reasons or ()), uris, None if since is None else _since(since))


def _table(spec: Spec, text: str) -> str:
    """Table by route, by branch (optionally with a route: `items/eu`), or by URI."""
    from headrace.spec.route_id import RouteId
    from headrace.spec.routing import NAME

    name, _, route = text.partition("/")
    branch = spec.branch_specs().get(name) if name else None
    if branch is not None and not route:
        return branch.table.path
    # `topic:route` where the path has {topic}
    is_route = all(map(NAME.fullmatch, (route if branch else text).split(":")))
    if not is_route or (branch or spec).route.kind == "fixed":
        return text
    return spec.uri_of(RouteId.parse(text))


def _since(text: str) -> datetime:
    from headrace.spec.units import duration, moment

    for parse in (moment, lambda age: datetime.now(UTC) - duration(age)):
        try:
            return parse(text).astimezone(UTC)
        except ValueError:
            continue
    raise UsageError(
        f"--since: invalid time: '{text}'.",
        hint="Use an RFC 3339 timestamp such as 2026-01-31T12:00:00Z, or an age such as 2h or 7d.",
    )


def _position(spec: Spec, text: str) -> RecordPosition:
    from headrace.dead_letters.reader import RecordPosition

    match = re.fullmatch(r"([^/]+)/(\d{1,9})[/@](\d{1,18})(?:/(.+))?", text)
    if match is None:
        raise UsageError(f"Invalid record position: '{text}'.", hint="Use topic/partition/offset, such as orders/0/42.")
    return RecordPosition(match[1], int(match[2]), int(match[3]), match[4] and _table(spec, match[4]))


def _age(spec: Spec, older_than: str | None) -> timedelta:
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
