"""Blocks of a segment: a header, the requests that the records came with, and one record batch as Arrow IPC message.

A block is the unit of a write, of its checksum, and of a read: its records become Arrow arrays without a copy. All
parts start at multiples of 64 bytes, which Arrow expects of its buffers.

    header (64 bytes) | requests, padded | record batch, padded
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA

BLOCK_SCHEMA = pa.schema([RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "timestamp")])
"""Columns of the records that a receiver passes to the spool."""

Parts = list[bytes | memoryview]

_MAGIC, _VERSION = b"HRSB", 1
# magic, version, reserved, first offset, records, bytes of requests, bytes of the batch, time, checksum
_HEADER = struct.Struct("<4sHHqIIIqI")
_ALIGNED = 64
_CRC_AT = _HEADER.size - 4
_REQUEST = struct.Struct("<IIIHH")  # first record, records, fingerprint, bytes of producer, bytes of sequence


class BadBlock(ValueError):
    """The bytes at a position are not a complete block."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {position}")
        self.position, self.reason = position, reason


@dataclass(frozen=True, slots=True)
class Request:
    """A producer's request, by which its retries are recognized."""

    producer: str
    sequence: str
    fingerprint: int  # checksum of its content; 0 if unknown
    first: int  # offset of its first record
    count: int


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records of a topic, as stored."""

    first: int  # offset of the first record
    count: int
    time: int  # of the write, in milliseconds since 1970
    position: int  # in the segment
    size: int
    requests_data: memoryview
    body: memoryview

    @property
    def until(self) -> int:
        """The offset after the last record."""
        return self.first + self.count

    def records(self) -> pa.RecordBatch:
        """The records, which refer to the memory of the segment."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.body), BLOCK_SCHEMA)

    def requests(self) -> Iterator[Request]:
        """The requests with a sequence."""
        position, data = 0, self.requests_data
        while position < len(data):
            first, count, fingerprint, producer, sequence = _REQUEST.unpack_from(data, position)
            position += _REQUEST.size
            names = bytes(data[position : position + producer + sequence])
            position += producer + sequence
            yield Request(names[:producer].decode(), names[producer:].decode(), fingerprint, self.first + first, count)


def encode_block(first: int, records: Sequence[pa.RecordBatch], requests: Iterable[Request], time: int) -> Parts:
    """The parts of a block with these records, to be written one after the other."""
    batch = records[0] if len(records) == 1 else pa.concat_batches(records)
    packed = b"".join(_pack(each, first) for each in requests)
    body = memoryview(batch.serialize())
    header = bytearray(_ALIGNED)
    _HEADER.pack_into(header, 0, _MAGIC, _VERSION, 0, first, batch.num_rows, len(packed), len(body), time, 0)
    struct.pack_into("<I", header, _CRC_AT, _checksum(header, packed, body))
    return [bytes(header), packed, bytes(-len(packed) % _ALIGNED), body, bytes(-len(body) % _ALIGNED)]


def read_blocks(data: memoryview, until: int | None = None, *, verify: bool = True) -> Iterator[Block]:
    """The blocks of a segment up to a size; BadBlock at the first incomplete or, with `verify`, changed one."""
    position, end = 0, len(data) if until is None else until
    while position < end:
        block = _block(data, position, end)
        if verify:
            verify_block(data, block)
        yield block
        position += block.size


def _block(data: memoryview, position: int, end: int) -> Block:
    if end - position < _ALIGNED:
        raise BadBlock(position, f"only {end - position} bytes")
    magic, version, _, first, count, requests, body, time, _ = _HEADER.unpack_from(data, position)
    if magic != _MAGIC or version != _VERSION:
        raise BadBlock(position, "no header")
    start = position + _ALIGNED
    batch = start + requests + -requests % _ALIGNED
    size = batch + body + -body % _ALIGNED - position
    if position + size > end:
        raise BadBlock(position, f"{end - position} of {size} bytes")
    return Block(first, count, time, position, size, data[start : start + requests], data[batch : batch + body])


def verify_block(data: memoryview, block: Block) -> None:
    """BadBlock if the checksum of a block is wrong."""
    header = bytearray(data[block.position : block.position + _ALIGNED])
    (expected,) = struct.unpack_from("<I", header, _CRC_AT)
    header[_CRC_AT : _CRC_AT + 4] = bytes(4)
    if _checksum(header, block.requests_data, block.body) != expected:
        raise BadBlock(block.position, "wrong checksum")


def _checksum(header: bytearray, requests: bytes | memoryview, body: memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(requests, zlib.crc32(header)))


def _pack(request: Request, first: int) -> bytes:
    producer, sequence = request.producer.encode(), request.sequence.encode()
    head = _REQUEST.pack(request.first - first, request.count, request.fingerprint, len(producer), len(sequence))
    return head + producer + sequence
