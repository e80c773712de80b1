"""Rules for the HTTP source."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.http_source import HttpKafkaSpec, HttpSpec
from headrace.spec.model import Spec
from headrace.spec.sasl import KERBEROS
from headrace.spec.yaml_reader import Path
from headrace.validate.spool import check_spool

_HTTP: Path = ("source", "http")
_TLS: Path = (*_HTTP, "tls")
_KAFKA: Path = (*_HTTP, "kafka")


def check_http(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check who may connect, what they may send, and where it is stored."""
    http = spec.source.http
    if http is None:
        return
    if not (http.topics or http.pattern or http.preset):
        yield UnlocatedDiagnostic(_HTTP, "no topic is accepted", "topics, pattern or preset", depends_on=())
    for index, topic in enumerate(http.topics):
        if topic in http.topics[:index]:
            path: Path = (*_HTTP, "topics", index)
            yield UnlocatedDiagnostic(path, f"duplicate topic '{topic}'", "unique topics", depends_on=())
    if not http.stays_here:
        yield from _exposed(spec)
    if http.dangerously_open and http.tokens:
        yield UnlocatedDiagnostic((*_HTTP, "dangerously_open"), "conflicts with tokens", "only one of them")
    if http.tls is not None and http.plaintext:
        yield UnlocatedDiagnostic((*_HTTP, "plaintext"), "conflicts with tls", "only one of them")
    if http.tls is not None:
        for name in ("certificate", "client_ca"):
            text = getattr(http.tls, name)
            if text is not None and ("-----BEGIN CERTIFICATE-----" not in text or "PRIVATE KEY" in text):
                expected = "PEM text or ${file:…}, certificates only"
                yield UnlocatedDiagnostic((*_TLS, name), "no certificate", expected, depends_on=())
    if http.kafka is None:
        yield from check_spool(spec, _HTTP, http.spool, http.max_body)
    else:
        yield from _passed_on(http, http.kafka)


def _passed_on(http: HttpSpec, kafka: HttpKafkaSpec) -> Iterator[UnlocatedDiagnostic]:
    """Records go to Kafka: no key of the spool, and topics that can be looked up before the first record."""
    if "spool" in http.model_fields_set:
        yield UnlocatedDiagnostic((*_HTTP, "spool"), "conflicts with kafka", "only one of them", depends_on=(_KAFKA,))
    if http.pattern is not None:
        message = "not used with kafka, whose topics must exist before clients send"
        yield UnlocatedDiagnostic((*_HTTP, "pattern"), message, "all topics in topics", depends_on=(_KAFKA,))
    if kafka.sasl is not None and kafka.sasl.mechanism == KERBEROS:
        message = "records cannot be sent with GSSAPI, which the producer does not have"
        yield UnlocatedDiagnostic((*_KAFKA, "sasl", "mechanism"), message, "another mechanism", depends_on=())


def _exposed(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    http, here = spec.source.http, (*_HTTP, "listen")
    if http is None:
        return
    if not http.tokens and not http.dangerously_open:
        yield UnlocatedDiagnostic(
            here,
            "other machines can send records without a token",
            "tokens, or dangerously_open: true",
            depends_on=((*_HTTP, "tokens"), (*_HTTP, "dangerously_open")),
        )
    if http.tls is None and not http.plaintext:
        yield UnlocatedDiagnostic(
            here,
            "unencrypted connections from other machines",
            "tls, or plaintext: true",
            depends_on=(_TLS, (*_HTTP, "plaintext")),
        )
