"""The buckets whose put-if-absent is verified, and that are created."""

from __future__ import annotations

import json

from headrace.pipeline.object_stores import object_stores
from headrace.validate.load import loads


def test_the_bucket_of_the_spool_is_one_of_the_pipeline() -> None:
    http = {"topics": ["a"], "spool": {"path": "s3://spools/a"}}
    text = {"pipeline": "p", "source": {"http": http}, "table": {"path": "s3://lake/t"}}
    [spec] = loads(json.dumps(text))
    stores = {key: store.uri for _, key, store in object_stores(spec)}
    assert stores == {"storage": "s3://lake/_headrace/p", "source.http.spool.path": "s3://spools/a"}
