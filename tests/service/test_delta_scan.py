"""DuckDB's `delta_scan` reads our tables, and the queries of the documentation run as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import Block, blocks
from services.delta_scan import scanned
from services.in_process_pipeline import Harness


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in buckets, dead letters, and outcomes of a replay, as the queries speak of them."""
    folder = tmp_path_factory.mktemp("delta_scan")
    by = [{"hash": "user_id", "buckets": 16}]
    harness = Harness(
        folder, {"table": {"path": f"{folder}/lake/orders", "partition_by": by}, "route": {"by": "fixed"}}
    )
    harness.feed(
        [*({"id": number, "user_id": number, "note": "ü" if number % 2 else None} for number in range(60)), b"bad"]
    )
    harness.replay()
    return folder


def test_every_row_is_read(lake: Path):
    query = "SELECT count(*), sum(id), count(note), max(_source.offset) FROM delta_scan('lake/orders')"
    assert scanned(query, lake) == [[60, sum(range(60)), 30, 59]]


@pytest.mark.parametrize("block", [each for each in blocks("sql") if "delta_scan(" in each.text], ids=str)
def test_a_query_of_the_documentation_finds_its_rows(lake: Path, block: Block):
    assert scanned(block.text, lake)
