"""Where a schema registry is, and how to be let in; several formats share it."""

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
            "https://host:port/path (or http:// with plaintext), without user, query and fragment"
        ) from None


def _proxy(text: str) -> str:
    if not text.startswith("http://"):
        raise ValueError("http://host:port; what goes to a registry at https:// is encrypted all the way")
    return _url(text)


class RegistrySpec(SpecModel):
    """A schema registry that speaks Confluent's REST API."""

    url: Annotated[str, AfterValidator(_url)] = Field(
        description="Its address, `https://host:port/path`; `http://` on this machine, or with `plaintext`."
    )
    username: str | None = Field(default=None, min_length=1, description="The user's name (basic authentication).")
    password: Secret | None = Field(default=None, description="The password, by reference.")
    ca: str | None = Field(
        default=None, description="Certificates to trust, as PEM text or `${file:…}`; the system's without it."
    )
    proxy: Annotated[str, AfterValidator(_proxy)] | None = Field(
        default=None, description="An HTTP proxy on the way, `http://host:port`; the environment's is not taken."
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=5),
        description="For one whole answer, however slowly it comes.",
    )
    plaintext: Flag = Field(
        default=False, description="Says that an unencrypted connection to another machine is intended."
    )

    @property
    def stays_here(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(host_of(self.url))


def _address(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


RegistryAt = Annotated[RegistrySpec, BeforeValidator(_address), Shorthand(type="string")]
