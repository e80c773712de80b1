"""Delta writer of the analytics platform: environment variables, and its sixteen columns."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.importers.environment import ENVIRONMENT
from headrace.importers.imported import Imported, spell_milliseconds
from headrace.importers.kafka_client import set_kafka_security
from headrace.importers.object_store import STORE_VARIABLES, set_storage, store_of
from headrace.importers.settings import Findings, Key, Place, Section, Setting
from headrace.importers.spec_draft import SpecDraft

SYSTEM = "the delta writer"
VARIABLES = {
    "KAFKA_BOOTSTRAP_SERVERS": Key(default="kafka:29092"),
    "KAFKA_TOPIC": Key(default="analytics-events"),
    "KAFKA_GROUP_ID": Key(default="delta-writer-consumer"),
    "DELTA_TABLE_PATH": Key(default="s3://analytics/delta/analytics-events"),
    "BATCH_SIZE": Key("integer", 100, minimum=1),
    "BATCH_TIMEOUT_SECONDS": Key("integer", 10, minimum=1),
}
_S3_DEFAULTS = {
    "AWS_ENDPOINT_URL": "http://minio:9000",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_UNKNOWN = ("channel", "event_type")  # `unknown` if absent or NULL
TEXTS = (
    "channel", "platform", "event_type", "event_category", "resource_id", "resource_title", "interaction_target",
    "session_id", "user_id", "device_id", "user_agent", "client_version", "interaction_text",
)  # fmt: skip


def is_analytics(environment: Mapping[str, Setting]) -> bool:
    """Whether an environment configures the delta writer."""
    return "DELTA_TABLE_PATH" in environment and "KAFKA_BOOTSTRAP_SERVERS" in environment


def import_analytics(environment: Mapping[str, Setting], origin: str = ENVIRONMENT) -> Imported:
    """Import the environment of the delta writer; other variables are not read."""
    findings, place = Findings(), Place(origin)
    own = {name: setting for name, setting in environment.items() if name in VARIABLES}
    section = Section("", place, own, VARIABLES, findings)
    draft = SpecDraft(place, SYSTEM)
    topic, brokers = section.get("KAFKA_TOPIC"), section.get("KAFKA_BOOTSTRAP_SERVERS")
    draft.set("pipeline", "analytics-events")
    draft.set("source.kafka.brokers", brokers)
    draft.set("source.kafka.topics", topic.as_value([topic.value]))
    draft.set("source.kafka.start", "earliest", "if the table has rows, use headrace takeover before the first run")
    set_kafka_security(draft, {}, brokers, findings)
    advice = "If the table has rows, run `headrace takeover SPEC --from group:GROUP` before the first run"
    section.skip("KAFKA_GROUP_ID", "the position of a consumer group is not read", advice)
    _set_columns(draft)
    path = section.get("DELTA_TABLE_PATH")
    draft.set("table.path", path)
    _set_table_columns(draft)
    _set_storage(draft, str(path.value), environment, place, findings)
    draft.set("flush.every", _seconds(section.get("BATCH_TIMEOUT_SECONDS")))
    draft.set("flush.rows", section.get("BATCH_SIZE"))
    return Imported(f"{SYSTEM} of the analytics platform", origin, [draft], findings)


def _seconds(setting: Setting) -> Setting:
    return setting.as_value(spell_milliseconds(setting.value * 1000))


def _set_columns(draft: SpecDraft) -> None:
    """Normalize as the writer does: texts are never NULL, numbers are parsed, metadata is an object."""
    draft.set("decode", "json")
    columns = {"timestamp": 'coalesce("timestamp", _timestamp)'}
    for name in TEXTS:
        columns[name] = f"coalesce({name}, '{'unknown' if name in _UNKNOWN else ''}')"
    columns["interaction_value"] = "TRY_CAST(trim(sent_value, '\"') AS DOUBLE)"
    columns["metadata"] = "CASE WHEN json_type(sent_metadata) = 'OBJECT' THEN sent_metadata ELSE '{}' END"
    draft.append("transform", {"set": columns})
    draft.append("transform", {"drop": ["sent_value", "sent_metadata"]})


def _set_table_columns(draft: SpecDraft) -> None:
    draft.append("table.columns", {"name": "timestamp", "type": "timestamp"})
    for name in TEXTS:
        draft.append("table.columns", {"name": name, "type": "string"})
    for name in ("interaction_value", "metadata"):
        sent = {"name": f"sent_{name.removeprefix('interaction_')}", "type": "string", "path": name, "json": True}
        draft.append("table.columns", sent)
    draft.set("table.contract.new_field", "evolve", "the writer keeps additional keys")
    draft.set("table.source", False, "the writer has no column _source")


def _set_storage(
    draft: SpecDraft, path: str, environment: Mapping[str, Setting], place: Place, findings: Findings
) -> None:
    store = store_of(path)
    if not store:
        return
    names = sorted(STORE_VARIABLES & environment.keys())
    options = {name.lower(): environment[name] for name in names if name.startswith("AWS_")}
    if store == "s3":
        for name, value in _S3_DEFAULTS.items():
            options.setdefault(name.lower(), Setting(name, value, place, is_set=False))
        for name in _CREDENTIALS:
            if name not in environment:
                findings.assume(name, place, "the writer uses minioadmin if it is not set", f"Set {name}")
    set_storage(draft, store, options, findings)
