"""What a pipeline asks of its Spark session."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipeline.spark_session import spark_touches_s3
from services.plans import spec_of

UPSERT = {"mode": "upsert", "merge": {"keys": ["id"]}}
WIDENS = {"features": ["typeWidening"]}


@pytest.mark.parametrize(
    ("table", "more", "asks"),
    [
        ({}, {}, False),
        (UPSERT, {}, True),
        (WIDENS, {}, True),
        ({}, {"tables": [{"match": "orders", **UPSERT}]}, True),
        ({"path": "./lake/{route}", **UPSERT}, {}, False),
    ],
    ids=["appends", "merges", "widens", "merges one of them", "merges on disk"],
)
def test_spark_gets_s3_where_it_writes_there(table: dict[str, Any], more: dict[str, Any], asks: bool) -> None:
    spec = spec_of(table={"path": "s3://lake/{route}", **table}, route={"by": {"field": "kind"}}, **more)
    assert spark_touches_s3(spec) is asks
