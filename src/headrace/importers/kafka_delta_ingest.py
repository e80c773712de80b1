"""kafka-delta-ingest: the arguments of `ingest`, in the form of the project and of its fork, and its environment.

The project writes one topic into one existing table: `ingest TOPIC TABLE_LOCATION`. The fork writes the messages of a
topic into tables by type: `ingest --table_base_uri URI --topic TOPIC`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.importers.imported import Imported, pipeline_name, spell_milliseconds
from headrace.importers.kafka_client import (
    kafka_setting,
    registry_settings,
    scram_settings,
    set_kafka_security,
    variable_or_secret,
)
from headrace.importers.object_store import STORE_VARIABLES, set_storage, store_of
from headrace.importers.settings import Findings, Place, Setting
from headrace.importers.spec_draft import SpecDraft
from headrace.spec.diagnostics import closest
from headrace.spec.units import spell_size

SYSTEM = "kafka-delta-ingest"
ARGUMENTS = "arguments"
Form = Literal["project", "fork"]
_PARALLEL = "Spark uses all cores"
_PARALLEL_ADVICE = "Set spark.cores to use fewer"


@dataclass(frozen=True, slots=True)
class CommandFlag:
    """Argument of `ingest`: its variable, its kind, and its defaults in the project and in the fork."""

    variable: str = ""
    short: str = ""
    kind: Literal["text", "integer", "flag", "list"] = "text"
    default: str | int | bool | None = None
    fork_default: str | int | None = None
    form: Form | None = None  # that has the flag; None: both
    reason: str = ""
    advice: str = ""


FLAGS: Mapping[str, CommandFlag] = {
    "topic": CommandFlag("KAFKA_TOPIC"),
    "table_location": CommandFlag("TABLE_LOCATION", form="project"),
    "table_base_uri": CommandFlag("TABLE_BASE_URI", form="fork"),
    "message_type_whitelist": CommandFlag("MESSAGE_TYPE_WHITELIST", form="fork"),
    "kafka": CommandFlag("KAFKA_BROKERS", "k", default="localhost:9092"),
    "consumer_group": CommandFlag("KAFKA_CONSUMER_GROUP", "g", default="kafka_delta_ingest"),
    "app_id": CommandFlag("APP_ID", "a", default="kafka_delta_ingest"),
    "seek_offsets": CommandFlag("KAFKA_SEEK_OFFSETS"),
    "auto_offset_reset": CommandFlag("KAFKA_AUTO_OFFSET_RESET", "o", default="earliest"),
    "allowed_latency": CommandFlag("ALLOWED_LATENCY", "l", "integer", 300),
    "max_messages_per_batch": CommandFlag("MAX_MESSAGES_PER_BATCH", "m", "integer", 5_000, 1_000_000),
    "min_bytes_per_file": CommandFlag("MIN_BYTES_PER_FILE", "b", "integer", 134_217_728),
    "housekeeping_loop_iteration": CommandFlag(
        "HOUSEKEEPING_LOOP_ITERATION", kind="integer", form="fork", reason="Headrace has no receive loop"
    ),
    "deserialization_workers": CommandFlag(
        "DESERIALIZATION_WORKERS", kind="integer", form="fork", reason=_PARALLEL, advice=_PARALLEL_ADVICE
    ),
    "worker_to_messages_multiplier": CommandFlag(
        "WORKER_TO_MESSAGES_MULTIPLIER",
        kind="integer",
        form="fork",
        reason="batches are bounded by flush and limits.batch_rows",
    ),
    "num_converting_workers": CommandFlag(
        "NUM_CONVERTING_WORKERS", kind="integer", form="fork", reason=_PARALLEL, advice=_PARALLEL_ADVICE
    ),
    "num_arrow_writer_threads": CommandFlag(
        "NUM_ARROW_WRITER_THREADS", kind="integer", form="fork", reason=_PARALLEL, advice=_PARALLEL_ADVICE
    ),
    "max_version_lookback": CommandFlag(
        "MAX_VERSION_LOOKBACK", kind="integer", form="fork", reason="the position is read from the ledger"
    ),
    "seconds_idle_kafka_read_before_flush": CommandFlag(
        "SECONDS_IDLE_KAFKA_READ_BEFORE_FLUSH",
        kind="integer",
        form="fork",
        reason="batches start after a time, even if no further record arrives",
        advice="flush.every is the maximum time between two batches",
    ),
    "partition_columns": CommandFlag("PARTITION_COLUMNS", form="fork"),
    "transform": CommandFlag("TRANSFORMS", "t", "list"),
    "dlq_table_location": CommandFlag("DLQ_TABLE_LOCATION"),
    "dlq_transform": CommandFlag("DLQ_TRANSFORMS", kind="list"),
    "checkpoints": CommandFlag("WRITE_CHECKPOINTS", "c", "flag", False),
    "kafka_setting": CommandFlag("", "K", "list"),
    "statsd_endpoint": CommandFlag("STATSD_ENDPOINT", "s", default="localhost:8125"),
    "prometheus_port": CommandFlag("PROMETHEUS_PORT", kind="integer", form="fork"),
    "json": CommandFlag("JSON_REGISTRY"),
    "avro": CommandFlag("AVRO_REGISTRY"),
    "soe-avro": CommandFlag(form="project"),
    "protobuf": CommandFlag("PROTOBUF_REGISTRY", form="fork"),
    "aidl": CommandFlag("AIDL_REGISTRY", form="fork"),
    "ends_at_latest_offsets": CommandFlag("ENDS_AT_LATEST_OFFSETS", "e", "flag", False),
    "decompress_gzip": CommandFlag("DECOMPRESS_GZIP", kind="flag", default=False, form="project"),
}
FORMAT_FLAGS = ("json", "avro", "soe-avro", "protobuf", "aidl")
_FORK_VARIABLES = {"ends_at_latest_offsets": "TURN_OFF_AT_KAFKA_TOPIC_END"}
_LOGS = "Headrace has no log levels"
OTHER_VARIABLES: Mapping[str, tuple[str, str]] = {  # reason and advice of those without effect; empty: honoured
    "KAFKA_DELTA_INGEST_CERT": ("", ""),
    "KAFKA_DELTA_INGEST_KEY": ("", ""),
    "KAFKA_DELTA_INGEST_CA": ("", ""),
    "KAFKA_DELTA_INGEST_SCRAM_JSON": ("", ""),
    "SCHEMA_REGISTRY_USERNAME": ("", ""),
    "SCHEMA_REGISTRY_PASSWORD": ("", ""),
    "SCHEMA_REGISTRY_PROXY": ("", ""),
    "KDI_METRICS_PREFIX": ("", ""),
    "KDI_METRICS_INPUT_QUEUE_SIZE": ("Headrace has no metrics queue", ""),
    "RUST_LOG": (_LOGS, "Use `headrace run --log-format`"),
    "SENTRY_DSN": ("errors are not sent to Sentry", "Collect the log, or the events of `headrace run --json`"),
}
# Variables of arguments that are options of `headrace run`.
OPTION_VARIABLES = frozenset(
    ("STATSD_ENDPOINT", "PROMETHEUS_PORT", "ENDS_AT_LATEST_OFFSETS", "TURN_OFF_AT_KAFKA_TOPIC_END")
)
_PEM_VARIABLES = {
    "KAFKA_DELTA_INGEST_CERT": "ssl.certificate.pem",
    "KAFKA_DELTA_INGEST_KEY": "ssl.key.pem",
    "KAFKA_DELTA_INGEST_CA": "ssl.ca.pem",
}
_DEAD_LETTER_COLUMNS = ("date", "timestamp")  # of Headrace's dead-letter table as well


def import_ingest(arguments: Sequence[str], environment: Mapping[str, Setting], origin: str = ARGUMENTS) -> Imported:
    """Import `ingest` with its arguments, without the word `ingest` itself, and its environment."""
    findings = Findings()
    written, form = _written(arguments, environment, findings)
    settings = _with_defaults(written, form, Place(origin))
    draft = _Pipeline(form, settings, environment, findings, origin).draft()
    return Imported(SYSTEM, origin, [draft], findings, settings)


def is_kafka_delta_ingest(environment: Mapping[str, Setting]) -> bool:
    """Whether an environment configures kafka-delta-ingest."""
    return "TABLE_BASE_URI" in environment or "TABLE_LOCATION" in environment


def known_variables() -> frozenset[str]:
    """All environment variables that kafka-delta-ingest reads, except `KAFKA_SETTING_…`."""
    flags = {flag.variable for flag in FLAGS.values() if flag.variable}
    return frozenset(flags | set(_FORK_VARIABLES.values()) | set(OTHER_VARIABLES) | STORE_VARIABLES)


def _written(
    arguments: Sequence[str], environment: Mapping[str, Setting], findings: Findings
) -> tuple[dict[str, Setting], Form]:
    """Settings that are written as arguments or variables; arguments override variables."""
    given, positionals = _parse(arguments, findings)
    is_fork = "table_base_uri" in given or "topic" in given or (not positionals and "TABLE_BASE_URI" in environment)
    form: Form = "fork" if is_fork else "project"
    if form == "project":
        given |= dict(zip(("topic", "table_location"), positionals, strict=False))
        positionals = positionals[2:]
    for extra in positionals:
        findings.error(extra.place, extra.value[:60], "unexpected argument")
    variables: dict[str, Setting] = {}
    for name, flag in FLAGS.items():
        variable = _FORK_VARIABLES.get(name, flag.variable) if form == "fork" else flag.variable
        if variable in environment and name not in given and flag.form in (None, form):
            variables[name] = _typed(name, environment[variable], findings)
    for name, setting in given.items():
        if FLAGS[name].form not in (None, form):
            findings.error(setting.place, setting.name, f"not an argument of this form of {SYSTEM}")
    written = variables | given
    formats = [name for name in FORMAT_FLAGS if name in written]
    if len(formats) > 1:
        second = written[formats[1]]
        findings.error(second.place, second.name, f"cannot be used with --{formats[0]}", "one format")
    return written, form


def _parse(arguments: Sequence[str], findings: Findings) -> tuple[dict[str, Setting], list[Setting]]:
    """Options by flag, and positional arguments."""
    options: dict[str, Setting] = {}
    positionals: list[Setting] = []
    place, rest = Place(ARGUMENTS), list(arguments)
    only_positionals = False
    while rest:
        word = rest.pop(0)
        if only_positionals or not word.startswith("-") or word == "-":
            positionals.append(Setting(word, word, place))
            continue
        if word == "--":
            only_positionals = True
            continue
        name, value = _option(word)
        if name is None:
            shown = word.partition("=")[0]
            names = [f"--{flag}" for flag in FLAGS if flag != "table_location"]
            findings.error(place, shown[:60], "unknown argument", ", ".join(names), closest(shown, names))
            continue
        label = f"--{name}"
        if FLAGS[name].kind == "flag":
            options[name] = Setting(label, True, place)
        elif value is None and not rest:
            findings.error(place, label, "a value is required")
        else:
            values = [value if value is not None else rest.pop(0)]
            if FLAGS[name].kind == "list":
                while rest and _continues(name, rest[0]):
                    values.append(rest.pop(0))
                values = [*(options[name].value if name in options else ()), *values]
                options[name] = Setting(label, values, place)
            else:
                options[name] = _typed(name, Setting(label, values[0], place), findings)
    return options, positionals


def _option(word: str) -> tuple[str | None, str | None]:
    """Flag of an option, and the value that is written in the same word."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return (name if name in FLAGS and name != "table_location" else None), (value if equals else None)
    name = next((name for name, flag in FLAGS.items() if flag.short == word[1]), "")
    value = word[2:].removeprefix("=")
    return name or None, value or None


