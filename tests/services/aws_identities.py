"""Credentials of AWS without an AWS: session keys and web identities of MinIO, the metadata service of a machine."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from services.s3_programs import REGION, S3Program

CLIENT = "headrace"
Reply = tuple[int, str]  # status, content
_NAMES = "{https://sts.amazonaws.com/doc/2011-06-15/}"


def policy_for(bucket: str) -> dict[str, Any]:
    """The permissions that the documentation asks for, and no others."""
    objects = {"Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], "Resource": f"arn:aws:s3:::{bucket}/*"}
    listing = {"Action": ["s3:ListBucket"], "Resource": f"arn:aws:s3:::{bucket}"}
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **each} for each in (objects, listing)]}


def with_policy(server: S3Program, policy: Mapping[str, Any]) -> S3Program:
    """The server for an identity with this policy, which has keys with a session token."""
    form = {"Action": "AssumeRole", "Version": "2011-06-15", "DurationSeconds": "3600", "Policy": json.dumps(policy)}
    request = _signed(server, urlencode(form).encode())
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
        found = ElementTree.fromstring(response.read()).find(f".//{_NAMES}Credentials")  # noqa: S314  # our own server
    assert found is not None
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
    return server.for_identity(*(found.findtext(f"{_NAMES}{name}", "") for name in names))


def _signed(server: S3Program, body: bytes) -> urllib.request.Request:
    """A request to the token service, with a signature of version 4."""
    now = datetime.now(UTC)
    moment, scope = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}/{REGION}/sts/aws4_request"
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "host": urlsplit(server.endpoint).netloc,
        "x-amz-date": moment,
    }
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    names, digest = ";".join(headers), hashlib.sha256(body).hexdigest()
    canonical = f"POST\n/\n\n{lines}\n{names}\n{digest}"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{server.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={server.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return urllib.request.Request(server.endpoint, body, headers)  # noqa: S310


@contextmanager
def answering(answer: Callable[[str, str], Reply]) -> Iterator[str]:
    """Address of a web server that gives these answers to a method and a path."""

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            status, content = answer(self.command, self.path)
            body = content.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = _reply

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def role_keys(server: S3Program) -> str:
    """Keys of a role, as the services of containers and machines give them."""
    return json.dumps(
        {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": server.key,
            "SecretAccessKey": server.secret,
            "Token": server.token,
            "LastUpdated": "2026-01-01T00:00:00Z",
            "Expiration": "2100-01-01T00:00:00Z",
        }
    )


@contextmanager
def metadata_service(server: S3Program) -> Iterator[str]:
    """The metadata service of a machine whose role has these keys."""
    base = "/latest/meta-data/iam/security-credentials"

    def answer(method: str, path: str) -> Reply:
        if method == "PUT":
            return (200, "token") if path == "/latest/api/token" else (404, "")
        return {base: (200, "lake"), f"{base}/lake": (200, role_keys(server))}.get(path.rstrip("/"), (404, ""))

    with answering(answer) as endpoint:
        yield endpoint


class IdentityProvider:
    """An OpenID provider that vouches for everybody."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.endpoint = ""

    @contextmanager
    def running(self) -> Iterator[IdentityProvider]:
        """Publish the configuration and the key for the length of the block."""
        with answering(self._answer) as self.endpoint:
            yield self

    def token(self) -> str:
        """A signed token for an hour."""
        claims = {"iss": self.endpoint, "sub": "ann", "aud": CLIENT, "exp": int(time.time()) + 3600}
        text = f"{_coded({'alg': 'RS256', 'typ': 'JWT', 'kid': '1'})}.{_coded(claims)}"
        return f"{text}.{_base64(self._key.sign(text.encode(), padding.PKCS1v15(), SHA256()))}"

    def _answer(self, _: str, path: str) -> Reply:
        if path == "/keys":
            numbers = self._key.public_key().public_numbers()
            key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1"}
            return 200, json.dumps({"keys": [key | {"n": _number(numbers.n), "e": _number(numbers.e)}]})
        return 200, json.dumps(
            {
                "issuer": self.endpoint,
                "jwks_uri": f"{self.endpoint}/keys",
                "authorization_endpoint": f"{self.endpoint}/authorize",
                "token_endpoint": f"{self.endpoint}/token",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )


def _coded(content: Mapping[str, Any]) -> str:
    return _base64(json.dumps(content).encode())


def _number(value: int) -> str:
    return _base64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
