"""The services every test may ask for; each is real, started once, and ended with the run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import Broker
from headrace.runtime import jars, session
from services.certs import Certificates, make_certificates
from services.kafka import make_topic
from services.registry import RegistryServer, registry_server
from services.s3 import S3, s3_server

USERS = {"ann": "ann-secret"}
_SERVICES = {"kafka", "secure_kafka", "topic", "new_topic", "s3", "bucket", "registry"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they ask for, so that `-m "not spark"` needs no discipline."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        if "spark" in asked:
            item.add_marker(pytest.mark.spark)
        if asked & _SERVICES:
            item.add_marker(pytest.mark.service)


_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No credentials, zones or folders of the person who runs the tests; the cache of jars is kept."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("AWS_", "SPARK_", "PYSPARK_", "KAFKA_", "HEADRACE_LOG"))]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("TZ", "UTC")
        # A test's JVM does not live long enough to earn back what the optimising compiler costs.
        patch.setenv("HEADRACE_JVM", "-XX:TieredStopAtLevel=1")
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


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
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One schema registry for the whole run; use subjects of your own."""
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def bucket(s3: S3) -> str:
    """A new bucket."""
    return s3.bucket()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of this process, on two cores; whatever starts one in a test shares it.

    It compiles no queries: those of tests are tiny, and would spend their time in the compiler. Commands do.
    """
    extra, work = jars.ensure("s3"), tmp_path_factory.mktemp("work")
    opened = session.start("tests", cores=2, conf=_INTERPRETED, extra_jars=extra, work=work)
    yield opened
    session.stop_session(opened)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """An empty folder for tables."""
    path = tmp_path / "lake"
    path.mkdir()
    return path
