"""Secrets: canaries through every command, every refusal and a whole run; none is ever seen again."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.dev.kafka import Broker
from services.certs import Certificates
from services.kafka import make_topic, produce
from services.pipelines import records, run_cli
from services.s3 import S3

ANN = "ann-secret"  # the real one; all others are only ever refused
CANARIES = {
    name: f"canary-{name}-{uuid.uuid4().hex}"
    for name in (
        "sasl-env",
        "sasl-file",
        "sasl-literal",
        "client-secret",
        "token-file",
        "jaas",
        "key-password",
        "s3-env",
        "s3-file",
        "s3-literal",
        "s3-token",
        "s3-option",
        "url-password",
        "broker-password",
        "mask-literal",
    )
}
RETRY = {"unreachable": {"initial_interval": "10ms", "max_interval": "20s"}, "access_denied": 2}


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every canary in the environment and in a file of its own."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name.upper().replace("-", "_"), value)
        file = tmp_path / f"{name}.secret"
        file.touch(0o600)
        file.write_text(value + "\n")
    monkeypatch.setenv("ANN", ANN)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "work"))
    monkeypatch.setattr("headrace.source.kafka._TIMEOUT", 3.0)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """A command in this process: its exit code and all it says."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), "".join(capfd.readouterr())

    return run


def _secrets(*more: str) -> list[bytes]:
    return [text.encode() for text in (*CANARIES.values(), *more)]


def assert_unseen(where: str, content: bytes, *more: str) -> None:
    """None of the secrets is in a text or a file."""
    assert not [secret for secret in _secrets(*more) if secret in content], f"a secret is in {where}"


def _files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".secret")


def _sasl(password: str) -> dict[str, str]:
    return {"mechanism": "PLAIN", "username": "ann", "password": password}


_OAUTH = {"mechanism": "OAUTHBEARER"}


def _client(secret: str) -> dict[str, str]:
    """Client credentials for a token endpoint that is another server."""
    return {**_OAUTH, "token_endpoint": "http://127.0.0.1:9/token", "client_id": "ann", "client_secret": secret}


def _specs(broker: Broker, certificates: Certificates, s3: S3, bucket: str) -> dict[str, dict[str, Any]]:
    """Specs in which each canary is wrong in its own way."""
    brokers, ca = broker.address("sasl"), f"${{file:{certificates.authority}}}"
    client = {
        "ca": ca,
        "certificate": f"${{file:{certificates.client_chain}}}",
        "key": f"${{file:{certificates.client_key}}}",
    }
    store = {"endpoint": s3.endpoint, "region": s3.region, "allow_http": True, "access_key_id": s3.key}
    on_s3 = {"source": {"generate": {}}, "table": {"path": f"s3://{bucket}/t"}}
    kafka: dict[str, Any] = {"brokers": brokers, "topics": ["t"]}
    wrong_key = {**client, "key_password": "${env:KEY_PASSWORD}"}
    return {
        "sasl-env": {"source": {"kafka": {**kafka, "sasl": _sasl("${env:SASL_ENV}")}}},
        "sasl-file": {"source": {"kafka": {**kafka, "sasl": _sasl("${file:sasl-file.secret}")}}},
        "sasl-literal": {"source": {"kafka": {**kafka, "sasl": _sasl(CANARIES["sasl-literal"])}}},
        "client-secret": {"source": {"kafka": {**kafka, "sasl": _client("${env:CLIENT_SECRET}")}}},
        "token-file": {"source": {"kafka": {**kafka, "sasl": {**_OAUTH, "token_file": "token-file.secret"}}}},
        "jaas": {"source": {"kafka": {**kafka, "settings": {"sasl.jaas.config": f"x password={CANARIES['jaas']};"}}}},
        "key-password": {"source": {"kafka": {**kafka, "brokers": broker.address("tls"), "tls": wrong_key}}},
        "s3-env": {**on_s3, "storage": {"s3": {**store, "secret_access_key": "${env:S3_ENV}"}}},
        "s3-file": {**on_s3, "storage": {"s3": {**store, "secret_access_key": "${file:s3-file.secret}"}}},
        "s3-literal": {**on_s3, "storage": {"s3": {**store, "secret_access_key": CANARIES["s3-literal"]}}},
        "s3-token": {
            **on_s3,
            "storage": {"s3": {**store, "secret_access_key": "${env:S3_ENV}", "session_token": "${env:S3_TOKEN}"}},
        },
        "s3-option": {**on_s3, "storage": {"s3": {"options": {"aws_secret_access_key": CANARIES["s3-option"]}}}},
        "url-password": {**on_s3, "storage": {"s3": {"endpoint": f"https://u:{CANARIES['url-password']}@127.0.0.1"}}},
        "mask-literal": {**on_s3, "transform": [{"mask": {"a": {"sha256": CANARIES["mask-literal"]}}}]},
        "broker-password": {"source": {"kafka": {**kafka, "brokers": f"u:{CANARIES['broker-password']}@127.0.0.1:9"}}},
    }


