"""Specs of the source `danube`: what is refused, and the names of topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import SpecError
from headrace.plan.plan import Plan
from headrace.spec.danube_source import is_partition_of, partition_number, source_topic
from headrace.spec.routing import NAME
from headrace.validate.load import examine_text, loads

GOOD = """\
pipeline: shop
source:
  danube:
    url: http://localhost:6650
    topics: [/default/orders, /default/refunds]
route: {by: topic}
table:
  path: ./lake/{topic}
"""


def only(before: str, after: str):
    """The one diagnostic of the good spec with a text replaced."""
    assert before in GOOD
    (found,) = examine_text(GOOD.replace(before, after), Path("/base"), "shop.yaml")[1]
    return found


def test_defaults():
    (spec,) = loads(GOOD)
    danube = spec.source.danube
    assert danube is not None
    assert (spec.source_kind, danube.subscription_type, danube.subscription_of("shop")) == (
        "danube",
        "Exclusive",
        "headrace-shop",
    )


def test_topics_can_have_subscriptions_of_their_own():
    (spec,) = loads(GOOD.replace("    topics:", "    subscriptions: {/default/orders: orders}\n    topics:"))
    danube = spec.source.danube
    assert danube is not None
    names = [danube.subscription_of("shop", topic) for topic in danube.topics]
    assert names == ["orders", "headrace-shop"]


MORE = "    topics: [/default/orders"
WRONG = [
    ("http://localhost:6650", "localhost:6650", "source.danube.url", "'localhost:6650'"),
    ("http://localhost:6650", "http://localhost", "source.danube.url", "'http://localhost'"),
    ("http://localhost:6650", "http://u:p@localhost:6650", "source.danube.url", "…@localhost"),
    ("http://localhost:6650", "http://danube.example.com:6650", "source.danube.url", "on another host"),
    ("/default/refunds", "refunds", "source.danube.topics[1]", "'refunds'"),
    ("/default/refunds", "/default/re.funds", "source.danube.topics[1]", "'/default/re.funds'"),
    ("/default/refunds", "/default/orders", "source.danube.topics[1]", "duplicate topic"),
    ("/default/refunds", "/default/orders-part-3", "source.danube.topics[1]", "is a partition of '/default/orders'"),
    (MORE, f"    tls: true\n{MORE}", "source.danube.tls", "tls with an http:// URL"),
    (MORE, f"    token: secret\n{MORE}", "source.danube.token", "secret"),
    (MORE, f"    key_filters: ['a*']\n{MORE}", "source.danube.key_filters", "with subscription_type Exclusive"),
    (MORE, f"    subscription_type: exclusive\n{MORE}", "source.danube.subscription_type", "'exclusive'"),
    (MORE, f"    spool: {{retry_window: 1h}}\n{MORE}", "source.danube.spool.retry_window", "unknown key"),
    (MORE, f"    subscription: a b\n{MORE}", "source.danube.subscription", "'a b'"),
    (
        MORE,
        f"    subscriptions: {{/default/order: a}}\n{MORE}",
        "source.danube.subscriptions./default/order",
        "not one",
    ),
    (MORE, f"    topic: /default/a\n{MORE}", "source.danube.topic", "unknown key"),
]


@pytest.mark.parametrize(("before", "after", "key", "seen"), WRONG)
def test_one_thing_wrong(before: str, after: str, key: str, seen: str):
    found = only(before, after)
    assert found.key == key
    assert found.expected
    assert seen in found.message or key == "source.danube.token"


@pytest.mark.parametrize(
    ("tls", "key", "seen"),
    [
        ("{ca: x}", "source.danube.tls.ca", "no certificate"),
        ("{key: '${env:HOME}'}", "source.danube.tls", "only one of certificate and key"),
    ],
)
def test_tls_settings(tls: str, key: str, seen: str):
    text = GOOD.replace("http://localhost:6650", f"https://danube.example.com:6650\n    tls: {tls}")
    (found,) = examine_text(text, Path("/base"), "shop.yaml")[1]
    assert (found.key, seen in found.message) == (key, True)


def test_https_and_plaintext_together():
    found = only("http://localhost:6650", "https://danube.example.com:6650\n    plaintext: true")
    assert (found.key, found.message) == ("source.danube.plaintext", "conflicts with https://")


def test_an_unencrypted_connection_can_be_allowed():
    loads(GOOD.replace("http://localhost:6650", "http://danube.example.com:6650\n    plaintext: true"))


def test_a_token_is_a_reference_and_is_not_printed():
    (spec,) = loads(GOOD.replace(MORE, "    token: '${env:TOKEN}'\n" + MORE))
    assert "${env:TOKEN}" in spec.text
    with pytest.raises(SpecError) as error:
        loads(GOOD.replace(MORE, f"    token: s3cr3t\n{MORE}"))
    assert "s3cr3t" not in str(error.value)


def test_merges_by_offset_are_warned_of():
    text = GOOD + "  mode: upsert\n  merge: {keys: [id]}\n"
    (found,) = examine_text(text, Path("/base"), "shop.yaml")[1]
    assert (found.severity, found.key) == ("warning", "source.danube")
    assert "sequence_by" in found.expected


def test_topic_names_are_table_names_and_stay_distinct():
    topics = ["/default/orders", "/default-orders/x", "/default/orders-x", "/a/b_c"]
    names = [source_topic(topic) for topic in topics]
    assert names[0] == "default.orders"
    assert all(NAME.fullmatch(name) for name in names)
    assert len({*names}) == len(topics)
    (spec,) = loads(GOOD)
    assert Plan(spec, {}).branches[""].uri("default.orders").endswith("/lake/default.orders")


@pytest.mark.parametrize(
    ("physical", "topic", "number"),
    [
        ("/default/a-part-0", "/default/a", 0),
        ("/default/a-part-12", "/default/a", 12),
        ("/default/a", "/default/a", None),
        ("/default/a-part-x", "/default/a", None),
        ("/default/a-part-1-part-2", "/default/a", None),
        ("/default/ab-part-1", "/default/a", None),
    ],
)
def test_partitions_by_name(physical: str, topic: str, number: int | None):
    assert is_partition_of(physical, topic) == (number is not None)
    if number is not None:
        assert partition_number(physical) == number
