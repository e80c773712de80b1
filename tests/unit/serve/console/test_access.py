"""Who gets which page: every route with every role, the login, and requests from other sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.routing import Route

from headrace.serve.console.sessions import Sessions
from services.console import OPERATOR, TOKENS, VIEWER, ServedConsole, filled_pipeline, served_console

HTML = {"Accept": "text/html"}
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory):
    return filled_pipeline(tmp_path_factory.mktemp("console"))


@pytest.fixture
def served(harness) -> Iterator[ServedConsole]:
    with served_console(harness, TOKENS) as console:
        yield console


# (method, route): status without a token, of a viewer, of an operator. Nothing can be changed here: no pipeline runs.
STATUSES = {
    ("GET", "/live"): (200, 200, 200),
    ("GET", "/ready"): (401, 200, 200),
    ("GET", "/health"): (401, 200, 200),
    ("GET", "/metrics"): (401, 200, 200),
    ("GET", "/login"): (200, 200, 200),
    ("POST", "/login"): (401, 401, 401),  # without a token in the form
    ("POST", "/logout"): (401, 303, 303),
    ("GET", "/static/{name}"): (200, 200, 200),
    ("GET", "/"): (401, 200, 200),
    ("GET", "/help"): (401, 200, 200),
    ("GET", "/editor"): (401, 200, 200),
    ("POST", "/editor"): (401, 200, 200),
    ("GET", "/pipelines/{pipeline}"): (401, 200, 200),
    ("GET", "/pipelines/{pipeline}/spec"): (401, 200, 200),
    ("GET", "/pipelines/{pipeline}/offsets"): (401, 200, 200),
    ("GET", "/pipelines/{pipeline}/audit"): (401, 200, 200),
    ("GET", "/pipelines/{pipeline}/tables/{table}"): (401, 200, 200),
    ("GET", "/pipelines/{pipeline}/dead-letters"): (401, 200, 200),
    ("GET", "/pipelines/{pipeline}/dead-letters/value"): (401, 403, 404),
    ("GET", "/pipelines/{pipeline}/dead-letters/dry-run"): (401, 403, 200),
    ("POST", "/pipelines/{pipeline}/dead-letters/dry-run"): (401, 403, 200),
    ("GET", "/pipelines/{pipeline}/changes/{change}"): (401, 403, 409),
    ("POST", "/pipelines/{pipeline}/changes/{change}"): (401, 403, 409),
}


def test_every_route_with_every_role(served: ServedConsole) -> None:
    table = served.table_path("order").rpartition("/")[2]
    names = {"{name}": "console.css", "{pipeline}": "shop", "{table}": table, "{change}": "pause"}
    statuses = {}
    for method, route in STATUSES:
        path = route
        for name, value in names.items():
            path = path.replace(name, value)
        tokens = (None, VIEWER, OPERATOR)
        statuses[method, route] = tuple(served.client.request(method, path, token, **SAME_SITE)[0] for token in tokens)
    assert statuses == STATUSES


def test_the_table_of_statuses_has_every_route(served: ServedConsole) -> None:
    own = {
        (method, route.path) for route in served.console.routes if isinstance(route, Route) for method in route.methods
    }
    endpoint = {("GET", path) for path in ("/live", "/ready", "/health", "/metrics")}
    assert {each for each in own if each[0] != "HEAD"} | endpoint == set(STATUSES)


def test_without_tokens_everyone_reads_and_nobody_changes(harness) -> None:
    with served_console(harness) as open_console:
        client = open_console.client
        assert client.get("/pipelines/shop")[0] == 200
        assert client.post("/pipelines/shop/changes/pause", {"confirm": "yes"}, **SAME_SITE)[0] == 403
        assert client.get("/pipelines/shop/dead-letters/value?topic=orders&partition=0&offset=22")[0] == 403
        assert "No token is set" in open_console.page("/login", None)


# ---- login ----


def _sign_in(served: ServedConsole, token: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    return served.client.post("/login", {"token": token, "next": "/pipelines/shop"}, **(SAME_SITE | headers))


def _cookie(headers: dict[str, str]) -> dict[str, str]:
    return {"Cookie": headers["set-cookie"].partition(";")[0]}


def test_a_browser_without_a_session_gets_the_login_page(served: ServedConsole) -> None:
    status, html, headers = served.client.get("/pipelines/shop?batch=1", **HTML)
    assert status == 401
    assert headers["content-type"].startswith("text/html")
    assert 'name="next" value="/pipelines/shop?batch=1"' in html
    assert served.client.get("/pipelines/shop")[1]["error"] == "unauthorized"


def test_a_session(served: ServedConsole) -> None:
    status, _, headers = _sign_in(served, OPERATOR)
    assert (status, headers["location"]) == (303, "/pipelines/shop")
    attributes = {each.strip().lower() for each in headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert "secure" not in attributes
    assert OPERATOR not in headers["set-cookie"]
    cookie = _cookie(headers)
    assert "operator" in served.client.get("/help", **cookie)[1]
    status, _, headers = served.client.post("/logout", {}, **cookie, **SAME_SITE)
    assert (status, headers["location"]) == (303, "/login")
    assert served.client.get("/help", **cookie)[0] == 401


def test_with_tls_or_behind_a_proxy_with_tls_the_cookie_is_secure(served: ServedConsole) -> None:
    host = served.client.url.netloc
    headers = _sign_in(served, VIEWER, Origin=f"https://{host}")[2]
    assert "secure" in headers["set-cookie"].lower()


def test_a_session_ends_when_its_token_is_rotated(harness, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(VIEWER)
    with served_console(harness, {"HEADRACE_VIEWER_TOKEN_FILE": str(file)}) as served:
        cookie = _cookie(_sign_in(served, VIEWER)[2])
        assert served.client.get("/help", **cookie)[0] == 200
        file.write_text(OPERATOR)
        assert served.client.get("/help", **cookie)[0] == 401


def test_sessions_end_after_a_while(served: ServedConsole) -> None:
    now = [0.0]
    sessions = Sessions(served.console.access, lambda: now[0])
    served.console._sessions = sessions
    cookie = _cookie(_sign_in(served, VIEWER)[2])
    now[0] = 12 * 3600 - 1
    assert served.client.get("/help", **cookie)[0] == 200
    now[0] += 2
    assert served.client.get("/help", **cookie)[0] == 401


def test_ten_wrong_tokens_in_the_form(served: ServedConsole) -> None:
    assert {_sign_in(served, "wrong")[0] for _ in range(10)} == {401}
    status, html, _ = _sign_in(served, VIEWER)
    assert status == 429
    assert "Too many wrong tokens" in html


TARGETS = {
    "/pipelines/shop?batch=1": "/pipelines/shop?batch=1",
    "": "/",
    "//evil.example": "/",
    "/\\evil.example": "/",
    "https://evil.example": "/",
    "/x\r\nSet-Cookie: a=b": "/",
}


def test_the_login_leads_to_pages_of_the_console_alone(served: ServedConsole) -> None:
    for target, expected in TARGETS.items():
        headers = served.client.post("/login", {"token": VIEWER, "next": target}, **SAME_SITE)[2]
        assert headers["location"] == expected


# ---- other sites ----


def test_requests_from_other_sites_change_nothing(served: ServedConsole) -> None:
    host = served.client.url.netloc
    foreign = [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Origin": f"http://{host}"},
    ]
    for path in ("/login", "/logout", "/editor", "/pipelines/shop/changes/pause"):
        for headers in foreign:
            status, answer, _ = served.client.post(path, {"token": VIEWER}, OPERATOR, **headers)
            assert (status, answer["error"]) == (403, "cross_site_request"), (path, headers)
    cookie = _cookie(_sign_in(served, OPERATOR)[2])
    assert served.client.post("/logout", {}, **cookie)[0] == 403  # neither header: no browser, and no bearer token
    assert served.client.post("/editor", {}, VIEWER)[0] == 200
    assert served.client.post("/editor", {}, **cookie, Origin=f"http://{host}")[0] == 200


def test_headers_of_every_answer(served: ServedConsole) -> None:
    for path, token in (
        ("/", VIEWER),
        ("/", None),
        ("/metrics", VIEWER),
        ("/static/console.js", None),
        ("/x", OPERATOR),
    ):
        headers = served.client.get(path, token, **HTML)[2]
        policy = headers["content-security-policy"]
        assert policy == "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'", path
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert headers["cache-control"] in ("no-store", "no-cache")
    assert served.client.get("/", VIEWER, Host="evil.example")[0] == 421


def test_large_and_malformed_forms(served: ServedConsole) -> None:
    large = {"spec": "x" * 1_100_000}
    assert served.client.post("/editor", large, VIEWER)[0] == 413
    assert served.client.post("/login", large, **SAME_SITE)[0] == 413
    assert served.client.request("POST", "/editor", VIEWER, b"\xff\xfe=1")[0] == 400
    assert served.client.request("POST", "/editor", VIEWER, b"a=1&" * 100)[0] == 400


def test_tokens_are_in_no_url(served: ServedConsole) -> None:
    assert urlsplit(_sign_in(served, VIEWER)[2]["location"]).query == ""
    assert 'method="post" action="/login"' in served.page("/login", None)
