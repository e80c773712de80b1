"""Result of a batch over all branches: rows, dead letters, counts, and new routes and fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import numpy as np
import pyarrow as pa

from headrace.decode.base import Rejects
from headrace.decode.inference import Structure
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.decode.sizes import plain_array
from headrace.delta.schema import DEAD_LETTERS, RESCUED
from headrace.plan.accounting import Counts
from headrace.plan.decode_cache import DecodeCache
from headrace.plan.outcomes import RecordOutcomes, record_numbers
from headrace.plan.rejects import dead_letters_of
from headrace.plan.unknown_names import UnknownName
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.transform.dead_letter_columns import DeadLetterColumns

T = TypeVar("T")


@dataclass(frozen=True)
class BatchResult:
    """Result of a batch."""

    tables: Mapping[RouteId, pa.Table]  # rows by route, in the columns of their table
    dead_letters: pa.Table  # in the columns of the dead-letter table
    counts: Counts
    discovered: Mapping[RouteId, Structure] = field(default_factory=dict)  # new fields by route
    assumed: frozenset[RouteId] = frozenset()  # routes with the declared schema, not yet confirmed
    unknown: Mapping[RouteId, frozenset[UnknownName]] = field(
        default_factory=dict
    )  # by route with rows: names that it does not have
    origins: Mapping[RouteId, np.ndarray] = field(default_factory=dict)  # by route: record number of each row
    dead: np.ndarray = field(default_factory=lambda: np.array([], np.int64))  # record number of each dead letter


def merge_results(parts: Iterable[BatchResult]) -> BatchResult:
    """Merge the results of consecutive parts of a batch."""
    result, *others = parts
    for part in others:
        result = _joined(result, part)
    return result


def _joined(first: BatchResult, second: BatchResult) -> BatchResult:
    offset = first.counts.read  # number of records before the second part
    origins = {name: of + offset for name, of in second.origins.items()}
    return BatchResult(
        _united(first.tables, second.tables, lambda *both: pa.concat_tables(both)),
        pa.concat_tables([first.dead_letters, second.dead_letters]),
        first.counts + second.counts,
        _united(first.discovered, second.discovered, merge_structures),
        first.assumed | second.assumed,
        _united(first.unknown, second.unknown, frozenset.intersection),
        _united(first.origins, origins, lambda *both: np.concatenate(both)),
        np.concatenate([first.dead, second.dead + offset]),
    )


def _united(first: Mapping[RouteId, T], second: Mapping[RouteId, T], join: Callable[[T, T], T]) -> dict[RouteId, T]:
    both = {name: join(first[name], second[name]) for name in first.keys() & second.keys()}
    return {**first, **second, **both}


class ResultBuilder:
    """Collects the result of a batch."""

    def __init__(self, spec: Spec, read: int, now: datetime) -> None:
        self.spec, self.now = spec, now
        self.record_outcomes = RecordOutcomes.of(read)
        self.shared = DecodeCache(1 + len(spec.branches))
        self.discovered: dict[RouteId, Structure] = {}
        self.assumed: set[RouteId] = set()
        self.unknown: dict[RouteId, frozenset[UnknownName]] = {}
        self._tables: dict[RouteId, list[pa.Table]] = {}
        self._origins: dict[RouteId, list[np.ndarray]] = {}
        self._dead_letters: list[pa.Table] = []
        self._dead: list[np.ndarray] = []
        self._reasons: dict[str, int] = {}
        self._ignored: dict[str, int] = {}
        self._violations: dict[str, int] = {}
        self._rescued = 0

    def blank(self) -> ResultBuilder:
        """Empty builder for the same batch."""
        return ResultBuilder(self.spec, len(self.record_outcomes.row), self.now)

    def add(self, route_id: RouteId, table: pa.Table, records: pa.Table) -> None:
        """Add rows of a table with their records."""
        if not len(table):
            return
        self.record_outcomes.have_row(records)
        self._tables.setdefault(route_id, []).append(table)
        self._origins.setdefault(route_id, []).append(record_numbers(records))
        self._rescued += len(table) - table[RESCUED.name].null_count if RESCUED.name in table.column_names else 0

    def reject(self, spec: Spec, records: pa.Table, rejects: Rejects, step: str, table: str | None) -> pa.Table:
        """Add dead letters of a branch; returns the rejected records."""
        for reason, count in rejects.counts().items():
            self._reasons[reason.value] = self._reasons.get(reason.value, 0) + count
        rejected = records.take(pa.array(rejects.columns.index))
        rejected = pa.table([plain_array(column) for column in rejected.columns], rejected.column_names)
        self.record_outcomes.are_rejected(rejected)
        self._dead.append(record_numbers(rejected))
        self._dead_letters.append(dead_letters_of(spec, rejected, rejects, step, table, self.now))
        return rejected

    def ignore(self, uri: str, fields: Mapping[str, int]) -> None:
        """Count ignored new fields."""
        _count(self._ignored, uri, fields)

    def miss(self, uri: str, expectations: Mapping[str, int]) -> None:
        """Count violations of expectations."""
        _count(self._violations, uri, expectations)

    def applied(self, dead_letter_columns: DeadLetterColumns, value_bytes: int) -> BatchResult:
        """Build the result."""
        dead_letters = pa.concat_tables(self._dead_letters) if self._dead_letters else DEAD_LETTERS.empty_table()
        record_outcomes = self.record_outcomes
        counts = Counts(
            read=len(record_outcomes.row),
            routed=record_outcomes.routed,
            dead=record_outcomes.dead,
            filtered=record_outcomes.left_out,
            skipped=record_outcomes.skipped,
            value_bytes=value_bytes,
            reasons=self._reasons,
            ignored=self._ignored,
            violations=self._violations,
            rescued=self._rescued,
        )
        return BatchResult(
            {name: pa.concat_tables(parts) for name, parts in self._tables.items()},
            dead_letter_columns.add(dead_letters, self.now),
            counts,
            self.discovered,
            frozenset(self.assumed),
            self.unknown,
            {name: np.concatenate(parts) for name, parts in self._origins.items()},
            np.concatenate(self._dead) if self._dead else np.array([], np.int64),
        )


def _count(counts: dict[str, int], uri: str, more: Mapping[str, int]) -> None:
    for name, count in more.items():
        key = f"{uri}: {name}"
        counts[key] = counts.get(key, 0) + count
