"""Rules for the Rivven source."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.rivven_source import RivvenSpec
from headrace.spec.yaml_reader import Path
from headrace.validate.certificates import check_tls
from headrace.validate.start import check_topics_and_start

_RIVVEN: Path = ("source", "rivven")


def check_rivven(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check the connection, the certificates and the topics."""
    rivven = spec.source.rivven
    if rivven is None:
        return
    yield from _connection(rivven)
    if rivven.tls is not None:
        yield from check_tls(rivven.tls, (*_RIVVEN, "tls"))
    yield from check_topics_and_start(rivven.topics or (), rivven.start, _RIVVEN)


def _connection(rivven: RivvenSpec) -> Iterator[UnlocatedDiagnostic]:
    if rivven.tls is None and not rivven.plaintext and not rivven.stays_here:
        message = "an unencrypted connection to a server on another host"
        security = ((*_RIVVEN, "tls"), (*_RIVVEN, "plaintext"))
        yield UnlocatedDiagnostic((*_RIVVEN, "broker"), message, "tls, or plaintext: true", depends_on=security)
    if rivven.tls is not None and rivven.plaintext:
        yield UnlocatedDiagnostic((*_RIVVEN, "plaintext"), "conflicts with tls", "only one of them")
    if rivven.tls is None and rivven.sasl is not None and rivven.sasl.mechanism == "PLAIN":
        yield UnlocatedDiagnostic(
            (*_RIVVEN, "sasl", "mechanism"), "PLAIN without TLS, which the server refuses", "SCRAM-SHA-256, or tls"
        )
