"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the client's side."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from functools import lru_cache

_MAX_ITERATIONS = 10_000_000  # a few seconds; the server must not make the client compute for longer
_MIN_ITERATIONS = 4096  # RFC 7677


class ScramFailed(ValueError):
    """The server rejects the credentials, or has not proved that it knows them."""


class ScramExchange:
    """The messages of one authentication; the password is not sent."""

    def __init__(self, username: str, password: str, nonce: str = "") -> None:
        self._username = username.replace("=", "=3D").replace(",", "=2C")
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._server_signature = b""

    def first(self) -> str:
        """The first message, without channel binding."""
        return f"n,,{self._bare()}"

    def final(self, challenge: str) -> str:
        """The answer to the server's first message."""
        fields = _fields(challenge)
        nonce, salt, iterations = fields.get("r", ""), _decoded(fields.get("s", "")), fields.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailed("the server's nonce does not continue the client's")
        if not iterations.isascii() or not iterations.isdigit() or len(iterations) > len(str(_MAX_ITERATIONS)):
            raise ScramFailed("the server's iteration count is not a number")
        if not _MIN_ITERATIONS <= int(iterations) <= _MAX_ITERATIONS:
            raise ScramFailed(f"{iterations} iterations; expected {_MIN_ITERATIONS:,} to {_MAX_ITERATIONS:,}")
        client_key, server_key = _keys(self._password, salt, int(iterations))
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare()},{challenge},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        self._server_signature = hmac.digest(server_key, signed, "sha256")
        proof = bytes(one ^ two for one, two in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}"

    def verify(self, message: str) -> None:
        """Check the server's final message: its signature proves that it knows the password."""
        fields = _fields(message)
        if "e" in fields:
            raise ScramFailed(fields["e"])
        if not hmac.compare_digest(_decoded(fields.get("v", "")), self._server_signature):
            raise ScramFailed("the server's signature is wrong; it may be an impostor")

    def _bare(self) -> str:
        return f"n={self._username},r={self._nonce}"


@lru_cache(maxsize=16)
def _keys(password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Keys of client and server, kept for the next connections: servers require 600,000 iterations."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")


def _fields(message: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in message.split(","))}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramFailed("a field of the server's message is not Base64") from None
