"""A Spark session that a test lets fail, or wait: for tests of what happens around the runs of pipelines."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from headrace.errors import HeadraceError
from headrace.pipeline.spark_session import SharedSession


class FailingSession(SharedSession):
    """Raises the errors given, one for each start; then pipelines wait in `starting` until `released` is set."""

    def __init__(self, failures: Sequence[HeadraceError]) -> None:
        super().__init__([])
        self._failures, self.starts = list(failures), 0
        self.released = threading.Event()

    def get(self) -> Any:
        """No session."""
        self.starts += 1
        if self._failures:
            raise self._failures.pop(0)
        self.released.wait(60)
        return None

    def prepare(self, records: int | None = None) -> None:
        """Nothing is prepared."""
