"""A spec compiled into a pure function over Arrow batches: route, decode, transform, fit. No Spark in here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import numpy as np
import pyarrow as pa

from headrace.fates import numbered
from headrace.plan.application import Application
from headrace.plan.arrow import as_envelopes
from headrace.plan.branch import EVERY, Branch
from headrace.plan.gathering import Applied, Gathering
from headrace.shape import Shape
from headrace.spec import Spec
from headrace.transform import LetterColumns

__all__ = ["EVERY", "Applied", "Branch", "Plan"]

T = TypeVar("T")


class Plan:
    """The compiled spec. Give it shapes, or let it learn them from the first batch it sees.

    `unchecked`: branches whose names nobody has held against records yet: `Applied.unknown` tells what they lack.
    `assumes`: a route without a shape gets the one that the spec declares; whoever asked for it has to bear it out.
    """

    def __init__(
        self,
        spec: Spec,
        shapes: Mapping[str, Shape | None] | None = None,
        *,
        existing: Mapping[str, pa.Schema] | None = None,
        assumes: bool = False,
        unchecked: Collection[str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.spec = spec
        self.letter_columns = LetterColumns(
            (each.set or {}, each.jmespath or {}) for each in spec.dead_letters.transform
        )
        self.branches = {
            prefix: Branch(
                prefix,
                each,
                _under(prefix, shapes or {}),
                _under(prefix, existing or {}),
                assumes,
                unchecked is not None and prefix in unchecked,
            )
            for prefix, each in spec.branch_specs().items()
        }
        self.now = now
        self._learns = shapes is None

    @property
    def shapes(self) -> dict[str, Shape | None]:
        """Those it has now, given or learned; None for a table that may not be."""
        branches = self.branches.values()
        return {branch.prefix + route: shape for branch in branches for route, shape in branch.shapes.items()}

    def apply(self, envelopes: pa.Table | pa.RecordBatch, meant: Mapping[str, np.ndarray] | None = None) -> Applied:
        """Rows per route, dead letters, and the account of every record.

        `meant`: the records that each branch shall see; all of them, unless it is given.
        """
        table = numbered(as_envelopes(envelopes))
        for branch in self.branches.values() if self._learns else ():
            branch.begin()
        applied = self._applied(table, meant)
        while applied.discovered and self._learns:
            for prefix, branch in self.branches.items():
                branch.learn(_under(prefix, applied.discovered))
            applied = self._applied(table, meant)
        return applied

    def _applied(self, envelopes: pa.Table, meant: Mapping[str, np.ndarray] | None) -> Applied:
        gathering = Gathering(self.spec, len(envelopes), self.now())
        for prefix, branch in self.branches.items():
            theirs = envelopes if meant is None else envelopes.take(meant.get(prefix, np.array([], np.int64)))
            if len(theirs):
                Application(branch, theirs, gathering).run()
        value_bytes = envelopes.column("value").nbytes if len(envelopes) else 0
        return gathering.applied(self.letter_columns, value_bytes)


def _under(prefix: str, known: Mapping[str, T]) -> dict[str, T]:
    """What is known of one branch, by the names that its routes have there."""
    parts = ((*name.rpartition("/"), each) for name, each in known.items())
    return {route: each for head, slash, route, each in parts if head + slash == prefix}
