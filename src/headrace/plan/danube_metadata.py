"""Column `_danube_metadata`: position of the record as JSON text, with the names of the Danube sink."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999 in milliseconds
_ISO = "%Y-%m-%dT%H:%M:%S"


def metadata_of(records: pa.Table) -> pa.StringArray:
    """JSON object per record, with its timestamp and partition."""
    moments = records["timestamp"].combine_chunks().cast(pa.timestamp("ms", "UTC"), safe=False)
    parts = [
        '{"topic":',
        _quoted(records["topic"]),
        ',"offset":',
        _text(records["offset"]),
        ',"timestamp":',
        pc.fill_null(_text(moments.cast(pa.int64())), "null"),
        ',"timestamp_iso":',
        pc.fill_null(_iso(moments), "null"),
        ',"partition":"',
        _text(records["partition"]),
        '"}',
        "",
    ]
    return pc.binary_join_element_wise(*parts)


def _text(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    texts = values.cast(pa.string())
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


def _iso(moments: pa.TimestampArray) -> pa.Array:
    """Timestamp as text; NULL outside the years 1 to 9999."""
    counts = moments.cast(pa.int64())
    valid = pc.and_(pc.greater_equal(counts, _FIRST), pc.less_equal(counts, _LAST))
    moments = pc.if_else(valid, moments, pa.scalar(None, moments.type))
    return pc.binary_join_element_wise('"', pc.strftime(moments, _ISO), 'Z"', "")


def _quoted(topics: pa.ChunkedArray) -> pa.Array:
    """Topic names as JSON strings; each distinct one is encoded once."""
    encoded = topics.combine_chunks().dictionary_encode()
    texts = pa.array([json.dumps(topic, ensure_ascii=False) for topic in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)
