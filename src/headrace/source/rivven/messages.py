"""Decode the records of a response into Arrow, by columns.

A record of a response is: offset, partition, optional key, value, timestamp (signed, milliseconds), list of headers.
Its position is known only when the record before it is; everything else is computed for all records at once. The first
pass therefore assumes what is true of nearly all records - consecutive offsets, a timestamp of six bytes (1970 to
2039), no headers - and only walks from length to length:

    80 01 | 00 | 01 03 'k17' | 03 'abc' | xx xx xx xx xx xx | 00
    offset  part  key          value      timestamp           headers

The second pass reads the fields at these positions with NumPy and verifies all assumptions. Where one does not hold,
the response is decoded record by record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.source.rivven.protocol import MAX_RECORDS, MalformedResponse, ResponseReader, unsigned

Integers = npt.NDArray[np.int64]
Header = tuple[str, bytes]

_MIN_BYTES = 6  # of a record: offset, partition, no key, an empty value, a timestamp and no headers, one byte each
_TIMESTAMP_BYTES = 6
_MAX_VALUE_BYTES = 3  # of the length of a value in the first pass: up to 2 MiB
_MAX_HEADERS = 10_000
_LOG_APPEND_TIME = 1  # the server sets the timestamp when it appends the record
_TIMESTAMP = RECORD_SCHEMA.field("timestamp").type
_HEADERS = RECORD_SCHEMA.field("headers").type


@dataclass(frozen=True)
class Messages:
    """Records of a response as columns; keys and values are positions in its bytes."""

    content: bytes | bytearray
    offsets: Integers
    timestamps: Integers  # milliseconds
    keys: tuple[Integers, Integers]  # start and end; equal to each other without a key
    has_key: npt.NDArray[np.bool_]
    values: tuple[Integers, Integers]
    headers: tuple[tuple[Header, ...], ...] = ()  # empty if no record has headers

    def __len__(self) -> int:
        return len(self.offsets)

    def selected(self, rows: Integers | slice) -> Messages:
        """Some of the records."""
        indexes = np.arange(len(self))[rows]
        return Messages(
            self.content,
            self.offsets[rows],
            self.timestamps[rows],
            (self.keys[0][rows], self.keys[1][rows]),
            self.has_key[rows],
            (self.values[0][rows], self.values[1][rows]),
            tuple(self.headers[index] for index in indexes) if self.headers else (),
        )

    def records(self, topic: str, partition: int) -> pa.RecordBatch:
        """The records in Headrace's schema. An empty value with a key is a tombstone, as in the server's compaction."""
        count = len(self)
        tombstone = (self.values[0] == self.values[1]) & self.has_key
        milliseconds = pa.array(self.timestamps, pa.timestamp("ms", tz="UTC"))
        columns = [
            pa.repeat(pa.scalar(topic), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array(self.offsets, pa.int64()),
            milliseconds.cast(_TIMESTAMP),
            pa.repeat(pa.scalar(_LOG_APPEND_TIME, pa.int32()), count),
            self._binary(self.keys, ~self.has_key),
            self._binary(self.values, tombstone),
            self._headers(),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)

    def _binary(self, spans: tuple[Integers, Integers], nulls: npt.NDArray[np.bool_]) -> pa.Array:
        """Slices of the response as an array.

        An Arrow array cannot have gaps between its values. The slices and the gaps between them are an array without
        copying a byte; `take` then copies every second one.
        """
        count = len(self)
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[0:-1:2], bounds[1::2] = spans
        bounds[-1] = bounds[-2] if count else 0
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.content)]
        slices = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
        return slices.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=nulls))

    def _headers(self) -> pa.Array:
        if not self.headers:
            return pa.nulls(len(self), _HEADERS)
        rows = [[{"key": key, "value": value} for key, value in each] or None for each in self.headers]
        return pa.array(rows, _HEADERS)


def decode_messages(reader: ResponseReader, partition: int) -> Messages:
    """Records of a response of `Consume`; MalformedResponse if they are not of this partition."""
    count = reader.count(_MIN_BYTES, MAX_RECORDS)
    if count == 0:
        reader.end()
    first = ResponseReader(reader.content, reader.position)
    prefix = unsigned(partition)
    starts = _record_starts(reader, count, first.offset(), len(prefix)) if count else None
    messages = _columns(reader.content, starts, prefix) if starts is not None else None
    return messages or _one_by_one(reader, count, partition)


def _record_starts(reader: ResponseReader, count: int, first: int, partition_bytes: int) -> list[int] | None:
    """Position of each record, and the end; None if the assumptions cannot hold."""
    content, position, starts = reader.content, reader.position, [0] * (count + 1)
    index = 0
    try:
        while index < count:
            offset_bytes = len(unsigned(first + index))
            same = min(count, max(index + 1, (1 << 7 * offset_bytes) - first))  # records with so many bytes
            head = offset_bytes + partition_bytes
            for each in range(index, same):
                starts[each] = position
                position += head
                if content[position]:
                    length = content[position + 1]
                    position += 2 + length if length < 128 else 3 + (length & 127) + (content[position + 2] << 7)
                else:
                    position += 1
                length = content[position]
                if length < 128:
                    position += 8 + length
                elif (second := content[position + 1]) < 128:
                    position += 9 + (length & 127) + (second << 7)
                else:
                    third = content[position + 2]
                    position += 10 + (length & 127) + ((second & 127) << 7) + (third << 14)
            index = same
    except IndexError:
        return None
    starts[count] = position
    return starts if position == len(content) else None


def _columns(content: bytes | bytearray, starts: list[int], partition: bytes) -> Messages | None:
    """Columns of the records at these positions; None if one of the assumptions does not hold."""
    data = np.frombuffer(content, np.uint8)
    bounds = np.array(starts, np.int64)
    first, last = bounds[:-1], bounds[1:]
    offset = _varints(data, first, 9)
    same_partition = np.ones(len(first), np.bool_)
    for index, byte in enumerate(partition):
        same_partition &= data[offset.ends + index] == byte
    tag = offset.ends + len(partition)
    has_key = data[tag] == 1
    key = _varints(data, np.where(has_key, tag + 1, tag), 2)
    key_start = np.where(has_key, key.ends, tag + 1)
    key_end = np.where(has_key, key.ends + key.numbers, tag + 1)
    if key_end.max() >= len(content):
        return None
    value = _varints(data, key_end, _MAX_VALUE_BYTES)
    value_end = value.ends + value.numbers
    if (value_end + _TIMESTAMP_BYTES + 1 != last).any():
        return None
    timestamp = _varints(data, value_end, _TIMESTAMP_BYTES)
    no_headers = data[last - 1] == 0
    fit = offset.valid & value.valid & timestamp.valid & (key.valid | ~has_key) & (data[tag] < 2)
    if not (fit & same_partition & no_headers & (timestamp.ends == last - 1)).all():
        return None
    milliseconds = (timestamp.numbers >> 1) ^ -(timestamp.numbers & 1)
    return Messages(content, offset.numbers, milliseconds, (key_start, key_end), has_key, (value.ends, value_end))


@dataclass(frozen=True)
class _Varints:
    """Integers at several positions, the positions after them, and which of them end within the allowed bytes."""

    numbers: Integers
    ends: Integers
    valid: npt.NDArray[np.bool_]


def _varints(data: npt.NDArray[np.uint8], positions: Integers, size: int) -> _Varints:
    """Integers of at most `size` bytes, all at once: one step per byte."""
    numbers, ends = np.zeros(len(positions), np.int64), positions.copy()
    unfinished = np.ones(len(positions), np.bool_)
    for shift in range(0, 7 * size, 7):
        byte = data[np.minimum(ends, len(data) - 1)].astype(np.int64)
        numbers += np.where(unfinished, (byte & 127) << shift, 0)
        ends += unfinished
        unfinished = unfinished & (byte > 127)
        if not unfinished.any():
            break
    return _Varints(numbers, ends, ~unfinished & (ends <= len(data)))


def _one_by_one(reader: ResponseReader, count: int, partition: int) -> Messages:
    """The same, for any records; MalformedResponse names what is wrong."""
    offsets, timestamps, spans, has_key = [], [], [], []
    headers: list[tuple[Header, ...]] = []
    for _ in range(count):
        offsets.append(reader.offset())
        if (number := reader.integer()) != partition:
            raise MalformedResponse(f"a record of partition {number}; expected partition {partition}")
        has_key.append(reader.present())
        key = reader.span() if has_key[-1] else (reader.position, reader.position)
        spans.append((*key, *reader.span()))
        timestamps.append(_milliseconds(reader))
        headers.append(tuple((reader.text(), reader.blob()) for _ in range(reader.count(2, _MAX_HEADERS))))
    reader.end()
    positions = np.array(spans, np.int64).reshape(count, 4)
    return Messages(
        reader.content,
        np.array(offsets, np.int64),
        np.array(timestamps, np.int64),
        (positions[:, 0], positions[:, 1]),
        np.array(has_key, np.bool_),
        (positions[:, 2], positions[:, 3]),
        tuple(headers) if any(headers) else (),
    )


_MAX_MILLISECONDS = 253_402_300_799_999  # the end of the year 9999, the last one that Python's dates can express


def _milliseconds(reader: ResponseReader) -> int:
    number = reader.signed()
    if not -62_135_596_800_000 <= number <= _MAX_MILLISECONDS:
        raise MalformedResponse(f"the timestamp {number}; expected milliseconds of the years 1 to 9999")
    return number
