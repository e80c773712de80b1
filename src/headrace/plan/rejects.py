"""Dead letters of rejected records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa

from headrace.decode.base import REASONS, Rejects
from headrace.decode.registry.framing import schema_ids
from headrace.delta.schema import DEAD_LETTERS
from headrace.errors import ContractViolation
from headrace.plan.arrow import values_of
from headrace.reasons import MISFITS, Reason
from headrace.spec import ColumnSpec, Spec, TableSpec

_CODES = pa.array([reason.value for reason in REASONS])


def dead_letters_of(
    spec: Spec, records: pa.Table, rejects: Rejects, step: str, table: str | None, now: datetime
) -> pa.Table:
    """Dead letter of each record, in the columns of the dead-letter table."""
    count = len(records)
    carried = [records.column(name) for name in DEAD_LETTERS.names[:7]]
    rest = [
        pa.repeat(pa.scalar(table, pa.string()), count),
        pa.repeat(step, count),
        _CODES.take(pa.array(rejects.columns.reason)),
        rejects.columns.detail,
        schema_ids(values_of(records), spec.decode.options.framing),
        pa.repeat(spec.pipeline, count),
        pa.repeat(spec.digest, count),
        pa.repeat(pa.scalar(now, DEAD_LETTERS.field("rejected_at").type), count),
        pa.repeat(now.date(), count),
    ]
    return pa.table([*carried, *rest], schema=DEAD_LETTERS)


def enforce_contract(rejects: Rejects, rules: TableSpec, table: str) -> None:
    """Raise ContractViolation if the contract is set to `stop` for a reject."""
    contract = rules.contract
    own = [answer for column in contract.columns.values() for answer in (column.wrong_type, column.missing)]
    if "stop" not in (contract.wrong_type, contract.missing, *own):
        return
    for _, reason, detail in rejects:
        column = _column_of(detail, rules.columns) if contract.columns else ""
        is_wrong_type = reason in MISFITS and contract.wrong_type_of(column) == "stop"
        if is_wrong_type or (reason is Reason.MISSING and contract.missing_of(column) == "stop"):
            raise ContractViolation(
                f"{table}: {detail} ({reason.value}); the contract is set to stop.",
                hint="Fix the producer or change table.contract, then run again; the record will be read again.",
            )


def _column_of(detail: str, columns: Iterable[ColumnSpec]) -> str:
    """Declared column that a detail starts with; its path may be inside an envelope."""
    location = detail.partition(": ")[0]
    matches: list[tuple[int, int, str]] = []
    for column in columns:
        for path in {column.path or column.name, column.name}:
            if match := re.search(rf"(?:^|\.){re.escape(path)}(?=$|[.\[])", location):
                matches.append((match.start(), -len(path), column.name))
    return min(matches)[2] if matches else ""
