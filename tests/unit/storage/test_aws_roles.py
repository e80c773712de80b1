"""Credentials of AWS: keys, profiles, and the roles of pods, containers and machines, each from a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import AuthenticationFailed, BrokerUnreachable, UsageError
from headrace.storage.aws_roles import AwsCredentials, aws_credentials
from services.aws_identities import Reply, answering

KEYS = {"AccessKeyId": "AKROLE", "SecretAccessKey": "canary-role", "Token": "t", "Expiration": "2100-01-01T00:00:00Z"}
STS = (
    "<AssumeRoleWithWebIdentityResponse><Credentials><AccessKeyId>AKROLE</AccessKeyId>"
    "<SecretAccessKey>canary-role</SecretAccessKey><SessionToken>t</SessionToken>"
    "<Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResponse>"
)


def of_role(credentials: AwsCredentials) -> bool:
    return (credentials.access_key_id, credentials.session_token) == ("AKROLE", "t") and credentials.expires is not None


def test_keys_come_first_and_a_named_profile_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[one]\naws_access_key_id = AKONE\naws_secret_access_key = canary-one\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-env")
    assert aws_credentials() == AwsCredentials("AKENV", "canary-env")
    assert aws_credentials("one") == AwsCredentials("AKONE", "canary-one")
    assert "canary" not in repr(aws_credentials())
    with pytest.raises(UsageError, match="two"):
        aws_credentials("two")


def test_a_credential_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "output.json"
    output.write_text(json.dumps({"Version": 1, **KEYS, "SessionToken": "t"}))
    file = tmp_path / "config"
    file.write_text(f"[profile one]\ncredential_process = cat {output}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    assert of_role(aws_credentials("one"))


def test_the_role_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    base = "/latest/meta-data/iam/security-credentials"

    def answer(method: str, path: str) -> Reply:
        if method == "PUT":
            return (200, "token") if path == "/latest/api/token" else (404, "")
        return {f"{base}/": (200, "role"), f"{base}/role": (200, json.dumps(KEYS))}.get(path, (404, ""))

    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    with answering(answer) as endpoint:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        assert of_role(aws_credentials())
    with pytest.raises(AuthenticationFailed, match="no AWS credentials"):
        aws_credentials()  # its metadata service is gone


def test_the_role_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    status = [200]
    with answering(lambda _, path: (status[0], json.dumps(KEYS if path == "/role" else {}))) as endpoint:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint}/role")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "canary-token")
        assert of_role(aws_credentials())
        for status[0], error in ((503, BrokerUnreachable), (403, AuthenticationFailed)):
            with pytest.raises(error, match=f"HTTP {status[0]}") as caught:
                aws_credentials()
            assert "canary" not in str(caught.value)
        status[0] = 200
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint}/other")
        with pytest.raises(AuthenticationFailed, match="returned no credentials"):
            aws_credentials()
    with pytest.raises(BrokerUnreachable):
        aws_credentials()


def test_a_web_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("canary-jwt")
    with answering(lambda method, _: (200, STS) if method == "POST" else (404, "")) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        assert of_role(aws_credentials())
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "absent"))
        with pytest.raises(AuthenticationFailed, match="token file"):
            aws_credentials()


def test_without_any() -> None:
    with pytest.raises(AuthenticationFailed, match="no AWS credentials"):
        aws_credentials()
