"""A client of the HTTP endpoint."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlencode, urlsplit


class Client:
    """A client that sends one request per connection."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self.url, self.context = urlsplit(url), context

    def get(self, path: str, token: str | None = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, body (parsed if it is JSON) and headers of a GET request."""
        return self.request("GET", path, token, **headers)

    def post(
        self, path: str, form: Mapping[str, str], token: str | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """The same of a POST request with a form."""
        content_type = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.request("POST", path, token, urlencode(form).encode(), **content_type, **headers)

    def request(
        self, method: str, path: str, token: str | None = None, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body (parsed if it is JSON) and headers of a response."""
        host, port = self.url.hostname or "", self.url.port
        if self.context is None:
            connection = http.client.HTTPConnection(host, port, timeout=30)
        else:
            connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=self.context)
        given = {"Authorization": f"Bearer {token}"} if token is not None else {}
        with closing(connection):
            connection.request(method, path, body=body, headers=given | headers)
            response = connection.getresponse()
            text = response.read().decode()
            received = {name.lower(): value for name, value in response.getheaders()}
            is_json = received.get("content-type", "").startswith("application/json")
            return response.status, json.loads(text) if is_json and text else text, received
