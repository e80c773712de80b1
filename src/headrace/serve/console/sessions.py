"""Sessions of people who signed in with a token. The token stays in memory; the browser gets a random id."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.access import Access, Role

_LIFETIME = 12 * 3600.0  # seconds
_MAX_SESSIONS = 1_000


class Sessions:
    """Sessions by their id. Each keeps its token, so it ends when the token is rotated or loses its role."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._access, self._clock = access, clock
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()  # digest of the id: token, end
        self._lock = threading.Lock()

    def role(self, request: Request) -> Role | None:
        """The role of the session in the cookie of a request; None without a valid one."""
        key = _digest(_session_id(request))
        with self._lock:
            token, until = self._sessions.get(key, ("", 0.0))
            if not token or self._clock() > until:
                self._sessions.pop(key, None)
                return None
        return self._access.role_of_token(token)

    def start(self, request: Request, response: Response, token: str) -> None:
        """Start a session of a valid token: set its cookie in the response."""
        session_id = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[_digest(session_id)] = token, self._clock() + _LIFETIME
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        response.set_cookie(
            _cookie_name(request),
            session_id,
            max_age=int(_LIFETIME),
            httponly=True,
            samesite="strict",
            secure=_is_encrypted(request),
        )

    def end(self, request: Request, response: Response) -> None:
        """End the session of a request."""
        with self._lock:
            self._sessions.pop(_digest(_session_id(request)), None)
        response.delete_cookie(_cookie_name(request), httponly=True, samesite="strict", secure=_is_encrypted(request))


def _session_id(request: Request) -> str:
    try:
        cookie = SimpleCookie(request.headers.get("cookie", "")).get(_cookie_name(request))
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def _cookie_name(request: Request) -> str:
    """With the port: browsers send the cookies of all ports of a host to each of them."""
    server = request.scope.get("server") or ("", 0)
    return f"headrace_session_{server[1]}"


def _is_encrypted(request: Request) -> bool:
    """Whether the browser uses TLS; with a proxy that encrypts, only its Origin header tells."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()
