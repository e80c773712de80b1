"""Avro container files: split a value that has a schema and many records into the records."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.decode.avro.decoder import MARK, AvroDecoder, ByMark
from headrace.decode.avro.schema import BadAvroSchema, Type, parse_avro_schema
from headrace.decode.avro.value_reader import AvroValueReader
from headrace.decode.base import DecodeLimits, Decoder, NewField
from headrace.decode.input import sized
from headrace.decode.scalars import UnfitValue
from headrace.decode.unpack import RATIO, SMALL, UnpackedValues, UnpackingDecoder, decompress_snappy, stream
from headrace.reasons import Reason

_MAGIC = b"Obj\x01"
_SYNC = 16
_META = parse_avro_schema('{"type": "map", "values": "bytes"}')
_LONG = parse_avro_schema('"long"')


def container_decoder(payload: pa.Schema, new_field: NewField, limits: DecodeLimits) -> Decoder:
    """Make a decoder of container files for a payload schema."""
    types: dict[bytes, Type] = {}

    def cut(values: pa.BinaryArray, limits: DecodeLimits) -> UnpackedValues:
        """Each record marked with the number of its schema, as a single object is with a fingerprint."""
        kept, at, rejects = sized(values, limits)
        types.clear()
        numbers: dict[str, bytes] = {}
        pieces: list[bytes] = []
        owner: list[int] = []
        for position, raw in zip(at.tolist(), kept.to_pylist(), strict=True):
            try:
                text, kind, records = _opened(raw, limits)
                name = numbers.setdefault(text, len(numbers).to_bytes(8, "little"))
                types[name] = kind
                pieces += [MARK + name + record for record in records]
                owner += [position] * len(records)
            except UnfitValue as unfit:
                rejects.add(position, unfit.reason, unfit.detail)
        return UnpackedValues(pa.array(pieces, pa.binary()), np.array(owner, np.int64), rejects, "record")

    return UnpackingDecoder(AvroDecoder(ByMark(types), payload, new_field, limits), cut, limits)


def _opened(raw: bytes, limits: DecodeLimits) -> tuple[str, Type, list[bytes]]:
    """Schema and record bytes of a file; raises UnfitValue if the file is incomplete."""
    if not raw.startswith(_MAGIC):
        raise UnfitValue(Reason.FRAMING, "a container file begins with 'Obj' and 1")
    whole = AvroValueReader(raw, len(raw))
    entries, at = whole.value(_META, len(_MAGIC))
    meta: Mapping[str, bytes] = dict(entries)
    text = meta.get("avro.schema", b"").decode(errors="replace")
    try:
        kind = _parsed(text, limits.depth)
    except BadAvroSchema as bad:
        raise UnfitValue(Reason.UNKNOWN_SCHEMA, f"the file's schema cannot be used: {bad}") from None
    unpack = _CODECS.get(meta.get("avro.codec", b"null").decode(errors="replace"))
    if unpack is None:
        raise UnfitValue(Reason.MALFORMED, f"unknown codec {meta['avro.codec'][:40]!r}")
    records: list[bytes] = []
    most = min(limits.record_bytes, max(SMALL, RATIO * len(raw)))
    for count, packed in _blocks(raw, at, limits):
        block = _unpacked(unpack, packed, most)
        most -= len(block)
        records += _records(kind, block, count)
        if len(records) > limits.rows:
            raise UnfitValue(Reason.TOO_WIDE, f"more than {limits.rows} records, which is the limit")
    return text, kind, records


@lru_cache(maxsize=256)
def _parsed(text: str, depth: int) -> Type:
    return parse_avro_schema(text, depth=depth)


def _blocks(raw: bytes, at: int, limits: DecodeLimits) -> Iterator[tuple[int, bytes]]:
    whole = AvroValueReader(raw, len(raw))
    sync, at = raw[at : at + _SYNC], at + _SYNC
    while at < len(raw):
        count, at = whole.value(_LONG, at)
        size, at = whole.value(_LONG, at)
        if size < 0 or raw[at + size : at + size + _SYNC] != sync or not 0 <= count <= limits.rows:
            raise UnfitValue(
                Reason.MALFORMED, "a block does not end with the file's mark, or has more records than it may"
            )
        yield count, raw[at : at + size]
        at += size + _SYNC
    if at != len(raw) or len(sync) < _SYNC:
        raise UnfitValue(Reason.MALFORMED, "the value ends early")


def _records(kind: Type, block: bytes, count: int) -> Iterator[bytes]:
    whole, at = AvroValueReader(block, len(block)), 0
    for _ in range(count):
        _, after = whole.value(kind, at)
        yield block[at:after]
        at = after
    if at != len(block):
        raise UnfitValue(Reason.TRAILING_DATA, f"{len(block) - at} bytes follow a block's last record")


def _unpacked(unpack: Callable[[bytes, int], bytes], packed: bytes, most: int) -> bytes:
    try:
        content = unpack(packed, most)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as trouble:
        raise UnfitValue(Reason.MALFORMED, f"a block cannot be unpacked: {trouble}") from None
    if len(content) > most:
        raise UnfitValue(
            Reason.RATIO, f"the file unpacks to more than {RATIO} times its bytes, or more than a value may have"
        )
    return content


def _inflated(packed: bytes, most: int) -> bytes:
    reader = zlib.decompressobj(-15)
    return _ended(reader.decompress(packed, most + 1), reader.eof, most)


def _bunzipped(packed: bytes, most: int) -> bytes:
    reader = bz2.BZ2Decompressor()
    return _ended(reader.decompress(packed, most + 1), reader.eof, most)


def _unxzed(packed: bytes, most: int) -> bytes:
    reader = lzma.LZMADecompressor(memlimit=256 << 20)
    return _ended(reader.decompress(packed, most + 1), reader.eof, most)


def _ended(content: bytes, ended: bool, most: int) -> bytes:
    if not ended and len(content) <= most:
        raise ValueError("it ends early")
    return content


def _snappy(packed: bytes, most: int) -> bytes:
    content = decompress_snappy(packed[:-4], most)
    if len(content) <= most and zlib.crc32(content) != int.from_bytes(packed[-4:], "big"):
        raise ValueError("its checksum is wrong")
    return content


_CODECS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "null": lambda packed, _: packed,
    "deflate": _inflated,
    "snappy": _snappy,
    "zstandard": lambda packed, most: stream("zstd", packed, most),
    "bzip2": _bunzipped,
    "xz": _unxzed,
}
