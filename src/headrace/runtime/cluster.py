"""Spark on a cluster: settings of the driver's JVM that executors on other machines require."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import SetupError, first_line
from headrace.runtime.environment_archive import PACKAGE, UNPACKED, build_package, existing_environment
from headrace.runtime.kafka_options import kafka_options

ARCHIVE, INSTALLED = "archive", "installed"
_EXECUTOR_JVM = ("-Duser.timezone=UTC", "-XX:+UseParallelGC", "-XX:+ExitOnOutOfMemoryError")

# Settings of a session in one process that do not hold for executors of their own: their daemon must start before
# Headrace is known to be there, folders of the driver do not exist, and merges use more than two cores.
_LOCAL_ONLY = (
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.local.dir",
    "spark.python.daemon.module",
    "spark.python.unix.domain.socket.dir",
    "spark.sql.shuffle.partitions",
    "spark.sql.adaptive.enabled",
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and the resources of an application on it."""

    master: str
    count: int | None = None  # executors
    cores: int = 1  # of an executor
    memory: str = "1g"  # heap of an executor
    environment: str = ARCHIVE
    conf: Mapping[str, str] = field(default_factory=dict)
    token_urls: tuple[str, ...] = ()  # of Kafka's clients

    @property
    def python(self) -> str:
        """Python program on executors."""
        return "python3" if self.environment == INSTALLED else f"./{UNPACKED}/bin/python"

    def settings(self, local: Mapping[str, str], jars: Sequence[Path]) -> dict[str, str]:
        """Settings of the application, from those of a session in one process."""
        kept = {name: value for name, value in local.items() if name not in _LOCAL_ONLY}
        return kept | self._resources() | self._environment(jars) | dict(self.conf)

    def start_error(self, error: Exception) -> SetupError:
        """Error for an application that could not start; Spark waits a minute for an unreachable master."""
        return SetupError(
            f"Spark cannot start an application on {self.master}: {first_line(error)}",
            hint="Check spark.master and that this machine reaches it; see Spark's log.",
        )

    def _resources(self) -> dict[str, str]:
        resources = {
            "spark.master": self.master,
            "spark.executor.cores": str(self.cores),
            "spark.executor.memory": self.memory,
            "spark.executorEnv.TZ": "UTC",
            "spark.executorEnv.MALLOC_ARENA_MAX": "2",
            "spark.executor.extraJavaOptions": " ".join((*_EXECUTOR_JVM, *kafka_options(self.token_urls))),
        }
        if self.count is not None:
            resources["spark.executor.instances"] = str(self.count)
            if self.master.startswith("spark://"):
                resources["spark.cores.max"] = str(self.count * self.cores)
        return resources

    def _environment(self, jars: Sequence[Path]) -> dict[str, str]:
        """Spark passes the jars and the archive to executors, which unpack it in their work folder."""
        settings = {"spark.jars": ",".join(path.as_uri() for path in jars), "spark.pyspark.python": self.python}
        if self.environment == INSTALLED:
            return settings
        archive = existing_environment().as_uri() if self.environment == ARCHIVE else self.environment
        archives = f"{archive}#{UNPACKED},{build_package().as_uri()}#{PACKAGE}"
        # Headrace keeps small caches in this folder; the user of an executor may have no home directory.
        return settings | {"spark.archives": archives, "spark.executorEnv.XDG_STATE_HOME": "."}


def properties_text(settings: Mapping[str, str]) -> str:
    """Settings as a Java properties file."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in settings.items()}
    return "".join(f"{name}={value}\n" for name, value in escaped.items())


def driver_environment(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Environment of the driver's JVM: executors connect to it from other machines, so it listens on all addresses."""
    own = {name: value for name, value in environment.items() if name != "SPARK_LOCAL_IP"}
    folders = [own[name] for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if own.get(name)]
    class_path = os.pathsep.join([*folders, own["CLASSPATH"]])
    return own | {"SPARK_LOCAL_DIRS": str(scratch), "CLASSPATH": class_path}


def write_properties(scratch: Path, settings: Mapping[str, str]) -> Path:
    """Settings for SparkSubmit, which prepares the application for its master; they may contain credentials."""
    path = scratch / "spark.properties"
    path.touch(mode=0o600)
    path.write_text(properties_text(settings))
    return path


def link_driver_python(scratch: Path) -> None:
    """Make the Python program of executors work in the folder of the driver too, which plans Python data sources."""
    program = scratch / UNPACKED / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o700)
