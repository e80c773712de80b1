"""The source of a spool, without Spark."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.source.base import open_source
from headrace.source.spool.writer import Spool
from headrace.validate.load import loads


def test_the_spool_of_another_pipeline_is_not_read(tmp_path: Path) -> None:
    """It would read its records, and let its writer delete them."""
    text = "pipeline: b\nsource: {http: {topics: [a], spool: {path: ./spool}}}\ntable: {path: ./t}\n"
    source = open_source(loads(text, tmp_path)[0])
    with closing(Spool.open(tmp_path / "spool", "a")):
        for read in (source.topics, source.bounds, lambda: source.receive(print, accept=False)):  # type: ignore[attr-defined]
            with pytest.raises(UsageError, match="belongs to the pipeline 'a'"):
                read()
