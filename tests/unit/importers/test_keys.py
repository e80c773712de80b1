"""Every key of every dialect has an effect or is reported, and unknown keys are errors wherever they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace.importers import analytics, danube, kafka_delta_ingest, orasi, rivven
from headrace.importers.detect import import_file
from headrace.importers.environment import process_settings
from headrace.importers.imported import Imported
from headrace.importers.settings import Key
from headrace.spec.yaml_reader import Spot, YamlNode

_FIELDS = [{"name": "at", "data_type": "Timestamp"}]
_MAPPINGS = [{"json_path": "at", "column": "at", "data_type": "Timestamp"}]
DANUBE: dict[str, Any] = {
    "danube_service_url": "http://localhost:6650",
    "connector_name": "sink",
    "retry": {},
    "processing": {},
    "deltalake": {"storage_backend": "s3", "s3_region": "r1"},
}
TOPIC = {"topic": "/d/a", "subscription": "s", "delta_table_path": "s3://bucket/a", "schema_type": "Json"}
MAPPED = {**DANUBE, "deltalake": {**DANUBE["deltalake"], "topic_mappings": [{**TOPIC, "schema": _FIELDS}]}}
ROUTE = {"from": "/d/a", "subscription": "s", "to": "s3://bucket/a", "field_mappings": _MAPPINGS}
ROUTED = {**DANUBE, "deltalake": {**DANUBE["deltalake"], "routes": [ROUTE]}}
RIVVEN = {
    "broker": {"bootstrap_servers": ["localhost:9092"], "tls": {"enabled": True}},
    "sources": {"in": {"connector": "http"}},
    "sinks": {
        "events": {
            "connector": "delta-lake",
            "topics": ["events"],
            "consumer_group": "group",
            "rate_limit": {},
            "transforms": [{"type": "filter", "config": {"field": "a", "equals": "b"}}],
            "config": {"table_uri": "s3://bucket/events", "s3": {}},
        }
    },
    "settings": {"retry": {}, "health": {}, "metrics": {"enabled": True}},
}
ORASI = {"deltalake": {"table_path": "/lake/a", "table": {}, "operations": {}, "schema": {}, "storage": {}}}
BRIDGE = {"delta_lake": {"storage_path": "/lake/a", "writer_config": {}, "reader_config": {}}}
_SINK = ("sinks", "events")

# (importer, base configuration, path of the section, its keys)
Section = tuple[Any, dict[str, Any], tuple[str | int, ...], Mapping[str, Key]]
SECTIONS: list[Section] = [
    (danube.import_danube, MAPPED, (), danube.ROOT),
    (danube.import_danube, MAPPED, ("retry",), danube.RETRY),
    (danube.import_danube, MAPPED, ("processing",), danube.PROCESSING),
    (danube.import_danube, ROUTED, ("processing",), danube.PROCESSING),
    (danube.import_danube, MAPPED, ("deltalake",), danube.DELTALAKE),
    (danube.import_danube, MAPPED, ("deltalake", "topic_mappings", 0), danube.TOPIC_MAPPING),
    (danube.import_danube, MAPPED, ("deltalake", "topic_mappings", 0, "schema", 0), danube.FIELD),
    (danube.import_danube, ROUTED, ("deltalake", "routes", 0), danube.ROUTE),
    (danube.import_danube, ROUTED, ("deltalake", "routes", 0, "field_mappings", 0), danube.FIELD_MAPPING),
    (rivven.import_rivven, RIVVEN, (), rivven.ROOT),
    (rivven.import_rivven, RIVVEN, ("broker",), rivven.BROKER),
    (rivven.import_rivven, RIVVEN, ("broker", "tls"), rivven.TLS),
    (rivven.import_rivven, RIVVEN, ("settings",), rivven.SETTINGS),
    (rivven.import_rivven, RIVVEN, ("settings", "retry"), rivven.RETRY),
    (rivven.import_rivven, RIVVEN, ("settings", "health"), rivven.SERVER),
    (rivven.import_rivven, RIVVEN, ("settings", "metrics"), rivven.SERVER),
    (rivven.import_rivven, RIVVEN, _SINK, rivven.SINK),
    (rivven.import_rivven, RIVVEN, (*_SINK, "rate_limit"), rivven.RATE_LIMIT),
    (rivven.import_rivven, RIVVEN, (*_SINK, "transforms", 0), rivven.TRANSFORM),
    (rivven.import_rivven, RIVVEN, (*_SINK, "transforms", 0, "config"), rivven.FILTER),
    (rivven.import_rivven, RIVVEN, (*_SINK, "config"), rivven.CONFIG),
    (rivven.import_rivven, RIVVEN, (*_SINK, "config", "s3"), rivven.S3_KEYS),
    (rivven.import_rivven, RIVVEN, (*_SINK, "config", "gcs"), rivven.GCS),
    (rivven.import_rivven, RIVVEN, (*_SINK, "config", "azure"), rivven.AZURE),
    (orasi.import_orasi, ORASI, ("deltalake",), orasi.DELTALAKE),
    (orasi.import_orasi, ORASI, ("deltalake", "table"), orasi.TABLE),
    (orasi.import_orasi, ORASI, ("deltalake", "operations"), orasi.OPERATIONS),
    (orasi.import_orasi, ORASI, ("deltalake", "schema"), orasi.SCHEMA),
    (orasi.import_orasi, ORASI, ("deltalake", "storage"), orasi.STORAGE),
    (orasi.import_orasi, BRIDGE, ("delta_lake",), orasi.BRIDGE),
    (orasi.import_orasi, BRIDGE, ("delta_lake", "writer_config"), orasi.WRITER),
    (orasi.import_orasi, BRIDGE, ("delta_lake", "reader_config"), orasi.READER),
]
# Values that differ from the default and from the base; others follow from the type.
VALUES: dict[str, Any] = {
    "danube_service_url": "http://localhost:6651",
    "start_offset": "2026-01-31T12:00:00Z",
    "topics": ["other"],
    "bootstrap_servers": ["localhost:9093"],
    "partition_columns": ["stream"],
    "partition_by": ["service_name"],
    "storage_options": {"timeout": "60s"},
    "table_properties": {"delta.appendOnly": "true"},
    "topic_mappings": [{**TOPIC, "topic": "/d/b", "schema": _FIELDS}],
    "routes": [ROUTE],
    "schema": [{"name": "other", "data_type": "Utf8"}],
    "field_mappings": [{"json_path": "b", "column": "b", "data_type": "Utf8"}],
    "compression_codec": "zstd",
    "version": "1.0",
}
# Sections whose own keys are tested.
CONTAINERS = {str(step) for _, _, path, _ in SECTIONS for step in path[-1:]} - {"schema", "events"}
CONTAINERS |= {"sources", "sinks", "transforms"}


def node(content: Any, line: int = 1) -> YamlNode:
    """Node of plain data; each has a line of its own."""
    if isinstance(content, Mapping):
        return YamlNode({key: (Spot(line), node(inner, line)) for key, inner in content.items()}, Spot(line))
    if isinstance(content, list):
        return YamlNode(tuple(node(inner, line) for inner in content), Spot(line))
    return YamlNode(content, Spot(line))


def _with(content: Any, path: tuple[str | int, ...], key: str, value: Any) -> Any:
    """Copy of a configuration with one key."""
    changed = copy.deepcopy(content)
    section = changed
    for step in path:
        section = section.setdefault(step, {}) if isinstance(step, str) else section[step]
    section[key] = value
    return changed


def _at(content: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        content = content.get(step, {}) if isinstance(step, str) else content[step]
    return content


def _value(name: str, key: Key) -> Any:
    if name in VALUES and not (name == "schema" and key.kind == "section"):
        return VALUES[name]
    if key.choices:
        return next(
            choice for choice in key.choices if choice not in (key.default, "s3", "Json", "Timestamp", "filter")
        )
    default = key.default
    return {"integer": (default or 0) + 7 if key.kind == "integer" else 0, "flag": not default, "texts": ["b"]}.get(
        key.kind, "other"
    )


def _content(imported: Imported) -> Any:
    return [draft.plain() for draft in imported.drafts], imported.findings.run_options


def _cases() -> Iterator[Any]:
    for importer, base, path, keys in SECTIONS:
        for name, key in keys.items():
            is_container = name in CONTAINERS or (name == "schema" and key.kind == "section")
            if not is_container:
                label = f"{importer.__name__}-{'.'.join(map(str, (*path, name)))}"
                yield pytest.param(importer, base, path, name, key, id=label)


@pytest.mark.parametrize(("importer", "base", "path", "name", "key"), list(_cases()))
def test_a_key_has_an_effect_or_is_reported(
    importer: Any, base: dict[str, Any], path: tuple[str | int, ...], name: str, key: Key
):
    if key.kind == "section" and name not in VALUES:
        pytest.fail(f"{name}: add its keys to SECTIONS")
    before = importer(node(base), "file", {})
    value = _value(name, key)
    after = importer(
        node(_with(base, path, name, not value if _at(base, path).get(name) == value else value)), "file", {}
    )
    full_name = ".".join(map(str, (*path, name))).replace(".0", "[0]")
    new = {each for each in after.findings.names() if each.startswith(full_name) or full_name.startswith(f"{each}.")}
    assert _content(after) != _content(before) or new
    assert "unknown key" not in [error.message for error in after.findings.errors]


@pytest.mark.parametrize(("importer", "base", "path", "keys"), SECTIONS)
def test_an_unknown_key_is_an_error(
    importer: Any, base: dict[str, Any], path: tuple[str | int, ...], keys: Mapping[str, Key]
):
    name = next(iter(keys))
    imported = importer(node(_with(base, path, f"{name}x", "value")), "connector.conf", {})
    error = next(each for each in imported.findings.errors if each.message == "unknown key")
    assert error.key.endswith(f"{name}x")
    assert (error.file, error.line, error.suggestion) == ("connector.conf", 1, name)


@pytest.mark.parametrize(("importer", "base", "path", "keys"), SECTIONS)
def test_a_value_of_another_type_is_an_error(
    importer: Any, base: dict[str, Any], path: tuple[str | int, ...], keys: Mapping[str, Key]
):
    for name, key in keys.items():
        if key.kind != "anything":
            imported = importer(node(_with(base, path, name, 1.5)), "file", {})
            assert [each.key for each in imported.findings.errors if each.message.startswith("not ")]


# The keys of the systems' references.
DOCUMENTED = {
    "danube": (
        (danube.ROOT, "danube_service_url connector_name metrics_port retry processing schemas deltalake"),
        (danube.RETRY, "max_retries retry_backoff_ms max_backoff_ms"),
        (danube.PROCESSING, "batch_size batch_timeout_ms poll_interval_ms metrics_port log_level"),
        (
            danube.DELTALAKE,
            "storage_backend s3_region s3_endpoint s3_allow_http azure_storage_account azure_container gcp_project_id "
            "batch_size flush_interval_ms topic_mappings routes",
        ),
        (
            danube.TOPIC_MAPPING,
            "topic subscription delta_table_path schema_type schema write_mode include_danube_metadata batch_size "
            "flush_interval_ms",
        ),
        (
            danube.ROUTE,
            "from subscription to expected_schema_subject field_mappings write_mode include_danube_metadata",
        ),
        (
            danube.OVERRIDES,
            "DANUBE_SERVICE_URL CONNECTOR_NAME AWS_REGION S3_ENDPOINT AZURE_STORAGE_ACCOUNT GCP_PROJECT_ID",
        ),
    ),
    "rivven": (
        (
            rivven.CONFIG,
            "table_uri auto_create_table batch_size flush_interval_secs target_file_size_mb write_mode "
            "partition_columns compression max_commit_retries s3 gcs azure storage_options table_properties",
        ),
        (rivven.S3_KEYS, "region endpoint access_key_id secret_access_key path_style_access allow_http"),
        (rivven.GCS, "service_account_path service_account_key"),
        (rivven.AZURE, "account access_key sas_token"),
        (rivven.BROKER, "bootstrap_servers metadata_refresh_ms connection_timeout_ms request_timeout_ms tls"),
        (rivven.TLS, "enabled cert_path key_path ca_path insecure server_name"),
        (
            rivven.SINK,
            "connector topics consumer_group config enabled start_offset rate_limit schema_registry_url transforms "
            "offset_commit_interval dead_letter_topic",
        ),
        (rivven.SETTINGS, "state_dir topic retry health metrics telemetry log_level"),
        (rivven.RETRY, "max_retries initial_backoff_ms max_backoff_ms backoff_multiplier"),
    ),
    "kafka-delta-ingest": (
        (
            kafka_delta_ingest.FLAGS,
            "table_base_uri topic table_location message_type_whitelist kafka consumer_group app_id seek_offsets "
            "auto_offset_reset allowed_latency max_messages_per_batch min_bytes_per_file housekeeping_loop_iteration "
            "deserialization_workers worker_to_messages_multiplier num_converting_workers num_arrow_writer_threads "
            "max_version_lookback seconds_idle_kafka_read_before_flush partition_columns transform dlq_table_location "
            "dlq_transform checkpoints kafka_setting statsd_endpoint prometheus_port json avro protobuf aidl soe-avro "
            "ends_at_latest_offsets decompress_gzip",
        ),
        (
            dict.fromkeys(kafka_delta_ingest.known_variables()),
            "TABLE_BASE_URI TABLE_LOCATION KAFKA_TOPIC MESSAGE_TYPE_WHITELIST KAFKA_BROKERS KAFKA_CONSUMER_GROUP "
            "APP_ID KAFKA_SEEK_OFFSETS KAFKA_AUTO_OFFSET_RESET ALLOWED_LATENCY MAX_MESSAGES_PER_BATCH "
            "MIN_BYTES_PER_FILE HOUSEKEEPING_LOOP_ITERATION DESERIALIZATION_WORKERS WORKER_TO_MESSAGES_MULTIPLIER "
            "NUM_CONVERTING_WORKERS NUM_ARROW_WRITER_THREADS MAX_VERSION_LOOKBACK "
            "SECONDS_IDLE_KAFKA_READ_BEFORE_FLUSH PARTITION_COLUMNS TRANSFORMS DLQ_TABLE_LOCATION DLQ_TRANSFORMS "
            "WRITE_CHECKPOINTS STATSD_ENDPOINT PROMETHEUS_PORT JSON_REGISTRY AVRO_REGISTRY PROTOBUF_REGISTRY "
            "AIDL_REGISTRY TURN_OFF_AT_KAFKA_TOPIC_END ENDS_AT_LATEST_OFFSETS DECOMPRESS_GZIP "
            "KAFKA_DELTA_INGEST_CERT KAFKA_DELTA_INGEST_KEY KAFKA_DELTA_INGEST_CA KAFKA_DELTA_INGEST_SCRAM_JSON "
            "SCHEMA_REGISTRY_USERNAME SCHEMA_REGISTRY_PASSWORD SCHEMA_REGISTRY_PROXY KDI_METRICS_PREFIX "
            "KDI_METRICS_INPUT_QUEUE_SIZE RUST_LOG SENTRY_DSN AWS_ENDPOINT_URL AWS_REGION AWS_STORAGE_ALLOW_HTTP "
            "AWS_S3_LOCKING_PROVIDER DELTA_DYNAMO_TABLE_NAME DYNAMO_LOCK_OWNER_NAME "
            "DYNAMO_LOCK_PARTITION_KEY_VALUE DYNAMO_LOCK_REFRESH_PERIOD_MILLIS "
            "DYNAMO_LOCK_ADDITIONAL_TIME_TO_WAIT_MILLIS DYNAMO_LOCK_LEASE_DURATION "
            "DEAD_LETTER_DYNAMO_LOCK_PARTITION_KEY_VALUE AZURE_STORAGE_ACCOUNT_NAME AZURE_STORAGE_ACCOUNT_KEY",
        ),
    ),
    "orasi": (
        (orasi.DELTALAKE, "table_path table_name partition_by partition_strategy"),
        (orasi.TABLE, "optimize_enabled vacuum_enabled retention_hours compression parallelism batch_size"),
        (orasi.OPERATIONS, "upsert_enabled delete_enabled bulk_insert_enabled streaming_enabled"),
        (orasi.SCHEMA, "auto_evolution strict_mode allow_nullable merge_schema"),
        (orasi.STORAGE, "file_size_target file_size_max min_file_size"),
    ),
    "analytics": (
        (
            analytics.VARIABLES,
            "KAFKA_BOOTSTRAP_SERVERS KAFKA_TOPIC KAFKA_GROUP_ID DELTA_TABLE_PATH BATCH_SIZE BATCH_TIMEOUT_SECONDS",
        ),
    ),
}


@pytest.mark.parametrize("system", DOCUMENTED)
def test_every_documented_key_is_known(system: str):
    for keys, names in DOCUMENTED[system]:
        assert set(names.split()) - keys.keys() == set()


FLAG_VALUES = {
    "seek_offsets": '{"0": 1}',
    "auto_offset_reset": "latest",
    "transform": "a: b",
    "dlq_transform": "a: b",
    "kafka_setting": "client.id=a",
    "json": "http://localhost:8081",
    "avro": "http://localhost:8081",
    "protobuf": "http://localhost:8081",
    "aidl": "http://localhost:8081",
    "soe-avro": "order.avsc",
    "kafka": "localhost:9093",
}


@pytest.mark.parametrize("name", [name for name in kafka_delta_ingest.FLAGS if name not in ("topic", "table_location")])
def test_a_flag_has_an_effect_or_is_reported(name: str):
    flag = kafka_delta_ingest.FLAGS[name]
    fork = ["--table_base_uri", "./lake", "--topic", "events"]
    base = fork if flag.form == "fork" else ["events", "./lake/events"]
    value = [] if flag.kind == "flag" else [FLAG_VALUES.get(name, "./other" if name == "table_base_uri" else "7")]
    before = kafka_delta_ingest.import_ingest(base, {})
    after = kafka_delta_ingest.import_ingest([*base, f"--{name}", *value], {})
    assert [str(error) for error in after.findings.errors] == []
    assert _content(after) != _content(before) or f"--{name}" in after.findings.names()


@pytest.mark.parametrize("name", sorted(kafka_delta_ingest.known_variables()))
def test_a_variable_has_an_effect_or_is_reported(name: str):
    """Each in a file of variables, where credentials need references."""
    store = {"AZ": "az://lake/events", "GO": "gs://lake/events"}.get(name[:2], "s3://lake/events")
    base = {"KAFKA_TOPIC": "events", "TABLE_BASE_URI": store}
    flags = {flag.variable: flag for flag in kafka_delta_ingest.FLAGS.values()}
    if (name in flags and flags[name].form == "project") or name == "ENDS_AT_LATEST_OFFSETS":
        base = {"KAFKA_TOPIC": "events", "TABLE_LOCATION": store}
    values = {
        flag.variable: FLAG_VALUES[name] for name, flag in kafka_delta_ingest.FLAGS.items() if name in FLAG_VALUES
    }
    values |= {"KAFKA_DELTA_INGEST_SCRAM_JSON": '{"username": "a", "password": "b"}', "KAFKA_TOPIC": "other"}
    values |= {"TABLE_LOCATION": "s3://lake/other", "TABLE_BASE_URI": "s3://lake/other"}
    needed = {"SCHEMA_REGISTRY": {"JSON_REGISTRY": "http://localhost:8081"}, "KDI_METRICS": {"PROMETHEUS_PORT": "9000"}}
    base |= next((more for prefix, more in needed.items() if name.startswith(prefix)), {})
    text = "".join(f"{key}='{value}'\n" for key, value in {**base, name: values.get(name, "7")}.items())
    before = _env(text.replace(f"{name}=", "RUST_LOG=") if name not in base else "".join(_lines(base)))
    after = _env(text)
    assert [str(error) for error in after.findings.errors] == []
    assert _content(after) != _content(before) or name in after.findings.names()


def _lines(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}='{value}'\n" for name, value in variables.items()]


def _env(text: str) -> Imported:
    imported = import_file("ingest.env", text, {})
    assert imported is not None
    return imported


@pytest.mark.parametrize("name", analytics.VARIABLES)
def test_a_variable_of_the_delta_writer_has_an_effect_or_is_reported(name: str):
    base = {"KAFKA_BOOTSTRAP_SERVERS": "localhost:9092", "DELTA_TABLE_PATH": "./lake"}
    values = {"KAFKA_BOOTSTRAP_SERVERS": "localhost:9093"}
    before = analytics.import_analytics(process_settings(base))
    after = analytics.import_analytics(process_settings({**base, name: values.get(name, "7")}))
    assert _content(after) != _content(before) or name in after.findings.names()
