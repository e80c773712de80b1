"""`headrace run`: run the pipelines of one or more specs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from headrace.cli.console import say_progress
from headrace.cli.exports import (
    ExportPlaintext,
    LineageNamespace,
    LineageUrl,
    Traces,
    Webhook,
    new_exports,
    posting,
)
from headrace.cli.listen import (
    ANY_PORT,
    AllowedHosts,
    Listen,
    ListenCertificate,
    ListenKey,
    ListenOpen,
    ListenPlaintext,
    MetricsPrefix,
    MetricsProfiles,
    StatsdAddress,
    WithConsole,
    endpoint,
    listen_options,
    new_console,
    statsd,
)
from headrace.cli.options import AsJson, LogFormatOption, RunPaths, Wait, all_spec_files
from headrace.cli.signals import Signals
from headrace.errors import UsageError, plural

if TYPE_CHECKING:
    from headrace.serve.supervised_pipeline import RunResult
    from headrace.spec import Spec

STARTING = "Starting Spark…"


def run(
    spec_files: RunPaths,
    until: Annotated[
        str | None,
        typer.Option(help="`latest`: process the records available at the start, then exit.", metavar="latest"),
    ] = None,
    as_json: AsJson = False,
    wait: Wait = False,
    listen: Listen = None,
    listen_certificate: ListenCertificate = None,
    listen_key: ListenKey = None,
    listen_plaintext: ListenPlaintext = False,
    listen_dangerously_open: ListenOpen = False,
    allowed_host: AllowedHosts = None,
    with_console: WithConsole = False,
    metrics_profile: MetricsProfiles = None,
    metrics_prefix: MetricsPrefix = None,
    statsd_address: StatsdAddress = None,
    webhook: Webhook = None,
    traces: Traces = None,
    lineage: LineageUrl = None,
    lineage_namespace: LineageNamespace = "headrace",
    export_plaintext: ExportPlaintext = False,
    log_format: LogFormatOption = None,
    restart: Annotated[
        str | None,
        typer.Option(
            help="`on-failure`: start a pipeline again after errors that a restart may resolve, with backoff; the "
            "default for several pipelines and for a directory. `never`: the default for one pipeline, and with "
            "--until.",
            metavar="on-failure|never",
        ),
    ] = None,
) -> None:
    """Stream records into tables.

    Runs until stopped (Ctrl-C or SIGTERM), or until --until is reached. A directory is watched: pipelines follow the
    changes of its spec files.
    """
    check_options(restart, until)
    with Signals() as signals:  # before the slow imports
        from headrace.cli.import_config import print_findings
        from headrace.cli.output import event_output
        from headrace.pipeline.events import to_all
        from headrace.pipeline.spark_session import SharedSession
        from headrace.serve.monitor import Monitor
        from headrace.serve.redaction import Redaction
        from headrace.validate.load import load

        given = {"--until": until, "--listen": listen, "--statsd": statsd_address, "--metrics-prefix": metrics_prefix}
        on_import = partial(print_findings, options=[name for name, value in given.items() if value])
        folder = watched_folder(spec_files, until)
        specs = [] if folder else [spec for file in all_spec_files(spec_files) for spec in load(file, on_import)]
        if not as_json and log_format is None:
            announce(until)  # not before the specs are known to be valid
        address = listen or (ANY_PORT if with_console else None)
        options = listen_options(
            address, listen_certificate, listen_key, listen_plaintext, listen_dangerously_open, allowed_host
        )
        redaction = Redaction()
        exports = new_exports(webhook, traces, lineage, lineage_namespace, export_plaintext)

        def on_add(spec: Spec) -> None:
            redaction.add(spec)
            exports.add(spec)

        monitor = Monitor(specs, on_add=on_add)
        console = new_console(with_console, options, monitor, redaction)
        with event_output(as_json, log_format, None if until else STARTING) as output, ExitStack() as running:
            profiles = metrics_profile or ()
            url = running.enter_context(endpoint(options, monitor, profiles, metrics_prefix, console))
            running.enter_context(statsd(statsd_address, monitor, metrics_prefix))
            signals.say = output.say
            if url is not None:
                output.endpoint(url, has_console=with_console)
            report = redaction.of(to_all(monitor, output, *exports.posters))
            running.enter_context(posting(exports, report))
            shared = SharedSession(specs, signals.stop, report)
            if until is None and not wait and specs:
                shared.prepare()  # before the slow imports; a drain first looks for new records
            from headrace.serve.control_server import control_socket
            from headrace.serve.health import health_figures
            from headrace.serve.runner import Service, run_all

            figures = partial(health_figures, monitor)
            services: list[Service] = [lambda supervisor: control_socket(supervisor, report, figures, redaction.value)]
            if console is not None:
                services.append(console.control)
            if folder is not None:
                from headrace.serve.spec_folder import watch_folder

                services.append(lambda supervisor: watch_folder(folder, supervisor, report))
            results = run_all(
                specs,
                until=until,
                report=report,
                stop=signals.stop,
                wait=wait,
                abandon=signals.abandon,
                shared=shared,
                monitor=monitor,
                restarts=restarts(restart, until, folder is not None or len(specs) > 1),
                services=services,
            )
        signals.finish()
        for result in results:
            event = summary_event(result)
            output.end(event, summary_text(event))
        if signals.stop.is_set():
            leave(exit_code(results))
    if code := exit_code(results):
        raise typer.Exit(code)


def check_options(restart: str | None, until: str | None) -> None:
    """UsageError for an invalid `--until` or `--restart`."""
    if until not in (None, "latest"):
        raise UsageError(f"--until: invalid value: '{until}'.", hint="Use latest, or omit it to run continuously.")
    if restart not in (None, "on-failure", "never"):
        raise UsageError(f"--restart: invalid value: '{restart}'.", hint="Use on-failure or never.")
    if restart == "on-failure" and until is not None:
        raise UsageError("--restart on-failure cannot be used with --until.", hint="Omit one of them.")


def restarts(restart: str | None, until: str | None, several: bool) -> bool:
    """Whether pipelines start again after errors. One alone ends its process, which a service manager notices."""
    return restart == "on-failure" or (restart is None and until is None and several)


def watched_folder(paths: Sequence[Path], until: str | None) -> Path | None:
    """The directory whose specs are watched; None for spec files, and with `--until`."""
    folders = [path for path in paths if path.is_dir()]
    if folders and len(paths) > 1:
        raise UsageError(f"{folders[0]} is a directory, which must be the only argument.", hint="Omit the others.")
    return folders[0] if folders and until is None else None


def announce(until: str | None) -> None:
    """Print what happens first: a continuous run starts Spark; a drain starts it only if there are new records."""
    say_progress(STARTING if until is None else "Checking for new records before starting Spark…")


def exit_code(results: Sequence[RunResult]) -> int:
    """Exit code of the worst result; an incomplete drain counts as an error."""
    return max(
        (result.error.exit_code if result.error else int(result.summary.drained is False) for result in results),
        default=0,
    )


def leave(code: int) -> NoReturn:
    """Exit at once, even with threads still running. The next run completes a batch; the JVM ends with this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def summary_event(result: RunResult) -> dict[str, Any]:
    """Summary of a run as JSON."""
    summary = result.summary
    return {
        "event": "summary",
        "pipeline": summary.pipeline,
        "stopped": result.error.name if result.error else None,
        "drained": summary.drained,
        "aborted": result.aborted,
        "seconds": summary.seconds,
        "records_per_second": summary.rate,
        "batches": summary.batches,
        "recovered": summary.recovered,
        **summary.counts.counters(),
        "tables": summary.tables,
        "json_text": summary.json_text,
    }


