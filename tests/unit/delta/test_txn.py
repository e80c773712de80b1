"""Names of txns: ours, and those of kafka-delta-ingest."""

from __future__ import annotations

import json

import pytest

from headrace.delta.commit_builder import commit
from headrace.delta.txn import foreign_txn, foreign_txns


def test_txns_of_kafka_delta_ingest_by_app_id() -> None:
    txns = {"web-0": 7, "web-12": 3, "shop-2026-1": 5, "headrace:web": 9, "headrace:web-0": 4}
    assert foreign_txns(txns) == {"web": {0: 7, 12: 3}, "shop-2026": {1: 5}}


@pytest.mark.parametrize(("app_id", "partition"), [("web", 0), ("a-b", 7), ("a b", 10), ("é", 999_999_999), ("x-1", 2)])
def test_a_name_is_parsed_as_it_was_built(app_id: str, partition: int) -> None:
    assert foreign_txns({foreign_txn(app_id, partition): 1}) == {app_id: {partition: 1}}


@pytest.mark.parametrize("name", ["web", "web-", "-1", "web-01", "web-1x", "web-9999999999", "web--x"])
def test_other_names_are_not(name: str) -> None:
    assert foreign_txns({name: 1}) == {}


def test_txns_are_the_last_lines_of_a_commit_whatever_their_names() -> None:
    txns = {"headrace:web": 7, "headrace:web:a.b:0": -1, 'app "é" \\ \n\u2028-3': 9}
    info, *lines = map(json.loads, commit([{"commitInfo": {}}], txns).decode().removesuffix("\n").split("\n"))
    assert info == {"commitInfo": {}}
    assert {line["txn"]["appId"]: line["txn"]["version"] for line in lines} == txns
    assert all(line["txn"]["lastUpdated"] > 0 for line in lines)
