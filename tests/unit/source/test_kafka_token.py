"""Tokens of Kafka connections: renewed in time, and kept while their origin is down, but not longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import AuthenticationFailed, BrokerUnreachable
from headrace.source.kafka_token import Tokens
from headrace.spec import SaslSpec
from headrace.spec.secrets import Secret
from services.token_server import TokenServer, token_server
from services.wait import eventually


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    with token_server() as started:
        monkeypatch.setenv("CLIENT_SECRET", started.client_secret)
        yield started


def tokens_of(server: TokenServer) -> Tokens:
    secret = Secret("${env:CLIENT_SECRET}", Path())
    return Tokens(
        SaslSpec(mechanism="OAUTHBEARER", token_endpoint=server.url, client_id="headrace", client_secret=secret)
    )


def test_a_token_is_used_until_it_is_time_to_renew_it(server: TokenServer) -> None:
    server.lifetime = 3.0
    tokens = tokens_of(server)
    first = tokens.current()
    assert tokens.current() is first
    eventually(lambda: time.time() > first.renew_at, say="it is time to renew the token")
    assert tokens.current().expires > first.expires
    tokens.discard()
    tokens.current()
    assert len(server.issued) == 3


def test_a_valid_token_outlives_an_endpoint_that_is_down(server: TokenServer) -> None:
    server.lifetime = 4.0
    tokens = tokens_of(server)
    first, server.status = tokens.current(), 503
    assert tokens.callback("")[0] == first.text
    eventually(lambda: time.time() > first.renew_at, say="it is time to renew the token")
    assert tokens.current() is first
    assert not tokens.has_expired()
    eventually(lambda: time.time() > first.expires, say="the token has expired")
    with pytest.raises(BrokerUnreachable, match="HTTP 503"):
        tokens.current()
    assert tokens.has_expired()
    server.status = 0
    assert tokens.callback("")[0] != first.text
    assert not tokens.has_expired()


def test_a_rejected_secret_ends_the_use_of_a_token(server: TokenServer) -> None:
    server.lifetime = 3.0
    tokens = tokens_of(server)
    first, server.client_secret = tokens.current(), "another"
    eventually(lambda: time.time() > first.renew_at, say="it is time to renew the token")
    with pytest.raises(AuthenticationFailed, match="invalid_client") as caught:
        tokens.current()
    assert "secret-" not in f"{caught.value} {first!r} {tokens!r}"
