"""Where records come from: Kafka topics, or made-up events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.base import Shorthand, SpecModel, exactly_one, word_or_mapping
from headrace.spec.kafka_settings import setting_name
from headrace.spec.security import SaslSpec, TlsSpec, java, librdkafka
from headrace.spec.units import Flag, Moment, PlainText, Rate, Ratio, Regex, Whole
from headrace.spec.uris import is_loopback


def _list(value: Any) -> Any:
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


def _broker(text: str) -> str:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})", text)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ValueError("host:port, as localhost:9092")
    return text


def _topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
        raise ValueError("a topic's name: letters, digits, '.', '_' and '-', at most 249")
    return name


def first_offsets(value: Any) -> Any:
    """Partition numbers and first offsets, flat or by topic, but not both ways at once."""
    inner = list(value.values()) if isinstance(value, Mapping) else []
    nested = bool(inner) and all(isinstance(item, Mapping) and item for item in inner)
    pairs = [pair for each in (inner if nested else [value] if inner else []) for pair in each.items()]
    if not pairs or not all(_PARTITION.fullmatch(str(number)) and _is_offset(first) for number, first in pairs):
        raise ValueError("first offsets by partition: {0: 12}, or by topic: {orders: {0: 12}}")
    return value


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


_PARTITION = re.compile(r"[0-9]{1,9}")
Offsets = Annotated[Mapping[str, int | Mapping[str, int]], BeforeValidator(first_offsets)]


class StartAt(SpecModel):
    """A first position other than the topic's beginning or end."""

    timestamp: Moment | None = Field(
        default=None, description="First record at or after this RFC 3339 time, zone included."
    )
    offsets: Offsets | None = Field(
        default=None,
        description="First offset read of each partition: `{0: 12}` with one topic, `{orders: {0: 12}}` with several. "
        "Partitions not named start at their beginning.",
    )

    @model_validator(mode="after")
    def _one(self) -> StartAt:
        exactly_one(self, "timestamp", "offsets")
        return self

    def offsets_by_topic(self, topics: Sequence[str]) -> dict[str, dict[int, int]]:
        """First offsets by topic and partition; those given without a topic are the only topic's."""
        found: dict[str, dict[int, int]] = {}
        for name, given in (self.offsets or {}).items():
            if isinstance(given, Mapping):
                found[name] = {int(partition): offset for partition, offset in given.items()}
            elif topics:
                found.setdefault(topics[0], {})[int(name)] = given
        return found


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("word")] | Annotated[StartAt, Tag("mapping")],
    Discriminator(word_or_mapping),
]


def _tls(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class KafkaSpec(SpecModel):
    """Records of Kafka topics."""

    brokers: Annotated[
        tuple[Annotated[str, AfterValidator(_broker)], ...], BeforeValidator(_list), Shorthand(type="string")
    ] = Field(min_length=1, description="`host:port` of some brokers: a list, or one text with commas.")
    topics: tuple[Annotated[str, AfterValidator(_topic)], ...] | None = Field(
        default=None, min_length=1, description="The topics to read. Or `pattern`."
    )
    pattern: Regex | None = Field(
        default=None, description="A regular expression found in the names of the topics to read. Or `topics`."
    )
    start: Start = Field(
        default="earliest",
        description="Where to begin when neither ledger nor table knows the pipeline: `earliest`, `latest`, "
        "`{timestamp: …}` or `{offsets: …}`.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed", description="Whether records of open and aborted transactions are left out."
    )
    plaintext: Flag = Field(
        default=False, description="Says that an unencrypted connection to a broker on another machine is intended."
    )
    tls: Annotated[
        TlsSpec | None,
        BeforeValidator(_tls),
        Shorthand(type="boolean"),
    ] = Field(default=None, description="`true` (the system's trust) or a mapping; without it the connection is plain.")
    sasl: SaslSpec | None = Field(default=None, description="How to authenticate; without it, not at all.")
    settings: Mapping[Annotated[str, AfterValidator(setting_name)], PlainText] = Field(
        default_factory=dict, description="Further consumer settings, from a list of harmless ones."
    )
    rate: Rate | None = Field(
        default=None, description="At most this many records per time; without it, as fast as it goes."
    )

    @model_validator(mode="after")
    def _one(self) -> KafkaSpec:
        exactly_one(self, "topics", "pattern")
        return self

    @property
    def stays_here(self) -> bool:
        """Whether every broker is on this machine."""
        return all(is_loopback(broker.rpartition(":")[0]) for broker in self.brokers)

    @property
    def bootstrap(self) -> str:
        """The brokers as clients want them."""
        return ",".join(self.brokers)

    @property
    def security_protocol(self) -> Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]:
        """Kafka's word for the connection."""
        if self.sasl is None:
            return "SSL" if self.tls else "PLAINTEXT"
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    def java_security(self) -> dict[str, str]:
        """The connection's settings for Kafka's Java client, secrets revealed."""
        return java(self.security_protocol, self.tls, self.sasl)

    def librdkafka_security(self) -> dict[str, str]:
        """The connection's settings for librdkafka, secrets revealed."""
        return librdkafka(self.security_protocol, self.tls, self.sasl)


class GenerateSpec(SpecModel):
    """Made-up, repeatable events of three types, for trying things out."""

    records: Whole = Field(default=10_000, ge=0, description="How many records there are in all.")
    partitions: Whole = Field(default=4, ge=1, le=1024, description="Over how many partitions they are spread.")
    bad_ratio: Ratio = Field(default=0.02, description="The ratio of records that cannot become rows.")
    seed: Whole = Field(default=1, ge=0, description="The same seed gives the same records.")
    start: Literal["earliest"] = Field(
        default="earliest", description="Where to begin; made-up topics have no other place."
    )
    rate: Rate | None = Field(default=None, description="At most this many records per time.")


class SourceSpec(SpecModel):
    """Where records come from; exactly one of its keys."""

    kafka: KafkaSpec | None = Field(default=None, description="Kafka topics.")
    generate: GenerateSpec | None = Field(default=None, description="Made-up events.")

    @model_validator(mode="after")
    def _one(self) -> SourceSpec:
        exactly_one(self, "kafka", "generate")
        return self

    @property
    def rate(self) -> float | None:
        """Records per second at most."""
        return self.kafka.rate if self.kafka else self.generate.rate if self.generate else None
