"""Cache of decoded records, shared by branches that read the same fields with the same types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.decode.base import UNTOLD, Decoded, Rejects
from headrace.decode.payload_field import payload_field, payload_fields
from headrace.plan.explode import own_names
from headrace.plan.route_schema import decoded_schema
from headrace.spec.explode import Explode


class DecodeCache:
    """Decoded records of one batch."""

    def __init__(self, branches: int) -> None:
        self._wanted = branches > 1
        self._entries: list[tuple[pa.Table, pa.Schema, Decoded]] = []

    def keep(self, records: pa.Table, payload: pa.Schema, decoded: Decoded) -> None:
        """Store a result."""
        if self._wanted and decoded.unknown is None:
            self._entries.append((records, payload, decoded))

    def find(self, records: pa.Table, payload: pa.Schema, explode: Explode | None) -> Decoded | None:
        """Cached result in the columns of this payload; its rejects must be decoded again."""
        for cached, cached_payload, decoded in self._entries:
            if cached is records and _covers(cached_payload, payload, explode) and not _misses(decoded, explode):
                return replace(decoded, rows=_in_columns(decoded.rows, cached_payload, payload), ignored={})
        return None


def _covers(cached: pa.Schema, payload: pa.Schema, explode: Explode | None) -> bool:
    """Whether a result with the payload `known` contains exactly the fields of the requested payload."""
    have, want = _by_path(decoded_schema(cached)), _by_path(decoded_schema(payload))
    if not want or any(item.rescue for item in payload_fields((*cached, *payload))):
        return False
    if explode is None and not _by_path(cached).keys() <= _by_path(payload).keys():
        return False
    return all(path in have and _same(have[path], item) for path, item in want.items())


def _misses(decoded: Decoded, explode: Explode | None) -> bool:
    """Whether ignored fields are subject to the contract of the requested payload."""
    if explode is None or UNTOLD in decoded.ignored:
        return bool(decoded.ignored)
    return bool(own_names(explode, decoded.ignored))


def _by_path(fields: list[pa.Field] | pa.Schema) -> dict[tuple[str, ...], pa.Field]:
    return {payload_field(item).keys: item for item in fields}


def _same(first: pa.Field, second: pa.Field) -> bool:
    have, want = (replace(payload_field(item), name="", path="") for item in (first, second))
    return have == want and first.type.equals(second.type, check_metadata=True)


def _in_columns(rows: pa.Table, cached: pa.Schema, payload: pa.Schema) -> pa.Table:
    have, want = _by_path(decoded_schema(cached)), _by_path(decoded_schema(payload))
    return pa.Table.from_arrays([rows[have[path].name] for path in want], schema=pa.schema(list(want.values())))


def merge_cached(lent: Decoded, rest: Decoded) -> Decoded:
    """Merge a cached result with the result of decoding its rejects again."""
    at = lent.rejects.columns.index
    index = np.concatenate([lent.index.to_numpy(), at[rest.index.to_numpy()]])
    order = np.argsort(index, kind="stable")
    rejects = Rejects()
    rejects.join(rest.rejects, at)
    rows = pa.concat_tables([lent.rows, rest.rows])
    return replace(rest, rows=rows.take(pa.array(order)), index=pa.array(index[order]), rejects=rejects)
