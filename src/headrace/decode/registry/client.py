"""Schema registry client: Confluent's REST API, with bounded responses; schemas are cached without expiry."""

from __future__ import annotations

import json
import os
import socket
import ssl
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import Event, Timer
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote, urlsplit

from headrace.errors import AuthenticationFailed, PermissionDenied, RegistryUnreachable
from headrace.runtime.work_folder import shared_folder
from headrace.spec.registry import RegistrySpec
from headrace.spec.secrets import BadReference

Kind = Literal["AVRO", "PROTOBUF", "JSON"]
_KINDS = ("AVRO", "PROTOBUF", "JSON")
_ANSWER = 4 * 1024 * 1024  # bytes of one response
_TEXTS = 8 * 1024 * 1024  # characters of a schema with its references
_REFERENCES = 256
_DEPTH = 16  # depth of references
_KEPT = 4_096  # schemas in memory
_UNKNOWN_FOR = 30.0  # seconds; a producer may register its schema a moment after its record

_ID_UNKNOWN = 40403
_SUBJECT_UNKNOWN = (40401, 40402)

V = TypeVar("V")


class UnknownSchema(Exception):
    """There is no usable schema with this id; the text is the detail of the dead letter."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of a registry with its references, those that others need first."""

    id: int
    kind: Kind
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


