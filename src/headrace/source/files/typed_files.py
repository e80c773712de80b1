"""Rows of Parquet and Avro files: each is an Avro container file with one record, without loss of types."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import accumulate
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.decode.avro.container import ContainerHeader, block_records, container_header, unpack_block
from headrace.decode.scalars import UnfitValue
from headrace.decode.unpack import RATIO
from headrace.errors import HeadraceError, first_line
from headrace.reasons import Reason
from headrace.source.files.avro_rows import RowEncoder, container_prefix, container_values
from headrace.source.files.compressed import DamagedFile
from headrace.source.files.indexed_file import FileContent, FileFormat, IndexedFile
from headrace.source.files.rows import FileRows, Reject, rejected_row

NumberedRows = Iterator[tuple[int, FileRows]]  # number of the first row, and rows

_ROWS = 10_000  # in a batch
_DEPTH = 512  # the decoder checks the limit of the spec
_SYNC = 16
_HEADER_BYTES = 16 << 20
_SMALL_BLOCK = 64 << 20  # decompressed bytes below which the ratio does not matter


# ---- Parquet ----


def count_parquet(file: BinaryIO, form: FileFormat) -> FileContent:
    """Rows by the metadata; one for a file that is not valid."""
    try:
        metadata = _open_parquet(file)[0].metadata
    except DamagedFile:
        return FileContent(1, damaged=True)
    starts = accumulate(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    return FileContent(metadata.num_rows, checkpoints=tuple((row, 0) for row in starts if row < metadata.num_rows))


def parquet_rows(file: BinaryIO, indexed: IndexedFile, start: int, until: int) -> NumberedRows:
    """Rows from the row groups of a range."""
    try:
        parquet, encoder = _open_parquet(file)
    except DamagedFile as damage:
        yield 0, _rest_of_file(file, 0, damage, indexed.format)
        return
    groups, first = _groups(parquet, start, until)
    try:
        for batch in _batches(parquet, groups):
            yield first, FileRows(encoder.rows(batch))
            first += batch.num_rows
    except DamagedFile as damage:
        yield first, _rest_of_file(file, 0, damage, indexed.format)


def _batches(parquet: pq.ParquetFile, groups: list[int]) -> Iterator[pa.RecordBatch]:
    batches = parquet.iter_batches(_ROWS, row_groups=groups) if groups else iter(())
    while True:
        try:
            batch = next(batches, None)
        except HeadraceError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedFile(Reason.MALFORMED, f"rows cannot be read: {first_line(error)}") from None
        if batch is None:
            return
        yield batch


def _open_parquet(file: BinaryIO) -> tuple[pq.ParquetFile, RowEncoder]:
    try:
        parquet = pq.ParquetFile(file)
        return parquet, RowEncoder(parquet.schema_arrow)
    except HeadraceError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise DamagedFile(Reason.MALFORMED, f"not readable as Parquet: {first_line(error)}") from None


def _groups(parquet: pq.ParquetFile, start: int, until: int) -> tuple[list[int], int]:
    """The row groups that have rows of a range, and the number of their first row."""
    groups: list[int] = []
    first = at = 0
    for number in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(number).num_rows
        if at < until and start < at + rows:
            first = first if groups else at
            groups.append(number)
        at += rows
    return groups, first


def _rest_of_file(file: BinaryIO, position: int, damage: DamagedFile, form: FileFormat) -> FileRows:
    """The row for what cannot be read, with as many of its bytes as a record may have."""
    file.seek(position)
    reject = damage.reason, f"{damage.detail}; the rest of the file is not read"
    return rejected_row(file.read(form.record_bytes), reject)


# ---- Avro ----


class _AvroFile:
    """The blocks of a container file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, io.SEEK_END)
        self.header = self._read_header()

    def _read_header(self) -> ContainerHeader:
        size = 1 << 16
        while True:
            self._file.seek(0)
            raw = self._file.read(size)
            try:
                header = container_header(raw, _DEPTH)
                if len(header.sync) == _SYNC:
                    return header
                raise UnfitValue(Reason.MALFORMED, "unexpected end of the header")
            except UnfitValue as unfit:
                if len(raw) < size or size >= _HEADER_BYTES:
                    raise DamagedFile(unfit.reason, unfit.detail) from None
            size *= 4

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """Number of records, position and size of each block; raises DamagedFile."""
        at = self.header.size
        while at < self.size:
            self._file.seek(at)
            count, size = self._number(), self._number()
            position = self._file.tell()
            at = position + size + _SYNC
            if count < 0 or size < 0 or at > self.size:
                raise DamagedFile(Reason.MALFORMED, "unexpected end of a block")
            self._file.seek(position + size)
            if self._file.read(_SYNC) != self.header.sync:
                raise DamagedFile(Reason.MALFORMED, "a block does not end with the sync marker")
            yield count, position, size

    def _number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._file.read(1)
            if not byte:
                raise DamagedFile(Reason.MALFORMED, "unexpected end of a block")
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise DamagedFile(Reason.MALFORMED, "the size of a block is not valid")

    def raw(self, position: int, size: int) -> bytes:
        """Bytes of the file."""
        self._file.seek(position)
        return self._file.read(size)

    def records(self, count: int, position: int, size: int) -> Iterator[bytes]:
        """The records of a block; raises UnfitValue."""
        block = unpack_block(self.header.codec, self.raw(position, size), max(_SMALL_BLOCK, RATIO * size))
        return block_records(self.header.type, block, count)


def count_avro(file: BinaryIO, form: FileFormat) -> FileContent:
    """Records by the headers of the blocks; one more for a file that is damaged."""
    rows = 0
    try:
        for count, _, _ in _AvroFile(file).blocks():
            rows += count
    except DamagedFile:
        return FileContent(rows + 1, damaged=True)
    return FileContent(rows)


def avro_rows(file: BinaryIO, indexed: IndexedFile, start: int, until: int) -> NumberedRows:
    """Records from the blocks of a range."""
    row, position = 0, 0
    try:
        avro = _AvroFile(file)
        prefix = container_prefix(avro.header.schema)
        for count, position, size in avro.blocks():
            if row >= until:
                return
            if row + count > start:
                yield from _block_rows(avro, prefix, (count, position, size), row, indexed.format)
            row += count
    except DamagedFile as damage:
        yield row, _rest_of_file(file, position, damage, indexed.format)


def _block_rows(
    avro: _AvroFile, prefix: bytes, block: tuple[int, int, int], row: int, form: FileFormat
) -> NumberedRows:
    """The records of a block; one rejected row for those that cannot be read."""
    records: list[bytes] = []
    reject: Reject | None = None
    try:
        records.extend(avro.records(*block))
    except UnfitValue as unfit:
        reject = (
            unfit.reason,
            f"{unfit.detail}; the other {block[0] - len(records) - 1} records of the block are not read",
        )
    if records:
        yield row, FileRows(container_values(pa.array(records, pa.binary()), prefix))
    if reject is not None:
        value = avro.raw(block[1], min(block[2], form.record_bytes))
        yield row + len(records), rejected_row(value, reject)
