"""A small JVM for Kafka's Java clients, beside that of Spark: it starts in a second, and `check` can use it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from headrace.errors import SetupError
from headrace.runtime import jars
from headrace.runtime.java import find_java
from headrace.runtime.kafka_options import kafka_options
from headrace.runtime.py4j_log import ignore_lost_connections

_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError")
_OF_PYSPARK = ("py4j-*", "slf4j-api-*", "lz4-java-*", "snappy-java-*", "zstd-jni-*")  # the last three: compression
_STOP_SECONDS = 5


@dataclass(frozen=True, slots=True)
class JavaGateway:
    """A running JVM; it ends with this process."""

    _gateway: Any
    _process: subprocess.Popen[bytes]

    @classmethod
    def start(cls) -> JavaGateway:
        """Start a JVM with Kafka's clients; SetupError if it ends at once."""
        from py4j.java_gateway import GatewayParameters
        from py4j.java_gateway import JavaGateway as Gateway

        class_path = os.pathsep.join(map(str, _class_path()))
        options = [*_JVM, *kafka_options(), *os.environ.get("HEADRACE_JVM", "").split()]
        command = [*find_java().command, *options, "-cp", class_path, "py4j.GatewayServer"]
        process = subprocess.Popen(
            [*command, "--die-on-broken-pipe", "--enable-auth", "0"],  # it ends when its stdin closes
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C does not end it before this process
        )
        port, secret = _address(process)
        ignore_lost_connections()
        return cls(Gateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret)), process)

    @property
    def jvm(self) -> Any:
        """Packages and classes, by name."""
        return self._gateway.jvm

    def has_ended(self) -> bool:
        """Whether the JVM has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the JVM."""
        self._gateway.gateway_client.is_connected = False  # Java objects that are still known need no release
        self._gateway.close()
        _end(self._process)


def _address(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Port and secret, which the gateway writes first."""
    lines: list[str] = []
    for line in process.stdout or ():
        lines.append(line.decode(errors="replace").strip())
        if len(lines) > 1 and lines[-2].isdigit():
            threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
            return int(lines[-2]), lines[-1]
    _end(process)
    if process.stdout is not None:
        process.stdout.close()
    raise SetupError(f"The JVM of Kafka's clients did not start: {' '.join(lines)[-500:]}", hint="Check HEADRACE_JVM.")


def _drain(output: IO[bytes]) -> None:
    """Read what a JVM writes, so that it does not wait."""
    with output:
        deque(output, maxlen=0)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(_STOP_SECONDS)
    if process.stdin is not None:
        process.stdin.close()


def _class_path() -> list[Path]:
    clients = [jar for jar in jars.ensure("spark") if jar.name.startswith("kafka-clients-")]
    return [*clients, *(jar for pattern in _OF_PYSPARK for jar in _jars_of_pyspark(pattern))]


def _jars_of_pyspark(pattern: str) -> list[Path]:
    module = find_spec("pyspark")
    if module is None or module.origin is None:
        raise SetupError("PySpark is not installed.", hint="Install headrace with its dependencies.")
    return sorted((Path(module.origin).parent / "jars").glob(f"{pattern}.jar"))
