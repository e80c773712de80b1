"""The HTTP source."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from headrace.spec.base import SpecModel
from headrace.spec.kafka_connection import KafkaConnection
from headrace.spec.listener import ListenAddress, ServerTlsSpec
from headrace.spec.secrets import Secret
from headrace.spec.spool import SpoolSpec
from headrace.spec.units import Duration, Flag, Integer, Regex, Size
from headrace.spec.uris import is_loopback

ANALYTICS_TOPIC = "analytics-events"


def _topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name) or name in (".", ".."):
        raise ValueError("a topic name: letters, digits, '.', '_' and '-', at most 200 characters")
    return name


def _origin(text: str) -> str:
    if not re.fullmatch(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?", text):
        raise ValueError("an origin, such as https://shop.example.com, without a path")
    return text.lower()


class HttpKafkaSpec(KafkaConnection):
    """Kafka cluster that the records are sent to; a request is acknowledged when all replicas in sync have them."""

    retry_window: Duration = Field(
        default=timedelta(hours=1),
        description="Time in which a request that a client repeats is recognized and not sent again. The receiver "
        "keeps the requests in memory: a restart forgets them.",
    )
    retry_requests: Integer = Field(
        default=100_000, ge=1, le=1_000_000, description="Maximum number of requests that are recognized."
    )


class HttpSpec(SpecModel):
    """HTTP source: a server to which clients send records."""

    listen: ListenAddress = Field(
        default="127.0.0.1:8080", description="Address of the server as `host:port`; port 0 is any free port."
    )
    topics: tuple[Annotated[str, AfterValidator(_topic)], ...] = Field(
        default=(), description="Topics that clients may send to."
    )
    pattern: Regex | None = Field(
        default=None, description="Regular expression for further topics, which must match the whole name."
    )
    preset: Literal["analytics"] | None = Field(
        default=None,
        description=f"`analytics`: also accept events at `POST /analytics`, into the topic `{ANALYTICS_TOPIC}`.",
    )
    tokens: tuple[Secret, ...] = Field(
        default=(),
        description="Bearer tokens, as references; a client must send one of them. Required for other addresses than "
        "loopback ones.",
    )
    dangerously_open: Flag = Field(
        default=False, description="Accept records of anyone on other addresses than loopback ones, without tokens."
    )
    tls: ServerTlsSpec | None = Field(default=None, description="TLS of the server. Default: no encryption.")
    plaintext: Flag = Field(
        default=False, description="Allow unencrypted connections on other addresses than loopback ones."
    )
    cors: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        default=(), description="Origins of web pages that may send records. Default: none."
    )
    max_body: Size = Field(
        default=10_000_000, ge=1, le=256_000_000, description="Maximum size of a request body, after decompression."
    )
    max_records: Integer = Field(
        default=100_000, ge=1, le=1_000_000, description="Maximum number of records in a request."
    )
    max_headers: Size = Field(default=32_768, ge=1024, le=1_000_000, description="Maximum size of request headers.")
    max_connections: Integer = Field(default=1000, ge=1, le=100_000, description="Maximum number of connections.")
    spool: SpoolSpec = Field(default=SpoolSpec(), description="Spool of the received records.")
    kafka: HttpKafkaSpec | None = Field(
        default=None,
        description="Kafka cluster for the received records, instead of the spool; it must have the `topics`.",
    )

    @property
    def host(self) -> str:
        """Host of the address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port of the address."""
        return int(self.listen.rpartition(":")[2])

    @property
    def stays_here(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Topics that exist before a record was received."""
        return tuple(dict.fromkeys((*self.topics, *((ANALYTICS_TOPIC,) if self.preset else ()))))
