"""The stacks of compose without containers: Headrace's command, environment and health check, on real servers."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from deltalake import DeltaTable

from headrace.dev.kafka import Broker, free_ports
from headrace.runtime.child_process import Child, spawn
from services.danube import BROKERS, PROGRAM, STAND_IN, TestProducer, broker
from services.kafka import produce
from services.postgres import Postgres, program
from services.s3 import S3
from services.wait import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
EVENT = {"event_type": "view", "channel": "web", "session_id": "s-1", "interaction_value": "7.5", "extra": "new"}


@dataclass
class Stack:
    """Headrace, started as the stack starts it; `values` are those of the file `.env`."""

    service: Mapping[str, Any]
    values: Mapping[str, str]
    replaced: Mapping[str, str]  # by what is on this machine
    child: Child
    log: Path

    def text(self, value: str) -> str:
        """A text of the file, for this machine."""
        return _replace(value, self.values, self.replaced)

    def health(self) -> int:
        """Exit code of the health check."""
        command = [
            sys.executable if word == "python3" else self.text(word) for word in self.service["healthcheck"]["test"][1:]
        ]
        address = self.text(_listens(self.service))
        environment = self.environment() | {"HEADRACE_PROBE_URL": f"http://{address}"}
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode

    def last(self) -> str:
        """The last events, without those of progress."""
        lines = [line for line in self.log.read_text().splitlines() if '"progress"' not in line]
        return "\n".join(lines[-20:])

    def environment(self) -> dict[str, str]:
        """Variables of the service."""
        return {name: self.text(value) for name, value in self.service["environment"].items()}

    def get(self, path: str, token: str = "") -> str:
        """A page of the endpoint."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return _open(f"http://{self.text(_listens(self.service))}{path}", headers)


def _count(connection: psycopg.Connection, query: str) -> int | None:
    """The result of a count; None before the table exists."""
    with connection.transaction(), suppress(psycopg.errors.UndefinedTable), connection.transaction():
        row = connection.execute(query).fetchone()
        return None if row is None else row[0]
    return None


def test_the_analytics_stack(
    kafka: Broker, new_topic: Callable[..., str], s3: S3, postgres: Postgres, tmp_path: Path
) -> None:
    """Events from Kafka and by HTTP reach the tables of a private bucket, and PostgreSQL; no page has a secret."""
    topic, bucket, database = new_topic(3), f"b-{secrets.token_hex(6)}", f"analytics_{secrets.token_hex(6)}"
    collector = f"127.0.0.1:{next(iter(free_ports()))}"
    replaced = {
        "kafka:29092": kafka.bootstrap,
        "topics: [analytics-events]": f"topics: [{topic}]",
        "0.0.0.0:3001": collector,
        "host: postgres": f"host: 127.0.0.1\n    port: {postgres.port}",
        "database: analytics": f"database: {database}",
    }
    with _stack("analytics", tmp_path, s3, bucket, replaced) as stack:
        _create_database(postgres, database, stack)
        produce(kafka.bootstrap, topic, [json.dumps(EVENT).encode()] * 100)
        eventually(lambda: stack.health() == 0, within=120, say=stack.last)
        assert _post(f"http://{collector}/analytics", EVENT, stack.values["COLLECTOR_TOKEN"])["success"]
        events, collected = (f"s3://{bucket}/delta/{table}" for table in ("analytics-events", "collected-events"))
        rows = eventually(lambda: _rows(events, s3, 100), within=120, say=stack.last)
        assert rows[0]["interaction_value"] == 7.5
        assert rows[0]["extra"] == "new"
        assert rows[0]["device_id"] == ""
        [row] = eventually(lambda: _rows(collected, s3, 1), within=120, say=stack.last)
        assert row["session_id"] == "s-1"
        with postgres.connect(database) as connection:
            for schema, count in (("headrace", 100), ("collected", 1)):
                counted = f"SELECT count(*) FROM {schema}.analytics_events WHERE interaction_value = 7.5"
                eventually(lambda text=counted, n=count: _count(connection, text) == n, within=120, say=stack.last)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            _open(f"{s3.endpoint}/{bucket}/delta/analytics-events/_delta_log/{0:020}.json")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            stack.get("/health")
        pages = stack.get("/health", stack.values["HEADRACE_VIEWER_TOKEN"])
        pages += stack.get("/metrics", stack.values["HEADRACE_OPERATOR_TOKEN"])
    hidden = {name: value for name, value in stack.values.items() if name != "MINIO_ROOT_USER"}  # a name
    assert not [name for name, value in hidden.items() if value in pages + stack.log.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKERS)
