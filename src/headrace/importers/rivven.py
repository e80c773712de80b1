"""Rivven: the `delta-lake` sinks of a connect.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from headrace.importers.imported import Imported, pipeline_name, spell_milliseconds
from headrace.importers.object_store import option_name, set_storage, store_of
from headrace.importers.settings import Findings, Key, Place, Section, Setting, section_of
from headrace.importers.spec_draft import SpecDraft
from headrace.spec.uris import is_loopback
from headrace.spec.yaml_reader import YamlNode

SYSTEM = "Rivven"
_CONNECTOR = "delta-lake"
_LOGS = ("Headrace has no log levels", "Use `headrace run --log-format`")
_CLIENT = "the timeouts of the connection are fixed"
_TOPICS = "topics are created by their producers"
_SOURCES = "Keep rivven-connect for the source; Headrace reads the topic that it writes"

ROOT = {
    "version": Key("anything"),
    "broker": Key("section"),
    "sources": Key("section"),
    "sinks": Key("section"),
    "settings": Key("section"),
    "distributed": Key("anything", reason="one instance runs a pipeline; another one waits with `headrace run --wait`"),
}
BROKER = {
    "bootstrap_servers": Key("texts"),
    "metadata_refresh_ms": Key("integer", reason=_CLIENT),
    "connection_timeout_ms": Key("integer", reason=_CLIENT),
    "request_timeout_ms": Key("integer", reason=_CLIENT),
    "tls": Key("section"),
}
TLS = {
    "enabled": Key("flag", False),
    "cert_path": Key(),
    "key_path": Key(),
    "ca_path": Key(),
    "insecure": Key("flag", False),
    "server_name": Key(reason="the certificate must have the name of the broker's address"),
}
SOURCE = {
    "connector": Key(),
    "topic": Key(),
    "topic_config": Key("anything"),
    "config": Key("anything"),
    "tables": Key("anything"),
    "enabled": Key("flag", True),
    "rate_limit": Key("anything"),
    "schema_registry_url": Key(),
    "transforms": Key("anything"),
    "dead_letter_topic": Key(),
}
SINK = {
    "connector": Key(),
    "topics": Key("texts"),
    "consumer_group": Key(),
    "config": Key("section"),
    "enabled": Key("flag", True),
    "start_offset": Key(default="latest"),
    "rate_limit": Key("section"),
    "schema_registry_url": Key(
        reason="the sink stores JSON text, without a schema", advice="Set decode.json.registry for values with one"
    ),
    "transforms": Key("sections"),
    "offset_commit_interval": Key("integer", reason="offsets are recorded with every batch"),
    "dead_letter_topic": Key(
        reason="dead letters are rows of a Delta table", advice="Set dead_letters.path for its path"
    ),
}
RATE_LIMIT = {
    "events_per_second": Key("integer", 0),
    "burst_capacity": Key("integer", reason="the rate is that of each batch, without bursts"),
    "burst_size": Key("integer", reason="the rate is that of each batch, without bursts"),
    "max_in_flight": Key("integer", reason="batches are bounded by flush and limits.batch_rows"),
}
CONFIG = {
    "table_uri": Key(),
    "auto_create_table": Key("flag", True),
    "batch_size": Key("integer", 10_000, minimum=1, maximum=1_000_000),
    "flush_interval_secs": Key("integer", 60, minimum=1, maximum=3_600),
    "target_file_size_mb": Key("integer", 128, minimum=1, maximum=1_024),
    "write_mode": Key(default="append", choices=("append", "overwrite")),
    "partition_columns": Key("texts"),
    "compression": Key(default="snappy", choices=("snappy", "gzip", "lz4", "zstd", "none")),
    "max_commit_retries": Key("integer", 3, maximum=10),
    "s3": Key("section"),
    "gcs": Key("section"),
    "azure": Key("section"),
    "storage_options": Key("section"),
    "table_properties": Key("section"),
}
S3_KEYS = {
    "region": Key(default="us-east-1"),
    "endpoint": Key(),
    "access_key_id": Key(),
    "secret_access_key": Key(),
    "path_style_access": Key("flag", False),
    "allow_http": Key("flag", False),
}
GCS = {"service_account_path": Key(), "service_account_key": Key()}
AZURE = {"account": Key(), "access_key": Key(), "sas_token": Key()}
SETTINGS = {
    "state_dir": Key(reason="the state of a pipeline is next to its table", advice="Set state for another path"),
    "topic": Key("anything", reason=_TOPICS),
    "retry": Key("section"),
    "health": Key("section"),
    "metrics": Key("section"),
    "telemetry": Key("anything", reason="Headrace sends no traces"),
    "log_level": Key(reason=_LOGS[0], advice=_LOGS[1]),
}
RETRY = {
    "max_retries": Key("integer", reason="an unreachable broker or store is retried until it answers"),
    "initial_backoff_ms": Key("integer", 100),
    "max_backoff_ms": Key("integer", 30_000),
    "backoff_multiplier": Key("anything", 2.0),
}
SERVER = {"enabled": Key("flag", False), "port": Key("integer", maximum=65_535), "path": Key(default="/health")}
TRANSFORM = {"type": Key(choices=("rename_field", "remove_field", "add_field", "filter")), "config": Key("section")}
FILTER = {"field": Key(), "equals": Key()}
COLUMNS = ("data", "event_type", "timestamp", "stream")
_OPTIONS = {  # names of the same options in storage_options
    "s3.region": "aws_region",
    "s3.endpoint": "aws_endpoint_url",
    "s3.access_key_id": "aws_access_key_id",
    "s3.secret_access_key": "aws_secret_access_key",
    "s3.path_style_access": "aws_force_path_style",
    "s3.allow_http": "aws_allow_http",
    "gcs.service_account_path": "google_service_account_path",
    "gcs.service_account_key": "google_service_account_key",
    "azure.account": "azure_storage_account_name",
    "azure.access_key": "azure_storage_account_key",
    "azure.sas_token": "azure_storage_sas_token",
}
_ENDPOINTS = {"metrics": 9091, "health": 8080}  # default ports
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def is_rivven(root: YamlNode) -> bool:
    """Whether a YAML document configures Rivven's connectors."""
    return isinstance(root.content, Mapping) and "pipeline" not in root.content and "sinks" in root.content


