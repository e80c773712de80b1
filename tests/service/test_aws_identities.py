"""Identities of AWS that are no plain keys: limited ones, roles of machines, web identities; and certificates."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.runtime.java import find_java
from headrace.table.table import Table
from services.aws_identities import CLIENT, IdentityProvider, metadata_service, policy_for, with_policy
from services.certs import Certificates
from services.pipelines import run_cli
from services.s3_programs import REGION, S3Program, minio_server

pytestmark = pytest.mark.slow

SPEC = """\
pipeline: cloud
source: {{generate: {{records: 40, partitions: 2, bad_ratio: 0}}}}
state: s3://{bucket}/state
table: {{path: "s3://{bucket}/events", columns: [{{name: id, type: bigint}}], cluster_by: [id]}}
"""


def drained(bucket: str, folder: Path, environment: Mapping[str, str]) -> None:
    """A pipeline whose table Spark writes, with a spec that names no credentials."""
    spec = folder / "cloud.yaml"
    spec.write_text(SPEC.format(bucket=bucket))
    done = run_cli(["run", spec, "--until", "latest", "--json"], environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def place(server: S3Program) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL_S3": server.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION}


def rows(server: S3Program, bucket: str) -> int:
    """Rows of the table, read with the keys of the owner."""
    options = {
        "aws_endpoint": server.endpoint,
        "aws_allow_http": "true",
        "aws_region": REGION,
        "aws_access_key_id": server.key,
        "aws_secret_access_key": server.secret,
    }
    return len(DeltaTable(f"s3://{bucket}/events", storage_options=options).to_pyarrow_table())


def test_four_permissions_are_enough(minio: S3Program, tmp_path: Path) -> None:
    bucket = minio.bucket()
    limited = with_policy(minio, policy_for(bucket))
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        limited.bucket()
    keys = {
        "AWS_ACCESS_KEY_ID": limited.key,
        "AWS_SECRET_ACCESS_KEY": limited.secret,
        "AWS_SESSION_TOKEN": limited.token,
    }
    drained(bucket, tmp_path, place(minio) | keys)
    checked = run_cli(["check", tmp_path / "cloud.yaml", "--online"], place(minio) | keys)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert rows(minio, bucket) == 40
    table = Table.get_or_create(f"s3://{bucket}/orders", {"id": "bigint"}, storage={"s3": limited.settings})
    for number in range(3):
        table.bulk_insert([{"id": number}])
    table.optimize()
    assert table.delete("id = 1").rows == 1
    assert table.vacuum("0s", force=True).files
    assert sorted(row["id"] for row in table.query().records()) == [0, 2]


def test_a_web_identity(certificates: Certificates, tmp_path: Path) -> None:
    """Clients ask the token service for keys, which they do over TLS only."""
    provider = IdentityProvider()
    with provider.running():
        openid = {
            "CONFIG_URL": f"{provider.endpoint}/.well-known/openid-configuration",
            "CLIENT_ID": CLIENT,
            "ROLE_POLICY": "readwrite",
        }
        settings = {f"MINIO_IDENTITY_OPENID_{name}": value for name, value in openid.items()}
        with minio_server(tmp_path / "minio", settings, certificates) as server:
            (role,) = re.findall(r"arn:minio:iam:::role/\S+", (tmp_path / "minio" / "minio.log").read_text())
            token = tmp_path / "token"
            token.write_text(provider.token())
            bucket = server.bucket()
            identity = {
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
                "AWS_ROLE_ARN": role,
                "AWS_ROLE_SESSION_NAME": "lake",
                "AWS_ENDPOINT_URL_STS": server.endpoint,
            }
            drained(bucket, tmp_path, place(server) | identity | trusting(certificates, tmp_path))
            assert server.arrow().get_file_info(f"{bucket}/events/_delta_log/00000000000000000001.json").is_file


def trusting(certificates: Certificates, folder: Path) -> dict[str, str]:
    """Environment in which every engine trusts the authority."""
    keytool, store = find_java().home / "bin" / "keytool", folder / "trusted.p12"
    command = [keytool, "-importcert", "-noprompt", "-file", certificates.authority, "-keystore", store]
    subprocess.run([*command, "-storepass", "changeit"], check=True, capture_output=True)
    java = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=changeit"
    return {"SSL_CERT_FILE": str(certificates.authority), "HEADRACE_JVM": f"{os.environ['HEADRACE_JVM']} {java}"}


def test_the_role_of_a_machine(minio: S3Program, tmp_path: Path) -> None:
    bucket = minio.bucket()
    limited = with_policy(minio, policy_for(bucket))
    with metadata_service(limited) as endpoint:
        machine = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint, "AWS_EC2_METADATA_DISABLED": "false"}
        drained(bucket, tmp_path, place(minio) | machine)
    assert rows(minio, bucket) == 40


def test_a_certificate_of_an_unknown_authority(certificates: Certificates, tmp_path: Path) -> None:
    with minio_server(tmp_path / "minio", certificates=certificates) as server:
        keys = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
        spec = tmp_path / "cloud.yaml"
        bucket = server.bucket()
        spec.write_text(SPEC.format(bucket=bucket))
        unknown = run_cli(["check", spec, "--online"], place(server) | keys)
        assert unknown.returncode == 1
        assert "certificate" in unknown.stdout.lower(), unknown.stdout + unknown.stderr
        assert "SSL_CERT_FILE" in unknown.stdout, unknown.stdout + unknown.stderr
        trusted = place(server) | keys | trusting(certificates, tmp_path)
        known = run_cli(["check", spec, "--online"], trusted)
        assert known.returncode == 0, known.stdout + known.stderr
        stopped = run_cli(["run", spec, "--until", "latest"], place(server) | keys)
        assert stopped.returncode == 1
        assert "EndpointInvalid" in stopped.stderr, stopped.stderr
        run = run_cli(["run", spec, "--until", "latest"], trusted)
        assert run.returncode == 0, run.stdout + run.stderr
        path = f"s3://{bucket}/events"
        counted = run_cli(["table", "sql", f"SELECT count(*) AS rows FROM '{path}'", "--json"], trusted)
        assert json.loads(counted.stdout.splitlines()[0])["row"] == {"rows": 40}, counted.stdout + counted.stderr
