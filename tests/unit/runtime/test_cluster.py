"""Settings of an application on a cluster, the archives for its executors, and the command of spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SetupError, UsageError
from headrace.runtime import environment_archive, session
from headrace.runtime.cluster import Cluster, driver_environment, properties_text, write_properties
from headrace.runtime.submit import submit_command

MASTER = "spark://10.0.0.1:7077"


def settings_of(**more: Any) -> dict[str, str]:
    return Cluster(MASTER, environment="installed", **more).settings(session.settings(), [Path("/jars/delta.jar")])


def test_settings_of_one_process_do_not_reach_a_cluster() -> None:
    settings = settings_of()
    for name in ("spark.driver.host", "spark.python.daemon.module", "spark.sql.shuffle.partitions", "spark.local.dir"):
        assert name not in settings
    assert settings["spark.master"] == MASTER
    assert settings["spark.jars"] == "file:///jars/delta.jar"
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_executors() -> None:
    settings = settings_of(count=3, cores=4, memory="2g")
    assert settings["spark.executor.instances"] == "3"
    assert settings["spark.executor.cores"] == "4"
    assert settings["spark.executor.memory"] == "2g"
    assert settings["spark.cores.max"] == "12"
    assert "spark.cores.max" not in settings_of()


def test_settings_of_the_spec_override() -> None:
    assert settings_of(conf={"spark.speculation": "true"})["spark.speculation"] == "true"


def test_executors_unpack_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="does not exist"):
        Cluster(MASTER).settings({}, [])
    environment_archive.environment_path().write_bytes(b"")
    settings = Cluster(MASTER).settings({}, [])
    environment, package = settings["spark.archives"].split(",")
    assert environment == f"{environment_archive.environment_path().as_uri()}#environment"
    assert package.endswith("#headrace-package")
    assert settings["spark.pyspark.python"] == "./environment/bin/python"
    own = Cluster(MASTER, environment="s3a://lake/environment.tar.gz").settings({}, [])
    assert own["spark.archives"].startswith("s3a://lake/environment.tar.gz#environment,")


def test_headrace_itself_is_an_archive_that_can_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = environment_archive.build_package()
    assert environment_archive.build_package() == path
    with tarfile.open(path) as archive:
        assert {member.uid for member in archive} == {0}
        archive.extractall(tmp_path / "unpacked", filter="data")
    code = "import headrace.version; print(headrace.version.__file__)"
    command = [sys.executable, "-SIc", f"import sys; sys.path.insert(0, {str(tmp_path / 'unpacked')!r}); {code}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith(str(tmp_path / "unpacked"))


def test_the_packages_are_those_that_headrace_requires() -> None:
    names = {package.name.lower() for package in environment_archive._required_packages()}
    assert {"pyspark", "pyarrow", "duckdb", "deltalake", "obstore", "py4j", "pydantic-core"} <= {
        name.replace("_", "-") for name in names
    }
    assert not names & {"pytest", "mypy", "hypothesis", "pandas", "headrace"}


def test_the_driver_listens_for_other_machines(tmp_path: Path) -> None:
    given = {"SPARK_LOCAL_IP": "127.0.0.1", "CLASSPATH": "a.jar", "YARN_CONF_DIR": "/etc/yarn"}
    env = driver_environment(given, tmp_path)
    assert "SPARK_LOCAL_IP" not in env
    assert env["CLASSPATH"] == "/etc/yarn:a.jar"


def test_properties_are_private_and_escaped(tmp_path: Path) -> None:
    path = write_properties(tmp_path, {"spark.a": "x\\y\nz"})
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_text() == properties_text({"spark.a": "x\\y\nz"}) == "spark.a=x\\\\y\\nz\n"


# ---- spark-submit ----


def command_of(tmp_path: Path, deploy_mode: str = "client", master: str = "yarn", **settings: str) -> list[str]:
    return submit_command(
        {"spark.master": master, **settings},
        Path("/app/submitted.py"),
        ["/specs/shop.yaml"],
        memory="2g",
        deploy_mode=deploy_mode,
        files=[Path("/specs/shop.yaml")],
        secrets_file=tmp_path / "spark.properties",
    )


def test_the_command_has_no_secret(tmp_path: Path) -> None:
    settings = {"spark.hadoop.fs.s3a.secret.key": "canary", "spark.hadoop.fs.s3a.endpoint": "https://s3"}
    command = command_of(tmp_path, **settings)
    assert "canary" not in " ".join(command)
    assert str(tmp_path / "spark.properties") in command
    assert "spark.hadoop.fs.s3a.endpoint=https://s3" in command
    assert "--properties-file" not in command_of(tmp_path)


def test_deploy_modes(tmp_path: Path) -> None:
    client, cluster = command_of(tmp_path), command_of(tmp_path, "cluster")
    assert client[-2:] == cluster[-2:] == ["/app/submitted.py", "/specs/shop.yaml"]
    assert client[client.index("--master") + 1] == "yarn"
    assert f"spark.pyspark.driver.python={sys.executable}" in client
    assert cluster[cluster.index("--files") + 1] == "/specs/shop.yaml"
    with pytest.raises(UsageError, match="does not run Python drivers"):
        command_of(tmp_path, "cluster", MASTER)


def test_the_cache_keeps_the_newest_archives(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"headrace-0.1.0-{number}.tar.gz"
        path.write_bytes(b"")
        os.utime(path, (number, number))
    environment_archive._delete_old(tmp_path / "headrace-0.1.0-5.tar.gz")
    assert sorted(path.name[15] for path in tmp_path.iterdir()) == ["2", "3", "4", "5"]


def test_executors_get_tokens_from_the_urls_of_the_specs_only() -> None:
    name = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
    assert f"{name}none" in settings_of()["spark.executor.extraJavaOptions"].split()
    urls = ("https://b.example.com/token", "file:///run/token")
    options = settings_of(token_urls=urls)["spark.executor.extraJavaOptions"].split()
    assert f"{name}file:///run/token,https://b.example.com/token" in options
