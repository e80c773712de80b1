"""Single-node Kafka (KRaft) from the published jars, for the demo, tests and benchmarks."""

from __future__ import annotations

import base64
import os
import random
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import SetupError, UsageError
from headrace.runtime import class_archive, jars
from headrace.runtime.child_process import Child, spawn
from headrace.runtime.java import find_java

PROTOCOLS = {"plain": "PLAINTEXT", "tls": "SSL", "sasl": "SASL_PLAINTEXT", "sasl_tls": "SASL_SSL"}
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

# Single node without replication, no rebalance delay, small buffers: starts in seconds with little memory.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "3000",  # a killed broker can restart after this time
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "500",
}
_JVM = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """PEM files of the broker: key with certificate chain, and the CA of client certificates."""

    key_and_chain: Path
    authority: Path
    require_client_certificate: bool = False


@dataclass(slots=True)
class Broker:
    """Embedded broker: its directory, ports and process."""

    folder: Path
    ports: Mapping[str, int]
    users: Mapping[str, str] = field(repr=False)
    _command: Sequence[str] = field(repr=False)
    _child: Child | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        listeners: Sequence[str] = ("plain",),
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        tls: BrokerTls | None = None,
        users: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
        progress: jars.ReportDownload | None = None,
    ) -> Self:
        """Start a broker with its data in `folder`, on loopback ports, and wait until it is ready.

        `port` is the port of the plaintext listener; other ports are chosen. UsageError if `port` is in use.
        """
        if port is not None and not _bindable(port):
            raise UsageError(f"Port {port} is in use.", hint="Stop the process that uses it, or choose another port.")
        parts, java = jars.ensure("kafka", progress=progress), find_java(progress=progress)
        run = [*java.command, *_JVM, "-cp", os.pathsep.join(map(str, parts)), *class_archive.use("kafka", java, parts)]
        folder.mkdir(parents=True, exist_ok=True)
        ports = dict(zip(dict.fromkeys(("plain", *listeners, "controller")), free_ports(), strict=False))
        if port is not None:
            ports["plain"] = port
        properties = folder / "server.properties"
        properties.touch(mode=0o600)
        properties.write_text(_properties(folder, ports, tls, users or {}, settings or {}))
        if not (folder / "data" / "meta.properties").is_file():
            _format([*run, "kafka.tools.StorageTool"], properties)
        broker = cls(folder, ports, dict(users or {}), [*run, *jvm, "kafka.Kafka", str(properties)])
        broker._up()
        broker._add_scram_users()
        return broker

    @property
    def bootstrap(self) -> str:
        """Address of the plaintext listener."""
        return self.address("plain")

    def address(self, listener: str) -> str:
        """Address of a listener by name."""
        return f"127.0.0.1:{self.ports[listener]}"

    @property
    def pid(self) -> int | None:
        """Process id of the broker, if it runs."""
        return self._child.pid if self._child else None

    def wait(self, stop: threading.Event) -> None:
        """Block until `stop` is set; SetupError if the broker exits before that."""
        while not stop.wait(0.2):
            if self._child and self._child.poll() is not None:
                raise SetupError(f"Kafka exited: {_tail(self.folder / 'broker.log')}")

    def stop(self, within: float = 20) -> None:
        """Shut down cleanly."""
        if self._child:
            self._child.stop(within)
            self._child = None

    def kill(self) -> None:
        """Kill the process."""
        if self._child:
            self._child.crash()
            self._child = None

    def restart(self) -> None:
        """Restart with the same data and ports."""
        self.stop()
        self._up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _up(self, within: float = 90) -> None:
        self._child = spawn(self._command, log=self.folder / "broker.log", cwd=self.folder)
        deadline = time.monotonic() + within
        while not self._answers():
            if self._child.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise SetupError(f"Kafka did not start: {_tail(self.folder / 'broker.log')}")

    def _answers(self) -> bool:
        """Whether the broker answers a Kafka metadata request."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if not _listens(self.ports["plain"]):
            return False
        quiet = {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 2000}
        with suppress(KafkaException):
            return bool(AdminClient(quiet).list_topics(timeout=2).brokers)
        return False

    def _add_scram_users(self) -> None:
        """Create SCRAM users in the cluster metadata; PLAIN users are in the properties."""
        from confluent_kafka import admin

        if not any(listener.startswith("sasl") for listener in self.ports):
            return
        client = admin.AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for kind in (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512):
            strength = admin.ScramCredentialInfo(kind, 4096)
            upsertions = [admin.UserScramCredentialUpsertion(n, strength, p.encode()) for n, p in self.users.items()]
            for future in client.alter_user_scram_credentials(upsertions).values():
                future.result(20)


def _properties(
    folder: Path, ports: Mapping[str, int], tls: BrokerTls | None, users: Mapping[str, str], settings: Mapping[str, str]
) -> str:
    protocols = {name.upper(): PROTOCOLS.get(name, "PLAINTEXT") for name in ports}
    addresses = {name.upper(): f"{name.upper()}://127.0.0.1:{port}" for name, port in ports.items()}
    lines = {
        **_SETTINGS,
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(at for name, at in addresses.items() if name != "CONTROLLER"),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
        "log.dirs": str(folder / "data"),
        **_tls_settings(tls),
        **_sasl_settings([name for name in ports if name.startswith("sasl")], users),
        **settings,
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _tls_settings(tls: BrokerTls | None) -> dict[str, str]:
    if tls is None:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls.key_and_chain),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tls.authority),
        "ssl.client.auth": "required" if tls.require_client_certificate else "none",
    }


def _sasl_settings(listeners: Iterable[str], users: Mapping[str, str]) -> dict[str, str]:
    """Enable PLAIN and SCRAM on each SASL listener."""
    credentials = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    modules = {
        "PLAIN": f"org.apache.kafka.common.security.plain.PlainLoginModule required {credentials};",
        "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    }
    return {"sasl.enabled.mechanisms": ",".join(_MECHANISMS)} | {
        f"listener.name.{listener}.{kind.lower()}.sasl.jaas.config": module
        for listener in listeners
        for kind, module in modules.items()
    }


def _format(tool: Sequence[str], properties: Path) -> None:
    """Format the data directory, as Kafka requires before the first start."""
    first, *rest = uuid.uuid4().bytes
    cluster = base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")  # must not begin with a dash
    command = [*tool, "format", "-t", cluster, "-c", str(properties)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode:
        raise SetupError(f"Cannot format Kafka's storage: {(result.stderr or result.stdout).strip()[-500:]}")


def free_ports() -> Iterable[int]:
    """Free loopback ports below the ephemeral range, so that they are still free on a restart."""
    used: set[int] = set()
    while True:
        port = random.randint(15000, 32000)  # noqa: S311
        if port not in used and _bindable(port):
            used.add(port)
            yield port


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    time.sleep(0.05)
    return False


def _tail(log: Path, size: int = 800) -> str:
    return log.read_text(errors="replace")[-size:].strip() if log.is_file() else "no output"
