"""Runs on a session of the caller's, as in a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import UsageError
from headrace.runtime import session
from headrace.validate.load import loads
from services.threads import ids


def spec_of(lake: Path, **more: Any) -> headrace.Spec:
    content = {
        "pipeline": "given",
        "source": {"generate": {"records": 100, "bad_ratio": 0}},
        "table": {"path": str(lake / "events"), "columns": [{"name": "id", "type": "bigint"}]},
    }
    return loads(json.dumps(content | more), lake)[0]


def test_a_pipeline_runs_on_a_given_session_and_leaves_it_as_it_is(spark: Any, lake: Path) -> None:
    given = spark.newSession()
    given.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    summary = headrace.run(spec_of(lake), until="latest", spark=given)
    assert summary.counts.read == 100
    assert len(ids(lake / "events")) == 100
    assert given.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert session.alive(spark)
    assert given.range(3).count() == 3


def test_a_session_that_is_no_session(lake: Path) -> None:
    with pytest.raises(UsageError, match="not a classic SparkSession"):
        headrace.run(spec_of(lake), until="latest", spark="spark")  # type: ignore[arg-type]
