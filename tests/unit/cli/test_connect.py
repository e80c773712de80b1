"""The configuration that `headrace connect otel-collector` prints: YAML with the settings of the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.errors import UsageError
from headrace.serve.collector_config import collector_config
from headrace.spec import Spec
from services.certs import Certificates, make_certificates
from services.plans import LAKE, spec_of


def spec(**otlp: Any) -> Spec:
    return spec_of(source={"otlp": otlp}, decode="otlp", table={"path": f"{LAKE}/otel"})


def exporter(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of the only exporter, which all pipelines use."""
    config = yaml.safe_load(text)
    ((name, settings),) = config["exporters"].items()
    assert config["service"]["pipelines"] == {signal: {"exporters": [name]} for signal in ("traces", "metrics", "logs")}
    assert config["service"]["extensions"] == [settings["sending_queue"]["storage"]] == list(config["extensions"])
    return name, settings


def test_the_smallest_spec():
    name, settings = exporter(collector_config(spec()))
    assert (name, settings["endpoint"], settings["tls"]) == (
        "otlp/headrace",
        "http://localhost:4317",
        {"insecure": True},
    )
    assert settings["retry_on_failure"]["max_elapsed_time"] == "0s"
    assert "headers" not in settings


def test_http_on_all_interfaces_with_a_token(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN", "canary")
    otel = spec(http="0.0.0.0:4400", tokens=["${env:TOKEN}"], plaintext=True)
    text = collector_config(otel, "http", "lake.example.com")
    name, settings = exporter(text)
    assert (name, settings["endpoint"]) == ("otlphttp/headrace", "http://lake.example.com:4400")
    assert settings["headers"] == {"authorization": "Bearer ${env:OTLP_TOKEN}"}
    assert "canary" not in text
    with pytest.raises(UsageError, match="listens on all interfaces"):
        collector_config(otel, "http")


def test_client_certificates(tmp_path: Path):
    certificates: Certificates = make_certificates(tmp_path)
    pem = certificates.server.read_text()
    tls = {
        "certificate": pem[pem.index("-----BEGIN CERTIFICATE") :],
        "key": f"${{file:{certificates.server}}}",
        "client_ca": certificates.authority.read_text(),
    }
    _, settings = exporter(collector_config(spec(grpc="[::1]:4317", tls=tls)))
    assert settings["endpoint"] == "https://[::1]:4317"
    assert set(settings["tls"]) == {"ca_file", "cert_file", "key_file"}
    assert "PRIVATE KEY" not in collector_config(spec(tls=tls))


@pytest.mark.parametrize(
    ("otlp", "options", "message"),
    [
        ({"grpc": False}, {"protocol": "grpc"}, "does not receive OTLP over grpc"),
        ({"grpc": "localhost:0"}, {}, "is any free port"),
        ({}, {"protocol": "udp"}, "does not receive OTLP over udp. Use --protocol grpc or http"),
    ],
)
def test_a_pipeline_that_does_not_listen_there(otlp: dict[str, Any], options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        collector_config(spec(**otlp), **options)


def test_another_source():
    with pytest.raises(UsageError, match="its source is 'generate'"):
        collector_config(spec_of())


# ---- rules of the source ----


@pytest.mark.parametrize(
    ("otlp", "decode", "messages"),
    [
        ({}, "otlp", []),
        ({"grpc": "0.0.0.0:4317"}, "otlp", ["other machines can send", "unencrypted connections"]),
        ({"http": "192.0.2.1:4318", "plaintext": True, "dangerously_open": True}, "otlp", []),
        ({"tokens": ["${env:PATH}"], "dangerously_open": True}, "otlp", ["conflicts with tokens"]),
        ({"grpc": False, "http": False}, "otlp", ["neither grpc nor http"]),
        ({"http": "localhost:4317"}, "otlp", ["the same address as grpc"]),
        ({"grpc": "localhost"}, "otlp", ["host:port"]),
        ({}, "json", ["json cannot decode export requests"]),
        ({"tls": {"certificate": "x", "key": "${env:PATH}"}}, "otlp", ["no certificate"]),
    ],
)
def test_specs_are_checked(otlp: dict[str, Any], decode: str, messages: list[str], tmp_path: Path):
    from headrace.validate.load import examine_text

    text = yaml.safe_dump(
        {"pipeline": "otel", "source": {"otlp": otlp}, "decode": decode, "table": {"path": "./lake/otel"}}
    )
    _, diagnostics = examine_text(text, tmp_path, "otel.yaml")
    assert len(diagnostics) == len(messages), diagnostics
    for diagnostic, message in zip(diagnostics, messages, strict=True):
        assert message in str(diagnostic)
