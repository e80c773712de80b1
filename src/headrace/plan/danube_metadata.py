"""Column `_danube_metadata`: position of the record as JSON text, with the names of the Danube sink."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spec.danube_source import OFFSET_HEADER, PARTITION_HEADER
from headrace.transform.headers import last_header

_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999 in milliseconds
_ISO = "%Y-%m-%dT%H:%M:%S"
_NO_PARTITION = "none"  # as Danube's sink writes for each topic


def metadata_of(records: pa.Table, *, from_danube: bool = False) -> pa.StringArray:
    """JSON object per record, with its timestamp and partition.

    `from_danube`: the records are in the spool, and their position on the broker is in their headers.
    """
    moments = records["timestamp"].combine_chunks().cast(pa.timestamp("ms", "UTC"), safe=False)
    offsets, partitions = _text(records["offset"]), _text(records["partition"])
    if from_danube:
        headers = _whole(records["headers"])
        offsets = pc.coalesce(last_header(headers, OFFSET_HEADER).cast(pa.string()), offsets)
        partitions = pc.fill_null(last_header(headers, PARTITION_HEADER).cast(pa.string()), _NO_PARTITION)
    parts = [
        '{"topic":',
        _quoted(records["topic"], from_danube=from_danube),
        ',"offset":',
        offsets,
        ',"timestamp":',
        pc.fill_null(_text(moments.cast(pa.int64())), "null"),
        ',"timestamp_iso":',
        pc.fill_null(_iso(moments), "null"),
        ',"partition":"',
        partitions,
        '"}',
        "",
    ]
    return pc.binary_join_element_wise(*parts)


def _text(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return _whole(values.cast(pa.string()))


def _whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return array.dictionary.take(array.indices) if pa.types.is_dictionary(array.type) else array


def _iso(moments: pa.TimestampArray) -> pa.Array:
    """Timestamp as text; NULL outside the years 1 to 9999."""
    counts = moments.cast(pa.int64())
    valid = pc.and_(pc.greater_equal(counts, _FIRST), pc.less_equal(counts, _LAST))
    moments = pc.if_else(valid, moments, pa.scalar(None, moments.type))
    return pc.binary_join_element_wise('"', pc.strftime(moments, _ISO), 'Z"', "")


def _quoted(topics: pa.ChunkedArray, *, from_danube: bool) -> pa.Array:
    """Topic names as JSON strings; each distinct one is encoded once."""
    encoded = topics.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if from_danube:  # `default.orders` is `/default/orders`
        names = ["/" + name.replace(".", "/") for name in names]
    return pa.array([json.dumps(name, ensure_ascii=False) for name in names], pa.string()).take(encoded.indices)
