"""The services every test may ask for; each is real, started once, and ended with the run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import Broker
from headrace.dev.spark_cluster import StandaloneCluster
from headrace.runtime import jars, session
from headrace.runtime.cluster import Cluster
from headrace.runtime.environment_archive import build_environment
from services.azure import AzureServer, azure_server
from services.certs import Certificates, make_certificates
from services.gcs import GcsServer, gcs_server
from services.kafka import make_topic
from services.postgres import Database, Postgres, postgres_server
from services.registry import RegistryServer, registry_server
from services.rivven import RivvenServer, rivven_server
from services.rivven import is_built as rivven_is_built
from services.s3 import S3, s3_server
from services.s3_programs import S3Program, minio_server, versitygw_server

USERS = {"ann": "ann-secret"}
_SERVICES = {"kafka", "secure_kafka", "topic", "new_topic", "s3", "azure", "gcs", "bucket", "registry", "cluster"}
_SERVICES |= {"rivven", "postgres", "database"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--on-cluster`: run the batches of tests in this process on a Spark cluster of two workers."""
    parser.addoption("--on-cluster", action="store_true")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they ask for, so that `-m "not spark"` needs no discipline."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        if "spark" in asked:
            item.add_marker(pytest.mark.spark)
        if asked & _SERVICES:
            item.add_marker(pytest.mark.service)
        if "rivven" in asked and not rivven_is_built():
            item.add_marker(pytest.mark.slow)


_FOREIGN = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_", "SPARK_", "PYSPARK_", "KAFKA_", "HEADRACE_LOG")
TESTS = "tests"  # name of the application
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No credentials, zones or folders of the person who runs the tests; the cache of jars is kept."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/dev/null")
        patch.setenv("TZ", "UTC")
        # A test's JVM does not live long enough to earn back what the optimising compiler costs.
        patch.setenv("HEADRACE_JVM", "-XX:TieredStopAtLevel=1")
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _no_imported_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of imported configurations are kept for the whole process, and every test is a process of its own."""
    monkeypatch.setattr("headrace.spec.secrets._provided", {})


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One plain broker for the whole run; use topics of your own."""
    with Broker.start(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """PEM files of a throw-away authority."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL for the whole run; use a database of your own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def database(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A new database whose role owns one schema."""
    database = postgres.database()
    monkeypatch.setenv("HOT_STORE_PASSWORD", database.password)
    return database


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Broker]:
    """A broker with listeners plain, tls, sasl and sasl_tls; its users are `USERS`."""
    folder = tmp_path_factory.mktemp("secure-kafka")
    with Broker.start(folder, listeners=("tls", "sasl", "sasl_tls"), tls=certificates.tls, users=USERS) as broker:
        yield broker


@pytest.fixture
def topic(kafka: Broker) -> str:
    """A new topic with two partitions."""
    return make_topic(kafka.bootstrap, f"t-{uuid.uuid4().hex[:12]}", 2)


@pytest.fixture
def new_topic(kafka: Broker) -> Callable[..., str]:
    """A maker of topics: `new_topic(partitions=4, retention_ms="1000")`."""
    return lambda partitions=1, name="", **config: make_topic(
        kafka.bootstrap, name or f"t-{uuid.uuid4().hex[:12]}", partitions, **config
    )


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """One S3 server for the whole run; use buckets of your own."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """One Azure server for the whole run; only for slow tests, because it needs Node."""
    with azure_server(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One GCS server for the whole run; only for slow tests, because it needs Go."""
    with gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Program]:
    """One MinIO for the whole run; only for slow tests, because it needs Go."""
    with minio_server(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Program]:
    """One versitygw for the whole run; only for slow tests, because it needs Go."""
    with versitygw_server(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def rivven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RivvenServer]:
    """One Rivven server for the whole run; use topics of your own. Its tests are slow where it must be built first."""
    with rivven_server(tmp_path_factory.mktemp("rivven")) as server:
        yield server


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One schema registry for the whole run; use subjects of your own."""
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark cluster of two workers for the whole run; the archive for its executors is built."""
    build_environment()
    folder = tmp_path_factory.mktemp("cluster")
    with StandaloneCluster.start(folder, workers=2, jvm=os.environ["HEADRACE_JVM"]) as started:
        yield started


@pytest.fixture
def bucket(s3: S3) -> str:
    """A new bucket."""
    return s3.bucket()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The session of this process, on two cores; whatever starts one in a test shares it.

    It compiles no queries: those of tests are tiny, and would spend their time in the compiler. Commands do.
    """
    extra, work = jars.ensure("s3"), tmp_path_factory.mktemp("work")
    cluster = _on_cluster(request) if request.config.getoption("--on-cluster") else None
    opened = session.start(TESTS, cores=2, conf=_INTERPRETED, extra_jars=extra, work=work, cluster=cluster)
    yield opened
    session.stop_session(opened)


def _on_cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster for pipelines whose specs have no master; their directories are on the machine of all nodes."""
    started: StandaloneCluster = request.getfixturevalue("cluster")
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    session._LOCAL = started.master
    return Cluster(started.master, memory="512m", conf=loopback)


@pytest.fixture(autouse=True)
def _no_session_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a Spark session of its own, which later tests would share without their settings."""
    yield
    shared = session._shared
    if shared is not None and shared.spark.sparkContext.appName != TESTS:
        session._drop(0)
        pytest.fail(f"{request.node.nodeid} or a test before it has left a Spark session")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """An empty folder for tables."""
    path = tmp_path / "lake"
    path.mkdir()
    return path
