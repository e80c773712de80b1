"""Danube's sink for Delta Lake: a TOML file with `[[deltalake.topic_mappings]]`, or with `[[deltalake.routes]]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.importers.imported import Imported, pipeline_name, spell_milliseconds
from headrace.importers.settings import Findings, Key, Place, Section, Setting, section_of
from headrace.importers.spec_draft import SpecDraft, Value
from headrace.spec.uris import is_loopback
from headrace.spec.yaml_reader import YamlNode

SYSTEM = "Danube's sink"
_LOGS = ("Headrace has no log levels", "Use `headrace run --log-format`")
_REGISTERED = "schemas are registered by producers; the sink reads them"
_INT = Key("integer", minimum=0)

ROOT = {
    "danube_service_url": Key(),
    "connector_name": Key(),
    "metrics_port": Key("integer", maximum=65535),
    "retry": Key("section"),
    "processing": Key("section"),
    "schemas": Key("anything", reason=_REGISTERED),
    "deltalake": Key("section"),
}
RETRY = {
    "max_retries": Key("integer", 3, maximum=100),
    "retry_backoff_ms": Key("integer", 1_000),
    "max_backoff_ms": Key("integer", 30_000),
}
PROCESSING = {
    "batch_size": Key("integer", 1_000, minimum=1),
    "batch_timeout_ms": Key("integer", 1_000),
    "poll_interval_ms": Key("integer", reason="the broker pushes messages; Headrace does not poll"),
    "metrics_port": Key("integer", maximum=65535),
    "log_level": Key(reason=_LOGS[0], advice=_LOGS[1]),
}
DELTALAKE = {
    "storage_backend": Key(choices=("s3", "azure", "gcs")),
    "s3_region": Key(),
    "s3_endpoint": Key(),
    "s3_allow_http": Key("flag", False),
    "azure_storage_account": Key(),
    "azure_container": Key(),
    "gcp_project_id": Key(),
    "batch_size": Key("integer", 1_000, minimum=1),
    "flush_interval_ms": Key("integer", 5_000),
    "topic_mappings": Key("sections"),
    "routes": Key("sections"),
}
TOPIC_MAPPING = {
    "topic": Key(),
    "subscription": Key(),
    "delta_table_path": Key(),
    "schema_type": Key(choices=("Json", "String", "Int64", "Bytes")),
    "schema": Key("sections"),
    "write_mode": Key(default="append", choices=("append", "overwrite")),
    "include_danube_metadata": Key("flag", False),
    "batch_size": Key("integer", minimum=1),
    "flush_interval_ms": Key("integer"),
}
TYPES = (
    "Utf8", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64", "Boolean",
    "Timestamp", "Date32", "Date64", "Binary",
)  # fmt: skip
FIELD = {
    "name": Key(),
    "data_type": Key(choices=TYPES),
    "nullable": Key("flag", True),
}
ROUTE = {
    "from": Key(),
    "subscription": Key(),
    "to": Key(),
    "expected_schema_subject": Key(),
    "field_mappings": Key("sections"),
    "write_mode": Key(default="append", choices=("append", "overwrite")),
    "include_danube_metadata": Key("flag", False),
}
FIELD_MAPPING = {
    "json_path": Key(),
    "column": Key(),
    "data_type": Key(choices=TYPES),
    "nullable": Key("flag", True),
}
# Environment variables, and the keys that they override.
OVERRIDES = {
    "DANUBE_SERVICE_URL": "danube_service_url",
    "CONNECTOR_NAME": "connector_name",
    "AWS_REGION": "s3_region",
    "S3_ENDPOINT": "s3_endpoint",
    "AZURE_STORAGE_ACCOUNT": "azure_storage_account",
    "GCP_PROJECT_ID": "gcp_project_id",
}
CONFIG_PATH = "CONNECTOR_CONFIG_PATH"
_STORES = {"s3": ("s3://", "s3a://"), "azure": ("abfss://", "abfs://", "az://"), "gcs": ("gs://",)}
_SUBJECT = "decode(_headers['danube.schema_subject'])"


@dataclass
class _Topic:
    """What a mapping or a route says about one topic."""

    topic: Setting
    subscription: Setting
    path: Setting
    decode: Value
    columns: list[Value]
    metadata: Setting
    time_unit: str  # of whole numbers in columns of type Timestamp
    rows: Setting | None = None  # unlike those of the file
    every: Setting | None = None
    subject: Setting | None = None


def is_danube(root: YamlNode) -> bool:
    """Whether a TOML document configures Danube's sink."""
    section = root.child("deltalake")
    has_topics = section is not None and any(section[1].child(key) for key in ("topic_mappings", "routes"))
    return has_topics or root.child("danube_service_url") is not None


