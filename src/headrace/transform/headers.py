"""Headers as a map, so that expressions can write `_headers['trace']`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER_MAP = pa.map_(pa.string(), pa.binary())


def header_map(headers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Per record a map from header name to bytes; the last header of a name wins."""
    maps = [_mapped(chunk) for chunk in headers.chunks]
    return pa.chunked_array(maps, maps[0].type if maps else HEADER_MAP)


def last_header(headers: pa.ListArray, name: str) -> pa.Array:
    """Last header of a name in each record, as bytes; NULL if there is none."""
    parents = pc.list_parent_indices(headers).to_numpy()
    pairs = headers.flatten()
    at = np.flatnonzero(pc.equal(pairs.field("key"), name).fill_null(False).to_numpy(zero_copy_only=False))
    last = np.full(len(headers), -1)
    last[parents[at]] = at  # ascending, so that the last one wins
    index = pa.array(last, pa.int64(), mask=last < 0)
    return pairs.field("value").take(index)


def _mapped(headers: pa.ListArray | pa.DictionaryArray) -> pa.MapArray | pa.DictionaryArray:
    if pa.types.is_dictionary(headers.type):  # headers are stored once per record, for all its rows
        return pa.DictionaryArray.from_arrays(headers.indices, _mapped(headers.dictionary))
    parents = pc.list_parent_indices(headers).to_numpy()
    pairs = headers.flatten()
    keys, values = pairs.field("key"), pairs.field("value")
    last = _last(parents, keys)
    counts = np.bincount(parents[last], minlength=len(headers))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys.take(last), values.take(last))


def _last(parents: np.ndarray, keys: pa.StringArray) -> np.ndarray:
    """Positions of the last header of each name in each record, ascending; headers without a name are skipped."""
    named = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
    codes = pc.fill_null(keys.dictionary_encode().indices, 0).to_numpy()
    pairs = (parents * (int(codes.max(initial=0)) + 1) + codes)[named]
    _, first = np.unique(pairs[::-1], return_index=True)
    return named[np.sort(len(named) - 1 - first)]
