"""Standalone Spark cluster from PySpark's jars, on loopback, for the demo, tests and benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.dev.kafka import free_ports
from headrace.errors import SetupError
from headrace.runtime.child_process import Child, spawn
from headrace.runtime.java import find_java

_JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Duser.timezone=UTC")
_START_SECONDS = 60


@dataclass(slots=True)
class StandaloneCluster:
    """Master and workers with a folder each; workers have one core."""

    folder: Path
    memory: str
    jvm: str  # options of executors
    port: int = 0
    web_port: int = 0
    workers: list[Child] = field(default_factory=list)
    _master: Child | None = None

    @classmethod
    def start(cls, folder: Path, *, workers: int = 2, memory: str = "1g", jvm: str = "") -> Self:
        """Start a cluster and wait until its workers are registered; `jvm`: options of the JVMs of executors."""
        ports = free_ports()
        cluster = cls(folder, memory, jvm, next(iter(ports)), next(iter(ports)))
        listen = ["--host", "127.0.0.1", "--port", str(cluster.port), "--webui-port", str(cluster.web_port)]
        cluster._master = cluster._spawn("master", "org.apache.spark.deploy.master.Master", listen)
        cluster._wait_for(0)
        cluster.add_workers(workers)
        return cluster

    @property
    def master(self) -> str:
        """Address for `spark.master`."""
        return f"spark://127.0.0.1:{self.port}"

    def add_workers(self, count: int = 1) -> None:
        """Start more workers and wait until they are registered; executors have folders of their own below theirs."""
        alive = self.state()["aliveworkers"]
        for _ in range(count):
            name = f"worker-{len(self.workers)}"
            listen = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self.folder / name / "work")]
            size = ["--cores", "1", "--memory", self.memory]
            self.workers.append(
                self._spawn(name, "org.apache.spark.deploy.worker.Worker", [*listen, *size, self.master])
            )
        self._wait_for(alive + count)

    def state(self) -> dict[str, Any]:
        """The master's own account of workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=5) as response:
            state: dict[str, Any] = json.load(response)
            return state

    def stop(self) -> None:
        """Stop all processes and delete the folders of executors."""
        for child in (*self.workers, *filter(None, [self._master])):
            child.stop(5)
        self.delete_applications()

    def delete_applications(self) -> None:
        """Delete the folders of all applications, each of which has the unpacked environment."""
        for work in self.folder.glob("worker-*/work/app-*"):
            shutil.rmtree(work, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self, name: str, main: str, arguments: list[str]) -> Child:
        home = self.folder / name
        home.mkdir(parents=True)
        command = [*find_java().command, *_JVM, main, *arguments]
        return spawn(command, log=home / "log", env=_environment(home) | {"JDK_JAVA_OPTIONS": self.jvm}, cwd=home)

    def _wait_for(self, workers: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError, ValueError):
                if self.state()["aliveworkers"] >= workers:
                    return
            time.sleep(0.05)
        logs = [path.read_text(errors="replace")[-300:] for path in sorted(self.folder.glob("*/log"))]
        raise SetupError(f"The Spark cluster did not start within {_START_SECONDS} s.", hint="\n".join(logs))


def _environment(home: Path) -> dict[str, str]:
    """Environment of another machine: nothing of the driver's, only Java and Spark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed.", hint="Install pyspark==4.2.0 and try again.")
    spark = Path(spec.origin).parent
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "CLASSPATH": str(spark / "jars" / "*"),
        "TZ": "UTC",
    }
