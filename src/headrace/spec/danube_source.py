"""The source `danube`: topics of a Danube broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from headrace.spec.base import Shorthand, SpecModel
from headrace.spec.secrets import Secret
from headrace.spec.spool import SpoolSpec
from headrace.spec.units import Flag, Integer, Rate, Size
from headrace.spec.uris import StoragePath, is_loopback

# Headers that the source adds to each record, after those of the message's attributes.
OFFSET_HEADER, PARTITION_HEADER = "danube.offset", "danube.partition"

# A message that was stored, and not acknowledged before a crash, comes again however long the pipeline was stopped.
_REDELIVERY = timedelta(days=3650)

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$"
_PARTITION = re.compile(r"-part-[0-9]{1,9}$")


def _broker_url(text: str) -> str:
    parts = urlsplit(text)
    try:
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        complete = False
    if not complete or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("http://host:port or https://host:port, such as http://localhost:6650")
    return text.rstrip("/")


def _topic(name: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9_-]+", name) or len(name) > 128:
        raise ValueError("a topic such as /default/orders: a namespace and a name of letters, digits, '_' and '-'")
    return name


def _tls(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class DanubeTlsSpec(SpecModel):
    """TLS to a Danube broker; host names are always verified."""

    ca: str | None = Field(
        default=None, description="CA certificates to trust: PEM text or `${file:…}`. Default: the system trust store."
    )
    certificate: str | None = Field(default=None, description="Client certificate chain (PEM).")
    key: Secret | None = Field(
        default=None, description="Private key of `certificate` (PEM, without a password), as a reference."
    )


class MessageSpoolSpec(SpecModel):
    """Spool of messages, from the acknowledgement until they are committed."""

    path: StoragePath | None = Field(
        default=None,
        description="Directory of the spool, local or in an object store; only this pipeline may use it. Default: "
        "`spool` below `state`, which must then be a local directory.",
    )
    max_bytes: Size = Field(
        default=10_000_000_000,
        ge=16_000_000,
        description="Maximum size; the broker keeps messages while it is reached.",
    )
    recognized_messages: Integer = Field(
        default=100_000,
        ge=1_000,
        le=10_000_000,
        description="Number of messages that are recognized, and not stored again, when the broker redelivers them.",
    )


class DanubeSpec(SpecModel):
    """Danube source."""

    url: Annotated[str, AfterValidator(_broker_url)] = Field(
        description="Address of a broker: `http://host:6650`, or `https://host:6650` with TLS."
    )
    topics: tuple[Annotated[str, AfterValidator(_topic)], ...] = Field(
        min_length=1,
        description="Topics to read, such as `/default/orders`; all partitions of a partitioned topic are read.",
    )
    subscription: str | None = Field(
        default=None,
        pattern=_NAME,
        description="Subscription. The broker keeps its position, and shares its messages between all its consumers. "
        "Default: `headrace-<pipeline>`.",
    )
    subscriptions: Mapping[str, Annotated[str, Field(pattern=_NAME)]] = Field(
        default_factory=dict,
        description="Subscriptions of single topics: `{/default/orders: orders-to-delta}`. Default: `subscription`.",
    )
    subscription_type: Literal["Exclusive", "Shared", "Failover", "KeyShared"] = Field(
        default="Exclusive", description="Type of the subscription; `Exclusive` refuses any other consumer."
    )
    key_filters: tuple[str, ...] = Field(
        default=(), description="Patterns of routing keys to receive, such as `eu-*`; only with `KeyShared`."
    )
    token: Secret | None = Field(default=None, description="Token (JWT) for the broker, as a reference. Default: none.")
    tls: Annotated[DanubeTlsSpec | None, BeforeValidator(_tls), Shorthand(type="boolean")] = Field(
        default=None,
        description="TLS settings for a `https` URL: certificates other than those of the system trust store.",
    )
    plaintext: Flag = Field(default=False, description="Allow unencrypted connections to brokers on other hosts.")
    schema_registry: Flag = Field(
        default=False,
        description="Look up the schema id of each message in the broker's schema registry, and add its subject and "
        "type as headers.",
    )
    rate: Rate | None = Field(default=None, description="Maximum rate of records. Default: unlimited.")
    spool: MessageSpoolSpec = Field(default=MessageSpoolSpec(), description="Spool of the received messages.")

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.url.startswith("https://")

    @property
    def stays_here(self) -> bool:
        """Whether the broker is on a loopback address."""
        return is_loopback(urlsplit(self.url).hostname or "")

    @property
    def spool_settings(self) -> SpoolSpec:
        """Settings of the spool. Messages are recognized however late the broker redelivers them."""
        spool = self.spool
        return SpoolSpec(
            path=spool.path,
            max_bytes=spool.max_bytes,
            retry_window=_REDELIVERY,
            retry_requests=spool.recognized_messages,
        )

    def subscription_of(self, pipeline: str, topic: str = "") -> str:
        """Name of the subscription of a topic."""
        return self.subscriptions.get(topic) or self.subscription or f"headrace-{pipeline}"


def source_topic(topic: str) -> str:
    """Name of a Danube topic in records and paths: `/default/orders` becomes `default.orders`.

    No two topics share a name, because those of Danube have no `.`.
    """
    return topic.removeprefix("/").replace("/", ".")


def is_partition_of(physical: str, topic: str) -> bool:
    """Whether a topic of the broker is a partition of a topic."""
    return physical.startswith(topic) and _PARTITION.fullmatch(physical, len(topic)) is not None


def partition_number(physical: str) -> int | None:
    """Number of a partition, from its name; None if the topic is not partitioned."""
    match = _PARTITION.search(physical)
    return int(match[0].rpartition("-")[2]) if match else None
