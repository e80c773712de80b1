"""An S3 store that only the environment names: obstore, delta-rs and Spark all reach it, in every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Table
from headrace.errors import StorageUnreachable, UsageError
from headrace.storage import Profile, Store
from services.pipelines import run_cli
from services.s3 import S3

SPEC = """\
pipeline: cloud
source: {{generate: {{records: 40, partitions: 2, bad: 0}}}}
state: s3://{bucket}/state
table: {{path: "s3://{bucket}/events", cluster_by: [id], columns: [{{name: id, type: bigint}}]}}
"""


@pytest.fixture
def environment(s3: S3) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": s3.key,
        "AWS_SECRET_ACCESS_KEY": s3.secret,
    }


def test_commands_need_no_storage_block(
    s3: S3, bucket: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "cloud.yaml"
    spec.write_text(SPEC.format(bucket=bucket))
    for command in (
        ["check", spec, "--online"],
        ["run", spec, "--until", "latest"],  # its table is one that Spark writes
        ["table", "info", f"s3://{bucket}/events"],
    ):
        done = run_cli([*command, "--json"], environment)
        assert done.returncode == 0, done.stderr
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Table(f"s3://{bucket}/events").count() == 40
    assert (s3.folder / "data" / bucket / "state").is_dir()


def test_a_profile_wins_over_the_environment(
    s3: S3, bucket: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    Store(f"s3://{bucket}", Profile(endpoint=s3.endpoint)).put("a", b"x")
    with pytest.raises(StorageUnreachable, match=r"at http://127.0.0.1:1\): Connection refused"):
        Store(f"s3://{bucket}").put("a", b"x")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    assert Store(f"s3://{bucket}").get("a") == b"x"
    assert Profile().region == "eu-west-1"


@pytest.mark.parametrize(
    ("endpoint", "allowed", "seen"),
    [
        ("http://127.0.0.1:1", "", "is not encrypted"),
        ("http://127.0.0.1:1", "no", "is not encrypted"),
        ("127.0.0.1:9000", "true", "is not the address"),
        ("ftp://127.0.0.1", "true", "is not the address"),
        ("http://127.0.0.1:x", "true", "is not the address"),
        ("http://[::1", "true", "is not the address"),
        ("https://", "true", "is not the address"),
    ],
)
def test_an_endpoint_that_cannot_work_is_named_and_not_retried(
    endpoint: str, allowed: str, seen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
    with pytest.raises(UsageError, match=seen):
        Store("s3://bucket/x").get("y")
