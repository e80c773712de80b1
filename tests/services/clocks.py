"""A machine whose clock is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace.cli.dead_letters
import headrace.ledger.compaction
import headrace.ledger.ledger
import headrace.pipeline.pipeline
import headrace.table.vacuum
from headrace.delta import commit_builder as actions

DAY, YEAR = timedelta(days=1), timedelta(days=365)
_MODULES = (
    headrace.cli.dead_letters,
    headrace.ledger.compaction,
    headrace.ledger.ledger,
    headrace.pipeline.pipeline,
    headrace.table.vacuum,
)


@contextmanager
def clock(ahead: timedelta) -> Iterator[None]:
    """A machine whose clock is so far ahead; commits have its time."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + ahead

    with pytest.MonkeyPatch.context() as patch:
        for module in _MODULES:
            patch.setattr(module, "datetime", Shifted)
        patch.setattr(actions, "now", lambda: int((datetime.now(UTC) + ahead).timestamp() * 1000))
        yield
