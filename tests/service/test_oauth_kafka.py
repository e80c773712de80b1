"""SASL OAUTHBEARER on a real broker that verifies the signatures of tokens, with a real token endpoint."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from headrace.dev.kafka import Broker
from headrace.errors import AuthenticationFailed, BrokerUnreachable
from headrace.runtime import session
from headrace.source.base import open_source
from headrace.source.kafka import KafkaSource
from headrace.spec import Spec
from services.certs import Certificates
from services.kafka import make_topic, produce
from services.pipelines import run_cli
from services.threads import drain, drain_all, ids, numbered, one_table, watched
from services.token_server import TokenServer, oauth_listener, token_server
from services.wait import eventually

SESSION = 4  # seconds until the broker wants a new token; it refuses to be asked twice within a second


@dataclass(frozen=True, slots=True)
class Oauth:
    """A broker, and the endpoint whose tokens it accepts."""

    broker: Broker
    server: TokenServer
    certificates: Certificates


@pytest.fixture(scope="module")
def oauth(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Oauth]:
    folder = tmp_path_factory.mktemp("oauth")
    jwks = folder / "keys.json"
    with token_server(certificates.server) as server:
        server.write_jwks(jwks)
        settings = {
            **oauth_listener(jwks, session_seconds=SESSION),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
        }
        jvm = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks.as_uri()}"]
        with Broker.start(
            folder / "kafka", listeners=("sasl",), users={"x": "y"}, settings=settings, jvm=jvm
        ) as broker:
            yield Oauth(broker, server, certificates)


@pytest.fixture(autouse=True)
def secrets(oauth: Oauth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", oauth.server.client_secret)
    monkeypatch.setenv("WRONG_SECRET", "canary-wrong-secret")
    oauth.server.lifetime, oauth.server.status = 3600.0, 0


def by_endpoint(oauth: Oauth, variable: str = "CLIENT_SECRET", **more: Any) -> dict[str, Any]:
    return {
        "mechanism": "OAUTHBEARER",
        "token_endpoint": oauth.server.url,
        "client_id": "headrace",
        "client_secret": f"${{env:{variable}}}",
        "ca": f"${{file:{oauth.certificates.authority}}}",
        **more,
    }


def spec_of(oauth: Oauth, sasl: dict[str, Any], topic: str, table: Path, name: str = "tokens") -> Spec:
    source = {"kafka": {"brokers": oauth.broker.address("sasl"), "topics": [topic], "sasl": sasl}}
    retry = {"unreachable": {"initial_interval": "50ms", "max_interval": "500ms"}, "access_denied": 3}
    return one_table("unused:1", topic, table, pipeline=name, source=source, retry=retry)


def source_of(oauth: Oauth, sasl: dict[str, Any], lake: Path, topic: str = "t") -> KafkaSource:
    source = open_source(spec_of(oauth, sasl, topic, lake / "t"))
    assert isinstance(source, KafkaSource)
    return source


@pytest.fixture
def oauth_topic(oauth: Oauth) -> str:
    name = make_topic(oauth.broker.bootstrap, f"t-{uuid.uuid4().hex[:8]}", 2)
    produce(oauth.broker.bootstrap, name, numbered(0, 50))
    return name


def test_records_are_read_with_tokens_of_an_endpoint_and_of_a_file(
    oauth: Oauth, oauth_topic: str, lake: Path, tmp_path: Path, spark: Any
) -> None:
    file = tmp_path / "token"
    file.write_text(oauth.server.token() + "\n")
    ways = {
        "endpoint": by_endpoint(oauth, scope="kafka records", extensions={"logicalCluster": "lkc-1"}),
        "file": {"mechanism": "OAUTHBEARER", "token_file": str(file)},
    }
    specs = [spec_of(oauth, sasl, oauth_topic, lake / name, name) for name, sasl in ways.items()]
    assert drain_all(specs) == dict.fromkeys(ways)
    for name in ways:
        assert ids(lake / name) == list(range(50))
    assert {"kafka records"} == {*oauth.server.scopes}
    allowed = spark.sparkContext._jvm.java.lang.System.getProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls")
    assert {*allowed.split(",")} >= {oauth.server.url, file.as_uri()}


@pytest.mark.slow
def test_both_clients_renew_their_tokens(oauth: Oauth, oauth_topic: str, lake: Path, spark: Any) -> None:
    oauth.server.lifetime, issued = 12.0, len(oauth.server.issued)
    spec = spec_of(oauth, by_endpoint(oauth), oauth_topic, lake / "t")
    with watched(spec) as running:
        running.until_read(50)
        deadline, sent = time.monotonic() + 1.5 * oauth.server.lifetime, 50
        while time.monotonic() < deadline:
            produce(oauth.broker.bootstrap, oauth_topic, numbered(sent, 10))
            sent += 10
            running.until_read(sent)
        assert not running.of("retry")
    assert len(oauth.server.issued) - issued >= 4, "at least two for each client"
    assert ids(lake / "t") == list(range(sent))


@pytest.mark.slow
def test_a_new_token_in_the_file_is_used(
    oauth: Oauth, oauth_topic: str, lake: Path, tmp_path: Path, spark: Any
) -> None:
    file = tmp_path / "token"
    file.write_text(oauth.server.token(lifetime=30.0))  # long enough for the first batch on a busy machine
    expired = time.time() + 31.0
    spec = spec_of(oauth, {"mechanism": "OAUTHBEARER", "token_file": str(file)}, oauth_topic, lake / "t")
    with watched(spec) as running:
        running.until_read(50)
        file.write_text(oauth.server.token())
        eventually(lambda: time.time() > expired, 60, "the first token has expired")
        produce(oauth.broker.bootstrap, oauth_topic, numbered(50, 10))
        running.until_read(60)
    assert ids(lake / "t") == list(range(60))


def refused(oauth: Oauth, sasl: dict[str, Any], lake: Path) -> AuthenticationFailed:
    source, started = source_of(oauth, sasl, lake), time.monotonic()
    try:
        with pytest.raises(AuthenticationFailed) as caught:
            source.bounds()
    finally:
        source.close()
    assert time.monotonic() - started < 8, "it is reported within seconds"
    said = f"{caught.value!r} {caught.value}"
    assert not [text for text in ("canary", oauth.server.client_secret, "eyJ") if text in said]
    return caught.value


def test_wrong_client_secrets_are_named(oauth: Oauth, lake: Path) -> None:
    error = refused(oauth, by_endpoint(oauth, "WRONG_SECRET"), lake)
    assert f"{oauth.server.url} rejects the client credentials: HTTP 401 (invalid_client)" in error.message
    assert "client_secret" in error.hint


def test_a_run_with_wrong_secrets_ends_by_name(oauth: Oauth, lake: Path) -> None:
    with pytest.raises(AuthenticationFailed):
        drain(spec_of(oauth, by_endpoint(oauth, "WRONG_SECRET"), "t", lake / "t"))


def test_tokens_that_the_broker_rejects_are_named(oauth: Oauth, lake: Path, tmp_path: Path) -> None:
    file, sasl = tmp_path / "token", {"mechanism": "OAUTHBEARER", "token_file": str(tmp_path / "token")}
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for token in (oauth.server.token(key=stranger), oauth.server.token(aud="other")):
        file.write_text(token)
        assert "rejects the credentials" in refused(oauth, sasl, lake).message


def test_a_token_of_aws_is_passed_to_the_broker(oauth: Oauth, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not one of AWS and rejects it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-aws")
    error = refused(oauth, {"mechanism": "AWS_MSK_IAM", "region": "eu-central-1"}, lake)
    assert "rejects the credentials" in error.message


@pytest.mark.parametrize(
    ("content", "said"),
    [("canary", "not a JWT"), ("a.b.c", "not a JWT"), ("", "not a JWT"), ("expired", "expired")],
)
def test_files_without_a_valid_token_are_named(
    oauth: Oauth, lake: Path, tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "token"
    file.write_text(oauth.server.token(lifetime=-60) if content == "expired" else content)
    assert said in refused(oauth, {"mechanism": "OAUTHBEARER", "token_file": str(file)}, lake).message


def test_an_endpoint_of_an_unknown_authority_is_refused(oauth: Oauth, lake: Path) -> None:
    sasl = by_endpoint(oauth, ca=f"${{file:{oauth.certificates.stranger}}}")
    assert "is not trusted" in refused(oauth, sasl, lake).message


def test_an_endpoint_that_is_down_is_waited_for(oauth: Oauth, lake: Path, oauth_topic: str) -> None:
    oauth.server.status = 503
    source = source_of(oauth, by_endpoint(oauth), lake, oauth_topic)
    try:
        with pytest.raises(BrokerUnreachable, match="HTTP 503"):
            source.bounds()
        oauth.server.status, oauth.server.lifetime, expired = 0, 6.0, time.time() + 7.0
        assert sum(bound.latest for bound in source.bounds().values()) == 50
        oauth.server.status = 503
        eventually(lambda: time.time() > expired, say="its token has expired")
        with pytest.raises(BrokerUnreachable, match="HTTP 503"):
            source.bounds()
        oauth.server.status = 0
        assert sum(bound.latest for bound in source.bounds().values()) == 50
    finally:
        source.close()


def test_preview_uses_tokens(oauth: Oauth, lake: Path, oauth_topic: str) -> None:
    source = source_of(oauth, by_endpoint(oauth), lake, oauth_topic)
    try:
        values = source.tail(100, "end")["value"].to_pylist()
    finally:
        source.close()
    assert sorted(json.loads(value)["id"] for value in values) == list(range(50))


@pytest.mark.slow
def test_a_run_leaves_no_token_anywhere(oauth: Oauth, oauth_topic: str, lake: Path, tmp_path: Path) -> None:
    """With Spark told to log more than anybody wants."""
    issued, file = len(oauth.server.issued), tmp_path / "spec.json"
    file.write_text(spec_of(oauth, by_endpoint(oauth), oauth_topic, lake / "t").text)
    environment = {"HEADRACE_LOG_LEVEL": "debug", "HEADRACE_LOG_DIR": str(tmp_path / "log")}
    done = run_cli(["run", file, "--until", "latest", "--json"], environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert ids(lake / "t") == list(range(50))
    tokens = oauth.server.issued[issued:]
    assert len(tokens) >= 2, "one for each client"
    secrets = [text.encode() for text in (oauth.server.client_secret, *(token[-40:] for token in tokens))]
    texts = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(name.endswith(".log") and b"oauthbearer" in text.lower() for name, text in texts.items())
    texts["output"] = (done.stdout + done.stderr).encode()
    assert [name for name, text in texts.items() if any(secret in text for secret in secrets)] == []


def test_a_jvm_gets_no_tokens_from_elsewhere() -> None:
    assert "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=none" in session._JVM
