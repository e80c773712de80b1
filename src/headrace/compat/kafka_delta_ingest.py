"""The command `kafka-delta-ingest`: the arguments, environment and exit codes of that program, run by Headrace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.console import say
from headrace.errors import HeadraceError, UsageError, did_you_mean, plural
from headrace.runtime.hidden_pandas import hidden_pandas
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.importers.imported import Imported
    from headrace.importers.settings import Setting

FAILED = 1  # kafka-delta-ingest has no other exit code
_USAGE = f"""\
kafka-delta-ingest {VERSION} (Headrace)

Usage:
  kafka-delta-ingest ingest TOPIC TABLE_LOCATION [OPTIONS]
  kafka-delta-ingest ingest --topic TOPIC --table_base_uri URI [OPTIONS]
  kafka-delta-ingest repair --table_url URL [OPTIONS]

`kafka-delta-ingest ingest --help` and `kafka-delta-ingest repair --help` list the options.
"""
_INGEST: Mapping[str, str] = {  # description of each option
    "topic": "Kafka topic to read",
    "table_base_uri": "Parent of the tables, one for each message type or topic",
    "message_type_whitelist": "Regular expression of the message types to write; others are skipped",
    "kafka": "Kafka brokers as host:port, separated by commas",
    "consumer_group": "Kafka consumer group",
    "app_id": "Id of the txns in the table that store the positions",
    "seek_offsets": "Last offsets that were read, by partition, as a JSON object; for a new app id",
    "auto_offset_reset": "Where a new app id starts: earliest or latest",
    "allowed_latency": "Maximum seconds between two writes",
    "max_messages_per_batch": "Messages after which a batch is written",
    "min_bytes_per_file": "Bytes after which a batch is written",
    "housekeeping_loop_iteration": "Iterations of the receive loop between housekeeping",
    "deserialization_workers": "Workers that deserialize messages",
    "worker_to_messages_multiplier": "Messages in the queue of each worker",
    "num_converting_workers": "Workers that convert messages to record batches",
    "num_arrow_writer_threads": "Threads that write data files",
    "max_version_lookback": "Table versions that are searched for the position",
    "seconds_idle_kafka_read_before_flush": "Seconds without messages before a write",
    "partition_columns": "Partition columns of new tables, separated by commas",
    "transform": "Columns from JMESPath expressions, as 'PROPERTY: SOURCE'; repeatable",
    "dlq_table_location": "Table of the dead letters",
    "dlq_transform": "Columns of the dead letters, as 'PROPERTY: SOURCE'; repeatable",
    "checkpoints": "Write checkpoints of the table, which Headrace always does",
    "kafka_setting": "Setting of the Kafka client, as 'NAME=VALUE'; repeatable",
    "statsd_endpoint": "Address of statsd as host:port",
    "prometheus_port": "Port of the loopback interface that serves metrics",
    "json": "Messages are JSON; URL of a schema registry, or empty",
    "avro": "Messages are Avro; URL of a schema registry, a schema file, or empty",
    "soe-avro": "Messages are Avro with single-object encoding; schema file or directory",
    "protobuf": "Messages are Protobuf; URL of a schema registry",
    "aidl": "Messages are AIDL; schemas or their registry",
    "ends_at_latest_offsets": "Exit at the offsets that are the latest at the start",
    "decompress_gzip": "Decompress messages with gzip",
}
_REPAIR: Mapping[str, tuple[str, str, str]] = {  # variable, default and description of each option
    "table_url": ("TABLE_URL", "", "Path of the table; required"),
    "optimize_target_size": ("OPTIMIZE_TARGET_SIZE", "100000000", "Target size of the compacted files, in bytes"),
    "optimize_partition": ("OPTIMIZE_PARTITION", "", "Partition column to compact one partition only"),
    "optimize_partition_predicate": ("OPTIMIZE_PARTITION_PREDICATE", "", "Value of that column"),
}


def kafka_delta_ingest() -> None:
    """Entry point of `kafka-delta-ingest`. Exit codes: 0 success, 1 error."""
    commands: Mapping[str, Callable[[Sequence[str]], int]] = {"ingest": ingest, "repair": repair_table}
    name, *arguments = sys.argv[1:] or ["--help"]
    if name == "help" and arguments:
        name, arguments = arguments[0], ["--help"]
    try:
        with hidden_pandas():
            if name in ("--help", "-h", "help"):
                sys.stdout.write(_USAGE)
            elif name in ("--version", "-V"):
                sys.stdout.write(f"kafka-delta-ingest {VERSION} (Headrace)\n")
            elif name in commands:
                sys.exit(commands[name](arguments))
            else:
                raise UsageError(f"Unknown command: '{name}'.", hint="Use ingest or repair.")
    except HeadraceError as error:
        say(str(error), "bold red", head=f"kafka-delta-ingest: {error.name}: ", stderr=True)
        sys.exit(FAILED)


# ---- ingest ----


def ingest(arguments: Sequence[str]) -> int:
    """Run the pipeline of `ingest`. Further processes with the same app id wait, and one takes over when it ends."""
    if {"-h", "--help"} & {*arguments}:
        sys.stdout.write(f"Usage: kafka-delta-ingest ingest [TOPIC TABLE_LOCATION] [OPTIONS]\n\n{_ingest_options()}")
        return 0
    from headrace.cli.signals import Signals

    with Signals() as signals:  # before the slow imports
        from headrace.cli.import_config import print_findings
        from headrace.cli.run import leave, summary_event, summary_text
        from headrace.importers.detect import import_arguments
        from headrace.validate.load import load_imported

        imported = import_arguments(["ingest", *arguments], os.environ)
        for draft in imported.drafts:
            draft.set("table.txn.ignore", ["*"])  # as kafka-delta-ingest: other app ids write other topics
        print_findings(imported)
        specs = load_imported(imported, Path.cwd())
        results = _run(specs, imported, signals)
        signals.finish()
        for result in results:
            say(summary_text(summary_event(result)), stderr=True)
        code = FAILED if any(each.error or each.summary.drained is False for each in results) else 0
        if signals.stop.is_set():
            leave(code)
    return code


def _run(specs: Sequence[Any], imported: Imported, signals: Any) -> Sequence[Any]:
    """Run until stopped, or until the latest offsets; metrics are sent under the names of kafka-delta-ingest."""
    from headrace.cli.listen import endpoint, listen_options, statsd
    from headrace.cli.output import event_output
    from headrace.pipeline.events import to_all
    from headrace.serve.control_server import control_socket
    from headrace.serve.metric_profiles import MetricsProfile
    from headrace.serve.monitor import Monitor
    from headrace.serve.redaction import Redaction
    from headrace.serve.runner import run_all

    settings, prefix = imported.settings, os.environ.get("KDI_METRICS_PREFIX") or None
    port, statsd_address = _value(settings, "prometheus_port"), _value(settings, "statsd_endpoint")
    until = "latest" if _value(settings, "ends_at_latest_offsets") else None
    options = listen_options(f"127.0.0.1:{port}", None, None, False, False, None) if port else None
    redaction = Redaction()
    monitor = Monitor(specs, on_add=redaction.add)
    with event_output(False, None) as output, ExitStack() as exports:
        profiles = [MetricsProfile.KAFKA_DELTA_INGEST] if port else []
        url = exports.enter_context(endpoint(options, monitor, profiles, prefix))
        is_fork = "table_base_uri" in settings  # only its names end with a message type
        exports.enter_context(statsd(None if port else statsd_address, monitor, prefix, name_pipelines=is_fork))
        signals.say = output.say
        if url is not None:
            output.endpoint(url)
        report = redaction.of(to_all(monitor, output))
        return run_all(
            specs,
            until=until,
            report=report,
            stop=signals.stop,
            wait=True,
            abandon=signals.abandon,
            monitor=monitor,
            services=[lambda supervisor: control_socket(supervisor, report)],
        )


def _value(settings: Mapping[str, Setting], flag: str) -> Any:
    return settings[flag].value if flag in settings else None


def _ingest_options() -> str:
    from headrace.importers.kafka_delta_ingest import FLAGS

    rows = []
    for name, flag in FLAGS.items():
        if name != "table_location":
            short = f"-{flag.short}, " if flag.short else "    "
            value = "" if flag.kind == "flag" else f" <{name.upper()}>"
            notes = [f"env: {flag.variable}"] if flag.variable else []
            notes += [f"default: {flag.default}"] if flag.default not in (None, False) else []
            notes += [f"no effect: {flag.reason}"] if flag.reason else []
            rows.append(_option_rows(f"{short}--{name}{value}", _INGEST[name], notes))
    return "\n".join(["Options:", *rows]) + "\n"


def _option_rows(option: str, description: str, notes: Sequence[str]) -> str:
    return f"  {option}\n          {description}" + (f" [{'; '.join(notes)}]" if notes else "")


# ---- repair ----


def repair_table(arguments: Sequence[str]) -> int:
    """Remove missing files from the log of a table, and compact its small files."""
    if {"-h", "--help"} & {*arguments}:
        rows = [
            _option_rows(
                f"--{name} <{name.upper()}>",
                description,
                [f"env: {variable}", *([f"default: {default}"] if default else [])],
            )
            for name, (variable, default, description) in _REPAIR.items()
        ]
        sys.stdout.write("\n".join(["Usage: kafka-delta-ingest repair [OPTIONS]", "", "Options:", *rows]) + "\n")
        return 0
    options = dict(_repair_options(arguments))
    if not options["table_url"]:
        raise UsageError("--table_url is required.", hint="Specify it, or set TABLE_URL.")
    if not options["optimize_target_size"].isdecimal():
        raise UsageError(
            f"--optimize_target_size: invalid value: '{options['optimize_target_size']}'.", hint="Use bytes."
        )
    from headrace.table import Table

    # kafka-delta-ingest does not use Spark, and its commits need not name their engine.
    table = Table(options["table_url"], _storage(options["table_url"]), direct_commit=True)
    repaired = table.repair()
    say(f"{table.path}: removed {plural(len(repaired.missing), 'missing file')} from the log")
    column, value = options["optimize_partition"], options["optimize_partition_predicate"]
    where = f"{_quoted(column, '`')} = {_quoted(value, chr(39))}" if column and value else None
    optimized = table.optimize(where, int(options["optimize_target_size"]))
    say(f"{table.path}: replaced {plural(optimized.files_removed, 'file')} by {optimized.files_added:,}")
    return 0


def _quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote


def _storage(url: str) -> Any:
    """The settings of the store from the environment, under the names of kafka-delta-ingest."""
    from headrace.importers.environment import process_settings
    from headrace.importers.object_store import STORE_VARIABLES, set_storage, store_of
    from headrace.importers.settings import Findings, Place
    from headrace.importers.spec_draft import SpecDraft
    from headrace.spec.storage import Storage

    draft, store = SpecDraft(Place("environment"), "kafka-delta-ingest"), store_of(url)
    if store:
        settings = {
            name.lower(): each for name, each in process_settings(os.environ).items() if name in STORE_VARIABLES
        }
        set_storage(draft, store, settings, Findings())
    return Storage.model_validate(draft.plain().get("storage", {})).revealed()


def _repair_options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of `repair`: arguments, else variables, else defaults."""
    from headrace.spec.diagnostics import closest

    words, values = list(arguments), dict[str, str]()
    while words:
        name, equals, value = words.pop(0).partition("=")
        option = name.removeprefix("--")
        if option not in _REPAIR or not name.startswith("--"):
            suggestion = did_you_mean(closest(name, [f"--{known}" for known in _REPAIR]))
            raise UsageError(f"Unknown argument: '{name}'{suggestion}.")
        if not equals and not words:
            raise UsageError(f"{name} requires a value.")
        values[option] = value if equals else words.pop(0)
    for option, (variable, default, _) in _REPAIR.items():
        yield option, values.get(option) or os.environ.get(variable) or default
