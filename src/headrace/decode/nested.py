"""Nested Arrow types: fields, elements and items, and the rows that they belong to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Mask, Numbers, bools

ODD = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
)

"""Spellings of a type that only save space, or have no column of their own, and the plain type of each."""


def as_struct(table: pa.Table) -> pa.StructArray:
    """A table as one struct array."""
    if not table.column_names:
        return pa.array([{}] * len(table), pa.struct([]))
    whole = table.combine_chunks()
    arrays = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in whole.columns]
    return pa.StructArray.from_arrays(arrays, fields=[item.with_nullable(True) for item in table.schema])


def is_json(kind: pa.DataType) -> bool:
    """Whether texts of a type are JSON."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def plain(values: pa.Array) -> pa.Array:
    """Values without dictionary encoding and extension types."""
    if is_json(values.type):
        return values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for is_a, plain in ODD:
        if is_a(values.type):
            return values.cast(plain)
    return values


def struct_field(values: pa.Array, name: str) -> pa.Array | None:
    """A field of structs, NULL where the struct is NULL."""
    if pa.types.is_null(values.type):
        return pa.nulls(len(values))
    at = values.type.get_field_index(name)
    return None if at < 0 else values.flatten()[at]


def is_there(values: pa.Array) -> Mask:
    """Which values are not NULL."""
    return bools(values.is_valid())


def list_elements(values: pa.Array) -> tuple[pa.Array, Numbers]:
    """All elements of lists, and the position of each element's list."""
    return values.flatten(), pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)


def _entries(values: pa.MapArray) -> pa.ListArray:
    entries = pa.struct([values.type.key_field, values.type.item_field])
    return values.cast(pa.list_(entries))


def map_items(values: pa.MapArray) -> tuple[pa.Array, Numbers]:
    """All values of maps, and the position of each value's map."""
    inner, owner = list_elements(_entries(values))
    return inner.field(1), owner


def map_keys(values: pa.MapArray) -> pa.Array:
    """All keys of maps."""
    return list_elements(_entries(values))[0].field(0)


def offsets_of(values: pa.Array, owner: Numbers) -> pa.Int32Array:
    """Offsets of each list among the flattened elements."""
    counts = np.bincount(owner, minlength=len(values))
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