def import_danube(root: YamlNode, file: str, environment: Mapping[str, Setting]) -> Imported:
    """Import a connector.toml with the variables that override its keys."""
    findings = Findings()
    importer = _Danube(section_of(root, "", Place(file), ROOT, findings), findings, environment)
    return Imported(f"{SYSTEM} for Delta Lake", file, importer.drafts(), findings)


class _Danube:
    """Import of one file."""

    def __init__(self, root: Section, findings: Findings, environment: Mapping[str, Setting]) -> None:
        self._root, self._findings, self._environment = root, findings, environment
        self._retry = root.section("retry", RETRY)
        self._processing = root.section("processing", PROCESSING)
        self._deltalake = root.section("deltalake", DELTALAKE)

    def drafts(self) -> list[SpecDraft]:
        """One pipeline; a topic that is written to several tables needs one for each."""
        self._report()
        is_later = "routes" in self._deltalake
        if is_later and "topic_mappings" in self._deltalake:
            routes = self._deltalake.get("routes")
            self._findings.error(routes.place, routes.name, "cannot be used with topic_mappings", "one of them")
        topics = self._routes() if is_later else self._topic_mappings()
        if not topics:
            key = "routes" if is_later else "topic_mappings"
            what = "routes" if is_later else "topic mappings"
            message = f"No {what} configured. Please add at least one [[deltalake.{key}]] entry"
            self._findings.error(self._deltalake.place, f"deltalake.{key}", message)
        self._check_storage(topics)
        return [self._draft(group, number) for number, group in enumerate(_pipelines(topics))]

    def _setting(self, section: Section, key: str) -> Setting:
        """A key of the file, or the variable that overrides it."""
        for variable, overridden in OVERRIDES.items():
            if overridden == key and variable in self._environment:
                if variable not in self._findings.overrides:
                    self._findings.overrides.append(variable)
                return self._environment[variable]
        return section.get(key)

    def _report(self) -> None:
        for section in (self._root, self._processing):
            port = section.get("metrics_port")
            if port.is_set:
                self._findings.run_options.append(f"--listen 127.0.0.1:{port.value} --metrics-profile danube")
        if "routes" in self._deltalake:
            reason = "batches of routes are set in [processing]"
            self._deltalake.skip("batch_size", reason)
            self._deltalake.skip("flush_interval_ms", reason)
        else:
            reason = "the sink takes its batches from [deltalake], too"
            self._processing.skip("batch_size", reason)
            self._processing.skip("batch_timeout_ms", reason)
        project = self._setting(self._deltalake, "gcp_project_id")
        self._findings.fulfill(project, "bucket names are global; no project is needed")

    def _required(self, setting: Setting, message: str) -> Setting:
        if not setting.value:
            self._findings.error(setting.place, setting.name, message)
            return setting.as_value("")
        return setting

    def _topic_mappings(self) -> list[_Topic]:
        topics = []
        for mapping in self._deltalake.sections("topic_mappings", TOPIC_MAPPING):
            self._check_write_mode(mapping)
            schema_type = mapping.get("schema_type")
            if not schema_type.value:
                message = "required key is missing: its documentation says Json, the sink uses Bytes"
                self._findings.error(mapping.place, schema_type.name, message, "Json, String, Int64 or Bytes")
            topics.append(
                _Topic(
                    mapping.required("topic", "Topic cannot be empty"),
                    mapping.required("subscription", "Subscription cannot be empty"),
                    mapping.required("delta_table_path", "Invalid Delta table path URL: it is empty"),
                    schema_type.as_value(str(schema_type.value or "Json").lower()),
                    self._columns(mapping, "schema", "name"),
                    mapping.get("include_danube_metadata"),
                    "s",
                    mapping.get("batch_size") if "batch_size" in mapping else None,
                    mapping.get("flush_interval_ms") if "flush_interval_ms" in mapping else None,
                )
            )
        return topics

    def _routes(self) -> list[_Topic]:
        topics = []
        for route in self._deltalake.sections("routes", ROUTE):
            self._check_write_mode(route)
            subject = route.get("expected_schema_subject")
            topics.append(
                _Topic(
                    route.required("from", "Route 'from' cannot be empty"),
                    route.required("subscription", "Subscription cannot be empty"),
                    route.required("to", "Route 'to' cannot be empty"),
                    "json",
                    self._columns(route, "field_mappings", "column"),
                    route.get("include_danube_metadata"),
                    "us",
                    subject=subject if subject.is_set else None,
                )
            )
        return topics

    def _columns(self, section: Section, key: str, name_key: str) -> list[Value]:
        is_later = key == "field_mappings"
        columns: list[Value] = []
        for field in section.sections(key, FIELD_MAPPING if is_later else FIELD):
            name, data_type, nullable = field.required(name_key), field.required("data_type"), field.get("nullable")
            column: dict[str, Value] = {"name": name, "type": data_type}
            if not nullable.value:
                column["nullable"] = nullable
            if is_later and field.required("json_path").value not in ("", name.value):
                column["path"] = field.get("json_path")
            if data_type.value == "Binary" and is_later:
                reason = "Headrace reads Base64 text into binary columns, and the sink reads hexadecimal text"
                self._findings.skip(data_type, reason, "Change the producer, or use Utf8")
            columns.append(column)
        if not columns:
            topic = section.get("from" if is_later else "topic").value
            noun = "Field mappings" if is_later else "Schema"
            preposition = "route" if is_later else "topic"
            message = f"{noun} cannot be empty for {preposition} '{topic}'. Please define at least one field"
            self._findings.error(section.get(key).place, section.get(key).name, message)
        return columns

    def _check_write_mode(self, section: Section) -> None:
        if section.get("write_mode").value == "overwrite":
            reason = "the sink appends in this mode as well, and so does Headrace; Danube cannot send a topic again"
            section.skip("write_mode", reason)

    def _check_storage(self, topics: list[_Topic]) -> None:
        """Report what the sink refuses, and paths outside of its store."""
        backend, deltalake = self._deltalake.get("storage_backend"), self._deltalake
        if not backend.value:
            self._findings.error(deltalake.place, backend.name, "required key is missing", "s3, azure or gcs")
            return
        needed = {"s3": ["s3_region"], "azure": ["azure_storage_account", "azure_container"], "gcs": ["gcp_project_id"]}
        for key in needed[backend.value]:
            if key == "azure_container" and key not in deltalake:
                continue  # it is in the path
            message = f"{key} is required when storage_backend = '{backend.value}'"
            self._required(self._setting(deltalake, key), message)
        for name, keys in {"s3": ("s3_region", "s3_endpoint", "s3_allow_http"), "azure": needed["azure"]}.items():
            for key in keys:
                if name != backend.value:
                    deltalake.skip(key, f"it belongs to another store than storage_backend = '{backend.value}'")
        for topic in topics:
            if topic.path.value and not topic.path.value.startswith(_STORES[backend.value]):
                expected = f"a path of the store '{backend.value}': {', '.join(_STORES[backend.value])}"
                self._findings.error(topic.path.place, topic.path.name, "Invalid Delta table path URL", expected)

    def _draft(self, topics: list[_Topic], number: int) -> SpecDraft:
        """Pipeline of some topics."""
        draft = SpecDraft(topics[0].topic.place, SYSTEM)
        name = self._required(self._setting(self._root, "connector_name"), "connector_name cannot be empty")
        pipeline = pipeline_name(name.value) + (f"-{number + 1}" if number else "")
        draft.set("pipeline", name.as_value(pipeline))
        self._set_source(draft, topics, name, pipeline)
        if len(topics) == 1:
            _set_topic(draft, topics[0])
        else:
            draft.set("route.by", "topic")
            draft.set(
                "table.path", f"{_common_directory(topics)}/{{topic}}", "not used: all topics have an entry below"
            )
        for topic, entry_name in zip(topics, _entry_names(topics), strict=True):
            if len(topics) > 1:
                entry = SpecDraft(topic.topic.place, SYSTEM)
                entry.set("name", entry_name)
                entry.set("topic", topic.topic)
                _set_topic(entry, topic)
                _set_flush(entry, topic.rows, topic.every)
                draft.append("topics", entry)
        self._set_storage(draft, topics)
        self._set_flush(draft, topics)
        return draft

    def _set_source(self, draft: SpecDraft, topics: list[_Topic], name: Setting, pipeline: str) -> None:
        url = self._required(self._setting(self._root, "danube_service_url"), "danube_service_url cannot be empty")
        draft.set("source.danube.url", url)
        draft.set("source.danube.topics", [topic.topic for topic in topics])
        subscriptions = [topic.subscription.as_value(f"{name.value}-{topic.subscription.value}") for topic in topics]
        comment = f"continues at the position of {SYSTEM}"
        if len({subscription.value for subscription in subscriptions}) == 1:
            draft.set("source.danube.subscription", subscriptions[0], comment)
        else:
            by_topic = {topic.topic.value: each for topic, each in zip(topics, subscriptions, strict=True)}
            draft.set("source.danube.subscriptions", by_topic, comment)
        draft.set("source.danube.subscription_type", "Shared", f"as in {SYSTEM}")
        if url.value.startswith("http://") and not is_loopback(urlsplit(url.value).hostname or ""):
            draft.set("source.danube.plaintext", True, "the connection is not encrypted")
        for subject in (topic.subject for topic in topics if topic.subject is not None):
            draft.set("source.danube.schema_registry", subject.as_value(True))
        if "://" in str(topics[0].path.value):
            comment = "a local directory that survives restarts; messages wait here until they are in the table"
            draft.set("source.danube.spool.path", f"./spool/{pipeline}", comment)

    def _set_storage(self, draft: SpecDraft, topics: list[_Topic]) -> None:
        backend, deltalake = self._deltalake.get("storage_backend").value, self._deltalake
        if backend == "s3":
            for key, native in (("s3_region", "region"), ("s3_endpoint", "endpoint"), ("s3_allow_http", "allow_http")):
                setting = self._setting(deltalake, key)
                draft.set(f"storage.s3.{native}", setting, native_default=False)
        elif backend == "azure":
            draft.set("storage.azure.account_name", self._setting(deltalake, "azure_storage_account"))
            container = deltalake.get("azure_container")
            others = [
                str(topic.path.value)
                for topic in topics
                if urlsplit(str(topic.path.value)).netloc.partition("@")[0] != container.value
            ]
            if container.is_set and others:
                self._findings.skip(container, f"the table path has another container: {others[0]}")

    def _set_flush(self, draft: SpecDraft, topics: list[_Topic]) -> None:
        """Set the batches of the file; those of a single topic override them."""
        is_later = "routes" in self._deltalake
        section = self._processing if is_later else self._deltalake
        rows, every = section.get("batch_size"), section.get("batch_timeout_ms" if is_later else "flush_interval_ms")
        if len(topics) == 1:
            for key, own in (("batch_size", topics[0].rows), ("flush_interval_ms", topics[0].every)):
                if own is not None:
                    section.skip(key, "the topic has its own")
            rows, every = topics[0].rows or rows, topics[0].every or every
        _set_flush(draft, rows, every)
        retries, first, longest = (self._retry.get(key) for key in RETRY)
        draft.set("retry.unreachable.initial_interval", _wait(first), native_default="1s")
        draft.set("retry.unreachable.max_interval", _wait(longest))
        draft.set("retry.conflict", retries.as_value(max(retries.value, 1)))


