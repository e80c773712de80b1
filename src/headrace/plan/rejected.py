"""Dead letters, made: a record with the reason why it is no row of a table."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from headrace.decode import Rejects
from headrace.decode.framing import schema_ids
from headrace.errors import ContractBroken
from headrace.plan.arrow import values_of
from headrace.reasons import MISFITS, Reason
from headrace.spec import Spec, TableSpec
from headrace.tables.schema import DEAD_LETTERS


def letters_of(
    spec: Spec, envelopes: pa.Table, rejects: Rejects, step: str, table: str | None, now: datetime
) -> pa.Table:
    """A letter for each of these envelopes, in the columns of their table."""
    count = len(envelopes)
    carried = [envelopes.column(name) for name in DEAD_LETTERS.names[:7]]
    rest = [
        pa.array([table] * count, pa.string()),
        pa.array([step] * count),
        pa.array([reason.value for reason in rejects.reason]),
        pa.array([detail[:512] for detail in rejects.detail]),
        schema_ids(values_of(envelopes)) if spec.decode.options.framed else pa.nulls(count, pa.int32()),
        pa.array([spec.pipeline] * count),
        pa.array([spec.digest] * count),
        pa.array([now] * count, DEAD_LETTERS.field("rejected_at").type),
        pa.array([now.date()] * count),
    ]
    return pa.table([*carried, *rest], schema=DEAD_LETTERS)


def hold_to_contract(rejects: Rejects, rules: TableSpec, table: str) -> None:
    """A contract may ask for a stop where the default is a letter."""
    for reason, detail in zip(rejects.reason, rejects.detail, strict=True):
        wrong = reason in MISFITS and rules.contract.wrong_type == "stop"
        if wrong or (reason is Reason.MISSING and rules.contract.missing == "stop"):
            raise ContractBroken(
                f"{table}: {detail} ({reason.value}), and the contract says stop.",
                next="Mend the producer or change table.contract, then run again: the record is read anew.",
            )
