"""Who may do what at the HTTP endpoint: bearer tokens with roles, allowed hosts, and a limit of wrong tokens."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from pathlib import Path

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.errors import UsageError
from headrace.spec.listener import listen_address, split_address
from headrace.spec.secrets import BadReference, Secret
from headrace.spec.uris import is_loopback

OPEN_PATHS = frozenset({"/live"})
_MIN_TOKEN = 16  # characters
_WRONG_TOKENS, _PER_SECONDS = 10, 60.0
_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
}
_ADDRESSES = 10_000  # that the limit remembers


class Role(IntEnum):
    """Role of a client; each one includes those before it."""

    VIEWER = 1
    OPERATOR = 2


TOKEN_VARIABLES = {Role.VIEWER: "HEADRACE_VIEWER_TOKEN", Role.OPERATOR: "HEADRACE_OPERATOR_TOKEN"}


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """How the endpoint listens."""

    address: str  # host:port
    certificate: Path | None = None  # TLS: the certificate chain (PEM)
    key: Path | None = None
    plaintext: bool = False  # allow unencrypted connections on other addresses than loopback ones
    dangerously_open: bool = False  # allow anyone to read on other addresses than loopback ones
    allowed_hosts: tuple[str, ...] = ()  # further names in the Host header

    def check(self, tokens: Mapping[Role, Secret]) -> None:
        """UsageError if the address is invalid, or if others can reach it and it is not protected."""
        try:
            listen_address(self.address)
        except ValueError as expected:
            raise UsageError(f"Invalid address: '{self.address}'.", hint=f"Use {expected}.") from None
        if (self.certificate is None) is not (self.key is None):
            raise UsageError(
                "--listen-certificate and --listen-key must be used together.", hint="Specify both, or neither."
            )
        if is_loopback(split_address(self.address)[0]):
            return
        if not tokens and not self.dangerously_open:
            raise UsageError(
                f"Anyone who reaches {self.address} could read metrics and health: no token is set.",
                hint="Set HEADRACE_VIEWER_TOKEN or HEADRACE_VIEWER_TOKEN_FILE, listen on 127.0.0.1, or add "
                "--listen-dangerously-open.",
            )
        if self.certificate is None and not self.plaintext:
            raise UsageError(
                f"Connections to {self.address} would not be encrypted.",
                hint="Add --listen-certificate and --listen-key, or --listen-plaintext if a proxy or the network "
                "encrypts them.",
            )


def tokens_from(environment: Mapping[str, str]) -> dict[Role, Secret]:
    """Tokens by role, from `HEADRACE_…_TOKEN` or `HEADRACE_…_TOKEN_FILE`; UsageError if one cannot be used."""
    tokens: dict[Role, Secret] = {}
    for role, name in TOKEN_VARIABLES.items():
        if name in environment and f"{name}_FILE" in environment:
            raise UsageError(f"Both {name} and {name}_FILE are set.", hint="Unset one of them.")
        if name in environment:
            tokens[role] = Secret(f"${{env:{name}}}", Path(), environment[name])
        elif f"{name}_FILE" in environment:
            tokens[role] = Secret(f"${{file:{environment[f'{name}_FILE']}}}", Path.cwd())
    for role, token in tokens.items():
        try:
            length = len(token.reveal().strip())
        except BadReference as error:
            raise UsageError(
                f"{TOKEN_VARIABLES[role]}_FILE: {error.message}", hint="Create the file, or unset the variable."
            ) from None
        if length < _MIN_TOKEN:
            raise UsageError(
                f"The token of {TOKEN_VARIABLES[role]} has less than {_MIN_TOKEN} characters.",
                hint="Create one with `openssl rand -hex 32`.",
            )
    if len({token.reveal().strip() for token in tokens.values()}) < len(tokens):
        raise UsageError("The tokens of viewer and operator are the same.", hint="Set two different tokens.")
    return tokens


class WrongTokenLimit:
    """Counts wrong tokens by address: after 10 within a minute, the address has to wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until the address may try again; 0 if it may now."""
        tries = self._recent(address)
        return 0.0 if len(tries) < _WRONG_TOKENS else tries[-_WRONG_TOKENS] + _PER_SECONDS - self._clock()

    def add(self, address: str) -> None:
        """Count a wrong token."""
        self._wrong[address] = [*self._recent(address), self._clock()]
        self._wrong.move_to_end(address)
        while len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._clock() - _PER_SECONDS
        return [each for each in self._wrong.get(address, ()) if each > since]


class Access:
    """The tokens and the hosts of an endpoint."""

    def __init__(self, options: ListenOptions, tokens: Mapping[Role, Secret] | None = None) -> None:
        """`tokens`: by default those of the environment. UsageError if the address would not be protected."""
        self._tokens = tokens_from(os.environ) if tokens is None else dict(tokens)
        options.check(self._tokens)
        self._hosts = {split_address(options.address)[0].lower(), *(each.lower() for each in options.allowed_hosts)}
        self.limit = WrongTokenLimit()

    @property
    def has_tokens(self) -> bool:
        """Whether clients must send a token. Without tokens, anyone may read and nobody may operate."""
        return bool(self._tokens)

    @property
    def has_operator(self) -> bool:
        """Whether anyone can operate pipelines."""
        return Role.OPERATOR in self._tokens

    def role_of_token(self, token: str) -> Role | None:
        """The role of a token; None if it is wrong. All tokens are compared, in constant time."""
        given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        roles = [role for role, secret in self._tokens.items() if hmac.compare_digest(given, _digest(secret))]
        return max(roles, default=None)

    def allows_host(self, host: str) -> bool:
        """Whether a Host header is no sign of DNS rebinding: an IP address, localhost, or a name of the options."""
        name = _host_name(host)
        return is_loopback(name) or _is_address(name) or name in self._hosts


def _digest(secret: Secret) -> bytes:
    return hashlib.sha256(secret.reveal().strip().encode()).digest()


def _host_name(host: str) -> str:
    """Host header without the port and the brackets of IPv6."""
    name = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def role(connection: HTTPConnection) -> Role | None:
    """The role that the guard has found; None for a path that is open to all."""
    granted: Role | None = connection.scope.get("headrace.role")
    return granted


def denied(connection: HTTPConnection, needed: Role) -> Response | None:
    """The response to a client whose role does not suffice; None if it does."""
    has = role(connection)
    if has is not None and has >= needed:
        return None
    message = f"This requires the {needed.name.lower()} role: set {TOKEN_VARIABLES[needed]} and send its token."
    return JSONResponse({"error": "forbidden", "message": message}, 403)


class Guard:
    """ASGI middleware: rejects foreign hosts and clients without a role, and notes the role for `role`."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        open_paths: frozenset[str] = OPEN_PATHS,
        identify: Callable[[Request], Role | None] = lambda request: None,
        challenges: Sequence[Callable[[Request], Response | None]] = (),
        unauthorized: Callable[[Request], Response | None] = lambda request: None,
    ) -> None:
        """`identify`: another proof than a bearer token, such as a cookie. `challenges`: further checks of a request
        with a role, which return a response to reject it. `unauthorized`: a response for people who have no role."""
        self._app, self._access, self._open_paths = app, access, open_paths
        self._identify, self._challenges, self._unauthorized = identify, challenges, unauthorized

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return
        send = _with_headers(send)
        request = Request(scope)
        response = self._rejected(request) or next(
            (answer for check in self._challenges if (answer := check(request)) is not None), None
        )
        if response is not None:
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _rejected(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if not self._access.allows_host(host):
            text = f"The host '{host[:200]}' is not allowed: start Headrace with --allowed-host, or use the IP address."
            return JSONResponse({"error": "host_not_allowed", "message": text}, 421)
        if not self._access.has_tokens:
            request.scope["headrace.role"] = Role.VIEWER
            return None
        address = request.client.host if request.client else ""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not token:
            request.scope["headrace.role"] = self._identify(request)
        elif (wait := self._access.limit.wait(address)) > 0:
            message = f"More than {_WRONG_TOKENS} wrong tokens within a minute from your address."
            return JSONResponse(
                {"error": "too_many_wrong_tokens", "message": message}, 429, {"Retry-After": str(math.ceil(wait))}
            )
        elif scheme.lower() == "bearer":
            request.scope["headrace.role"] = self._access.role_of_token(token)
            if request.scope["headrace.role"] is None:
                self._access.limit.add(address)
        if role(request) is None and request.url.path not in self._open_paths:
            message = "Send a valid token as 'Authorization: Bearer TOKEN'."
            return self._unauthorized(request) or JSONResponse(
                {"error": "unauthorized", "message": message}, 401, {"WWW-Authenticate": 'Bearer realm="headrace"'}
            )
        return None


def _with_headers(send: Send) -> Send:
    """Add the headers that all responses have."""

    async def send_with_headers(message: object) -> None:
        assert isinstance(message, dict)  # noqa: S101
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message["headers"], *(each for each in added if each[0] not in present)]
        await send(message)

    return send_with_headers
