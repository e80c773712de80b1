"""Checks of requests: that they come from the console's own pages, and are small and quick enough."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

_MAX_BODY = 1024 * 1024
_BODY_SECONDS = 10.0
_MAX_FIELDS = 50


class RequestRejected(Exception):
    """A request that is not served: its status and the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def cross_site(request: Request) -> Response | None:
    """Reject a request that changes something and comes from another site (CSRF); None if it may pass.

    Browsers send Sec-Fetch-Site to trustworthy addresses, and Origin with every POST. A client that sends neither is no
    browser: it proves itself with a bearer token, which no other site can make a browser send.
    """
    if request.method in ("GET", "HEAD"):
        return None
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site == "same-origin"
    elif origin is not None:
        is_own = urlsplit(origin).netloc == request.headers.get("host", "")
    else:
        is_own = "authorization" in request.headers
    if is_own:
        return None
    message = "The request comes from another site."
    return JSONResponse({"error": "cross_site_request", "message": message}, 403)


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; RequestRejected if it is too large, too slow or malformed."""
    try:
        body = await asyncio.wait_for(_body(request), _BODY_SECONDS)
    except TimeoutError:
        raise RequestRejected(408, f"The request was not complete within {_BODY_SECONDS:.0f} s.") from None
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise RequestRejected(400, "The form is malformed.") from None
    return {name: values[-1] for name, values in fields.items()}


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise RequestRejected(413, f"The request is larger than {_MAX_BODY:,} bytes.")
    return bytes(body)
