"""Where records come from: Kafka topics, or made-up events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.part import Part, Shorthand, exactly_one, word_or_mapping
from headrace.spec.security import Sasl, Tls, java, librdkafka
from headrace.spec.units import Flag, Rate, Share, Whole


def _list(value: Any) -> Any:
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


class StartAt(Part):
    """A first position other than the topic's beginning or end."""

    timestamp: datetime | None = Field(
        default=None, description="First record at or after this RFC 3339 time, zone included."
    )
    offsets: Mapping[str, Whole | Mapping[str, Whole]] | None = Field(
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


class Kafka(Part):
    """Records of Kafka topics."""

    brokers: Annotated[tuple[str, ...], BeforeValidator(_list)] = Field(
        min_length=1, description="`host:port` of some brokers: a list, or one text with commas."
    )
    topics: tuple[str, ...] | None = Field(default=None, min_length=1, description="The topics to read. Or `pattern`.")
    pattern: str | None = Field(
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
        Tls | None,
        BeforeValidator(_tls),
        Shorthand(type="boolean"),
    ] = Field(default=None, description="`true` (the system's trust) or a mapping; without it the connection is plain.")
    sasl: Sasl | None = Field(default=None, description="How to authenticate; without it, not at all.")
    settings: Mapping[str, str | Whole | Flag] = Field(
        default_factory=dict, description="Further consumer settings, from a list of harmless ones."
    )
    rate: Rate | None = Field(
        default=None, description="At most this many records per time; without it, as fast as it goes."
    )

    @model_validator(mode="after")
    def _one(self) -> Kafka:
        exactly_one(self, "topics", "pattern")
        return self

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


class Generate(Part):
    """Made-up, repeatable events of three types, for trying things out."""

    records: Whole = Field(default=10_000, ge=0, description="How many records there are in all.")
    partitions: Whole = Field(default=4, ge=1, le=1024, description="Over how many partitions they are spread.")
    bad: Share = Field(default=0.02, description="The share of records that cannot become rows.")
    seed: Whole = Field(default=1, ge=0, description="The same seed gives the same records.")
    start: Literal["earliest"] = Field(
        default="earliest", description="Where to begin; made-up topics have no other place."
    )
    rate: Rate | None = Field(default=None, description="At most this many records per time.")


class Source(Part):
    """Where records come from; exactly one of its keys."""

    kafka: Kafka | None = Field(default=None, description="Kafka topics.")
    generate: Generate | None = Field(default=None, description="Made-up events.")

    @model_validator(mode="after")
    def _one(self) -> Source:
        exactly_one(self, "kafka", "generate")
        return self

    @property
    def rate(self) -> float | None:
        """Records per second at most."""
        return self.kafka.rate if self.kafka else self.generate.rate if self.generate else None
