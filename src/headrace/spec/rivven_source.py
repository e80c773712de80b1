"""Rivven source: the connection to a server, and the topics to read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from headrace.spec.base import Shorthand, SpecModel, exactly_one
from headrace.spec.secrets import Secret
from headrace.spec.security import TlsSpec
from headrace.spec.start import Start
from headrace.spec.units import Flag, Rate, Regex
from headrace.spec.uris import is_loopback


def _broker(text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError("host:port, such as localhost:9092")
    return text


def _topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", name):
        raise ValueError("a topic name: letters, digits, '.', '_' and '-', at most 255 characters")
    return name


def _tls(value: Any) -> Any:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class RivvenSaslSpec(SpecModel):
    """SASL authentication to a Rivven server."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256"] = Field(
        default="SCRAM-SHA-256", description="SASL mechanism; the server accepts `PLAIN` over TLS only."
    )
    username: str = Field(min_length=1, description="Username.")
    password: Secret = Field(description="Password, as a reference.")


class RivvenSpec(SpecModel):
    """Rivven source."""

    broker: Annotated[str, AfterValidator(_broker)] = Field(description="Address of the server as `host:port`.")
    topics: tuple[Annotated[str, AfterValidator(_topic)], ...] | None = Field(
        default=None, min_length=1, description="Topics to read; alternative to `pattern`."
    )
    pattern: Regex | None = Field(
        default=None, description="Regular expression, matched anywhere in topic names; alternative to `topics`."
    )
    start: Start = Field(
        default="earliest",
        description="Start position of a new pipeline (no ledger and no txn in the tables): `earliest`, "
        "`latest`, `{timestamp: …}` or `{offsets: …}`.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Isolation level; `read_committed` skips records of aborted transactions.",
    )
    plaintext: Flag = Field(default=False, description="Allow an unencrypted connection to a server on another host.")
    tls: Annotated[
        TlsSpec | None,
        BeforeValidator(_tls),
        Shorthand(type="boolean"),
    ] = Field(default=None, description="`true` (system trust store) or a mapping. Default: no encryption.")
    sasl: RivvenSaslSpec | None = Field(default=None, description="SASL authentication. Default: none.")
    rate: Rate | None = Field(default=None, description="Maximum rate of records. Default: unlimited.")

    @model_validator(mode="after")
    def _check_keys(self) -> RivvenSpec:
        exactly_one(self, "topics", "pattern")
        return self

    @property
    def stays_here(self) -> bool:
        """Whether the server is on a loopback address."""
        return is_loopback(self.broker.rpartition(":")[0])