def _pipelines(topics: list[_Topic]) -> list[list[_Topic]]:
    """Topics by pipeline, in which each is read once."""
    groups: list[list[_Topic]] = []
    for topic in topics:
        for group in groups:
            if topic.topic.value not in [other.topic.value for other in group]:
                group.append(topic)
                break
        else:
            groups.append([topic])
    return groups


def _entry_names(topics: list[_Topic]) -> list[str]:
    """Unique names for entries of `topics`."""
    names: list[str] = []
    for topic in topics:
        name = pipeline_name(str(topic.topic.value))
        names.append(f"{name[:58]}-{len(names) + 1}" if name in names else name)
    return names


def _common_directory(topics: list[_Topic]) -> str:
    """Longest directory that contains all tables; that of the first one if they are in different buckets."""
    paths = [str(topic.path.value).rstrip("/").split("/")[:-1] for topic in topics]
    length = min(_shared(paths[0], path) for path in paths)
    return "/".join(paths[0][:length] if length > 2 else paths[0])


def _shared(one: list[str], other: list[str]) -> int:
    """Number of leading parts that are equal."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (first, second) in enumerate(pairs) if first != second), min(len(one), len(other)))


def _set_topic(draft: SpecDraft, topic: _Topic) -> None:
    """Set the format and the table of a topic, of a pipeline or of an entry."""
    draft.set("decode", topic.decode)
    if topic.subject is not None:
        subject = topic.subject.value.replace("'", "''")
        draft.append("transform", {"where": topic.subject.as_value(f"{_SUBJECT} = '{subject}'")})
    draft.set("table.path", topic.path)
    types = [_type(column) for column in topic.columns if isinstance(column, Mapping)]
    for column, data_type in zip(topic.columns, types, strict=True):
        comment = "decimal(20,0); for a table of the sink, write bigint" if data_type == "UInt64" else ""
        draft.append("table.columns", column, comment)
    if "Timestamp" in types:
        draft.set("table.coerce.timestamp", topic.time_unit, "RFC 3339 text and whole numbers, as in the sink")
    if topic.metadata.value:
        draft.set("table.metadata", topic.metadata.as_value("danube"))
    draft.set("table.source", False, f"{SYSTEM} has no column _source")


def _type(column: Mapping[str, Value]) -> object:
    data_type = column["type"]
    return data_type.value if isinstance(data_type, Setting) else data_type


def _set_flush(draft: SpecDraft, rows: Setting | None, every: Setting | None) -> None:
    if every is not None:
        interval = every.as_value(spell_milliseconds(max(every.value, 100)))
        draft.set("flush.every", interval, native_default="5s")
    if rows is not None:
        draft.set("flush.rows", rows)


def _wait(setting: Setting) -> Setting:
    return setting.as_value(spell_milliseconds(max(setting.value, 10)))
