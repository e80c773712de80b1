"""An S3 store that only the environment names: obstore, delta-rs and Spark all reach it, in every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.dev.kafka import Broker
from headrace.errors import StorageUnreachable, UsageError
from headrace.serve.status import pipeline_status, state_directories, status_of_state
from headrace.storage.bucket import Bucket
from headrace.storage.s3 import S3Access
from headrace.storage.store import Profile, Store
from headrace.validate.online import online
from services.kafka import produce
from services.pipelines import run_cli
from services.s3 import S3
from services.threads import drain, ids, numbered, one_table

SPEC = """\
pipeline: cloud
source: {{generate: {{records: 40, partitions: 2, bad_ratio: 0}}}}
state: s3://{bucket}/state
table: {{path: "s3://{bucket}/events", columns: [{{name: id, type: bigint}}], cluster_by: [id]}}
"""


@pytest.fixture
def environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"ENDPOINT_URL": s3.endpoint, "ALLOW_HTTP": "true", "ACCESS_KEY_ID": s3.key, "SECRET_ACCESS_KEY": s3.secret}
    for name, value in named.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.usefixtures("spark", "environment")
def test_a_pipeline_needs_no_storage_block(kafka: Broker, topic: str, bucket: str) -> None:
    produce(kafka.bootstrap, topic, numbered(0, 10))
    spec = one_table(kafka.bootstrap, topic, f"s3://{bucket}/events", state=f"s3://{bucket}/state")
    assert [finding for finding in online(spec) if finding.severity == "error"] == []
    assert drain(spec).counts.routed == 10
    assert pipeline_status(spec)["batch"] == 1
    for uri in (f"s3://{bucket}", f"s3://{bucket}/state"):
        assert [status_of_state(state)["pipeline"] for state in state_directories(Store(uri))] == [spec.pipeline]
    assert ids(f"s3://{bucket}/events") == list(range(10))


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_spark_needs_no_storage_block_for_tables_that_it_writes(bucket: str, tmp_path: Path) -> None:
    spec = tmp_path / "cloud.yaml"
    spec.write_text(SPEC.format(bucket=bucket))
    done = run_cli(["run", spec, "--until", "latest", "--json"])
    assert done.returncode == 0, done.stderr
    assert len(ids(f"s3://{bucket}/events")) == 40


@pytest.mark.usefixtures("environment")
def test_every_engine_is_told_of_the_endpoint(s3: S3) -> None:
    store = Store("s3://lake/x")
    assert store.delta_options["aws_endpoint"] == s3.endpoint
    assert store.delta_options["aws_virtual_hosted_style_request"] == "false"
    assert store.delta_options["aws_allow_http"] == "true"
    assert S3Access().arrow_options(Bucket("s3", "lake"))["endpoint_override"] == s3.endpoint.removeprefix("http://")
    conf = {name.removeprefix("fs.s3a.bucket.lake."): value for name, value in store.hadoop_conf.items()}
    assert conf["endpoint"] == s3.endpoint
    assert conf["path.style.access"] == "true"
    assert conf["connection.ssl.enabled"] == "false"


@pytest.mark.usefixtures("environment")
def test_a_profile_wins_over_the_environment(s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    Store(f"s3://{bucket}", Profile({"endpoint": s3.endpoint})).put("a", b"x")
    with pytest.raises(StorageUnreachable, match=r"at http://127.0.0.1:1\): Connection refused"):
        Store(f"s3://{bucket}").put("a", b"x")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    assert Store(f"s3://{bucket}").get("a") == b"x"
    assert S3Access().region == "eu-west-1"


@pytest.mark.parametrize(
    ("endpoint", "allowed", "seen"),
    [
        ("http://127.0.0.1:1", "", "is not encrypted"),
        ("http://127.0.0.1:1", "no", "is not encrypted"),
        ("127.0.0.1:9000", "true", "Invalid S3 endpoint"),
        ("ftp://127.0.0.1", "true", "Invalid S3 endpoint"),
        ("http://127.0.0.1:x", "true", "Invalid S3 endpoint"),
        ("http://[::1", "true", "Invalid S3 endpoint"),
        ("https://", "true", "Invalid S3 endpoint"),
    ],
)
def test_an_endpoint_that_cannot_work_is_named_and_not_retried(
    endpoint: str, allowed: str, seen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
    with pytest.raises(UsageError, match=seen):
        Store("s3://bucket/x").get("y")
