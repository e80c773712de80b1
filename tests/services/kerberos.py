"""A Kerberos KDC (Apache Kerby, from Maven Central) as a child, and the settings of a broker that asks it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.runtime import jars
from headrace.runtime.child_process import Child, spawn
from headrace.runtime.java import find_java
from services.wait import eventually

_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
_PROPERTIES = {
    "org.name": "TEST",
    "org.domain": "HEADRACE",
    "kdc.bind.address": "127.0.0.1",
    "kdc.port": "0",
    "debug": "false",
    "instance": "DefaultKrbServer",
    "transport": "TCP",
    "max.ticket.lifetime": "86400000",
    "max.renewable.lifetime": "604800000",
}


@dataclass
class Kdc:
    """A running KDC: the configuration of its clients, and a keytab with the keys of all principals."""

    config: Path
    keytab: Path
    child: Child

    @property
    def jvm(self) -> str:
        """Option of a JVM that uses this KDC."""
        return f"-Djava.security.krb5.conf={self.config}"

    def broker_settings(self, listener: str) -> dict[str, str]:
        """Settings of a broker whose listener accepts tickets of this KDC."""
        login = f'{_MODULE} required useKeyTab=true storeKey=true keyTab="{self.keytab}" principal="kafka/localhost";'
        return {
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            f"listener.name.{listener}.gssapi.sasl.jaas.config": login,
        }


@contextmanager
def kdc_server(folder: Path, principals: tuple[str, ...]) -> Iterator[Kdc]:
    """Run a KDC with the principals of a broker and of clients for the length of the block."""
    work, keytab, log = folder / "work", folder / "all.keytab", folder / "kdc.log"
    work.mkdir(parents=True)
    properties = folder / "kdc.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in _PROPERTIES.items()))
    class_path = os.pathsep.join(map(str, jars.ensure("kdc")))
    command = [*find_java().command, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    command += ["org.apache.hadoop.minikdc.MiniKdc", str(work), str(properties), str(keytab)]
    child = spawn([*command, "kafka/localhost", *principals], log=log)

    def is_ready() -> bool:
        if child.poll() is not None:
            raise RuntimeError(f"the KDC has ended: {log.read_text()[-1000:]}")
        return "created keytab" in log.read_text()

    try:
        eventually(is_ready, within=60, say=log.read_text)
        yield Kdc(work / "krb5.conf", keytab, child)
    finally:
        child.stop(2)
