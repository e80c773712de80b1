"""Trust store for the JRE of the wheel: the CA certificates that this machine trusts."""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path

from headrace.runtime.work_folder import shared_folder


def options() -> tuple[str, ...]:
    """Java options for a trust store with the CA certificates of this machine; empty if there are none."""
    authorities = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not authorities:
        return ()
    store = key_store(authorities)
    # Not in the cache: that of an image is read-only, and its certificates are not always those of the machine.
    path = shared_folder("trust-stores") / f"authorities-{hashlib.sha256(store).hexdigest()[:16]}.jks"
    if not path.is_file():
        _write(path, store)
    return (f"-Djavax.net.ssl.trustStore={path}", "-Djavax.net.ssl.trustStoreType=JKS")


def key_store(authorities: list[bytes]) -> bytes:
    """Certificates as a Java key store (JKS, version 2) with the default password."""
    entries = b"".join(_entry(f"authority{n}", der) for n, der in enumerate(authorities))
    body = struct.pack("!III", 0xFEEDFEED, 2, len(authorities)) + entries
    digest = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()


def _entry(alias: str, der: bytes) -> bytes:
    """Trusted certificate: tag 2, alias, creation time (0, so that equal stores are equal), type, bytes."""
    return (
        struct.pack("!I", 2) + _text(alias) + struct.pack("!q", 0) + _text("X.509") + struct.pack("!I", len(der)) + der
    )


def _text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


def _write(path: Path, content: bytes) -> None:
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)
