"""Infer the schema of a new table's values: from a sample, then only from values that the inferred schema does not fit.

Inference costs several times as much as decoding. So values are decoded with the schema inferred so far; values that
do not fit it completely are inferred and extend it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headrace.decode.base import Decoded, Decoder, Rejects
from headrace.decode.inference import Structure, big_longs, certain, evolve, holds_double, may_hold_big_longs, merge_all
from headrace.reasons import Reason

_SAMPLE = 1_000  # values of the first sample
_TIMES = 8  # maximum number of extensions

# Reasons that do not depend on the columns; any other may mean that the inferred schema was too narrow.
_FINAL = frozenset(
    {
        Reason.EMPTY,
        Reason.TOMBSTONE,
        Reason.MALFORMED,
        Reason.ENCODING,
        Reason.NOT_AN_OBJECT,
        Reason.TRAILING_DATA,
        Reason.TOO_DEEP,
        Reason.TOO_WIDE,
        Reason.TOO_BIG,
    }
)


class Discovery:
    """Infers the same as a decoder without columns, with less work for values that fit the schema so far."""

    def __init__(self, blank: Callable[[pa.BinaryArray], Decoded], bind: Callable[[pa.Schema], Decoder]) -> None:
        self._blank = blank
        self._bind = bind
        self._structure: Structure = {}
        self._payload = pa.schema([])
        self._decoder: Decoder | None = None
        self._times = 0

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """No rows, only which values are valid, and the structure of all values so far."""
        if self._decoder is None:
            first = self._blank(values.slice(0, _SAMPLE))
            self._widen(first)
            if self._decoder is None or len(values) <= _SAMPLE:
                return first if len(values) <= _SAMPLE else self._blank(values)
        seen = self._decoder.decode(values)
        doubtful = [at for at, why in zip(seen.rejects.index, seen.rejects.reason, strict=True) if why not in _FINAL]
        index = seen.index.to_numpy()
        if holds_double(self._structure):
            # A column of doubles takes an integer beyond 2^53; with both, the column is JSON text.
            large = may_hold_big_longs(values.take(seen.index))
            doubtful, index = sorted([*doubtful, *index[large].tolist()]), index[~large]
        inferred = self._blank(values.take(pa.array(doubtful, pa.int64())))
        # A valid long may be one that a double of a later record, or of another task, cannot hold.
        self._structure = merge_all(
            [self._structure, big_longs(zip(seen.rows.column_names, seen.rows.columns, strict=True))]
        )
        self._widen(seen, inferred)
        places = np.array(doubtful, np.int64)
        index = np.sort(np.concatenate([index, places[inferred.index.to_numpy()]]))
        return Decoded(
            inferred.rows, pa.array(index), _joined_rejects(seen.rejects, inferred.rejects, doubtful), self._structure
        )

    def _widen(self, *looks: Decoded) -> None:
        self._structure = merge_all([self._structure, *(look.unknown for look in looks if look.unknown)])
        payload = evolve(pa.schema([]), certain(self._structure))
        if payload != self._payload and self._times < _TIMES:
            self._times += 1
            self._payload, self._decoder = payload, self._bind(payload)


def _joined_rejects(first: Rejects, inferred: Rejects, doubtful: list[int]) -> Rejects:
    """Final rejects of the decoder, and rejects of the inference."""
    settled = Rejects()
    for position, reason, detail in first:
        if reason in _FINAL:
            settled.add(position, reason, detail)
    settled.join(inferred, np.array(doubtful, np.int64))
    return settled.in_order()
