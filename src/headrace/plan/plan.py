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
BranchPositions = Mapping[str, np.ndarray] | None
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
        self.dead_letter_columns = DeadLetterColumns(
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

    @property
    def routes(self) -> int:
        """Number of routes with a schema, given, inferred or assumed."""
        return sum(len(branch.schemas) for branch in self.branches.values())

    def apply(self, records: pa.Table | pa.RecordBatch, positions: BranchPositions = None) -> BatchResult:
        """Rows by route, dead letters, and counts.

        `positions`: of the records for each branch; default: all.
        """
        table = as_records(records)
        for branch in self.branches.values() if self._learns else ():
            branch.begin()
        applied = merge_results(self._parts(table, positions))
        while applied.discovered and self._learns:
            for name, branch in self.branches.items():
                branch.learn(_of_branch(name, applied.discovered))
            applied = merge_results(self._parts(table, positions))
        return applied

    def parts(self, records: pa.Table | pa.RecordBatch, positions: BranchPositions = None) -> Iterator[BatchResult]:
        """Same as `apply` with given schemas, in consecutive parts that fit into memory."""
        return self._parts(as_records(records), positions)

    def _parts(self, records: pa.Table, positions: BranchPositions) -> Iterator[BatchResult]:
        """Halve a batch that is too large; a single record that is too large becomes a dead letter."""
        try:
            applied: BatchResult | None = self._applied(records, positions)
        except _TooLarge:
            applied = self._without_oversized(records, positions) if len(records) == 1 else None
        if applied is not None:
            yield applied
            return
        half = len(records) // 2
        for start, end in ((0, half), (half, len(records))):
            yield from self._parts(records.slice(start, end - start), _between(positions, start, end))

    def _without_oversized(self, records: pa.Table, positions: BranchPositions) -> BatchResult:
        """Apply a single record, which becomes a dead letter in branches where its rows are too large."""
        oversized: set[str] = set()
        while True:
            try:
                return self._applied(records, positions, oversized)
            except _TooLarge as error:
                oversized.add(error.branch)

    def _applied(self, records: pa.Table, positions: BranchPositions, oversized: Collection[str] = ()) -> BatchResult:
        builder, records = ResultBuilder(self.spec, len(records), self.now()), with_record_numbers(records)
        by_branch = self._by_topic(records) if positions is None else self._at(records, positions)
        for name, branch in self.branches.items():
            branch_records = by_branch[name]
            if not len(branch_records):
                continue
            if name in oversized:
                rejects = Rejects([0], [Reason.TOO_BIG], [_DETAIL])
                builder.reject(branch.spec, branch_records, rejects, "decode", branch.unrouted)
            else:
                self._run(BranchRun(branch, branch_records, builder))
        value_bytes = records.column("value").nbytes if len(records) else 0
        return builder.applied(self.dead_letter_columns, value_bytes)

    def _at(self, records: pa.Table, positions: Mapping[str, np.ndarray]) -> dict[str, pa.Table]:
        """Records of each branch, at given positions."""
        return {name: records.take(positions.get(name, np.array([], np.int64))) for name in self.branches}

    def _by_topic(self, records: pa.Table) -> dict[str, pa.Table]:
        """Records of each branch: of the topics of an entry, or of all topics without one."""
        owned = records_by_entry(self.spec, records)
        others = owned.get("", records.slice(0, 0))  # the same object: branches share what they decode
        entries = {entry.name for entry in self.spec.topics}
        return {name: owned.get(name, records.slice(0, 0)) if name in entries else others for name in self.branches}

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


def records_by_entry(spec: Spec, records: pa.Table) -> dict[str, pa.Table]:
    """Records by the name of the entry of `topics` that applies; "" if none does. Each record is in one of them."""
    if not spec.topics or not len(records):
        return {"": records}
    topics = records.column("topic").combine_chunks()
    topics = topics if isinstance(topics, pa.Array) else pa.concat_arrays(topics.chunks)
    encoded = topics.dictionary_encode()
    entries = [spec.entry_of(topic) for topic in encoded.dictionary.to_pylist()]
    names = ["" if entry is None else entry.name for entry in entries]
    if len(set(names)) == 1:
        return {names[0]: records}
    owners = np.array(names, object)[encoded.indices.to_numpy()]
    return {name: records.take(pa.array(np.flatnonzero(owners == name))) for name in dict.fromkeys(names)}


def _between(positions: BranchPositions, start: int, end: int) -> BranchPositions:
    """Positions of each branch within a slice."""
    return positions and {name: at[(start <= at) & (at < end)] - start for name, at in positions.items()}


def _of_branch(name: str, by_route: Mapping[RouteId, T]) -> dict[str, T]:
    """Items of a branch by route."""
    return {route_id.route: item for route_id, item in by_route.items() if route_id.branch == name}
