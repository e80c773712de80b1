"""Certificates of a throw-away authority, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from headrace.runtime.kafka import Tls


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority, a server it vouches for, a client it vouches for, and an authority nobody knows."""

    authority: Path
    server: Path
    client_key: Path
    client_chain: Path
    stranger: Path

    @property
    def tls(self) -> Tls:
        """What the embedded broker wants."""
        return Tls(self.server, self.authority)


def make_certificates(folder: Path) -> Certificates:
    """Write all the files into `folder`."""
    ca = trustme.CA()
    server, client = ca.issue_cert("127.0.0.1", "localhost"), ca.issue_cert("client@headrace.test")
    paths = Certificates(*(folder / name for name in ("ca.pem", "server.pem", "client.key", "client.pem", "other.pem")))
    ca.cert_pem.write_to_path(paths.authority)
    server.private_key_and_cert_chain_pem.write_to_path(paths.server)
    client.private_key_pem.write_to_path(paths.client_key)
    for part in client.cert_chain_pems:
        part.write_to_path(paths.client_chain, append=True)
    trustme.CA().cert_pem.write_to_path(paths.stranger)
    return paths
