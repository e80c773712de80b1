"""The pipelines of running processes: of this user's processes on this machine, or of an HTTP endpoint."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import UsageError
from headrace.serve.access import TOKEN_VARIABLES, Role
from headrace.serve.control_client import running_processes
from headrace.spec.secrets import Secret
from headrace.spec.uris import is_loopback

_TIMEOUT = 5.0  # seconds
_MAX_RESPONSE = 64 * 1024 * 1024  # bytes
_MEMORY = re.compile(rb'^headrace_memory_bytes\{process="\w+"\} (\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LivePipeline:
    """A pipeline of a running process; None is unknown. Counts start at 0 with the process."""

    pipeline: str
    process: int | str  # process id, or URL of the endpoint
    state: str
    healthy: bool
    reason: str | None  # what is wrong, or why it is in this state
    lag: int | None
    lag_seconds: float | None
    records_per_second: float | None
    rates: Sequence[float | None]  # earlier ones, oldest first
    batch: int | None
    last_commit: str | None
    dead: int | None
    tables: int | None  # that have got a commit
    memory_bytes: int | None  # of the process with its children


@dataclass(frozen=True, slots=True)
class LivePipelines:
    """All of them at a moment; `warnings` names what does not answer."""

    pipelines: Sequence[LivePipeline]
    warnings: Sequence[str] = ()

    def events(self) -> Iterator[dict[str, Any]]:
        """The pipelines and the warnings as events."""
        for each in self.pipelines:
            yield {"event": "pipeline", **asdict(each)}
        for text in self.warnings:
            yield {"event": "warning", "pipeline": None, "text": text}


def pipelines_of_processes() -> LivePipelines:
    """The pipelines of this user's processes, by name."""
    processes = running_processes("status")
    pipelines = [
        _live_pipeline(row, process.pid, process.fields["memory_bytes"])
        for process in processes
        for row in process.pipelines
    ]
    warnings = [f"process {process.pid} {process.error}" for process in processes if process.error is not None]
    return LivePipelines(sorted(pipelines, key=lambda each: (each.pipeline, str(each.process))), warnings)


def _live_pipeline(row: Mapping[str, Any], process: int | str, memory: int | None) -> LivePipeline:
    """A pipeline from its health, or from the state alone while the process does not know more."""
    reason = row["reason"]["message"] if isinstance(row["reason"], Mapping) else row["reason"]
    tables = row.get("tables")
    return LivePipeline(
        pipeline=row["pipeline"],
        process=process,
        state=row["state"],
        healthy=row.get("healthy", False),
        reason="; ".join(row.get("problems", ())) or reason,
        lag=row.get("lag"),
        lag_seconds=row.get("lag_seconds"),
        records_per_second=row.get("records_per_second"),
        rates=row.get("rates", ()),
        batch=row.get("batch"),
        last_commit=row.get("last_commit"),
        dead=row.get("records", {}).get("dead"),
        tables=None if tables is None else len(tables),
        memory_bytes=memory,
    )


class EndpointClient:
    """Reads `/health` and `/metrics` of an HTTP endpoint."""

    def __init__(self, url: str, tokens: Mapping[Role, Secret], plaintext: bool = False) -> None:
        """UsageError for another URL than http(s)://host:port, and if a token would be sent unencrypted.

        `plaintext`: send it nevertheless.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise UsageError(f"Invalid URL: '{url}'.", hint="Use http://host:port or https://host:port.")
        token = tokens.get(Role.VIEWER) or tokens.get(Role.OPERATOR)
        if token is not None and parts.scheme == "http" and not plaintext and not is_loopback(parts.hostname):
            raise UsageError(
                f"The token would be sent to {url} unencrypted.", hint="Use https://, or --plaintext to send it."
            )
        self._url, self._parts, self._token = url.rstrip("/"), parts, token

    def pipelines(self) -> LivePipelines:
        """The pipelines of the endpoint; UsageError if it does not answer, or refuses the token."""
        health = self._health()
        sizes = [float(size) for size in _MEMORY.findall(self._get("/metrics", (200,)))]
        memory = int(sum(sizes)) if sizes else None
        return LivePipelines([_live_pipeline(row, self._url, memory) for row in health["pipelines"]])

    def _health(self) -> dict[str, Any]:
        body = self._get("/health", (200, 503))
        with suppress(ValueError):
            health = json.loads(body)
            if isinstance(health, dict) and "pipelines" in health:
                return health
        raise UsageError(
            f"{self._url}/health is not that of Headrace: {body[:100]!r}.", hint="Use the URL that `--listen` prints."
        )

    def _get(self, path: str, expected: Sequence[int]) -> bytes:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token.reveal().strip()}"}
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                status, body = response.status, response.read(_MAX_RESPONSE)
        except (OSError, HTTPException, socket.gaierror) as error:
            raise UsageError(
                f"{self._url} does not respond: {error}.",
                hint="The address is that of `headrace run --listen`. For a certificate of a private CA, set "
                "SSL_CERT_FILE.",
            ) from None
        if status in expected:
            return body
        if status == 401:
            raise UsageError(
                f"{self._url} requires {'another' if self._token else 'a'} token.",
                hint=f"Set {TOKEN_VARIABLES[Role.VIEWER]} or {TOKEN_VARIABLES[Role.VIEWER]}_FILE.",
            )
        raise UsageError(
            f"{self._url}{path} responds with status {status}: {_message(body)}",
            hint="Use the URL that `headrace run --listen` prints.",
        )

    def _connection(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return HTTPConnection(host, port, timeout=_TIMEOUT)
        return HTTPSConnection(host, port, timeout=_TIMEOUT, context=ssl.create_default_context())


def _message(body: bytes) -> str:
    """The message of an error response, or its beginning."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
