"""Sources: Kafka topics or generated sample events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.base import Shorthand, SpecModel, exactly_one, word_or_mapping
from headrace.spec.kafka_settings import setting_name
from headrace.spec.security import SaslSpec, TlsSpec, java, librdkafka
from headrace.spec.units import Flag, Integer, Moment, PlainText, Rate, Ratio, Regex
from headrace.spec.uris import is_loopback


def _list(value: Any) -> Any:
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


def _broker(text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError("host:port, such as localhost:9092")
    return text


def _topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
        raise ValueError("a topic name: letters, digits, '.', '_' and '-', at most 249 characters")
    return name


def first_offsets(value: Any) -> Any:
    """Validate start offsets: by partition, or by topic and partition, but not both."""
    inner = list(value.values()) if isinstance(value, Mapping) else []
    nested = bool(inner) and all(isinstance(item, Mapping) and item for item in inner)
    pairs = [pair for offsets in (inner if nested else [value] if inner else []) for pair in offsets.items()]
    if not pairs or not all(_PARTITION.fullmatch(str(number)) and _is_offset(first) for number, first in pairs):
        raise ValueError("start offsets by partition: {0: 12}, or by topic and partition: {orders: {0: 12}}")
    return value


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


_PARTITION = re.compile(r"[0-9]{1,9}")
Offsets = Annotated[Mapping[str, int | Mapping[str, int]], BeforeValidator(first_offsets)]


class StartAt(SpecModel):
    """Start position by timestamp or by offsets."""

    timestamp: Moment | None = Field(
        default=None, description="Start at the first record at or after this RFC 3339 timestamp with time zone."
    )
    offsets: Offsets | None = Field(
        default=None,
        description="Start offset of each partition: `{0: 12}` for a single topic, `{orders: {0: 12}}` for "
        "several. Other partitions start at the earliest offset.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> StartAt:
        exactly_one(self, "timestamp", "offsets")
        return self

    def offsets_by_topic(self, topics: Sequence[str]) -> dict[str, dict[int, int]]:
        """Start offsets by topic and partition; without a topic, they apply to the only topic."""
        by_topic: dict[str, dict[int, int]] = {}
        for name, offsets in (self.offsets or {}).items():
            if isinstance(offsets, Mapping):
                by_topic[name] = {int(partition): offset for partition, offset in offsets.items()}
            elif topics:
                by_topic.setdefault(topics[0], {})[int(name)] = offsets
        return by_topic


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("word")] | Annotated[StartAt, Tag("mapping")],
    Discriminator(word_or_mapping),
]


def _tls(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class KafkaSpec(SpecModel):
    """Kafka source."""

    brokers: Annotated[
        tuple[Annotated[str, AfterValidator(_broker)], ...], BeforeValidator(_list), Shorthand(type="string")
    ] = Field(min_length=1, description="Bootstrap servers as `host:port`: a list, or comma-separated text.")
    topics: tuple[Annotated[str, AfterValidator(_topic)], ...] | None = Field(
        default=None, min_length=1, description="Topics to read; alternative to `pattern`."
    )
    pattern: Regex | None = Field(
        default=None, description="Regular expression, searched in topic names; alternative to `topics`."
    )
    start: Start = Field(
        default="earliest",
        description="Start position of a new pipeline (no ledger and no txn in the tables): `earliest`, "
        "`latest`, `{timestamp: …}` or `{offsets: …}`.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Isolation level; `read_committed` skips records of open and aborted transactions.",
    )
    plaintext: Flag = Field(default=False, description="Allow unencrypted connections to brokers on other hosts.")
    tls: Annotated[
        TlsSpec | None,
        BeforeValidator(_tls),
        Shorthand(type="boolean"),
    ] = Field(default=None, description="`true` (system trust store) or a mapping. Default: no encryption.")
    sasl: SaslSpec | None = Field(default=None, description="SASL authentication. Default: none.")
    settings: Mapping[Annotated[str, AfterValidator(setting_name)], PlainText] = Field(
        default_factory=dict, description="Additional consumer settings, from a list of allowed ones."
    )
    rate: Rate | None = Field(default=None, description="Maximum rate of records. Default: unlimited.")

    @model_validator(mode="after")
    def _check_keys(self) -> KafkaSpec:
        exactly_one(self, "topics", "pattern")
        return self

    @property
    def stays_here(self) -> bool:
        """Whether all brokers are on loopback addresses."""
        return all(is_loopback(broker.rpartition(":")[0]) for broker in self.brokers)

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers as comma-separated text."""
        return ",".join(self.brokers)

    @property
    def security_protocol(self) -> Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]:
        """Kafka's `security.protocol`."""
        if self.sasl is None:
            return "SSL" if self.tls else "PLAINTEXT"
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    def java_security(self) -> dict[str, str]:
        """Connection settings for Kafka's Java client, with secrets resolved."""
        return java(self.security_protocol, self.tls, self.sasl)

    def librdkafka_security(self) -> dict[str, str]:
        """Connection settings for librdkafka, with secrets resolved."""
        return librdkafka(self.security_protocol, self.tls, self.sasl)


class GenerateSpec(SpecModel):
    """Generated sample events of three types, reproducible, for tests and demos."""

    records: Integer = Field(default=10_000, ge=0, description="Total number of records.")
    partitions: Integer = Field(default=4, ge=1, le=1024, description="Number of partitions.")
    bad_ratio: Ratio = Field(default=0.02, description="Ratio of invalid records.")
    seed: Integer = Field(default=1, ge=0, description="Random seed; the same seed generates the same records.")
    start: Literal["earliest"] = Field(default="earliest", description="Start position; only `earliest` is supported.")
    rate: Rate | None = Field(default=None, description="Maximum rate of records.")


class SourceSpec(SpecModel):
    """Source of the records; exactly one key."""

    kafka: KafkaSpec | None = Field(default=None, description="Kafka topics.")
    generate: GenerateSpec | None = Field(default=None, description="Generated sample events.")

    @model_validator(mode="after")
    def _check_keys(self) -> SourceSpec:
        exactly_one(self, "kafka", "generate")
        return self

    @property
    def rate(self) -> float | None:
        """Maximum records per second."""
        return self.kafka.rate if self.kafka else self.generate.rate if self.generate else None
