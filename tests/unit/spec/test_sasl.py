"""SASL mechanisms of a Kafka connection: their keys, and the JAAS line that is built from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.spec import KafkaSpec
from headrace.validate.load import examine_text, loads

OIDC = {
    "mechanism": "OAUTHBEARER",
    "token_endpoint": "https://login.example.com/oauth2/token",
    "client_id": "headrace",
    "client_secret": "${env:CLIENT_SECRET}",
}
CALLBACK = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def text_of(sasl: dict[str, Any]) -> str:
    kafka = {"brokers": "localhost:9092", "topics": ["t"], "sasl": sasl}
    return yaml.safe_dump({"pipeline": "p", "source": {"kafka": kafka}, "table": {"path": "./lake/t"}})


def kafka_of(sasl: dict[str, Any], folder: Path) -> KafkaSpec:
    return loads(text_of(sasl), folder)[0].kafka


def found(sasl: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Key and message of the only diagnostic."""
    (diagnostic,) = examine_text(text_of(sasl), folder)[1]
    assert diagnostic.expected
    return diagnostic.key.removeprefix("source.kafka.sasl").lstrip("."), diagnostic.message


@pytest.fixture(autouse=True)
def client_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", 'a"; evil.Module required x="\\\n')


def test_client_credentials(tmp_path: Path) -> None:
    extensions = {"logicalCluster": "lkc-1", "identityPoolId": 'p"'}
    kafka = kafka_of({**OIDC, "scope": "kafka", "extensions": extensions}, tmp_path)
    java = kafka.java_security()
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        r'clientId="headrace" clientSecret="a\"; evil.Module required x=\"\\\n" scope="kafka" '
        r'extension_identityPoolId="p\"" extension_logicalCluster="lkc-1";'
    )
    assert java["sasl.oauthbearer.token.endpoint.url"] == OIDC["token_endpoint"]
    assert java["sasl.login.callback.handler.class"] == CALLBACK
    native = kafka.librdkafka_security()
    assert native == {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def test_a_new_token_in_the_file_changes_the_login(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first-token")
    kafka = kafka_of({"mechanism": "OAUTHBEARER", "token_file": "token"}, tmp_path)
    first = kafka.java_security()
    assert first["sasl.oauthbearer.token.endpoint.url"] == f"file://{tmp_path}/token"
    (tmp_path / "token").write_text("second-token")
    second = kafka.java_security()
    assert first["sasl.jaas.config"] != second["sasl.jaas.config"]
    assert not [text for text in (*first.values(), *second.values()) if "-token" in text]


def test_aws_msk_iam(tmp_path: Path) -> None:
    kafka = kafka_of({"mechanism": "AWS_MSK_IAM", "region": "eu-central-1", "profile": "streaming"}, tmp_path)
    java = kafka.java_security()
    assert java["sasl.mechanism"] == "AWS_MSK_IAM"
    assert java["sasl.jaas.config"] == (
        'software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="streaming";'
    )
    assert java["sasl.client.callback.handler.class"] == "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    assert kafka.librdkafka_security()["sasl.mechanism"] == "OAUTHBEARER"


def test_kerberos(tmp_path: Path) -> None:
    login = "com.sun.security.auth.module.Krb5LoginModule required"
    sasl = {"mechanism": "GSSAPI", "principal": "headrace/host@EXAMPLE.COM", "keytab": 'k "1".keytab'}
    java = kafka_of(sasl, tmp_path).java_security()
    assert java["sasl.jaas.config"] == (
        f'{login} useKeyTab="true" storeKey="true" keyTab="{tmp_path}/k \\"1\\".keytab" doNotPrompt="true" '
        'principal="headrace/host@EXAMPLE.COM";'
    )
    assert java["sasl.kerberos.service.name"] == "kafka"
    tickets = kafka_of({"mechanism": "GSSAPI", "service_name": "broker"}, tmp_path).java_security()
    assert tickets["sasl.jaas.config"] == f'{login} useTicketCache="true" doNotPrompt="true";'
    assert tickets["sasl.kerberos.service.name"] == "broker"


ENDPOINTS = [
    "http://login.example.com/token",
    "file:///etc/passwd",
    "https://user:password@login.example.com/token",
    "https://login.example.com/token?x=1",
    "https://login.example.com/token,file:///etc/passwd",
    'https://login.example.com/" -Dx=y',
    "http://169.254.169.254/token",
    "ftp://login.example.com/token",
]


@pytest.mark.parametrize("url", ENDPOINTS)
def test_hostile_endpoints(url: str, tmp_path: Path) -> None:
    assert found({**OIDC, "token_endpoint": url}, tmp_path)[0] == "token_endpoint"


@pytest.mark.parametrize("path", ["/var/run/a,file:/etc/passwd", "/var/run/a b", '/var/run/"x', "https://a/b"])
def test_hostile_token_files(path: str, tmp_path: Path) -> None:
    assert found({"mechanism": "OAUTHBEARER", "token_file": path}, tmp_path)[0] == "token_file"


def without(*keys: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in OIDC.items() if key not in keys} | more


WRONG = [
    (without("token_endpoint"), "", "no source of tokens"),
    (without(token_file="/token"), "", "together"),
    (without("client_secret"), "client_secret", "missing"),
    (without("client_id"), "client_id", "missing"),
    ({"mechanism": "OAUTHBEARER", "token_file": "/token", "client_id": "x"}, "client_id", "token_endpoint"),
    (without(username="x"), "username", "not a key of OAUTHBEARER"),
    (
        {"mechanism": "PLAIN", "username": "u", "password": "${env:CLIENT_SECRET}", "scope": "x"},
        "scope",
        "not a key of PLAIN",
    ),
    (without(client_secret="plain"), "client_secret", "secret"),
    (without(ca="x"), "ca", "no certificate"),
    (without(extensions={"auth": "x"}), "extensions.auth", "extension"),
    (without(extensions={"a_b": "x"}), "extensions.a_b", "extension"),
    (without(extensions={"a": "x\x01y"}), "extensions.a", ""),
    ({"mechanism": "GSSAPI", "keytab": "/k"}, "principal", "missing"),
    ({"mechanism": "GSSAPI", "principal": 'a" x="'}, "principal", ""),
    ({"mechanism": "GSSAPI", "service_name": "kafka;"}, "service_name", ""),
    ({"mechanism": "GSSAPI", "username": "x"}, "username", "not a key of GSSAPI"),
    (
        {"mechanism": "PLAIN", "username": "u", "password": "${env:CLIENT_SECRET}", "keytab": "/k"},
        "keytab",
        "not a key",
    ),
    ({"mechanism": "AWS_MSK_IAM", "region": "eu"}, "region", ""),
    ({"mechanism": "AWS_MSK_IAM", "profile": 'a" x="'}, "profile", ""),
    ({"mechanism": "AWS_MSK_IAM", "username": "x"}, "username", "not a key of AWS_MSK_IAM"),
]


@pytest.mark.parametrize(("sasl", "key", "said"), WRONG)
def test_one_thing_wrong(sasl: dict[str, Any], key: str, said: str, tmp_path: Path) -> None:
    seen_key, message = found(sasl, tmp_path)
    assert seen_key == key
    assert said in message