def test_the_danube_stack(kind: str, s3: S3, tmp_path: Path) -> None:
    """The first message is that of the stack's own producer, where its program is."""
    bucket = f"b-{secrets.token_hex(6)}"
    with broker(kind, tmp_path) as url:
        if kind == STAND_IN:
            TestProducer(url, "/default/payments").send([b'{"payment_id": "first", "amount": 0.0, "currency": "EUR"}'])
        else:
            topics = yaml.safe_load((DEPLOY / "compose/danube/compose.yaml").read_text())["services"]["topics"]
            command = [str(PROGRAM.with_name("danube-cli")), *topics["command"]]
            subprocess.run([word.replace("http://danube:6650", url) for word in command], timeout=60, check=True)
        with _stack("danube", tmp_path, s3, bucket, {"http://danube:6650": url}) as stack:
            eventually(lambda: stack.health() == 0, within=120, say=stack.last)
            payment = b'{"payment_id": "p-1", "amount": 9.5, "currency": "EUR"}'
            TestProducer(url, "/default/payments", name="second").send([payment])
            table = f"s3://{bucket}/tables/payments"
            rows = eventually(lambda: _rows(table, s3, 1), within=120, say=stack.last)
            assert {"payment_id": "p-1", "amount": 9.5, "currency": "EUR"}.items() <= rows[-1].items()


@contextmanager
def _stack(name: str, folder: Path, s3: S3, bucket: str, replaced: Mapping[str, str]) -> Iterator[Stack]:
    source = DEPLOY / "compose" / name
    service = yaml.safe_load((source / "compose.yaml").read_text())["services"]["headrace"]
    example = (source / "env.example").read_text()
    values = {variable: secrets.token_hex(16) for variable in re.findall(r"^(\w+)=$", example, re.MULTILINE)}
    values |= {"MINIO_ROOT_USER": s3.key, "MINIO_ROOT_PASSWORD": s3.secret}
    replaced = {
        **replaced,
        "/etc/headrace/specs": str(folder / "specs"),
        "/opt/headrace/probe.py": str(DEPLOY / "docker/probe.py"),
        "/var/lib/headrace": str(folder / "state"),
        "http://minio:9000": s3.endpoint,
        "s3://analytics/": f"s3://{bucket}/",
        "s3://lake/": f"s3://{bucket}/",
        "0.0.0.0:9187": f"127.0.0.1:{next(iter(free_ports()))}",
    }
    (folder / "specs").mkdir()
    for spec in (source / "specs").glob("*.yaml"):
        (folder / "specs" / spec.name).write_text(_replace(spec.read_text(), values, replaced))
    log = folder / "headrace.log"
    arguments = [_replace(word, values, replaced) for word in service["command"]]
    environment = {variable: _replace(text, values, replaced) for variable, text in service["environment"].items()}
    program = str(Path(sys.executable).with_name("headrace"))
    child = spawn([program, *arguments], log=log, env=os.environ | environment)
    try:
        yield Stack(service, values, replaced, child, log)
        child.terminate()
        assert child.wait(45) == 0, log.read_text()
    finally:
        child.stop()


def _create_database(postgres: Postgres, name: str, stack: Stack) -> None:
    """As the image of PostgreSQL does: a database, and the script of the stack by its superuser."""
    with postgres.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
        access = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGPASSWORD": connection.info.password}
    variables = {
        "POSTGRES_USER": "postgres",
        "POSTGRES_DB": name,
        "PATH": f"{program('psql').parent}:{os.environ['PATH']}",
    }
    variables |= {"HOT_STORE_PASSWORD": stack.values["HOT_STORE_PASSWORD"]}
    script = ["sh", str(DEPLOY / "compose/analytics/postgres-init.sh")]
    subprocess.run(script, env=os.environ | access | variables, timeout=60, check=True)


def _replace(text: str, values: Mapping[str, str], replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: values[match[1]], text)


def _listens(service: Mapping[str, Any]) -> str:
    command: list[str] = service["command"]
    return command[command.index("--listen") + 1]


def _rows(table: str, s3: S3, expected: int) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(table, s3.options):
        return []
    rows: list[dict[str, Any]] = DeltaTable(table, storage_options=s3.options).to_pyarrow_table().to_pylist()
    return rows if len(rows) >= expected else []


def _post(url: str, event: Mapping[str, Any], token: str) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    answer: dict[str, Any] = json.loads(_open(url, headers, json.dumps(event).encode()))
    return answer


def _open(url: str, headers: Mapping[str, str] | None = None, data: bytes | None = None) -> str:
    request = urllib.request.Request(url, data, dict(headers or {}))  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return str(response.read().decode())