def _continues(name: str, word: str) -> bool:
    """Whether a word is a further value of `-t` or `-K`, as in `-K a=b c=d`. A URL is none, nor an option."""
    if name == "kafka_setting":
        return re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*=.*", word, re.DOTALL) is not None
    column, _, query = word.partition(":")
    return bool(column.strip() and query.strip()) and not word.startswith("-") and not query.startswith("//")


def _typed(name: str, setting: Setting, findings: Findings) -> Setting:
    kind = FLAGS[name].kind
    if kind == "integer":
        if str(setting.value).isdecimal():
            return setting.as_value(int(setting.value))
        findings.error(setting.place, setting.name, f"invalid value '{str(setting.value)[:60]}'", "a number")
        return setting.as_value(1)
    if kind == "flag" and isinstance(setting.value, str):
        return setting.as_value(setting.value.lower() not in ("", "0", "false", "n", "no", "off", "f"))
    return setting.as_value([setting.value]) if kind == "list" else setting


def _with_defaults(written: Mapping[str, Setting], form: Form, place: Place) -> dict[str, Setting]:
    """All flags of a form, with its defaults."""
    settings = {}
    for name, flag in FLAGS.items():
        if flag.form in (None, form):
            default = flag.fork_default if form == "fork" and flag.fork_default is not None else flag.default
            if form == "fork" and name == "statsd_endpoint":
                default = None
            settings[name] = written.get(name) or Setting(f"--{name}", default, place, is_set=False)
    return settings


