"""An OAuth 2.0 token endpoint for client credentials, which signs real tokens, and its keys for the broker."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

OAUTH = "org.apache.kafka.common.security.oauthbearer"


@dataclass
class TokenServer:
    """A running endpoint: what it accepts, and what it has been asked."""

    url: str
    client_id: str = "headrace"
    client_secret: str = field(default_factory=lambda: f"secret-{uuid.uuid4().hex}")
    lifetime: float = 3600.0  # seconds, of its tokens
    status: int = 0  # that it responds with, instead of tokens
    scopes: list[str] = field(default_factory=list)  # of all requests
    issued: list[str] = field(default_factory=list)  # all tokens
    key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )

    def token(self, lifetime: float = 0.0, key: rsa.RSAPrivateKey | None = None, **claims: Any) -> str:
        """A signed token; with another `key`, one that the broker rejects."""
        now = time.time()
        life = lifetime or self.lifetime
        content = {"sub": self.client_id, "aud": "kafka", "iss": "tests", "iat": int(now), "exp": now + life, **claims}
        head = {"alg": "RS256", "kid": "tests", "typ": "JWT"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (head, content))
        signature = (key or self.key).sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"

    def write_jwks(self, path: Path) -> None:
        """Write the public key as a JSON Web Key Set."""
        numbers = self.key.public_key().public_numbers()
        n, e = (_base64(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
        path.write_text(json.dumps({"keys": [{"kty": "RSA", "kid": "tests", "use": "sig", "n": n, "e": e}]}))

    def respond(self, authorization: str, body: str) -> tuple[int, dict[str, Any]]:
        """The response to a request for a token."""
        form = parse_qs(body)
        expected = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if self.status:
            return self.status, {"error": "server_error"}
        if authorization != f"Basic {expected}":
            return 401, {"error": "invalid_client", "error_description": f"wrong: {authorization}"}
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        self.scopes += form.get("scope", [])
        self.issued.append(self.token())
        return 200, {"access_token": self.issued[-1], "token_type": "Bearer", "expires_in": self.lifetime}


def oauth_listener(jwks: Path, *, session_seconds: int, listener: str = "sasl") -> dict[str, str]:
    """Settings of a listener that accepts tokens which these keys verify; each session needs new ones in time."""
    prefix = f"listener.name.{listener}"
    return {
        f"{prefix}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}.oauthbearer.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        f"{prefix}.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        f"{prefix}.oauthbearer.connections.max.reauth.ms": str(session_seconds * 1000),
    }


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


@contextmanager
def token_server(certificate: Path | None = None) -> Iterator[TokenServer]:
    """Run the endpoint for the length of the block; with a certificate (PEM with key), over TLS."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, content = server.respond(self.headers.get("Authorization", ""), self.rfile.read(length).decode())
            sent = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        http.socket = context.wrap_socket(http.socket, server_side=True)
    server = TokenServer(f"http{'s' if certificate else ''}://127.0.0.1:{http.server_address[1]}/oauth2/token")
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join(10)
