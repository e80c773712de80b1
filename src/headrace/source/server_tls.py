"""TLS of the servers of sources."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from headrace.errors import UsageError
from headrace.spec.listener import ServerTlsSpec


def server_context(tls: ServerTlsSpec, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer with the certificates at a key of the spec; UsageError if they do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-tls-") as folder:  # readable by this user alone
            pem = Path(folder) / "server.pem"
            pem.touch(mode=0o600)
            pem.write_text(f"{tls.certificate}\n{tls.key.reveal()}\n")
            context.load_cert_chain(pem)
        if tls.client_ca is not None:
            context.load_verify_locations(cadata=tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise UsageError(
            f"{key} cannot be used: {reason}.", hint="Check that the key belongs to the certificate."
        ) from None
    return context
