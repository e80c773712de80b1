"""`headrace status`: pipelines of specs, of a directory of states, or of running processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.console import emit, print_table, say, say_progress
from headrace.cli.options import AsJson, all_spec_files
from headrace.errors import HeadraceError, UsageError, plural

if TYPE_CHECKING:
    from headrace.serve.live_pipelines import LivePipelines

_TITLES = ("pipeline", "process", "state", "lag", "records/s", "batch", "last commit", "dead", "tables")


def status(
    spec_files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SPECS",
            help="Spec files, or directories of spec files. Without them: all pipelines of running processes.",
            exists=True,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Without specs: a state directory, or a directory of several, such as lake/_headrace or "
            "s3://bucket/lake/_headrace. The lag is unknown.",
        ),
    ] = None,
    batches: Annotated[int, typer.Option(help="Number of latest batches to show.", min=1, max=1000)] = 5,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Count orphaned files; lists the directories of all tables.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the running instance, the lag and recent batches.

    Without specs, it asks the processes that run on this machine.
    """
    if orphans and not spec_files:
        raise UsageError("--orphans requires a spec.", hint="Use `headrace status SPEC --orphans`.")
    if spec_files and state is not None:
        raise UsageError("--state cannot be used with specs, which have it.", hint="Omit one of them.")
    if spec_files:
        _print_all(_of_specs(spec_files, batches, orphans), as_json)
    elif state is not None:
        _print_all(_of_states(state, batches), as_json)
    else:
        _print_running(as_json)


Statuses = Mapping[str, Callable[[], dict[str, Any]]]  # of pipelines or states, by name


def _of_specs(paths: list[Path], batches: int, orphans: bool) -> Statuses:
    from headrace.serve.status import pipeline_status
    from headrace.validate.load import load

    specs = [spec for file in all_spec_files(paths) for spec in load(file)]
    return {spec.pipeline: partial(pipeline_status, spec, batches, orphans) for spec in specs}


def _of_states(path: str, batches: int) -> Statuses:
    from headrace.serve.status import state_directories, status_of_state
    from headrace.storage.store import Store

    return {state.uri: partial(status_of_state, state, batches) for state in state_directories(Store(path))}


def _print_all(statuses: Statuses, as_json: bool) -> None:
    """Print each status; of several, one that cannot be read leaves the others, and exit code 1."""
    failed = False
    for name, read in statuses.items():
        try:
            fields = read()
        except HeadraceError as error:
            if len(statuses) == 1:
                raise
            failed = True
            _print_error(name, error, as_json)
            continue
        emit({"event": "status", **fields}) if as_json else _print(fields)
    if failed:
        raise typer.Exit(1)


def _print_error(name: str, error: HeadraceError, as_json: bool) -> None:
    if as_json:
        fields = {"error": error.name, "message": error.message, "hint": error.hint}
        emit({"event": "error", "pipeline": name, **fields})
    else:
        say(f"{name}: unknown: {error.name}: {error}")


def _print_running(as_json: bool) -> None:
    from headrace.serve.control_folder import control_folder
    from headrace.serve.live_pipelines import pipelines_of_processes

    live = pipelines_of_processes()
    if as_json:
        for event in live.events():
            emit(event)
    elif live.pipelines or live.warnings:
        _print_live(live)
    else:
        where = control_folder()
        say_progress(f"No running pipelines: {where} has no control sockets. Use `headrace status SPEC` for others.")


def _print_live(live: LivePipelines) -> None:
    from headrace.cli.output import lag_text

    rows = []
    for each in live.pipelines:
        rate = None if each.records_per_second is None else f"{each.records_per_second:,.0f}"
        commit = each.last_commit and f"{each.last_commit[:19]}Z"
        lag = lag_text(each.lag, each.lag_seconds)
        rows.append(
            [each.pipeline, str(each.process), each.state, lag, rate, each.batch, commit, each.dead, each.tables]
        )
    print_table(_TITLES, rows, numbers=("records/s", "batch", "dead", "tables"))
    for each in live.pipelines:
        if each.reason:
            say(f"{each.pipeline}: {each.reason}")
    for text in live.warnings:
        say(text)


def _print(status: dict[str, Any]) -> None:
    from headrace.cli.output import lag_text, transaction_text

    holder, orphans = status["holder"], status["orphans"]
    running = f"running on {holder['host']} as process {holder['pid']}" if holder else "not running"
    batch = f"last batch {status['batch']}" if status["batch"] else "no batches yet"
    say(f"{status['pipeline']}: {running}; {batch}")
    say(f"  lag: {lag_text(status['lag'], status['lag_seconds'])}")
    if status["lag_error"]:
        say(f"    {status['lag_error']}")
    if status["open_transaction"]:
        say(f"    {transaction_text(status['open_transaction'])}")
    if status["open_batch"]:
        say(f"  batch {status['open_batch']} is unfinished; the next run completes it first")
    for table in status["tables"]:
        say(f"  {table}")
    if orphans is not None:
        say(f"  orphaned files: {orphans['files']:,} ({plural(orphans['bytes'], 'byte')})")
        for folder, count in orphans["directories"].items():
            say(f"    {count:,} in {folder}")
    if status["batches"]:
        titles = ("batch", "finished", "read", "written", "dead", "filtered", "note")
        batches = [{**row, "finished": f"{str(row['finished'])[:19]}Z"} for row in status["batches"]]  # to the second
        rows = [[row[title] for title in titles] for row in batches]
        print_table(titles, rows, numbers=("batch", "read", "written", "dead", "filtered"))
        for name, count in _violations(status["batches"]).items():
            say(f"  expectation violations in these batches, {name}: {count:,}")
    for line in _hot_store(status["hot_store"]):
        say(f"  {line}")
    for line in _maintenance(status["maintenance"] or {}):
        say(f"  {line}")


def _hot_store(hot_store: dict[str, Any] | None) -> Iterator[str]:
    """Positions of the hot store as text."""
    if hot_store is None:
        return
    if hot_store["error"]:
        yield f"hot store {hot_store['address']}: lag unknown: {hot_store['error']}"
    for table in hot_store["tables"] or ():
        lag = "not loaded yet"
        if table["lag_commits"] is not None:
            lag = f"version {table['version']}, {plural(table['lag_commits'], 'commit')} behind"
            lag += "" if not table["lag_seconds"] else f" for {table['lag_seconds']:,.0f} s"
        rejected = f"; {plural(table['rejected'], 'row')} rejected" if table["rejected"] else ""
        yield f"hot store {table['hot_table']}: {lag}{rejected}"


def _maintenance(journal: dict[str, Any]) -> Iterator[str]:
    """Maintenance operations as text."""
    from headrace.cli.output import maintenance_text

    for operation in journal.get("done", []):
        yield f"{operation['at']} {maintenance_text(operation)}"
    if running := journal.get("running"):
        yield f"{running['at']} running: {maintenance_text(running)}"


def _violations(batches: list[dict[str, Any]]) -> dict[str, int]:
    """Violations per expectation over some batches."""
    from headrace.plan.accounting import Counts

    return dict(sum((Counts(violations=row["violations"]) for row in batches), Counts()).violations)
