"""Tokens, roles, hosts and the limit of wrong tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.serve.access import Access, ListenOptions, Role, WrongTokenLimit, tokens_from

VIEWER, OPERATOR = "viewer-token-of-32-characters-aa", "operator-token-of-32-characters-"
LOCAL = ListenOptions("127.0.0.1:0")
BOTH = {"HEADRACE_VIEWER_TOKEN": VIEWER, "HEADRACE_OPERATOR_TOKEN": OPERATOR}


def test_tokens_have_roles():
    access = Access(LOCAL, tokens_from(BOTH))
    assert access.role_of_token(VIEWER) is Role.VIEWER
    assert access.role_of_token(OPERATOR) is Role.OPERATOR
    assert [access.role_of_token(wrong) for wrong in ("", "x", VIEWER[:-1], VIEWER + "a", "\udce4")] == [None] * 5


def test_tokens_in_files_are_read_again_after_a_rotation(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(f"{VIEWER}\n")
    access = Access(LOCAL, tokens_from({"HEADRACE_VIEWER_TOKEN_FILE": str(file)}))
    assert access.role_of_token(VIEWER) is Role.VIEWER
    assert not access.has_operator
    file.write_text(f"{OPERATOR}\n")
    assert access.role_of_token(VIEWER) is None
    assert access.role_of_token(OPERATOR) is Role.VIEWER


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HEADRACE_VIEWER_TOKEN": "short"}, "less than 16 characters"),
        ({"HEADRACE_VIEWER_TOKEN": ""}, "less than 16 characters"),
        ({"HEADRACE_VIEWER_TOKEN": VIEWER, "HEADRACE_OPERATOR_TOKEN": VIEWER}, "are the same"),
        ({"HEADRACE_VIEWER_TOKEN": VIEWER, "HEADRACE_VIEWER_TOKEN_FILE": "/x"}, "Both HEADRACE_VIEWER_TOKEN and"),
        ({"HEADRACE_VIEWER_TOKEN_FILE": "/no/such/file"}, "HEADRACE_VIEWER_TOKEN_FILE: .*/no/such/file"),
    ],
)
def test_tokens_that_cannot_be_used(environment: dict[str, str], message: str):
    with pytest.raises(UsageError, match=message) as raised:
        tokens_from(environment)
    assert VIEWER not in str(raised.value)


def test_a_token_is_not_printed():
    assert VIEWER not in repr(tokens_from(BOTH))


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_loopback_needs_no_token(address: str):
    assert not Access(ListenOptions(address), {}).has_tokens


@pytest.mark.parametrize("address", ["0.0.0.0:9187", "[::]:9187", "headrace.example:9187"])
def test_other_addresses_need_a_token_and_tls(address: str):
    with pytest.raises(UsageError, match="no token is set"):
        Access(ListenOptions(address), {})
    with pytest.raises(UsageError, match="not be encrypted"):
        Access(ListenOptions(address), tokens_from(BOTH))
    with pytest.raises(UsageError, match="not be encrypted"):
        Access(ListenOptions(address, dangerously_open=True), {})
    Access(ListenOptions(address, plaintext=True), tokens_from(BOTH))
    Access(ListenOptions(address, plaintext=True, dangerously_open=True), {})
    Access(ListenOptions(address, certificate=Path("c"), key=Path("k")), tokens_from(BOTH))


def test_certificate_and_key_belong_together():
    with pytest.raises(UsageError, match="must be used together"):
        Access(ListenOptions("127.0.0.1:0", certificate=Path("c")), {})


def test_hosts():
    access = Access(ListenOptions("127.0.0.1:0", allowed_hosts=("Headrace.example",)), {})
    good = ["127.0.0.1:80", "localhost", "[::1]:9187", "10.0.0.7:9187", "headrace.EXAMPLE:9187"]
    bad = ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "evil.example:127"]
    assert [host for host in good if not access.allows_host(host)] == []
    assert [host for host in bad if access.allows_host(host)] == []


def test_ten_wrong_tokens_a_minute():
    now = [0.0]
    limit = WrongTokenLimit(lambda: now[0])
    for _ in range(10):
        assert limit.wait("a") == 0
        limit.add("a")
        now[0] += 1
    assert limit.wait("a") == pytest.approx(50)
    assert limit.wait("b") == 0
    now[0] = 60.5
    assert limit.wait("a") == 0


def test_the_limit_remembers_a_bounded_number_of_addresses():
    limit = WrongTokenLimit(lambda: 0.0)
    for number in range(20_000):
        limit.add(str(number))
    assert len(limit._wrong) == 10_000
