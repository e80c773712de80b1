"""Rules for the OTLP source."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.otlp_source import OtlpSpec
from headrace.spec.yaml_reader import Path
from headrace.validate.spool import check_spool

_OTLP: Path = ("source", "otlp")
_TLS: Path = (*_OTLP, "tls")
_CERTIFICATES = "PEM text or ${file:…}, certificates only"


def check_otlp(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check who may connect, and where requests are stored and decoded."""
    otlp = spec.source.otlp
    if otlp is None:
        return
    if spec.format not in ("otlp", "raw"):
        message = f"{spec.format} cannot decode export requests"
        yield UnlocatedDiagnostic(("decode",), message, "otlp", depends_on=((*_OTLP,),))
    if otlp.grpc is not None and otlp.grpc == otlp.http and not otlp.grpc.endswith(":0"):
        yield UnlocatedDiagnostic((*_OTLP, "http"), "the same address as grpc", "another port", depends_on=())
    yield from _exposed(otlp)
    if otlp.dangerously_open and otlp.authenticates:
        message = "conflicts with tokens and tls.client_ca"
        yield UnlocatedDiagnostic((*_OTLP, "dangerously_open"), message, "only one of them")
    if otlp.tls is not None and otlp.plaintext:
        yield UnlocatedDiagnostic((*_OTLP, "plaintext"), "conflicts with tls", "only one of them")
    yield from _certificates(otlp)
    yield from check_spool(spec, _OTLP, otlp.spool, otlp.max_body)


def _exposed(otlp: OtlpSpec) -> Iterator[UnlocatedDiagnostic]:
    for protocol in otlp.open_addresses:
        here = (*_OTLP, protocol)
        if not otlp.authenticates and not otlp.dangerously_open:
            keys: tuple[Path, ...] = ((*_OTLP, "tokens"), (*_TLS, "client_ca"), (*_OTLP, "dangerously_open"))
            message = "other machines can send records without a token or a certificate"
            expected = "tokens, tls.client_ca, or dangerously_open: true"
            yield UnlocatedDiagnostic(here, message, expected, depends_on=keys)
        if otlp.tls is None and not otlp.plaintext:
            message = "unencrypted connections from other machines"
            depends_on: tuple[Path, ...] = (_TLS, (*_OTLP, "plaintext"))
            yield UnlocatedDiagnostic(here, message, "tls, or plaintext: true", depends_on=depends_on)


def _certificates(otlp: OtlpSpec) -> Iterator[UnlocatedDiagnostic]:
    for name in ("certificate", "client_ca") if otlp.tls is not None else ():
        text = getattr(otlp.tls, name)
        if text is not None and ("-----BEGIN CERTIFICATE-----" not in text or "PRIVATE KEY" in text):
            yield UnlocatedDiagnostic((*_TLS, name), "no certificate", _CERTIFICATES, depends_on=())
