"""Where tables and state may be."""

from pathlib import Path

import pytest

from headrace.spec.route_id import RouteId
from headrace.storage.store import Profile, Store
from headrace.validate.load import examine_text, loads

SPEC = """\
pipeline: web
source: {{kafka: {{brokers: "localhost:9092", topics: [a]}}}}
table: {{path: "{path}"}}
"""


def _spec(path, more=""):
    return loads(SPEC.format(path=path) + more, "/base/specs")[0]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("./lake/web", "/base/specs/lake/web"),
        ("lake/web/", "/base/specs/lake/web"),
        ("../lake/web", "/base/lake/web"),
        ("/srv/lake/wéb", "/srv/lake/wéb"),
        ("s3://lake/web", "s3://lake/web"),
        ("s3a://lake/a b/web/", "s3://lake/a b/web"),
        ("s3://lake/date=2025/web", "s3://lake/date=2025/web"),
        ("file:///srv/lake/../web/", "/srv/web"),
        ("file:/srv/lake", "/srv/lake"),
        ("gs://lake/web/", "gs://lake/web"),
        ("az://lake/web", "az://lake/web"),
        ("abfs://lake@shop1.dfs.core.windows.net/web", "abfss://lake@shop1.dfs.core.windows.net/web"),
    ],
)
def test_a_path_means_one_place(path, uri):
    assert _spec(path).table.path == uri