class Registry:
    """One registry; an id never changes its schema, so cached responses do not expire."""

    def __init__(
        self, spec: RegistrySpec, folder: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec = spec
        self._folder = folder or _folder(spec)
        self._clock = clock
        self._known: dict[int, Registered] = {}
        self._unknown: dict[int, tuple[float, str]] = {}

    def schema(self, id: int) -> Registered:
        """The schema of an id; raises UnknownSchema, or RegistryUnreachable if it is neither cached nor available."""
        if (known := self._known.get(id) or self._stored(id)) is not None:
            return _keep(self._known, id, known)
        since, why = self._unknown.get(id, (0.0, ""))
        if why and self._clock() - since < _UNKNOWN_FOR:
            raise UnknownSchema(why)
        try:
            registered = self._fetched(id)
        except UnknownSchema as unknown:
            _keep(self._unknown, id, (self._clock(), str(unknown)))
            raise
        self._store(registered)
        return _keep(self._known, id, registered)

    def newest(self, subject: str) -> Registered | None:
        """The newest schema of a subject; None if there is no such subject."""
        response = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest", _SUBJECT_UNKNOWN)
        if response is None:
            return None
        number = response.get("id")
        return self._whole(number if isinstance(number, int) else -1, response)

    def check_response(self) -> None:
        """Raise RegistryUnreachable or AuthenticationFailed unless the registry responds; any response will do."""
        status, _ = self._get("/")
        self._check_credentials(status)

    # ---- responses ----

    def _fetched(self, id: int) -> Registered:
        response = self._ask(f"/schemas/ids/{id}", (_ID_UNKNOWN,)) if id > 0 else None
        if response is None:
            raise UnknownSchema(f"the registry has no schema {id}")
        return self._whole(id, response)

    def _whole(self, id: int, response: Mapping[str, Any]) -> Registered:
        kind = response.get("schemaType") or "AVRO"
        if kind not in _KINDS:
            raise UnknownSchema(f"schema {id} is of the unknown kind {str(kind)[:40]!r}")
        texts: dict[str, str] = {}
        self._resolve(id, response, texts, ())
        return Registered(id, cast(Kind, kind), self._text(response), texts)

    def _resolve(self, id: int, response: Mapping[str, Any], texts: dict[str, str], parents: tuple[str, ...]) -> None:
        """Collect the references of a schema, innermost first."""
        for name, subject, version in _references(response):
            place = f"{subject} {version}"
            if place in parents or len(parents) >= _DEPTH:
                raise UnknownSchema(f"schema {id} refers to schemas that refer to each other, or too deeply: {name}")
            if name in texts:
                continue
            inner = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true", _SUBJECT_UNKNOWN)
            if inner is None:
                raise UnknownSchema(f"schema {id} refers to {name[:100]}, which the registry does not have")
            self._resolve(id, inner, texts, (*parents, place))
            texts[name] = self._text(inner)
            if len(texts) > _REFERENCES or sum(map(len, texts.values())) > _TEXTS:
                raise UnknownSchema(f"schema {id} refers to more than {_REFERENCES} schemas, or to too large ones")

    def _text(self, response: Mapping[str, Any]) -> str:
        if not isinstance(text := response.get("schema"), str):
            raise self._unusable("a response without a schema")
        return text

    # ---- disk cache ----

    def _stored(self, id: int) -> Registered | None:
        """A schema from the disk cache; a damaged file is ignored."""
        try:
            content = json.loads((self._folder / f"{id}.json").read_bytes())
            return Registered(**content) if content["kind"] in _KINDS and isinstance(content["text"], str) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _store(self, registered: Registered) -> None:
        """Write a schema to the disk cache; errors are ignored, as the registry can be asked again."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(registered), file)
            Path(scratch).replace(self._folder / f"{registered.id}.json")

    # ---- HTTP ----

    def _ask(self, path: str, unknown: tuple[int, ...] | None) -> dict[str, Any] | None:
        """The response to a GET; None if it is not found, by these error codes or (None) by the status."""
        status, body = self._get(path)
        self._check_credentials(status)
        if status == 403:
            raise PermissionDenied(f"The schema registry at {self._spec.url} denies access to {path}.")
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        code = content.get("error_code") if isinstance(content, dict) else None
        if status == 404 and (unknown is None or code in unknown):
            return None
        if status != 200:
            raise self._unusable(f"status {status}")
        if not isinstance(content, dict):
            raise self._unusable("a response that is not a JSON object")
        return content

    def _check_credentials(self, status: int) -> None:
        if status == 401:
            raise AuthenticationFailed(
                f"The schema registry at {self._spec.url} rejects the credentials.",
                hint="Check `registry.username` and `registry.password`.",
            )

    def _get(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self._spec.url)
        target = f"{parts.path}{path}"
        try:
            with closing(self._connection()) as connection, _within(connection, self._seconds) as late:
                if self._spec.proxy and parts.scheme == "http":
                    target = f"{self._spec.url}{path}"
                connection.request("GET", target, headers=self._headers())
                response = connection.getresponse()
                body = response.read(_ANSWER + 1)
                if late.is_set():
                    raise TimeoutError("timed out")
        except (OSError, HTTPException, ValueError) as error:
            why = str(error) or type(error).__name__
            raise RegistryUnreachable(
                f"The schema registry at {self._spec.url} does not respond: {why[:200]}."
            ) from None
        if len(body) > _ANSWER:
            raise UnknownSchema(f"the registry's response to {path[:100]} is larger than {_ANSWER} bytes")
        return response.status, body

    @property
    def _seconds(self) -> float:
        return self._spec.timeout.total_seconds()

    def _connection(self) -> HTTPConnection:
        """Connect directly or by the proxy of the spec; redirects are not followed."""
        parts = urlsplit(self._spec.url)
        proxy = urlsplit(self._spec.proxy) if self._spec.proxy else None
        host, port = parts.hostname or "", parts.port
        first, first_port = (proxy.hostname or "", proxy.port) if proxy else (host, port)
        if parts.scheme == "http":
            return HTTPConnection(first, first_port, timeout=self._seconds)
        trust = ssl.create_default_context(cadata=self._spec.ca)
        connection = HTTPSConnection(first, first_port or (80 if proxy else None), timeout=self._seconds, context=trust)
        if proxy:
            connection.set_tunnel(host, port)
        return connection

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "User-Agent": "headrace"}
        if self._spec.username is None:
            return headers
        try:
            password = self._spec.password.reveal() if self._spec.password else ""
        except BadReference as error:
            raise AuthenticationFailed(error.message, hint=error.hint) from None
        return headers | {"Authorization": f"Basic {b64encode(f'{self._spec.username}:{password}'.encode()).decode()}"}

    def _unusable(self, seen: str) -> RegistryUnreachable:
        return RegistryUnreachable(
            f"{self._spec.url} is not a Confluent-compatible schema registry: {seen}.",
            hint="Check the path of `registry.url`.",
        )


@lru_cache(maxsize=64)
def registry_of(spec: RegistrySpec) -> Registry:
    """The registry of a spec; one per process, so that all decoders share its cache."""
    return Registry(spec)


def _folder(spec: RegistrySpec) -> Path:
    """Cache folder per registry and user: a user does not see the schemas of another."""
    return shared_folder("registry") / sha256(f"{spec.url} {spec.username or ''}".encode()).hexdigest()[:24]


def _keep(kept: dict[int, V], key: int, value: V) -> V:
    """Add to a bounded cache; the oldest entry is removed."""
    kept[key] = value
    if len(kept) > _KEPT:
        kept.pop(next(iter(kept)))
    return value


def _references(response: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    listed = response.get("references") or []
    for item in listed if isinstance(listed, list) else []:
        parts = (item.get("name"), item.get("subject"), item.get("version")) if isinstance(item, dict) else ()
        if [type(part) for part in parts] != [str, str, int]:
            raise UnknownSchema("a schema refers to another without name, subject and version")
        yield cast(tuple[str, str, int], parts)


@contextmanager
def _within(connection: HTTPConnection, seconds: float) -> Iterator[Event]:
    """Connect, and close the connection at the time limit: a slow response must not block the task."""
    ends = time.monotonic() + seconds
    connection.connect()
    line, late = connection.sock, Event()

    def cut() -> None:
        late.set()
        with suppress(OSError):
            socket.socket.shutdown(line, socket.SHUT_RDWR)  # the plain one: TLS would wait for a reply

    timer = Timer(max(ends - time.monotonic(), 0.01), cut)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
