"""Certificates of a throw-away authority, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.dev.kafka import BrokerTls


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority, a server it vouches for, a client it vouches for, and an authority nobody knows."""

    authority: Path
    server: Path
    client_key: Path
    client_chain: Path
    stranger: Path

    @property
    def tls(self) -> BrokerTls:
        """What the embedded broker wants."""
        return BrokerTls(self.server, self.authority)


def make_certificates(folder: Path) -> Certificates:
    """Write all the files into `folder`."""
    ca = trustme.CA()
    server, client = ca.issue_cert("127.0.0.1", "localhost"), ca.issue_cert("client@headrace.test")
    paths = Certificates(*(folder / name for name in ("ca.pem", "server.pem", "client.key", "client.pem", "other.pem")))
    ca.cert_pem.write_to_path(paths.authority)
    paths.server.write_bytes(_pkcs8(server) + _chain(server))
    paths.client_key.write_bytes(_pkcs8(client))
    paths.client_chain.write_bytes(_chain(client))
    trustme.CA().cert_pem.write_to_path(paths.stranger)
    return paths


def _chain(leaf: trustme.LeafCert) -> bytes:
    return b"".join(part.bytes() for part in leaf.cert_chain_pems)


def _pkcs8(leaf: trustme.LeafCert) -> bytes:
    """The key in the only form that Java reads."""
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