HOSTILE = [
    "",
    " ",
    "~/lake",
    "~root/lake",
    "lake/a\\\\b",
    "lake/a%2e%2e/b",
    "lake/*",
    "lake/a?b",
    "lake/a#b",
    "lake/[ab]",
    "lake/a\\0b",
    "lake/a\\nb",
    "file://lake",
    "file://host/lake",
    "file:///",
    "file:lake",
    "http://host/lake",
    "https://host/lake",
    "hdfs://host/lake",
    "gs://lake",
    "gs://lake/../web",
    "gs://user@lake/web",
    "abfss://c@account/web",
    "abfss://lake/web",
    "abfss://lake@Account.dfs.core.windows.net/web",
    "abfss://lake@account.dfs.core.windows.net",
    "abfss://user:pass@account.dfs.core.windows.net/web",
    "az://Lake/web",
    "az://la--ke/web",
    "az://lake@account/web",
    "wasbs://lake@account.blob.core.windows.net/web",
    "adl://account.azuredatalakestore.net/web",
    "dbfs:/lake",
    "jar:file:/x",
    "s3:lake",
    "s3:/lake/web",
    "s3://",
    "s3:///web",
    "s3://lake",
    "s3://lake/",
    "s3://a@lake/web",
    "s3://a:b@lake/web",
    "s3a://lake@evil/web",
    "s3://lake:9000/web",
    "s3://lake/../web",
    "s3://lake/a/../../web",
    "s3://lake/./web",
    "s3://lake//web",
    "s3://lake/a//b",
    "s3://lake/web?x=1",
    "s3://lake/web#x",
    "s3://lake/%2e%2e/web",
    "s3://lake/a%2fb",
    "s3://lake/a\\\\b",
    "s3://la ke/web",
    "s3://.lake/web",
    "s3://-lake/web",
    "s3://lák/web",
    "s3://{route}/web",
    "s3://169.254.169.254:80/web",
    "S3://lake/web",
    "s3n://lake/web",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_path_that_could_mean_another_place_is_refused(path):
    specs, findings = examine_text(SPEC.format(path=path), Path("/base"), "web.yaml")
    assert specs == []
    assert [(each.key, each.line) for each in findings] == [("table.path", 3)]
    assert findings[0].expected


ENDPOINTS = [
    "s3.example.com",
    "ftp://s3.example.com",
    "https://",
    "https://u:p@s3.example.com",
    "https://s3.example.com?x=1",
    "https://s3.example.com#x",
    "https://s3.example.com:99999",
    "https://169.254.169.254",
    "https://[fd00:ec2::254]",
    "https://[fe80::1]",
    "https://[bad",
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_that_hides_something_is_refused(endpoint):
    text = SPEC.format(path="s3://lake/web") + f'storage: {{s3: {{endpoint: "{endpoint}"}}}}\n'
    _, findings = examine_text(text, Path("/base"), "web.yaml")
    assert [each.key for each in findings] == ["storage.s3.endpoint"]


def test_an_unencrypted_endpoint_must_be_meant():
    text = SPEC.format(path="s3://lake/web") + 'storage: {s3: {endpoint: "http://127.0.0.1:9000/"}}\n'
    assert examine_text(text, Path("/base"), "")[1][0].expected == "https://, or allow_http: true"
    profile = loads(text.replace('/"}}', '/", allow_http: true}}'))[0].storage_profile()
    assert profile["s3"]["endpoint"] == "http://127.0.0.1:9000"
    options = Store("s3://lake/web", Profile(**profile)).delta_options
    assert options["aws_virtual_hosted_style_request"] == "false"


def test_state_and_dead_letters_lie_beside_the_tables():
    fixed = _spec("s3://lake/shop/web")
    assert fixed.base_uri == "s3://lake/shop"
    assert fixed.state_uri == "s3://lake/shop/_headrace/web"
    assert fixed.dead_letters_uri == "s3://lake/shop/_headrace/web/dead_letters"
    routed = _spec("./lake/events_{route}/v1", "route: {by: topic}\n")
    assert routed.base_uri == "/base/specs/lake"
    assert routed.uri_of(RouteId("", "orders")) == "/base/specs/lake/events_orders/v1"


def test_state_and_dead_letters_can_be_elsewhere():
    more = "state: s3://other/state\ndead_letters: {path: ./letters}\n"
    spec = _spec("s3://lake/web", more)
    assert (spec.state_uri, spec.dead_letters_uri) == ("s3://other/state", "/base/specs/letters")


@pytest.mark.parametrize(
    "more",
    [
        "state: ./lake/web",
        "state: ./lake/web/state",
        "state: ./lake",
        "dead_letters: {path: ./lake/web}",
        "dead_letters: {path: ./lake/web/letters}",
        "dead_letters: {path: ./lake/_headrace/web}",
        "dead_letters: {path: ./lake/_headrace/web/ledger/letters}",
        "dead_letters: {path: ./lake}",
    ],
)
def test_no_place_lies_in_anothers_folder(more):
    _, findings = examine_text(SPEC.format(path="./lake/web") + more, Path("/base"), "web.yaml")
    assert [each.expected for each in findings] == ["a separate directory"]


@pytest.mark.parametrize(
    ("path", "state", "meets"),
    [
        ("./lake/{route}", "./lake/orders", True),
        ("./lake/{route}", "./lake", True),
        ("./lake/{route}", "./lake/orders/state", True),
        ("./lake/_{route}", "./lake/_headrace/web", True),
        ("./lake/{route}/v1", "./lake/orders/v2", False),
        ("./lake/{route}", "./lake/_state", False),
        ("./lake/{route}", "./state", False),
    ],
)
def test_no_route_leads_into_the_state(path, state, meets):
    text = SPEC.format(path=path) + f"route: {{by: topic}}\nstate: {state}\n"
    _, findings = examine_text(text, Path("/base"), "web.yaml")
    assert [each.key for each in findings] == ["table.path"] * meets


@pytest.mark.parametrize("name", ["{topic}", "{route}"])
def test_the_route_has_one_name_inside(name):
    assert _spec(f"./lake/{name}", "route: {by: topic}\n").table.path == "/base/specs/lake/{route}"


def test_a_field_can_name_its_variable():
    spec = _spec("./lake/{field:a.b}", "route: {by: {field: a.b}}\n")
    assert spec.table.path == "/base/specs/lake/{route}"
