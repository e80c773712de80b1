"""The OTLP source."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from headrace.spec.base import InvalidValue, Shorthand, SpecModel
from headrace.spec.listener import ListenAddress, ServerTlsSpec, split_address
from headrace.spec.secrets import Secret
from headrace.spec.spool import SpoolSpec
from headrace.spec.units import Flag, Size
from headrace.spec.uris import is_loopback


def _address(value: Any) -> Any:
    return None if value is False else value


_Endpoint = Annotated[ListenAddress | None, BeforeValidator(_address), Shorthand(const=False)]


class OtlpSpec(SpecModel):
    """OTLP receiver for traces, metrics and logs; the signals are the topics."""

    grpc: _Endpoint = Field(
        default="localhost:4317",
        description="Address for gRPC, or `false`. Default: `localhost:4317`.",
    )
    http: _Endpoint = Field(
        default="localhost:4318",
        description="Address for HTTP (`/v1/traces`, `/v1/metrics`, `/v1/logs`), or `false`. Default: "
        "`localhost:4318`.",
    )
    tokens: tuple[Secret, ...] = Field(
        default=(), description="Bearer tokens, as references; a request must have one of them. Default: none."
    )
    tls: ServerTlsSpec | None = Field(default=None, description="TLS of both protocols. Default: no encryption.")
    plaintext: Flag = Field(
        default=False, description="Allow unencrypted connections on other addresses than loopback ones."
    )
    dangerously_open: Flag = Field(
        default=False,
        description="Accept records of anyone on other addresses than loopback ones, without tokens and client "
        "certificates.",
    )
    max_body: Size = Field(
        default=32_000_000, ge=1, le=256_000_000, description="Maximum size of a request, after decompression."
    )
    spool: SpoolSpec = Field(default=SpoolSpec(), description="Spool of the received requests.")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.grpc is None and self.http is None:
            raise InvalidValue("grpc, http or both", message="neither grpc nor http")
        return self

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses by protocol."""
        endpoints = {"grpc": self.grpc, "http": self.http}
        return {name: address for name, address in endpoints.items() if address is not None}

    @property
    def open_addresses(self) -> dict[str, str]:
        """Addresses, by protocol, that other hosts can reach."""
        return {name: each for name, each in self.addresses.items() if not is_loopback(split_address(each)[0])}

    @property
    def authenticates(self) -> bool:
        """Whether producers need a token or a certificate."""
        return bool(self.tokens) or (self.tls is not None and self.tls.client_ca is not None)
