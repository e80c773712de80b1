"""Readers of a spool: durable bounds, and ranges as Arrow batches. Any process that reaches it can read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import SourceGap, SpoolDamaged
from headrace.source.ranges import Range
from headrace.source.spool.base import BlockReader, source_gap
from headrace.source.spool.block import BLOCK_SCHEMA, BadBlock, Block, read_blocks, verify_block
from headrace.source.spool.disk import Disk, LocalDisk
from headrace.source.spool.layout import (
    ABOUT,
    COMMITTED,
    ENDS,
    SpoolIdentity,
    decode_identity,
    decode_offsets,
    encode_offsets,
    first_offsets_of,
    segment_path,
    topic_folder,
)
from headrace.source.spool.object_reader import ObjectReader
from headrace.storage.store import Profile, Store

_BATCH_RECORDS = 10_000
_BATCH_BYTES = 8_000_000
_CREATE_TIME = 0  # Kafka's timestamp type of a time that the producer has set


class SpoolReader:
    """The durable records of a spool on a disk."""

    def __init__(self, disk: Disk, where: str) -> None:
        self._disk, self._where = disk, where

    def identity(self) -> SpoolIdentity | None:
        """Which spool it is; None if it does not exist yet."""
        try:
            return decode_identity(bytes(self._disk.read(ABOUT)), self._where)
        except FileNotFoundError:
            return None

    def ends(self) -> dict[str, int]:
        """The durable end of each topic; empty if no writer has published them since a crash of the machine."""
        return decode_offsets(lambda: self._disk.read(ENDS)) or {}

    def first(self, topic: str) -> int:
        """The offset of the oldest record, or the end if there is none."""
        return (first_offsets_of(self._disk.names(topic_folder(topic))) or [0])[0]

    def commit(self, position: dict[str, int]) -> None:
        """Allow the writer to delete the records before a position."""
        self._disk.replace(COMMITTED, encode_offsets(position), durable=False)

    def time_of(self, topic: str, offset: int) -> int | None:
        """When the record was stored, in milliseconds since 1970; None if it was deleted meanwhile."""
        with suppress(SourceGap, FileNotFoundError):
            for block in self.blocks(topic, offset, offset + 1):
                return block.time
        return None

    def blocks(self, topic: str, start: int, until: int) -> Iterator[Block]:
        """The blocks with the records of a range.

        SourceGap if it begins before the oldest record: the writer deletes from the front. SpoolDamaged if records
        behind that are changed or missing.
        """
        segments = self._segments(topic, start)
        if segments and segments[0] > start:
            raise source_gap(topic, start, segments[0])
        expected = start
        for first in segments:
            for block in self._blocks_of(topic, first, expected):
                if block.first > expected:
                    raise self._damaged(topic, f"offsets {expected} to {block.first - 1} are missing")
                yield block
                expected = block.until
                if expected >= until:
                    return
        raise self._damaged(topic, f"offsets {expected} to {until - 1} are missing")

    def _segments(self, topic: str, start: int) -> list[int]:
        firsts = first_offsets_of(self._disk.names(topic_folder(topic)))
        return firsts[max(0, bisect_right(firsts, start) - 1) :]

    def _blocks_of(self, topic: str, first: int, start: int) -> Iterator[Block]:
        """The blocks of a segment that have records from `start` on; only their checksums are verified."""
        try:
            data = self._disk.read(segment_path(topic, first))
            for block in read_blocks(data, verify=False):
                if block.until > start:
                    verify_block(data, block)
                    yield block
        except BadBlock as error:
            raise self._damaged(topic, f"{error} of segment {first}") from None

    def _damaged(self, topic: str, what: str) -> SpoolDamaged:
        return SpoolDamaged(
            f"The spool of topic '{topic}' is damaged: {what} in {self._where}.",
            hint="Restore the file from a copy; no record was skipped.",
            topic=topic,
        )


def open_reader(uri: str, profile: Profile | None = None) -> BlockReader:
    """The reader of a spool on this machine or in an object store."""
    store = Store(uri, profile)
    return SpoolReader(LocalDisk(store.root), store.root) if store.local else ObjectReader(store)


def record_batches(reader: BlockReader, records: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range, in batches of a few thousand; small blocks are joined."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    offset = records.start
    for block in reader.blocks(records.topic, records.start, records.until):
        start, until = max(block.first, records.start), min(block.until, records.until)
        batch = block.records().slice(start - block.first, until - start)
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + block.size
        if rows >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            yield from _complete(waiting, records, offset)
            offset, waiting, rows, size = until, [], 0, 0
    yield from _complete(waiting, records, offset)


def _complete(batches: list[pa.RecordBatch], records: Range, offset: int) -> Iterator[pa.RecordBatch]:
    """Batches with all columns of records, of at most `_BATCH_RECORDS`."""
    if not batches:
        return
    joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    for start in range(0, joined.num_rows, _BATCH_RECORDS):
        yield _with_position(joined.slice(start, _BATCH_RECORDS), records, offset + start)


def _with_position(batch: pa.RecordBatch, records: Range, offset: int) -> pa.RecordBatch:
    count = batch.num_rows
    columns = {
        "topic": pa.repeat(records.topic, count),
        "partition": pa.repeat(pa.scalar(records.partition, pa.int32()), count),
        "offset": pa.array(np.arange(offset, offset + count)),
        "timestamp_type": pa.repeat(pa.scalar(_CREATE_TIME, pa.int32()), count),
    }
    columns |= {name: batch.column(name) for name in BLOCK_SCHEMA.names}
    return pa.RecordBatch.from_arrays([columns[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)
