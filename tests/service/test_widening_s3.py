"""A table with features on S3: the command line brings Spark what it needs to make it and to append."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.delta.snapshot import load_state
from headrace.spec.route_id import RouteId
from headrace.spec.types import type_name
from headrace.storage.store import Profile, Store
from headrace.validate.load import load as load_spec
from services.pipelines import run_cli, storage
from services.s3 import S3


@pytest.mark.slow
def test_spark_makes_a_table_on_s3_as_wide_as_its_records_need(s3: S3, bucket: str, tmp_path: Path) -> None:
    content = {
        "pipeline": "wide",
        "source": {"generate": {"records": 300, "bad_ratio": 0}},
        "table": {
            "path": f"s3://{bucket}/lake/wide",
            "columns": [{"name": "id", "type": "tinyint"}],
            "features": ["typeWidening"],
            "contract": {"wrong_type": "widen"},
        },
        "storage": {"s3": storage(s3)},
    }
    file = tmp_path / "wide.yaml"
    file.write_text(json.dumps(content))
    done = run_cli(["run", file, "--until", "latest", "--json"], {"XDG_STATE_HOME": str(tmp_path / "work")}, within=300)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert (told[-1]["read"], told[-1]["routed"], told[-1]["dead"]) == (300, 300, 0)
    (spec,) = load_spec(file)
    state = load_state(Store(spec.uri_of(RouteId()), Profile(**spec.storage_profile())))
    assert state is not None
    assert type_name(state.schema.field("id").type) == "short"
    assert "typeWidening" in state.protocol.reader_features
