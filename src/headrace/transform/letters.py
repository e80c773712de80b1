"""More columns for dead letters: SQL expressions over a letter's own columns. A letter is never lost by one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import numpy as np
import pyarrow as pa

from headrace.tables.schema import DEAD_LETTERS, ENVELOPE
from headrace.transform.sql import Set, Transform


class LetterColumns:
    """Columns in the order written, each of which may read the ones before it; NULL where its expression fails."""

    def __init__(self, steps: Iterable[Mapping[str, str]]) -> None:
        self._made: list[tuple[pa.Field, Transform]] = []
        self.schema = DEAD_LETTERS
        for name, text in (item for step in steps for item in step.items()):
            transform = Transform([Set({name: text})])
            kind = transform.output(self.schema).field(name).type
            made = pa.field(name, pa.string() if pa.types.is_null(kind) else kind)
            self._made.append((made, transform))
            self.schema = self.schema.append(made)

    def add(self, letters: pa.Table, now: datetime) -> pa.Table:
        """The letters with these columns behind their own."""
        envelopes = _envelopes(letters) if self._made else letters
        for made, transform in self._made:
            done = transform.apply(letters, envelopes, now)
            at = np.full(len(letters), -1)
            at[done.index.to_numpy()] = np.arange(len(done.index))
            values = done.rows.column(made.name).take(pa.array(at, mask=at < 0))
            letters = letters.append_column(made, values.cast(made.type))
        return letters


def _envelopes(letters: pa.Table) -> pa.Table:
    unknown = pa.nulls(len(letters), ENVELOPE.field("timestamp_type").type)
    return pa.table([unknown if n == "timestamp_type" else letters.column(n) for n in ENVELOPE.names], schema=ENVELOPE)
