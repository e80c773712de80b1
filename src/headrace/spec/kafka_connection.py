"""The connection to a Kafka cluster: brokers, TLS and SASL."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from headrace.spec.base import Shorthand, SpecModel
from headrace.spec.sasl import SaslSpec
from headrace.spec.security import TlsSpec, java, librdkafka
from headrace.spec.units import Flag
from headrace.spec.uris import is_loopback


def _list(value: Any) -> Any:
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


def _broker(text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError("host:port, such as localhost:9092")
    return text


def _tls(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class KafkaConnection(SpecModel):
    """Connection to a Kafka cluster."""

    brokers: Annotated[
        tuple[Annotated[str, AfterValidator(_broker)], ...], BeforeValidator(_list), Shorthand(type="string")
    ] = Field(min_length=1, description="Bootstrap servers as `host:port`: a list, or comma-separated text.")
    plaintext: Flag = Field(default=False, description="Allow unencrypted connections to brokers on other hosts.")
    tls: Annotated[
        TlsSpec | None,
        BeforeValidator(_tls),
        Shorthand(type="boolean"),
    ] = Field(default=None, description="`true` (system trust store) or a mapping. Default: no encryption.")
    sasl: SaslSpec | None = Field(default=None, description="SASL authentication. Default: none.")

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
