"""Schema registry connection, shared by several formats."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from headrace.spec.base import Shorthand, SpecModel
from headrace.spec.secrets import Secret
from headrace.spec.units import Duration, Flag
from headrace.spec.uris import host_of, is_loopback, server


def _url(text: str) -> str:
    try:
        return server(text)
    except ValueError:
        raise ValueError(
            "https://host:port/path (or http:// with plaintext: true), without user, query or fragment"
        ) from None


def _proxy(text: str) -> str:
    if not text.startswith("http://"):
        raise ValueError("http://host:port; connections to an https:// registry are encrypted end to end")
    return _url(text)


class RegistrySpec(SpecModel):
    """Schema registry with the Confluent REST API."""

    url: Annotated[str, AfterValidator(_url)] = Field(
        description="Base URL, `https://host:port/path`. `http://` requires a loopback address or `plaintext: true`."
    )
    username: str | None = Field(default=None, min_length=1, description="Username for basic authentication.")
    password: Secret | None = Field(default=None, description="Password, as a reference.")
    ca: str | None = Field(
        default=None, description="CA certificates to trust: PEM text or `${file:…}`. Default: the system trust store."
    )
    proxy: Annotated[str, AfterValidator(_proxy)] | None = Field(
        default=None, description="HTTP proxy, `http://host:port`. Proxy environment variables are ignored."
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=5),
        description="Timeout of a request, including the response body.",
    )
    plaintext: Flag = Field(default=False, description="Allow unencrypted connections to other hosts.")

    @property
    def stays_here(self) -> bool:
        """Whether the registry is on a loopback address."""
        return is_loopback(host_of(self.url))


class SchemaServerSpec(RegistrySpec):
    """HTTP server that returns schemas by id."""


def _address(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


RegistryAt = Annotated[RegistrySpec, BeforeValidator(_address), Shorthand(type="string")]
SchemaServerAt = Annotated[SchemaServerSpec, BeforeValidator(_address), Shorthand(type="string")]
