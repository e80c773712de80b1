"""Settings of librdkafka as keys of the Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from headrace.importers.settings import Findings, Setting
from headrace.importers.spec_draft import SpecDraft
from headrace.spec.kafka_settings import CONSUMER_SETTINGS
from headrace.spec.uris import host_of, is_loopback

_FILES = {
    "ssl.ca.location": "ca",
    "ssl.certificate.location": "certificate",
    "ssl.key.location": "key",
}
_PEMS = {
    "ssl.ca.pem": ("ca", "KAFKA_CA"),
    "ssl.certificate.pem": ("certificate", "KAFKA_CERTIFICATE"),
    "ssl.key.pem": ("key", "KAFKA_KEY"),
    "ssl.key.password": ("key_password", "KAFKA_KEY_PASSWORD"),
}
_SASL = {
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
}
_OTHER_NAMES = {  # librdkafka's name of a setting of Kafka's Java client
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
}
_LEDGER = "the position of a pipeline is in its ledger, not in a consumer group"
_REASONS = {
    "group.id": f"{_LEDGER}; -g sets the group for tools that show its lag",
    "auto.commit.interval.ms": _LEDGER,
    "enable.auto.commit": _LEDGER,
    "enable.auto.offset.store": _LEDGER,
    "enable.partition.eof": "the end of a partition is read from the broker",
    "session.timeout.ms": "the consumer does not join a group",
    "heartbeat.interval.ms": "the consumer does not join a group",
    "max.poll.interval.ms": "the consumer does not join a group",
    "partition.assignment.strategy": "the consumer does not join a group",
    "statistics.interval.ms": "metrics are served by `headrace run --listen`",
    "enable.ssl.certificate.verification": "certificates and host names are always verified",
    "ssl.endpoint.identification.algorithm": "certificates and host names are always verified",
}


def set_kafka_security(draft: SpecDraft, settings: Mapping[str, Setting], brokers: Setting, findings: Findings) -> None:
    """Set `tls`, `sasl`, `plaintext` and `settings` of the Kafka source."""
    protocol = str(settings["security.protocol"].value).upper() if "security.protocol" in settings else ""
    tls: dict[str, Setting] = {}
    sasl: dict[str, Setting] = {}
    for name, setting in settings.items():
        if name in _FILES:
            tls[_FILES[name]] = setting.as_value(f"${{file:{setting.value}}}")
        elif name in _PEMS:
            key, variable = _PEMS[name]
            tls[key] = findings.secret(setting, variable)
        elif name in _SASL:
            sasl[_SASL[name]] = findings.secret(setting, "KAFKA_PASSWORD") if name == "sasl.password" else setting
        elif name != "security.protocol":
            _set_consumer_setting(draft, name, setting, findings)
    encrypted = protocol.endswith("SSL") or (not protocol and bool(tls))
    if encrypted:
        draft.set("source.kafka.tls", tls or settings["security.protocol"].as_value(True))
    elif not _is_local(str(brokers.value)):
        draft.set("source.kafka.plaintext", True, "the connection is not encrypted")
    if not encrypted:
        for setting in tls.values():
            findings.skip(setting, f"security.protocol is {protocol}, which does not use TLS")
    if sasl and (protocol.startswith("SASL") or not protocol):
        draft.set("source.kafka.sasl", sasl)
    else:
        for setting in sasl.values():
            findings.skip(setting, f"security.protocol is {protocol}, which does not use SASL")


def _set_consumer_setting(draft: SpecDraft, name: str, setting: Setting, findings: Findings) -> None:
    name = _OTHER_NAMES.get(name, name)
    if name in CONSUMER_SETTINGS:
        draft.set_in("source.kafka.settings", name, setting)
    elif name == "isolation.level":
        draft.set("source.kafka.isolation", setting)
    elif name == "auto.offset.reset":
        draft.set(
            "source.kafka.start",
            setting.as_value({"smallest": "earliest", "largest": "latest"}.get(setting.value, setting.value)),
        )
    else:
        reason = _REASONS.get(name, "the consumer has no such setting, or a spec may not change it")
        findings.skip(setting, reason)


def _is_local(brokers: str) -> bool:
    """Whether all brokers are on loopback addresses, which need no encryption."""
    return all(is_loopback(broker.strip().rpartition(":")[0]) for broker in brokers.split(","))


def registry_settings(url: Setting, environment: Mapping[str, Setting], findings: Findings) -> dict[str, object]:
    """Keys of a schema registry, with the user, the password and the proxy of kafka-delta-ingest's environment."""
    registry: dict[str, object] = {"url": url}
    if str(url.value).startswith("http://") and not is_loopback(host_of(str(url.value))):
        registry["plaintext"] = True
    if "SCHEMA_REGISTRY_USERNAME" in environment:
        registry["username"] = environment["SCHEMA_REGISTRY_USERNAME"]
    if "SCHEMA_REGISTRY_PASSWORD" in environment:
        registry["password"] = variable_or_secret(environment["SCHEMA_REGISTRY_PASSWORD"], findings)
    if "SCHEMA_REGISTRY_PROXY" in environment:
        registry["proxy"] = environment["SCHEMA_REGISTRY_PROXY"]
    return registry


def variable_or_secret(setting: Setting, findings: Findings) -> Setting:
    """Reference to the environment variable of a secret; a file of variables has it in plain text."""
    if setting.place.spot is None:
        return setting.as_value(f"${{env:{setting.name}}}")
    return findings.secret(setting, setting.name)


def scram_settings(setting: Setting, findings: Findings) -> dict[str, Setting]:
    """User and password of `KAFKA_DELTA_INGEST_SCRAM_JSON`."""
    try:
        user = json.loads(setting.value)
        name, password = user["username"], user["password"]
    except (ValueError, TypeError, KeyError):
        findings.error(setting.place, setting.name, "not a JSON object with username and password")
        return {}
    return {"sasl.username": setting.as_value(name), "sasl.password": setting.as_value(password)}


def kafka_setting(setting: Setting, findings: Findings) -> tuple[str, Setting] | None:
    """Name and value of a `-K` argument."""
    name, equals, value = str(setting.value).partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9._-]+", name.strip()):
        shown = name.strip()[:60] if equals else str(setting.value)[:60]
        findings.error(
            setting.place,
            setting.name,
            f"'{shown}' - Each Kafka setting must be delimited by an '=' and match the pattern "
            "'PROPERTY_NAME=PROPERTY_VALUE'",
        )
        return None
    return name.strip(), Setting(f"{setting.name} {name.strip()}", value.strip(), setting.place)