# This server answers a session token with 501, and there is no token endpoint: a run waits for both.
ENDLESS = {"s3-token", "client-secret"}
COMMANDS: list[list[str]] = [
    ["check", "SPEC"],
    ["check", "SPEC", "--json"],
    ["check", "SPEC", "--online"],
    ["preview", "SPEC"],
    ["status", "SPEC", "--json"],
    ["resume", "SPEC", "--accept-gap"],
    ["run", "SPEC", "--until", "latest", "--json"],
]


def test_refusals_of_every_kind_show_no_secret(
    secure_kafka: Broker, certificates: Certificates, s3: S3, bucket: str, tmp_path: Path, say: Any
):
    specs = _specs(secure_kafka, certificates, s3, bucket)
    assert specs.keys() == CANARIES.keys()
    for name, content in specs.items():
        whole = {"pipeline": name, "table": {"path": f"./lake/{name}"}, "retry": RETRY, **content}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(whole))
        codes = {}
        for command in COMMANDS[:-2] if name in ENDLESS else COMMANDS:
            codes[command[0]], said = say(*(str(file) if part == "SPEC" else part for part in command))
            assert_unseen(f"what {command} says of {name}", said.encode())
            assert "Traceback" not in said
        assert codes.get("run", codes["check"]) in (1, 2), f"{name} is refused: {codes}"
        file.unlink()  # the literal ones are in it
    for path in _files(tmp_path, s3.folder / "data" / bucket):
        assert_unseen(str(path), path.read_bytes())


def test_a_whole_run_leaves_no_secret_anywhere(
    secure_kafka: Broker, certificates: Certificates, s3: S3, bucket: str, tmp_path: Path
):
    """Over TLS with a password and a key, onto S3 with its secret, and Spark told to log more than anybody wants."""
    topic = make_topic(secure_kafka.bootstrap, f"t-{uuid.uuid4().hex[:8]}", 2)
    produce(secure_kafka.bootstrap, topic, records(0, 60))
    key = certificates.client_key.read_text()
    kafka = {
        "brokers": secure_kafka.address("sasl_tls"),
        "topics": [topic],
        "sasl": {**_sasl("${env:ANN}"), "mechanism": "SCRAM-SHA-512"},
        "tls": {
            "ca": f"${{file:{certificates.authority}}}",
            "certificate": f"${{file:{certificates.client_chain}}}",
            "key": "${env:CLIENT_KEY}",
        },
    }
    store = {"endpoint": s3.endpoint, "region": s3.region, "allow_http": True, "access_key_id": s3.key}
    content = {
        "pipeline": "quiet",
        "source": {"kafka": kafka},
        "transform": [{"mask": {"text": {"sha256": "${env:MASK_KEY}"}}}],
        "route": {"by": {"field": "kind"}},
        "table": {"path": f"s3://{bucket}/lake/{{route}}"},
        "storage": {"s3": {**store, "secret_access_key": "${env:S3_SECRET}"}},
    }
    file = tmp_path / "quiet.yaml"
    file.write_text(json.dumps(content))
    logs = tmp_path / "logs"
    mask = uuid.uuid4().hex
    env = {"CLIENT_KEY": key, "S3_SECRET": s3.secret, "MASK_KEY": mask}
    env |= {"HEADRACE_LOG_DIR": str(logs), "HEADRACE_LOG_LEVEL": "info"}
    done = run_cli(["run", file, "--until", "latest", "--json"], env)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]  # nothing else is on stdout, not even of the JVM
    assert (told[-1]["event"], told[-1]["read"]) == ("summary", 60)
    secrets = (ANN, s3.secret, mask, *(line for line in key.splitlines() if line and not line.startswith("-")))
    assert_unseen("what the run said", (done.stdout + done.stderr).encode(), *secrets)
    seen = list(_files(tmp_path, s3.folder / "data" / bucket))
    assert any(path.is_relative_to(logs) and path.stat().st_size for path in seen)
    assert any("intents" in path.parts for path in seen)
    assert any("dead_letters" in path.parts for path in seen)
    for path in seen:
        assert_unseen(str(path), path.read_bytes(), *secrets)
