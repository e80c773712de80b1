"""Canary secrets in every event: none appears in health, metrics, output or log."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from headrace.cli.log_output import LogOutput
from headrace.cli.options import LogFormat
from headrace.cli.output import EventOutput
from headrace.pipeline.events import to_all
from headrace.serve.exposition import Exposition
from headrace.serve.health import health_of
from headrace.serve.monitor import Monitor
from headrace.serve.redaction import Redaction
from headrace.validate.load import loads
from services.certs import Certificates
from services.monitored import batch, partitions, progress, retry, state, stopped

NAMES = ("sasl", "tls_key", "tls_password", "registry", "mask", "s3", "s3_session", "azure", "gcs", "branch_mask")
# From names, because test workers must collect the same parameters.
CANARIES = {name: f"canary-{name}-{uuid.uuid5(uuid.NAMESPACE_OID, name).hex}" for name in NAMES}
TOKEN_NAMES = ("HEADRACE_VIEWER_TOKEN", "HEADRACE_OPERATOR_TOKEN", "HEADRACE_WEBHOOK", "HEADRACE_LINEAGE_TOKEN")
TOKENS = {name: uuid.uuid5(uuid.NAMESPACE_OID, name).hex for name in TOKEN_NAMES}
SECRETS = [*CANARIES.values(), *TOKENS.values()]
SPEC = """
pipeline: shop
source:
  kafka:
    brokers: localhost:9092
    topics: [orders]
    sasl: {mechanism: PLAIN, username: ann, password: "${env:SASL}"}
    tls: {certificate: "${file:chain.pem}", key: "${file:tls_key}", key_password: "${env:TLS_PASSWORD}"}
decode: {avro: {registry: {url: "http://localhost:8081", username: ann, password: "${env:REGISTRY}"}}}
transform: [{mask: {email: {sha256: "${env:MASK}"}}}]
table: {path: lake/orders}
branches:
- {name: b, transform: [{mask: {email: {sha256: "${env:BRANCH_MASK}"}}}], table: {path: lake/b}}
storage:
  s3: {access_key_id: x, secret_access_key: "${env:S3}", session_token: "${env:S3_SESSION}"}
  azure: {account_name: ann, account_key: "${env:AZURE}"}
  gcs: {service_account_key: "${env:GCS}"}
"""


@pytest.fixture
def redaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificates: Certificates) -> Redaction:
    for name, value in {**{name.upper(): value for name, value in CANARIES.items()}, **TOKENS}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "chain.pem").write_bytes(certificates.client_chain.read_bytes())
    (tmp_path / "tls_key").write_text(f"-----BEGIN-----\n{CANARIES['tls_key']}\n-----END-----\n")
    return Redaction(loads(SPEC, tmp_path))


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("secret", SECRETS)
def test_no_canary_appears_anywhere(
    redaction: Redaction, secret: str, as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    monitor = Monitor(loads("pipeline: shop\nsource: {generate: {}}\ntable: {path: lake/orders}\n"))
    outputs = [LogOutput(log_format) for log_format in LogFormat]
    posted: list[object] = []  # by a webhook, traces and lineage
    report = redaction.of(to_all(monitor, EventOutput(as_json), *outputs, posted.append))
    text = f"cannot connect with '{secret}' (again: {secret})"
    path = f"/lake/{secret}"
    for event in (
        retry(message=text),
        progress(lag=3),
        partitions(1, 2, topic=secret),
        batch(1, tables={path: {"version": 1, "rows": 1}}, violations={f"{path}: {secret}": 1}),
        {"event": "warning", "pipeline": "shop", "text": text},
        state("restarting", text),
        stopped(message=text, hint=text),
    ):
        report(event)
    written = "".join(capfd.readouterr())
    metrics, _ = Exposition(monitor).render("")
    assert written.count("[redacted]") >= 2
    assert b"[redacted]" in metrics
    answer = redaction.value({"pipelines": [{"reason": text, "hint": text}]})  # of the control socket
    for place in (written, metrics.decode(), *map(json.dumps, (health_of(monitor), posted, answer))):
        assert secret not in place


def test_tokens_that_cannot_be_used_leave_the_other_secrets_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_VIEWER_TOKEN", "short")
    monkeypatch.setenv("HEADRACE_WEBHOOK", "https://hooks.example/s3cr3t-path")
    assert Redaction().text("POST https://hooks.example/s3cr3t-path failed") == "POST [redacted] failed"


def test_a_spec_that_is_added_later(monkeypatch: pytest.MonkeyPatch) -> None:
    redaction = Redaction([])
    assert redaction.text("late-secret-of-a-spec") == "late-secret-of-a-spec"
    monkeypatch.setenv("LATE", "late-secret-of-a-spec")
    spec = "pipeline: p\nsource: {generate: {}}\ntable: {path: t}\ntransform: [{mask: {e: {sha256: '${env:LATE}'}}}]\n"
    redaction.add(loads(spec)[0])
    assert redaction.text("a late-secret-of-a-spec here") == "a [redacted] here"
