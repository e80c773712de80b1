"""Rules for certificates and keys of TLS connections."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.security import TlsSpec
from headrace.spec.yaml_reader import Path

CERTIFICATES = "PEM text or ${file:…}, certificates only"


def is_certificate(text: str) -> bool:
    """Whether a text has certificates, and no private key."""
    return "-----BEGIN CERTIFICATE-----" in text and "PRIVATE KEY" not in text


def check_tls(tls: TlsSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Check the TLS settings of a connection."""
    for name in ("ca", "certificate"):
        text = getattr(tls, name)
        if text is not None and not is_certificate(text):
            yield UnlocatedDiagnostic((*here, name), "no certificate", CERTIFICATES, depends_on=())
    if (tls.certificate is None) != (tls.key is None):
        yield UnlocatedDiagnostic(here, "only one of certificate and key", "both or neither")
    if tls.key is None and tls.key_password is not None:
        yield UnlocatedDiagnostic((*here, "key_password"), "key_password without key", "key_password together with key")
