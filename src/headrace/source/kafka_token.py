"""Tokens for SASL OAUTHBEARER: of a token endpoint (OAuth 2.0 client credentials), of a file, or signed for AWS MSK."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

from headrace.errors import AuthenticationFailed, BrokerUnreachable, UsageError
from headrace.source.msk_token import LIFETIME, signed_token
from headrace.spec.sasl import MSK, SaslSpec
from headrace.storage.access import environment
from headrace.storage.aws_profile import profile_settings
from headrace.storage.aws_roles import aws_credentials

_TIMEOUT = 10.0  # seconds
_MAX_RESPONSE = 1024 * 1024  # bytes, as in Kafka's Java client
_RENEW_AFTER = 0.8  # of the lifetime of a token
_RETRY_SECONDS = 5.0  # with a token that is still valid, when a new one could not be obtained
_TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)
_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?:")
_CHECK = "Check `sasl` of the connection to Kafka."


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its lifetime, in seconds since the epoch."""

    text: str = field(repr=False)
    issued: float
    expires: float
    principal: str = ""

    @property
    def renew_at(self) -> float:
        """When a new one is to be obtained."""
        return self.issued + (self.expires - self.issued) * _RENEW_AFTER


class Tokens:
    """The current token of a connection; obtained when it is needed, and again before it expires."""

    def __init__(self, sasl: SaslSpec, brokers: Sequence[str] = ()) -> None:
        """`brokers`: whose host names have the region of AWS."""
        self._sasl, self._brokers = sasl, brokers
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._version = ""
        self._next = 0.0
        self._passed_until: float | None = None  # expiration of the token that a client has

    def current(self) -> Token:
        """A valid token; AuthenticationFailed or BrokerUnreachable if none can be obtained."""
        with self._lock:
            now, version = time.time(), self._sasl.token_version()
            if self._token is None or now >= self._next or version != self._version:
                self._token, self._next = self._renewed(now)
                self._version = version
            return self._token

    def discard(self) -> None:
        """Obtain a new token at the next use: the broker has rejected the current one."""
        with self._lock:
            self._token = None

    def has_expired(self) -> bool:
        """Whether the token that was passed to a client has expired: its renewal failed."""
        return self._passed_until is not None and self._passed_until <= time.time()

    def callback(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """`oauth_cb` of confluent-kafka, which is called in a thread of librdkafka."""
        token = self.current()
        self._passed_until = token.expires
        return token.text, token.expires, token.principal, dict(self._sasl.extensions)

    def _renewed(self, now: float) -> tuple[Token, float]:
        """A new token, or the current one while it is valid and its origin is down; and when to renew it."""
        try:
            token = new_token(self._sasl, self._brokers)
        except BrokerUnreachable:
            if self._token is None or self._token.expires <= now:
                raise
            return self._token, min(now + _RETRY_SECONDS, self._token.expires)
        return token, token.renew_at


def new_token(sasl: SaslSpec, brokers: Sequence[str] = ()) -> Token:
    """A token of the origin that the settings name."""
    if sasl.mechanism == MSK:
        return _msk_token(sasl, brokers)
    if sasl.token_file is not None:
        return _parsed(sasl.token_in_file(), f"The token in {sasl.token_file}")
    where = f"The token endpoint {sasl.token_endpoint}"
    response = _requested(sasl, where)
    text = response.get("access_token")
    if not isinstance(text, str) or not text:
        raise AuthenticationFailed(f"{where} returned no access_token.", hint=_CHECK)
    return _parsed(text, f"The token of {sasl.token_endpoint}")


def _msk_token(sasl: SaslSpec, brokers: Sequence[str]) -> Token:
    """A token that is signed here with AWS credentials."""
    at, credentials = datetime.now(UTC), aws_credentials(sasl.profile or "")
    text = signed_token(_region(sasl, brokers), credentials, at)
    expires = min(at + LIFETIME, credentials.expires or at + LIFETIME)
    return Token(text, at.timestamp(), expires.timestamp(), credentials.access_key_id)


def _region(sasl: SaslSpec, brokers: Sequence[str]) -> str:
    """Region of the clusters; UsageError if nothing names it."""
    hosts = [match[1] for broker in brokers if (match := _MSK_HOST.search(broker))]
    configured = environment("AWS_REGION", "AWS_DEFAULT_REGION") or profile_settings(sasl.profile or "").region
    region = sasl.region or (hosts[0] if hosts else configured)
    if not region:
        raise UsageError("The AWS region of the brokers is unknown.", hint="Set `region` of `sasl`.")
    return region


def _requested(sasl: SaslSpec, where: str) -> Mapping[str, Any]:
    """The response of the token endpoint to a request with client credentials."""
    secret = sasl.client_secret.reveal() if sasl.client_secret else ""
    credentials = base64.b64encode(f"{sasl.client_id}:{secret}".encode()).decode()
    scope = {"scope": sasl.scope} if sasl.scope else {}
    headers = {
        "Authorization": f"Basic {credentials}",
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    try:
        status, content = _post(sasl, urlencode({"grant_type": "client_credentials", **scope}), headers)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(f"{where} is not trusted: {error.verify_message}.", hint=_CHECK) from None
    except (OSError, HTTPException) as error:
        raise BrokerUnreachable(f"{where} does not respond: {_reason(error)}.") from None
    if status in _TRANSIENT_STATUS:
        raise BrokerUnreachable(f"{where} responds with HTTP {status}.")
    response = _object(content)
    if status != 200:
        raise AuthenticationFailed(
            f"{where} rejects the client credentials: HTTP {status}{_error_code(response)}.",
            hint="Check client_id, client_secret and scope of `sasl`.",
        )
    return response


def _post(sasl: SaslSpec, body: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Status and content of a response; redirects are not followed, which would send the secret elsewhere."""
    url = urlsplit(sasl.token_endpoint or "")
    connection: HTTPConnection
    if url.scheme == "https":
        trust = ssl.create_default_context(cadata=sasl.ca)
        connection = HTTPSConnection(url.hostname or "", url.port, timeout=_TIMEOUT, context=trust)
    else:
        connection = HTTPConnection(url.hostname or "", url.port, timeout=_TIMEOUT)
    try:
        connection.request("POST", url.path or "/", body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read(_MAX_RESPONSE)
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _error_code(response: Mapping[str, Any]) -> str:
    """The error code of OAuth 2.0, such as invalid_client; no other text of a response, which may be anything."""
    code = response.get("error")
    return f" ({code})" if isinstance(code, str) and re.fullmatch(r"[a-z_]{1,40}", code) else ""


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _parsed(text: str, what: str) -> Token:
    """The token with its claims, which both clients need; its signature is for the broker to verify."""
    claims = _claims(text)
    expires, subject = claims.get("exp"), claims.get("sub")
    if not isinstance(expires, int | float) or isinstance(expires, bool) or not isinstance(subject, str):
        raise AuthenticationFailed(
            f"{what} is not a JWT with the claims exp and sub.", hint="Kafka's clients require both; " + _CHECK
        )
    now = time.time()
    if expires <= now:
        raise AuthenticationFailed(f"{what} expired {now - expires:.0f} s ago.", hint="Provide a new token.")
    issued = claims.get("iat")
    is_past = isinstance(issued, int | float) and issued <= now
    return Token(text, float(issued) if is_past and issued is not None else now, float(expires), subject)


def _claims(text: str) -> Mapping[str, Any]:
    parts = text.split(".")
    if len(parts) != 3 or not re.fullmatch(r"[A-Za-z0-9_.-]+", text):
        return {}
    try:
        return _object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
