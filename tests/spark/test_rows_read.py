"""Progress of a running query, as Spark's metrics tell it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headrace.runtime import session
from services.wait import eventually

GROUP = "rows read"


def test_the_rows_that_a_running_query_has_read_are_known(spark: Any, tmp_path: Path) -> None:
    pipe, results = tmp_path / "pipe", list[Any]()
    os.mkfifo(pipe)

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 1:  # the query goes on when the test writes
                pipe.read_text()
            yield batch.slice(0, 1)

    def query() -> None:
        spark.sparkContext.setJobGroup(GROUP, GROUP)
        results.append(session.map_in_arrow(spark.range(0, 100_000, 1, 1), task, {"id": "long"}).collect())

    assert session.rows_read(spark, GROUP) == 0
    running = threading.Thread(target=query, daemon=True)
    running.start()
    try:
        read = eventually(lambda: session.rows_read(spark, GROUP), 30, "rows of the running query")
    finally:
        pipe.write_text("go on")
        running.join(30)
    assert 25_000 <= read <= 100_000
    assert len(results[0]) == 4
    assert session.rows_read(spark, GROUP) == 0