def summary_text(event: dict[str, Any]) -> str:
    """Summary of a run as text; the last line has the totals."""
    batches = f"{event['batches']:,} {'batch' if event['batches'] == 1 else 'batches'}"
    head = f"{event['pipeline']}: {batches}; read {event['read']:,} = routed {event['routed']:,}"
    head += f" + dead {event['dead']:,} + filtered {event['filtered']:,} + skipped {event['skipped']:,}"
    head += f"; {event['seconds']:,.1f} s"
    head += f", {event['records_per_second']:,} records/s" if event["records_per_second"] else ""
    head += "; not drained: records remain" if event["drained"] is False else ""
    head += "; the current batch was aborted and will be completed by the next run" if event["aborted"] else ""
    tables = [f"  {path}: {plural(rows, 'row')}" for path, rows in sorted(event["tables"].items())]
    reasons = [f"  dead letters, {reason}: {count:,}" for reason, count in sorted(event["reasons"].items())]
    ignored = [f"  ignored new field, {name}: {count:,}" for name, count in sorted(event["ignored"].items())]
    violations = [f"  expectation violations, {name}: {count:,}" for name, count in sorted(event["violations"].items())]
    rescued = [f"  rows with rescued values: {event['rescued']:,}"] if event["rescued"] else []
    duplicates = [f"  duplicates skipped, {path}: {count:,}" for path, count in sorted(event["duplicates"].items())]
    text = [
        f"  {path}, {name}: stored as JSON text because its values are {why}"
        for path, columns in sorted(event["json_text"].items())
        for name, why in columns.items()
    ]
    return "\n".join([*tables, *reasons, *ignored, *violations, *rescued, *duplicates, *text, head])
