"""Connections: what each refusal is called, what leads out of it, and that no secret is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    HeadraceError,
    HotStoreUnreachable,
    PermissionDenied,
)
from headrace.hot_store.postgres import connect
from headrace.serve.status import pipeline_status
from headrace.validate.online import online
from services.certs import Certificates
from services.hot_stores import Followed
from services.postgres import Database
from services.relay import relay_to


@pytest.fixture
def orders(tmp_path: Path, database: Database) -> Iterator[Followed]:
    orders = Followed(tmp_path, database)
    yield orders
    orders.restart()


def refusal(orders: Followed, **options: Any) -> HeadraceError:
    orders.options = options
    assert orders.spec.hot_store is not None
    with pytest.raises(HeadraceError) as refused:
        connect(orders.spec.hot_store.postgres, "test").close()
    assert orders.database.password not in str(refused.value)
    return refused.value


def test_refusals_have_names(orders: Followed, monkeypatch: pytest.MonkeyPatch):
    assert type(refusal(orders, port=1)) is HotStoreUnreachable
    assert type(refusal(orders, database="nothing")) is EndpointInvalid
    assert type(refusal(orders, user="nobody")) is AuthenticationFailed
    monkeypatch.setenv("HOT_STORE_PASSWORD", "wrong")
    assert type(refusal(orders)) is AuthenticationFailed


def test_no_password_comes_from_elsewhere(orders: Followed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PGPASSWORD", orders.database.password)
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:*:{orders.database.password}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    assert type(refusal(orders, password=None)) is AuthenticationFailed


def test_tls_verifies_the_server(orders: Followed, certificates: Certificates, tmp_path: Path):
    with relay_to(orders.database.server.port, certificates.server) as relay:
        trusted = {"ca": f"${{file:{certificates.authority}}}"}
        orders.options = {"port": relay.port, "tls": trusted}
        assert orders.spec.hot_store is not None
        with closing(connect(orders.spec.hot_store.postgres, "test")) as connection:
            assert connection.pgconn.ssl_in_use
        stranger = {"ca": f"${{file:{certificates.stranger}}}"}
        assert type(refusal(orders, port=relay.port, tls=stranger)) is EndpointInvalid
        wrong_name = refusal(orders, port=relay.port, tls=trusted, host="127.0.0.2")
        assert type(wrong_name) in (EndpointInvalid, HotStoreUnreachable)
    plain = refusal(orders, tls=trusted)  # the server itself has no certificate
    assert type(plain) is EndpointInvalid


def test_missing_privileges_and_the_way_out(orders: Followed):
    database = orders.database
    database.query("DROP SCHEMA headrace")
    orders.orders(1)
    with pytest.raises(PermissionDenied) as refused:
        orders.catch_up()
    assert [each.message for each in online(orders.spec) if each.message.startswith("PermissionDenied")]
    statements = re.findall(r"(?:CREATE|GRANT)[^;]*;", refused.value.hint)
    assert len(statements) == 2
    for statement in statements:
        database.query(statement)
    orders.catch_up()
    orders.check_equal()


def test_an_administrator_may_allow_no_temporary_tables(orders: Followed):
    database = orders.database
    database.query(f'REVOKE TEMPORARY ON DATABASE "{database.name}" FROM "{database.role}"')
    orders.orders(1)
    with pytest.raises(PermissionDenied):
        orders.catch_up()
    assert [each.message for each in online(orders.spec) if "or no temporary tables" in each.message]


def test_a_table_belongs_to_one_delta_table(orders: Followed, tmp_path: Path):
    orders.orders(1)
    orders.catch_up()
    other = Followed(tmp_path / "other", orders.database)
    other.orders(2)
    with pytest.raises(HeadraceError, match=r"has rows|has the rows of"):
        other.catch_up()
    other.restart()
    assert orders.numbers() == [1]


def test_two_processes_at_once_change_nothing_twice(orders: Followed, tmp_path: Path):
    orders.orders(1)
    orders.catch_up()
    second = Followed(tmp_path, orders.database)
    second.catch_up()
    orders.orders(2)
    second.catch_up()
    with pytest.raises(HotStoreUnreachable, match="another process has moved the position"):
        orders.catch_up()
    orders.catch_up()
    orders.check_equal()
    second.restart()


def test_the_status_shows_version_and_lag(orders: Followed, monkeypatch: pytest.MonkeyPatch):
    from headrace.hot_store.status import hot_store_status

    orders.orders(1)
    assert hot_store_status(orders.spec, [orders.path])["tables"][0]["lag_commits"] is None  # type: ignore[index]
    orders.catch_up()
    orders.orders(2)
    status = hot_store_status(orders.spec, [orders.path])
    assert status is not None
    [table] = status["tables"]
    assert (table["hot_table"], table["version"], table["newest"], table["lag_commits"]) == ("headrace.orders", 0, 1, 1)
    assert table["lag_seconds"] >= 0
    orders.options = {"port": 1}
    unknown = pipeline_status(orders.spec)["hot_store"]
    assert unknown["tables"] is None
    assert unknown["error"].startswith("HotStoreUnreachable: ")


def test_a_session_has_no_settings_of_the_role(orders: Followed):
    """A search path with other operators, or another time zone."""
    database = orders.database
    database.query(f'ALTER ROLE "{database.role}" SET search_path = headrace')
    database.query(f"ALTER ROLE \"{database.role}\" SET TimeZone = 'Asia/Tokyo'")
    assert orders.spec.hot_store is not None
    with closing(connect(orders.spec.hot_store.postgres, "test")) as connection:
        row = connection.execute("SELECT current_setting('search_path'), current_setting('TimeZone')").fetchone()
    assert row == ("pg_catalog, pg_temp", "UTC")
