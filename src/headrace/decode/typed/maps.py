"""Check maps of typed values at any depth: no duplicate keys, and no more keys than the limit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Numbers
from headrace.decode.nested import list_elements, map_items, map_keys, struct_field
from headrace.reasons import Reason
from headrace.spec.types import is_list

Refuse = Callable[[Numbers, Reason, str], None]  # records, reason, detail


def check_maps(values: pa.Array, rows: Numbers, most: int, refuse: Refuse, where: str = "") -> None:
    """Reject records whose maps could not be JSON objects; `rows` has the record of each value."""
    kind = values.type
    if not _holds_map(kind):
        return
    if pa.types.is_struct(kind):
        for item in kind:
            inner = struct_field(values, item.name)
            check_maps(inner, rows, most, refuse, f"{where}.{item.name}" if where else item.name)
    elif is_list(kind):
        inner, owner = list_elements(values)
        check_maps(inner, rows[owner], most, refuse, f"{where}[]")
    else:
        inner, owner = map_items(values)
        _check(map_keys(values), owner, rows, most, refuse, where)
        check_maps(inner, rows[owner], most, refuse, f"{where}.*")


def _check(keys: pa.Array, owner: Numbers, rows: Numbers, most: int, refuse: Refuse, where: str) -> None:
    pairs = pa.table({"owner": pa.array(owner), "key": keys})
    grouped = pairs.group_by(["owner", "key"]).aggregate([([], "count_all")])
    twice = grouped.filter(pc.greater(grouped["count_all"], 1))["owner"].to_numpy()
    if len(twice):
        refuse(rows[twice], Reason.DUPLICATE_KEY, f"{where} has a duplicate key")
    counts = np.bincount(owner, minlength=len(rows))
    for at in np.flatnonzero(counts > most).tolist():
        refuse(rows[at : at + 1], Reason.TOO_WIDE, f"{where} has {counts[at]} keys, the limit is {most}")


def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    inner = list(kind) if pa.types.is_struct(kind) else [kind.value_field] if is_list(kind) else []
    return any(_holds_map(item.type) for item in inner)
