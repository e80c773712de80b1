"""Expectations: named predicates over transformed rows, and the actions for violations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.decode.base import Rejects
from headrace.errors import ContractViolation, UsageError
from headrace.plan.route_schema import column_mismatch
from headrace.reasons import Reason
from headrace.spec.table import Expectation
from headrace.transform.steps import Transform, WhereStep


@dataclass
class ExpectationResult:
    """Remaining rows, rejects, and violations by expectation."""

    keep: np.ndarray  # boolean mask
    rejects: Rejects = field(default_factory=Rejects)
    violations: dict[str, int] = field(default_factory=dict)

    @property
    def dropped(self) -> np.ndarray:
        """Rows that are filtered."""
        return np.setdiff1d(np.flatnonzero(~self.keep), self.rejects.columns.index)


def apply_expectations(
    expectations: Sequence[Expectation], rows: pa.Table, records: pa.Table, now: datetime, uri: str
) -> ExpectationResult:
    """Evaluate all expectations; the first violated one with an action other than `warn` applies to a row."""
    result = ExpectationResult(np.ones(len(rows), bool))
    for expectation in expectations:
        at = _violations(expectation, rows, records, now, uri)
        if not len(at):
            continue
        result.violations[expectation.name] = len(at)
        if expectation.on_violation == "stop":
            raise _broken(expectation, records, int(at[0]), uri)
        if expectation.on_violation == "reject":
            result.rejects.add_all(at[result.keep[at]], Reason.EXPECTATION, f"{expectation.name}: {expectation.expect}")
        if expectation.on_violation != "warn":
            result.keep[at] = False
    return result


def _violations(expectation: Expectation, rows: pa.Table, records: pa.Table, now: datetime, uri: str) -> np.ndarray:
    """Rows for which the predicate is false or fails; NULL passes, as in a CHECK constraint."""
    check = _compiled(expectation.expect)
    try:
        result = check.apply(_read(check, rows), records, now)
    except UsageError as error:
        raise column_mismatch(f"{uri}, expectation {expectation.name}", error) from None
    failed = result.rejects.columns.index
    return np.sort(np.concatenate([result.filtered.to_numpy(), failed]))


@lru_cache(maxsize=256)
def _compiled(text: str) -> Transform:
    return Transform([WhereStep(f"coalesce((\n{text}\n), true)")])


def _read(check: Transform, rows: pa.Table) -> pa.Table:
    """Columns that the predicate reads; at least one, because Arrow tables without columns have no row count."""
    inputs = {name.lower() for name in check.inputs()}
    names = [name for name in rows.column_names if name.lower() in inputs]
    return rows.select(names or rows.column_names[:1])


def _broken(expectation: Expectation, records: pa.Table, at: int, uri: str) -> ContractViolation:
    topic, partition, offset = (records[name][at].as_py() for name in ("topic", "partition", "offset"))
    return ContractViolation(
        f"{uri}: the record at {topic}/{partition}/{offset} violates the expectation '{expectation.name}' "
        f"({expectation.expect}) with on_violation: stop.",
        hint="Fix the producer or change the expectation, then run again; the record will be read again.",
    )
