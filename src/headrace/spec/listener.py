"""Addresses that a source listens on, and its TLS."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from headrace.spec.base import SpecModel
from headrace.spec.secrets import Secret

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")


def listen_address(text: str) -> str:
    """The text, if it is `host:port`; ValueError with the expected form if not."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError("host:port, such as 127.0.0.1:8080")
    return text


ListenAddress = Annotated[str, AfterValidator(listen_address)]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address, the host of IPv6 without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class ServerTlsSpec(SpecModel):
    """TLS of a server."""

    certificate: str = Field(description="Certificate chain of the server: PEM text or `${file:…}`.")
    key: Secret = Field(description="Private key of `certificate` (PEM, without a password), as a reference.")
    client_ca: str | None = Field(
        default=None, description="CA certificates of clients (PEM). With it, clients need a certificate."
    )