def import_rivven(root: YamlNode, file: str, environment: Mapping[str, Setting]) -> Imported:
    """Import the Delta sinks of a connect.yaml."""
    findings = Findings()
    root = _with_variables(root, environment, findings)
    section = section_of(root, "", Place(file), ROOT, findings)
    drafts = list(_Rivven(section, findings).drafts())
    if not drafts and not findings.errors:
        findings.error(Place(file), "sinks", f"no enabled sink with connector: {_CONNECTOR}")
    return Imported(SYSTEM, file, drafts, findings)


def _with_variables(node: YamlNode, environment: Mapping[str, Setting], findings: Findings) -> YamlNode:
    """Write `${VAR}` as a reference of a spec, and replace `${VAR:-default}`, which a spec does not have."""

    def replaced(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if default is None:
            return f"${{env:{name}}}"
        if name in environment:
            if name not in findings.overrides:
                findings.overrides.append(name)
            return str(environment[name].value)
        return default

    content = node.content
    if isinstance(content, Mapping):
        entries = {key: (spot, _with_variables(inner, environment, findings)) for key, (spot, inner) in content.items()}
        return YamlNode(entries, node.spot)
    if isinstance(content, tuple):
        return YamlNode(tuple(_with_variables(inner, environment, findings) for inner in content), node.spot)
    return YamlNode(_VARIABLE.sub(replaced, content), node.spot) if isinstance(content, str) else node


class _Rivven:
    """Import of one file."""

    def __init__(self, root: Section, findings: Findings) -> None:
        self._root, self._findings = root, findings
        self._broker = root.section("broker", BROKER)
        self._settings = root.section("settings", SETTINGS)

    def drafts(self) -> Iterator[SpecDraft]:
        """One pipeline for each sink."""
        self._findings.fulfill(self._root.get("version"), "the version of the file format")
        for name, source in self._root.named_sections("sources", SOURCE):
            connector = source.get("connector")
            setting = Setting(f"sources.{name}", connector.value, source.place)
            advice = "Use Debezium and Kafka, or keep it: Headrace reads the topic that it writes"
            is_cdc = str(connector.value).endswith("-cdc")
            reason = f"the source connector {connector.value} is not part of Headrace"
            self._findings.skip(setting, reason, advice if is_cdc else _SOURCES)
        self._set_endpoints()
        for name, sink in self._root.named_sections("sinks", SINK):
            connector, enabled = sink.get("connector"), sink.get("enabled")
            if connector.value != _CONNECTOR:
                self._findings.skip(connector, f"Headrace writes Delta tables only, not {connector.value}")
            elif not enabled.value:
                self._findings.skip(enabled, "no pipeline is written for a sink that is not enabled")
            else:
                yield self._draft(name, sink)

    def _set_endpoints(self) -> None:
        """Metrics and health have one endpoint, which an option of `headrace run` enables."""
        sections = {key: self._settings.section(key, SERVER) for key in _ENDPOINTS}
        enabled = [key for key, section in sections.items() if section.get("enabled").value]
        for key, section in sections.items():
            enable, port, path = (section.get(name) for name in SERVER)
            if key in enabled and key != enabled[0]:
                self._findings.fulfill(enable, f"{key} is served at the endpoint of {enabled[0]}")
                self._findings.skip(port, f"{key} is served at the port of {enabled[0]}")
            elif key in enabled:
                self._findings.run_options.append(f"--listen 127.0.0.1:{port.value or _ENDPOINTS[key]}")
            if key == "metrics" and key in enabled:
                self._findings.run_options.append("--metrics-profile rivven")
            expected = "/metrics" if key == "metrics" else "/health"
            if path.is_set and path.value != expected:
                self._findings.skip(path, f"it is served at {expected}")
            elif key not in enabled:
                for setting in (enable, port, path):
                    self._findings.fulfill(setting, "nothing is served without --listen")

    def _draft(self, name: str, sink: Section) -> SpecDraft:
        draft = SpecDraft(sink.place, SYSTEM)
        pipeline = pipeline_name(name)
        draft.set("pipeline", Setting(f"sinks.{name}", pipeline, sink.place))
        section = sink.section("config", CONFIG)
        self._set_source(draft, name, sink)
        draft.set("decode.json.envelope", "rivven")
        self._set_transforms(draft, sink)
        self._set_table(draft, section)
        self._set_storage(draft, section, pipeline)
        every = section.get("flush_interval_secs")
        draft.set("flush.every", every.as_value(spell_milliseconds(every.value * 1000)))
        draft.set("flush.rows", section.get("batch_size"))
        self._set_retry(draft, section)
        return draft

    def _set_source(self, draft: SpecDraft, name: str, sink: Section) -> None:
        findings, brokers = self._findings, self._broker.texts("bootstrap_servers")
        if not brokers:
            place = self._broker.place
            findings.assume("broker.bootstrap_servers", place, "required key is missing", "Set source.rivven.broker")
        broker = brokers[0] if brokers else "localhost:9092"
        draft.set("source.rivven.broker", broker)
        for other in brokers[1:]:
            findings.skip(other, "Headrace connects to the first broker, which names the others")
        topics = sink.texts("topics")
        if not topics:
            message = f"Sink '{name}' must have at least one topic"
            findings.assume(f"sinks.{name}.topics", sink.place, message, "Set source.rivven.topics")
        if any(character in topic.value for topic in topics for character in "*?"):
            patterns = "|".join(_pattern(topic.value) for topic in topics)
            draft.set("source.rivven.pattern", topics[0].as_value(f"^(?:{patterns})$"))
        else:
            draft.set("source.rivven.topics", topics or [name])
        start = sink.get("start_offset")
        is_word = start.value in ("latest", "earliest")
        draft.set("source.rivven.start", start if is_word else start.as_value({"timestamp": start.value}))
        group = sink.get("consumer_group")
        advice = "Set source.rivven.start to the offsets at which the sink stopped"
        findings.skip(group, "the position of a consumer group is not read", advice)
        self._set_security(draft, str(brokers[0].value) if brokers else "localhost:9092")
        rate = sink.section("rate_limit", RATE_LIMIT).get("events_per_second")
        if rate.value:
            draft.set("source.rivven.rate", rate.as_value(f"{rate.value}/s"))

    def _set_security(self, draft: SpecDraft, broker: str) -> None:
        tls = self._broker.section("tls", TLS)
        if not tls.get("enabled").value:
            if not is_loopback(broker.rpartition(":")[0]):
                draft.set("source.rivven.plaintext", True, "the connection is not encrypted")
            for key in ("cert_path", "key_path", "ca_path", "insecure"):
                tls.skip(key, "tls is not enabled")
            return
        names = {"ca_path": "ca", "cert_path": "certificate", "key_path": "key"}
        files = {native: tls.get(key) for key, native in names.items() if key in tls}
        keys = {native: path.as_value(f"${{file:{path.value}}}") for native, path in files.items()}
        draft.set("source.rivven.tls", keys or tls.get("enabled"))
        if tls.get("insecure").value:
            tls.skip("insecure", "certificates and host names are always verified", "Set source.rivven.tls.ca")

    def _set_transforms(self, draft: SpecDraft, sink: Section) -> None:
        for transform in sink.sections("transforms", TRANSFORM):
            kind = transform.get("type")
            if kind.value != "filter":
                reason = "data has the text of the record unchanged; Rivven does not apply transforms of sinks either"
                self._findings.skip(kind.as_value(kind.value), reason, "Read the fields with decode: json instead")
                continue
            config = transform.section("config", FILTER)
            field, equals = config.required("field"), config.required("equals")
            quoted = [str(value).replace("'", "''") for value in (field.value, equals.value)]
            condition = f"json_extract_string(data, '$.\"{quoted[0]}\"') = '{quoted[1]}'"
            draft.append("transform", {"where": field.as_value(condition)}, f"{SYSTEM} ignores it")

    def _set_table(self, draft: SpecDraft, config: Section) -> None:
        draft.set("table.path", config.required("table_uri", "table_uri is required"))
        create = config.get("auto_create_table")
        draft.set("table.create", create.as_value("auto" if create.value else "never"), native_default="auto")
        partitions = config.texts("partition_columns")
        for column in partitions:
            if column.value not in COLUMNS:
                message = f"Invalid partition column '{column.value}'"
                self._findings.error(column.place, column.name, message, ", ".join(COLUMNS))
        if partitions:
            draft.set("table.partition_by", partitions)
        for name in COLUMNS:
            declared: dict[str, object] = {"name": name, "type": "timestamp" if name == "timestamp" else "string"}
            declared |= {"json": True} if name == "data" else {}
            draft.append("table.columns", declared | ({} if name == "stream" else {"nullable": False}))
        draft.set("table.source", False, f"{SYSTEM} has no column _source")
        draft.set("table.compression", config.get("compression"), native_default="snappy")
        size = config.get("target_file_size_mb")
        draft.set("table.target_file_size", size.as_value(f"{size.value}MB"), native_default="128MB")
        if config.get("write_mode").value == "overwrite":
            reason = "the sink appends in this mode as well, and so does Headrace"
            advice = "Set table.mode: overwrite to replace the table with all records of the topics at each run"
            config.skip("write_mode", reason, advice)
        properties = config.get("table_properties")
        if isinstance(properties.value, YamlNode) and isinstance(properties.value.content, Mapping):
            for key, (spot, node) in properties.value.content.items():
                value = Setting(f"{properties.name}.{key}", node.plain(), Place(properties.place.file, spot))
                draft.set_in("table.properties", key, value)

    def _set_storage(self, draft: SpecDraft, config: Section, pipeline: str) -> None:
        store = store_of(str(config.get("table_uri").value))
        options: dict[str, Setting] = {}
        for name, keys in (("s3", S3_KEYS), ("gcs", GCS), ("azure", AZURE)):
            section = config.section(name, keys)
            options |= {_OPTIONS[f"{name}.{key}"]: section.get(key) for key in keys if key in section}
        node = config.get("storage_options").value  # override the keys of the stores
        if isinstance(node, YamlNode) and isinstance(node.content, Mapping):
            for key, (spot, inner) in node.content.items():
                setting = Setting(f"{config.name}.storage_options.{key}", inner.plain(), Place(config.place.file, spot))
                options[option_name(store, key)] = setting
        if store == "s3" and "aws_region" not in options:
            options["aws_region"] = Setting("s3.region", "us-east-1", config.place, is_set=False)
        set_storage(draft, store, options, self._findings, prefix=pipeline)

    def _set_retry(self, draft: SpecDraft, config: Section) -> None:
        retry = self._settings.section("retry", RETRY)
        for key, native, default in (
            ("initial_backoff_ms", "initial_interval", "1s"),
            ("max_backoff_ms", "max_interval", "1m"),
        ):
            wait = retry.get(key)
            text = spell_milliseconds(max(wait.value, 10))
            draft.set(f"retry.unreachable.{native}", wait.as_value(text), native_default=default)
        multiplier = retry.get("backoff_multiplier")
        if multiplier.is_set and multiplier.value != 2:
            self._findings.skip(multiplier, "intervals double")
        attempts = config.get("max_commit_retries")
        draft.set("retry.conflict", attempts.as_value(attempts.value + 1))


def _pattern(topic: str) -> str:
    """Regular expression of a topic name with wildcards."""
    return re.escape(topic).replace(r"\*", ".*").replace(r"\?", ".")