class _Pipeline:
    """The spec of one `ingest`."""

    def __init__(
        self,
        form: Form,
        settings: Mapping[str, Setting],
        environment: Mapping[str, Setting],
        findings: Findings,
        origin: str,
    ) -> None:
        self._form, self._settings, self._environment, self._findings = form, settings, environment, findings
        self._draft = SpecDraft(Place(origin), SYSTEM)

    def draft(self) -> SpecDraft:
        """Write the keys, in the order of the printed spec."""
        self._report()
        app_id = self._settings["app_id"]
        self._draft.set("pipeline", app_id.as_value(pipeline_name(app_id.value)))
        self._set_source()
        route = self._set_decode()
        self._set_transform()
        self._set_table(route)
        self._set_dead_letters()
        self._set_flush()
        return self._draft

    def _given(self, name: str) -> Setting | None:
        """A flag that this form has, and that is written."""
        setting = self._settings.get(name)
        return setting if setting is not None and setting.is_set else None

    def _report(self) -> None:
        for name, setting in self._settings.items():
            if FLAGS[name].reason:
                self._findings.skip(setting, FLAGS[name].reason, FLAGS[name].advice)
        for name, (reason, advice) in OTHER_VARIABLES.items():
            if reason and name in self._environment:
                self._findings.skip(self._environment[name], reason, advice)
        if self._settings["checkpoints"].value:
            self._findings.fulfill(self._settings["checkpoints"], "checkpoints are always written")
        options = self._findings.run_options
        if self._given("ends_at_latest_offsets") and self._settings["ends_at_latest_offsets"].value:
            options.append("--until latest")
        statsd, port = self._given("statsd_endpoint"), self._given("prometheus_port")
        if statsd and port:
            message = "Cannot specify both statsd_endpoint and prometheus_port"
            self._findings.error(port.place, port.name, message)
        if statsd:
            options.append(f"--statsd {statsd.value}")
        if port:
            options.append(f"--listen 127.0.0.1:{port.value} --metrics-profile {SYSTEM}")
        if prefix := self._environment.get("KDI_METRICS_PREFIX"):
            self._findings.fulfill(prefix, "the prefix of --statsd and --listen, if they are used")
            options += [f"--metrics-prefix {prefix.value}"] if statsd or port else []

    def _set_source(self) -> None:
        draft, brokers = self._draft, self._settings["kafka"]
        draft.set("source.kafka.brokers", brokers)
        topic = self._settings["topic"]
        if not topic.value:
            self._findings.error(topic.place, topic.name, "required argument is missing", "the topic to read")
        draft.set("source.kafka.topics", topic.as_value([topic.value or ""]))
        reset, seek = self._settings["auto_offset_reset"], self._given("seek_offsets")
        if reset.value not in ("earliest", "latest"):
            expected = "earliest or latest"
            self._findings.error(reset.place, reset.name, f"invalid value '{str(reset.value)[:60]}'", expected)
        draft.set("source.kafka.start", reset, native_default="earliest")
        if seek:
            draft.set("source.kafka.start", seek.as_value({"offsets": self._start_offsets(seek)}))
            if reset.value == "latest":
                reason = "partitions without a seek offset start at the earliest offset"
                self._findings.skip(reset, reason, "Add all partitions to --seek_offsets")
        if group := self._given("consumer_group"):
            draft.set("source.kafka.group", group)
        set_kafka_security(draft, self._kafka_settings(), brokers, self._findings)

    def _start_offsets(self, seek: Setting) -> dict[str, int]:
        """First offsets to read: one after those that kafka-delta-ingest seeks."""
        try:
            offsets = {str(int(partition)): int(offset) + 1 for partition, offset in json.loads(seek.value).items()}
        except (ValueError, TypeError, AttributeError):
            self._findings.error(seek.place, seek.name, "not a JSON object", '{"0": 123, "1": 321}')
            return {}
        return dict(sorted(offsets.items(), key=lambda item: int(item[0])))

    def _kafka_settings(self) -> dict[str, Setting]:
        settings: dict[str, Setting] = {}
        for name, setting in self._environment.items():
            if name.startswith("KAFKA_SETTING_") and self._form == "fork":
                settings[name.removeprefix("KAFKA_SETTING_").replace("_", ".").lower()] = setting
            elif name in _PEM_VARIABLES:
                settings[_PEM_VARIABLES[name]] = variable_or_secret(setting, self._findings)
        if scram := self._environment.get("KAFKA_DELTA_INGEST_SCRAM_JSON"):
            settings |= scram_settings(scram, self._findings)
        arguments = self._settings["kafka_setting"]
        for text in arguments.value or ():
            if pair := kafka_setting(arguments.as_value(text), self._findings):
                settings[pair[0]] = pair[1]
        return settings

    def _set_decode(self) -> Literal["topic", "type"]:
        """Set the format; returns what the fork takes the table from."""
        name = next((name for name in FORMAT_FLAGS if self._given(name)), "json")
        given, gzip = self._settings[name], self._given("decompress_gzip")
        value = str(given.value or "")
        registry: dict[str, object] = {}
        if value.startswith(("http:", "https:")):
            if not re.match(r"https?://[^/\s]+", value):
                self._findings.error(given.place, given.name, "Invalid url", "http://host:port")
            registry = {"registry": registry_settings(given, self._environment, self._findings)}
        options = registry
        if name == "json":
            options = {**registry, **({"compression": gzip.as_value("gzip")} if gzip and gzip.value else {})}
        elif name == "avro" and not registry:
            options = {"container": True}
            if value:
                reason = "a reader schema is not applied: all fields of the writer's schema become columns"
                self._findings.skip(given, reason, "Declare the fields of the schema in table.columns")
        elif name == "soe-avro":
            options = {"single_object": given}
        elif name == "aidl":
            reason = "the AIDL decoder is not public; values are read as MessagePack after the CRC of their protocol"
            self._findings.skip(given, reason, "Compare a sample with `headrace preview`")
            options = registry or {"schemas": given}
        if name == "avro" and registry and self._form == "fork":
            options = {**options, "type_name": given.as_value("short")}
        if name == "protobuf":
            options = {**options, "flatten": given.as_value(True)}
        native = {"soe-avro": "avro", "aidl": "msgpack"}.get(name, name)
        self._draft.set(f"decode.{native}" if options else "decode", options or native)
        return "type" if registry or name == "aidl" else "topic"

    def _set_transform(self) -> None:
        targets = dict(self._expressions(self._settings["transform"]))
        if targets:
            on_null = {"on_null": "drop"} if self._form == "fork" else {}
            options = {"set": targets, **on_null, "allow_missing": True}
            self._draft.append("transform", {"jmespath": options}, f"a missing field is null, as in {SYSTEM}")

    def _expressions(self, setting: Setting) -> Iterator[tuple[str, Setting]]:
        """Targets and expressions of `PROPERTY: SOURCE` arguments."""
        for argument in setting.value or ():
            for text in argument.split("^") if self._form == "fork" else [argument]:
                target, colon, source = text.partition(":")
                if colon and target.strip() and source.strip():
                    yield target.strip(), setting.as_value(source.strip())
                    continue
                self._findings.error(
                    setting.place,
                    setting.name,
                    f"'{text[:60]}' - Each transform argument must be colon delimited and match the pattern "
                    "'PROPERTY: SOURCE'",
                )

    def _set_table(self, route: Literal["topic", "type"]) -> None:
        draft = self._draft
        location = self._settings["table_base_uri" if self._form == "fork" else "table_location"]
        if not location.value:
            self._findings.error(location.place, location.name, "required argument is missing", "path of the table")
        path = str(location.value or "")
        if self._form == "fork":
            draft.set("route.by", route)
            if include := self._given("message_type_whitelist"):
                draft.set("route.include", include)
                draft.set("route.unrouted", include.as_value("skip"))
            draft.set("table.path", location.as_value(f"{path.rstrip('/')}/{{{route}}}"))
            if columns := self._given("partition_columns"):
                names = [name.strip() for name in columns.value.split(",") if name.strip()]
                draft.set("table.partition_by", columns.as_value(names))
        else:
            draft.set("table.path", location)
            draft.set("table.create", "never", f"{SYSTEM} does not create tables")
        draft.set("table.coerce", {"string": True, "timestamp": "us"}, f"as in {SYSTEM}")
        draft.set("table.contract.new_field", "ignore", f"as in {SYSTEM}; ignored fields are counted")
        draft.set("table.source", False, f"{SYSTEM} has no column _source")
        draft.set(f"table.txn.{SYSTEM}", self._settings["app_id"], "continues after its txns, and keeps them current")
        variables = (self._environment[name] for name in sorted(STORE_VARIABLES & self._environment.keys()))
        options = [each for each in variables if (each.name, each.value) != ("AWS_REGION", "custom")]
        if store := store_of(path):
            set_storage(draft, store, _of_store(store, options), self._findings)

    def _set_dead_letters(self) -> None:
        if location := self._given("dlq_table_location"):
            comment = f"a new table: the columns are not those of {SYSTEM}"
            self._draft.set("dead_letters.path", location, comment)
        else:
            comment = f"as {SYSTEM} without --dlq_table_location; without this line, they are stored"
            self._draft.set("dead_letters", "drop", comment)
            self._findings.skip(self._settings["dlq_transform"], "there is no dead-letter table")
            return
        queries = dict(self._expressions(self._settings["dlq_transform"]))
        columns = {name: query for name, query in queries.items() if name not in _DEAD_LETTER_COLUMNS}
        for name in queries.keys() - columns.keys():
            self._findings.fulfill(self._settings["dlq_transform"], f"every dead letter has the column {name}")
        if columns:
            self._draft.append("dead_letters.transform", {"jmespath": columns})

    def _set_flush(self) -> None:
        latency, rows = self._settings["allowed_latency"], self._settings["max_messages_per_batch"]
        size = self._settings["min_bytes_per_file"]
        self._draft.set("flush.every", latency.as_value(spell_milliseconds(max(latency.value * 1000, 100))))
        if not rows.is_set:
            # A record batch of kafka-delta-ingest is not a commit: only bytes and latency start one.
            rows = rows.as_value(1_000_000)
        self._draft.set("flush.rows", rows, "" if rows.is_set else "flush.bytes or flush.every starts a batch earlier")
        if rows.value > 1_000_000:
            self._draft.set("limits.batch_rows", rows)
        self._draft.set("flush.bytes", size.as_value(spell_size(size.value)))


def _of_store(store: str, variables: Sequence[Setting]) -> dict[str, Setting]:
    """Variables of the store of the table: a machine may have those of others, which are not about it."""
    prefixes = {"s3": ("AWS_", "DELTA_", "DYNAMO_", "DEAD_"), "azure": ("AZURE_",), "gcs": ("GOOGLE_",)}[store]
    return {variable.name.lower(): variable for variable in variables if variable.name.startswith(prefixes)}
