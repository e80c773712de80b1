"""Pipelines on every object store: settings of the spec or the environment, all engines, several stores at once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from pyarrow.fs import FileSelector

from headrace.errors import AuthenticationFailed, PermissionDenied, UsageError
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from headrace.storage.store import Profile, Store
from headrace.table.table import Table
from headrace.validate.load import loads
from headrace.validate.online import online
from services.azure import ACCOUNT, KEY, AzureServer
from services.in_process_pipeline import no_spark
from services.pipelines import run_cli
from services.s3 import S3, s3_server
from services.s3gate import Answer, Passage, s3gate
from services.stores import OBJECT_STORES, StorageFolder, new_folder
from services.threads import drain_all, ids, opened

SPEC = """\
pipeline: {name}
source: {{generate: {{records: 40, partitions: 2, bad_ratio: 0}}}}
table: {{path: "{uri}/events", columns: [{{name: id, type: bigint}}]{more}}}
storage: {storage}
"""
BY_SPARK = ", cluster_by: [id]"  # only Spark writes clustered tables


@pytest.fixture(params=OBJECT_STORES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    return new_folder(request.param, request, tmp_path)


def spec_text(folder: StorageFolder, monkeypatch: pytest.MonkeyPatch, name: str = "cloud", more: str = "") -> str:
    storage = json.dumps(folder.spec_settings(monkeypatch))
    return SPEC.format(name=name, uri=folder.uri, more=more, storage=storage)


def test_the_check_of_a_store_finds_no_error(lake: StorageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = loads(spec_text(lake, monkeypatch))
    assert [finding for finding in online(spec) if finding.severity == "error"] == []


@pytest.mark.slow
def test_a_pipeline_from_the_command_line(lake: StorageFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text(spec_text(lake, monkeypatch))
    done = run_cli(["run", file, "--until", "latest", "--json"])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    (spec,) = loads(file.read_text())
    assert len(ids(f"{lake.uri}/events", spec)) == 40
    again = run_cli(["run", file, "--until", "latest", "--json"])
    assert again.returncode == 0, again.stderr
    assert len(ids(f"{lake.uri}/events", spec)) == 40


@pytest.mark.slow
def test_spark_writes_from_the_command_line(
    lake: StorageFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text(spec_text(lake, monkeypatch, more=BY_SPARK))
    done = run_cli(["run", file, "--until", "latest", "--json"])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    (spec,) = loads(file.read_text())
    assert len(ids(f"{lake.uri}/events", spec)) == 40


def test_the_life_of_a_table(lake: StorageFolder) -> None:
    """Every engine but Spark: commits, queries, compaction, upserts, checkpoints of the log, vacuum."""
    table = Table.get_or_create(f"{lake.uri}/orders", {"id": "bigint", "day": "string"}, ["day"], storage=lake.settings)
    for number in range(12):
        table.bulk_insert([{"id": number, "day": day} for day in ("a b", "ü/50%")])
    assert table.query().where("day = 'ü/50%'").count() == 12
    table.checkpoint()
    table.bulk_insert([{"id": 12, "day": "a b"}])
    table.optimize()
    assert table.delete("id < 3").rows == 6
    assert table.query().count() == 19
    assert Table.list_tables(lake.uri, Profile(**lake.settings)) == [table.path]
    assert table.vacuum("0s", force=True).files
    assert table.query().count() == 19


def test_a_missing_bucket_is_created_on_request(lake: StorageFolder) -> None:
    uri = lake.uri.replace("://b-", "://new-")
    store = Store(uri, Profile(**lake.settings))
    with pytest.raises(PermissionDenied):
        store.put("key", b"")
    store.create_bucket()
    store.put("key", b"")
    store.create_bucket()
    assert store.get("key") == b""


def test_a_pipeline_creates_the_buckets_that_it_writes(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and state may be in different ones; each is checked for put-if-absent."""
    names = [f"new-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    folder = StorageFolder("s3", f"s3://{names[0]}/lake", {"s3": s3.settings})
    text = spec_text(folder, monkeypatch) + f"state: s3://{names[1]}/state\n"
    (spec,) = loads(text)
    with pytest.raises(PermissionDenied, match=names[1]) as error:
        Pipeline(spec, no_spark, recovery=StartupRecovery()).take_lease()
    assert "storage.create_bucket" in error.value.hint
    found = [(each.severity, each.key, "NoSuchBucket" in each.message) for each in online(spec)]
    assert found == [("error", "storage", True), ("error", "table.path", True)]
    (spec,) = loads(text.replace("storage: {", "storage: {create_bucket: true, "))
    found = [(each.severity, each.key, "the pipeline creates it" in each.message) for each in online(spec)]
    assert found == [("warning", "storage.create_bucket", True)] * 2
    with Pipeline(spec, no_spark, recovery=StartupRecovery()).take_lease():
        stores = [Store(uri, Profile(s3.settings)) for uri in (spec.table.path, spec.state_uri)]
        assert [[item.path for item in store.list()] for store in stores] == [[], ["lease/000000000001"]]
    assert list(online(spec)) == []


@pytest.mark.usefixtures("spark")
def test_pipelines_of_one_process_have_their_own_profiles(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "other", key="other") as other:
        folders = [
            StorageFolder("s3", f"s3://{bucket}/lake", {"s3": s3.settings}),
            StorageFolder("s3", f"s3://{other.bucket()}/lake", {"s3": other.settings}),
        ]
        names = ("first", "second")
        texts = [spec_text(folder, monkeypatch, name, BY_SPARK) for name, folder in zip(names, folders, strict=True)]
        specs = [loads(text)[0] for text in texts]
        assert drain_all(specs, 300) == {"first": None, "second": None}
        assert [len(ids(spec.table.path, spec)) for spec in specs] == [40, 40]


def test_spark_refuses_two_profiles_for_one_bucket(spark: Any, s3: S3, bucket: str) -> None:
    Store(f"s3://{bucket}/x", Profile(s3.settings)).configure_spark(spark)
    other = Store(f"s3://{bucket}/x", Profile({**s3.settings, "secret_access_key": "CANARY"}))
    with pytest.raises(UsageError, match=rf"{bucket}\.secret\.key") as error:
        other.configure_spark(spark)
    assert "CANARY" not in str(error.value)


def test_spark_without_the_connector_of_a_store_is_named(spark: Any) -> None:
    store = Store("gs://lake/x", Profile(gcs={"endpoint": "http://127.0.0.1:9", "allow_http": True}))
    with pytest.raises(UsageError, match=r"already runs in this process without gcs-connector.*\.jar"):
        store.configure_spark(spark)


# ---- S3: requests with the bucket in the host name ----


class _Proxy(Passage):
    """A forward proxy for all hosts, which stand for one server."""

    def forward(self, body: bytes) -> Answer:
        self.hosts.append(self.headers["Host"])
        self.path = urlsplit(self.path)._replace(scheme="", netloc="").geturl()
        return super().forward(body)

    hosts: list[str] = []  # noqa: RUF012  # of all requests


@pytest.mark.usefixtures("spark")
def test_virtual_host_style(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "s3", virtual_host="s3.test") as server, s3gate(server.endpoint, _Proxy) as proxy:
        bucket, port = server.bucket(), str(urlsplit(proxy.endpoint).port)
        options = {"proxy_url": proxy.endpoint, "fs.s3a.proxy.host": "127.0.0.1", "fs.s3a.proxy.port": port}
        settings = {**server.settings, "endpoint": "http://s3.test", "path_style": False, "options": options}
        folder = StorageFolder("s3", f"s3://{bucket}/lake", {"s3": settings})
        (spec,) = loads(spec_text(folder, monkeypatch, more=BY_SPARK))
        assert drain_all([spec], 120) == {"cloud": None}
        assert len(ids(spec.table.path, spec)) == 40
        assert set(_Proxy.hosts) == {f"{bucket}.s3.test"}
        named = Store(folder.uri, Profile({**settings, "endpoint": f"http://{bucket}.s3.test"}))
        assert named.get("events/_delta_log/00000000000000000000.json")
        conf = named.hadoop_conf
        assert conf[f"fs.s3a.bucket.{bucket}.endpoint"] == "http://s3.test"
        assert f"fs.s3a.bucket.{bucket}.path.style.access" not in conf


# ---- Azure: kinds of credentials ----


def account_sas(key: str) -> str:
    """A shared access signature of the account, for an hour."""
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    values = {"sv": "2021-08-06", "ss": "b", "srt": "sco", "sp": "rwdlac", "se": until, "spr": "https,http"}
    text = [ACCOUNT, values["sp"], "b", "sco", "", until, "", values["spr"], values["sv"], "", ""]
    signature = hmac.new(base64.b64decode(key), "\n".join(text).encode(), hashlib.sha256).digest()
    return urlencode({**values, "sig": base64.b64encode(signature).decode()})


@pytest.fixture(params=["key", "sas", "connection", "environment", "connection_environment"])
def azure_settings(
    request: pytest.FixtureRequest, azure: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    place = {"endpoint": azure.endpoint, "allow_http": True}
    connection = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azure.endpoint};"
    if request.param == "environment":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        return place
    if request.param == "connection_environment":
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        return {"allow_http": True}
    return {
        "key": {**place, "account_name": ACCOUNT, "account_key": KEY},
        "sas": {**place, "account_name": ACCOUNT, "sas_token": "?" + account_sas(KEY)},
        "connection": {"connection_string": connection, "allow_http": True},
    }[request.param]


@pytest.mark.slow
def test_every_kind_of_azure_credentials(azure: AzureServer, azure_settings: dict[str, Any]) -> None:
    """obstore, delta-rs and pyarrow; Spark has a run of its own."""
    bucket = azure.bucket()
    for uri in (f"az://{bucket}/t", f"abfss://{bucket}@{ACCOUNT}.dfs.core.windows.net/t2"):
        table = Table.get_or_create(uri, {"id": "bigint"}, storage={"azure": azure_settings})
        table.bulk_insert([{"id": 1}])
        assert table.query().records() == [{"id": 1}]


@pytest.mark.slow
def test_credentials_of_the_spec_exclude_those_of_the_environment(
    azure: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    settings = {"endpoint": azure.endpoint, "allow_http": True, "account_name": ACCOUNT}
    store = Store(f"az://{azure.bucket()}/t", Profile(azure={**settings, "sas_token": account_sas(KEY)}))
    store.put("key", b"x")
    assert Table.get_or_create(store.uri, {"id": "bigint"}, storage=store.profile).query().count() == 0


# ---- S3: what AWS clients read from the environment ----


@pytest.fixture
def aws(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without keys in the environment; its files are to be written."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def works_everywhere(bucket: str) -> None:
    """obstore, delta-rs and pyarrow reach a bucket."""
    table = Table.get_or_create(f"s3://{bucket}/t", {"id": "bigint"})
    table.bulk_insert([{"id": 1}])
    assert table.query().records() == [{"id": 1}]
    assert opened(f"s3://{bucket}/t").version() == 1
    store = Store(f"s3://{bucket}/t")
    assert store.bucket is not None
    assert store.access.arrow_filesystem(store.bucket).get_file_info(FileSelector(f"{bucket}/t"))


def keys(s3: S3) -> str:
    return f"aws_access_key_id = {s3.key}\naws_secret_access_key = {s3.secret}\n"


def test_a_profile_of_the_aws_files(aws: Path, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "aws_access_key_id = no\naws_secret_access_key = no\n"
    (aws / "credentials").write_text(f"[default]\n{wrong}[lake]\n{keys(s3)}")
    (aws / "config").write_text(f"[profile lake]\nregion = eu-north-1\ns3 =\n  endpoint_url = {s3.endpoint}\n")
    with pytest.raises(AuthenticationFailed):
        Store(f"s3://{bucket}").put("key", b"")
    monkeypatch.setenv("AWS_PROFILE", "lake")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    works_everywhere(bucket)
    conf = Store(f"s3://{bucket}").hadoop_conf
    assert conf[f"fs.s3a.bucket.{bucket}.access.key"] == s3.key
    assert conf[f"fs.s3a.bucket.{bucket}.endpoint.region"] == "eu-north-1"
    assert conf[f"fs.s3a.bucket.{bucket}.endpoint"] == s3.endpoint


def test_a_profile_of_the_spec_wins_over_keys_of_the_environment(
    aws: Path, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "no")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "no")
    (aws / "credentials").write_text(f"[lake]\n{keys(s3)}")
    Store(f"s3://{bucket}", Profile({"profile": "lake"})).put("key", b"")


@pytest.mark.usefixtures("aws")
def test_keys_of_the_spec_are_not_mixed_with_a_token_of_the_environment(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "of-another-account")
    with s3gate(s3.endpoint, _Tokens) as gate:
        settings = {**s3.settings, "endpoint": gate.endpoint}
        table = Table.get_or_create(f"s3://{bucket}/t", {"id": "bigint"}, storage={"s3": settings})
        table.bulk_insert([{"id": 1}])
        assert table.query().records() == [{"id": 1}]
    assert set(_Tokens.seen) == {None}


class _Tokens(Passage):
    """A server that notes session tokens."""

    seen: list[str | None] = []  # noqa: RUF012

    def forward(self, body: bytes) -> Answer:
        self.seen.append(self.headers["x-amz-security-token"])
        return super().forward(body)


def test_a_profile_with_a_process(aws: Path, s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = {"Version": 1, "AccessKeyId": s3.key, "SecretAccessKey": s3.secret, "Expiration": "2100-01-01T00:00:00Z"}
    (aws / "keys.json").write_text(json.dumps(output))
    (aws / "config").write_text(f"[profile lake]\ncredential_process = cat {aws / 'keys.json'}\n")
    monkeypatch.setenv("AWS_PROFILE", "lake")
    works_everywhere(bucket)
    (aws / "config").write_text("[profile lake]\ncredential_process = false\n")
    with pytest.raises(AuthenticationFailed, match="exit code 1"):
        Table(f"s3://{bucket}/t").query().count()


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        ("[default]\nregion = x\n", "AWS profile 'lake' not found"),
        ("[profile lake]\nsso_session = corp\n", "'lake' uses sso_session"),
        ("[profile lake]\nrole_arn = arn:x\nsource_profile = default\n", "'lake' uses role_arn"),
        ("no section", "is not a valid AWS configuration file"),
    ],
)
def test_a_profile_that_cannot_be_used_is_named(
    aws: Path, config: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "lake")
    (aws / "config").write_text(config)
    with pytest.raises(UsageError, match=seen):
        Store("s3://lake/x").get("key")
    assert Store(str(aws)).exists("config")  # local folders need no profile


@contextmanager
def credentials_endpoint(s3: S3) -> Iterator[str]:
    """A server that gives the keys of a role to containers."""
    answer = {"AccessKeyId": s3.key, "SecretAccessKey": s3.secret, "Token": "", "Expiration": "2100-01-01T00:00:00Z"}

    class Role(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Role)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/role"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("aws")
def test_the_role_of_a_container(s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    with credentials_endpoint(s3) as endpoint:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", endpoint)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        works_everywhere(bucket)
    provider = Store(f"s3://{bucket}").hadoop_conf[f"fs.s3a.bucket.{bucket}.aws.credentials.provider"]
    assert provider.endswith("DefaultCredentialsProvider")
