"""Compiled spec: a pure function over Arrow batches that routes, decodes, transforms and conforms; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from headrace.decode.base import Rejects
from headrace.decode.sizes import Oversized, is_overflow
from headrace.plan.apply import BranchRun
from headrace.plan.arrow import as_records
from headrace.plan.batch_result import BatchResult, ResultBuilder, merge_results
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.outcomes import with_record_numbers
from headrace.plan.route_schema import RouteSchema
from headrace.reasons import Reason
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.transform.dead_letter_columns import DeadLetterColumns

__all__ = ["EVERY", "BatchResult", "CompiledBranch", "Plan"]

T = TypeVar("T")
Meant = Mapping[str, np.ndarray] | None
_DETAIL = "its rows exceed the maximum column size (2 GB)"


class Plan:
    """Compiled spec, with given route schemas or with schemas inferred from the first batch.

    `unchecked`: branches whose names have not been checked against records; see `BatchResult.unknown`.
    `assumes`: a new route gets the declared schema, which the caller must confirm.
    """

    def __init__(
        self,
        spec: Spec,
        schemas: Mapping[RouteId, RouteSchema | None] | None = None,
        *,
        existing: Mapping[RouteId, pa.Schema] | None = None,
        assumes: bool = False,
        unchecked: Collection[str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.spec = spec
        self.letter_columns = DeadLetterColumns(
            (each.set or {}, each.jmespath or {}) for each in spec.dead_letters.transform
        )
        self.branches = {
            name: CompiledBranch(
                name,
                each,
                _of_branch(name, schemas or {}),
                _of_branch(name, existing or {}),
                assumes,
                unchecked is not None and name in unchecked,
            )
            for name, each in spec.branch_specs().items()
        }
        self.now = now
        self._learns = schemas is None

    @property
    def schemas(self) -> dict[RouteId, RouteSchema | None]:
        """Current route schemas, given or inferred; None for a table that exceeds the limits."""
        branches = self.branches.values()
        return {branch.route_id(route): schema for branch in branches for route, schema in branch.schemas.items()}

    def apply(self, records: pa.Table | pa.RecordBatch, meant: Meant = None) -> BatchResult:
        """Rows by route, dead letters, and counts.

        `meant`: positions of the records for each branch; default: all.
        """
        table = as_records(records)
        for branch in self.branches.values() if self._learns else ():
            branch.begin()
        applied = merge_results(self._parts(table, meant))
        while applied.discovered and self._learns:
            for name, branch in self.branches.items():
                branch.learn(_of_branch(name, applied.discovered))
            applied = merge_results(self._parts(table, meant))
        return applied

    def parts(self, records: pa.Table | pa.RecordBatch, meant: Meant = None) -> Iterator[BatchResult]:
        """Same as `apply` with given schemas, in consecutive parts that fit into memory."""
        return self._parts(as_records(records), meant)

    def _parts(self, records: pa.Table, meant: Meant) -> Iterator[BatchResult]:
        """Halve a batch that is too large; a single record that is too large becomes a dead letter."""
        try:
            applied: BatchResult | None = self._applied(records, meant)
        except _TooLarge:
            applied = self._without_oversized(records, meant) if len(records) == 1 else None
        if applied is not None:
            yield applied
            return
        half = len(records) // 2
        for start, end in ((0, half), (half, len(records))):
            yield from self._parts(records.slice(start, end - start), _between(meant, start, end))

    def _without_oversized(self, records: pa.Table, meant: Meant) -> BatchResult:
        """Apply a single record, which becomes a dead letter in branches where its rows are too large."""
        oversized: set[str] = set()
        while True:
            try:
                return self._applied(records, meant, oversized)
            except _TooLarge as error:
                oversized.add(error.branch)

    def _applied(self, records: pa.Table, meant: Meant, oversized: Collection[str] = ()) -> BatchResult:
        builder, records = ResultBuilder(self.spec, len(records), self.now()), with_record_numbers(records)
        for name, branch in self.branches.items():
            branch_records = records if meant is None else records.take(meant.get(name, np.array([], np.int64)))
            if name in oversized:
                builder.reject(branch_records, Rejects([0], [Reason.TOO_BIG], [_DETAIL]), "decode", branch.unrouted)
            elif len(branch_records):
                self._run(BranchRun(branch, branch_records, builder))
        value_bytes = records.column("value").nbytes if len(records) else 0
        return builder.applied(self.letter_columns, value_bytes)

    def _run(self, branch_run: BranchRun) -> None:
        try:
            branch_run.run()
        except (Oversized, pa.ArrowException, duckdb.Error) as error:
            if is_overflow(error):
                raise _TooLarge(branch_run.branch.name) from error
            raise


class _TooLarge(Exception):
    """Rows of a branch are too large for one Arrow table."""

    def __init__(self, branch: str) -> None:
        self.branch = branch


def _between(meant: Meant, start: int, end: int) -> Meant:
    """Positions of each branch within a slice."""
    return meant and {name: at[(start <= at) & (at < end)] - start for name, at in meant.items()}


def _of_branch(name: str, by_route: Mapping[RouteId, T]) -> dict[str, T]:
    """Items of a branch by route."""
    return {route_id.route: item for route_id, item in by_route.items() if route_id.branch == name}
