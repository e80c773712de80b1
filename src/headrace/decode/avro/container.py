"""Avro container files: split a value that has a schema and many records into the records."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.decode.avro.decoder import MARKER, AvroDecoder, ByMarker
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
        last: list[bytes] = []
        numbers: dict[str, bytes] = {}
        pieces: list[bytes] = []
        owner: list[int] = []
        for position, raw in zip(at.tolist(), kept.to_pylist(), strict=True):
            try:
                text, kind, records = _opened(raw, limits, last)
                name = numbers.setdefault(text, len(numbers).to_bytes(8, "little"))
                types[name] = kind
                pieces += [MARKER + name + record for record in records]
                owner += [position] * len(records)
            except UnfitValue as unfit:
                rejects.add(position, unfit.reason, unfit.detail)
        return UnpackedValues(pa.array(pieces, pa.binary()), np.array(owner, np.int64), rejects, "record")

    return UnpackingDecoder(AvroDecoder(ByMarker(types), payload, new_field, limits), cut, limits)


@dataclass(frozen=True, slots=True)
class ContainerHeader:
    """The header of a container file."""

    schema: str
    type: Type
    codec: str
    sync: bytes
    size: int  # bytes of the header


def container_header(raw: bytes, depth: int) -> ContainerHeader:
    """Parse the header at the start of a container file; raises UnfitValue if it is incomplete or not valid."""
    if not raw.startswith(_MAGIC):
        raise UnfitValue(Reason.FRAMING, "missing Avro magic bytes (Obj 1)")
    entries, at = AvroValueReader(raw, len(raw)).value(_META, len(_MAGIC))
    meta: Mapping[str, bytes] = dict(entries)
    text = meta.get("avro.schema", b"").decode(errors="replace")
    try:
        kind = _parsed(text, depth)
    except BadAvroSchema as bad:
        raise UnfitValue(Reason.UNKNOWN_SCHEMA, f"the file's schema cannot be used: {bad}") from None
    codec = meta.get("avro.codec", b"null").decode(errors="replace")
    if codec not in _CODECS:
        raise UnfitValue(Reason.MALFORMED, f"unknown codec {codec[:40]!r}")
    return ContainerHeader(text, kind, codec, raw[at : at + _SYNC], at + _SYNC)


def _opened(raw: bytes, limits: DecodeLimits, last: list[bytes]) -> tuple[str, Type, list[bytes]]:
    """Schema and record bytes of a file; raises UnfitValue if the file is incomplete.

    `last`: the header of the file before, which most likely is that of this one.
    """
    known = last and raw.startswith(last[0])
    header = _header(last[0], limits.depth) if known else container_header(raw, limits.depth)
    last[:] = [raw[: header.size]]
    records: list[bytes] = []
    most = min(limits.record_bytes, max(SMALL, RATIO * len(raw)))
    for count, packed in _blocks(raw, header, limits):
        block = unpack_block(header.codec, packed, most)
        most -= len(block)
        records += block_records(header.type, block, count)
        if len(records) > limits.rows:
            raise UnfitValue(Reason.TOO_WIDE, f"more than {limits.rows} records, which is the limit")
    return header.schema, header.type, records


_header = lru_cache(maxsize=64)(container_header)


@lru_cache(maxsize=256)
def _parsed(text: str, depth: int) -> Type:
    return parse_avro_schema(text, depth=depth)


def _blocks(raw: bytes, header: ContainerHeader, limits: DecodeLimits) -> Iterator[tuple[int, bytes]]:
    whole, at, sync = AvroValueReader(raw, len(raw)), header.size, header.sync
    while at < len(raw):
        count, at = whole.value(_LONG, at)
        size, at = whole.value(_LONG, at)
        if size < 0 or raw[at + size : at + size + _SYNC] != sync or not 0 <= count <= limits.rows:
            raise UnfitValue(
                Reason.MALFORMED, "a block does not end with the sync marker, or has more records than the limit"
            )
        yield count, raw[at : at + size]
        at += size + _SYNC
    if at != len(raw) or len(sync) < _SYNC:
        raise UnfitValue(Reason.MALFORMED, "unexpected end of value")


def block_records(kind: Type, block: bytes, count: int) -> Iterator[bytes]:
    """The bytes of each record of a block; raises UnfitValue at the first that is not valid."""
    whole, at = AvroValueReader(block, len(block)), 0
    for _ in range(count):
        _, after = whole.value(kind, at)
        yield block[at:after]
        at = after
    if at != len(block):
        raise UnfitValue(Reason.TRAILING_DATA, f"{len(block) - at} bytes follow a block's last record")


def unpack_block(codec: str, packed: bytes, most: int) -> bytes:
    """Decompress a block; raises UnfitValue if it has more than `most` bytes."""
    try:
        content = _CODECS[codec](packed, most)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise UnfitValue(Reason.MALFORMED, f"a block cannot be decompressed: {error}") from None
    if len(content) > most:
        raise UnfitValue(
            Reason.RATIO, f"the file decompresses to more than {RATIO} times its bytes, or more than a value may have"
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
        raise ValueError("unexpected end")
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
