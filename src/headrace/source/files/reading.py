"""Records of files: count them when a file is discovered, and read the records of a range of offsets inside a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from headrace.decode.byte_scan import Numbers, cut
from headrace.delta.schema import HEADERS, RECORD_SCHEMA
from headrace.errors import FileChanged
from headrace.source.base import REJECT_HEADER
from headrace.source.files.compressed import decompressed
from headrace.source.files.csv_rows import CsvCutter
from headrace.source.files.indexed_file import FileContent, FileFormat, IndexedFile
from headrace.source.files.rows import FileRows, rejected_row
from headrace.source.files.text_blocks import ArrayCutter, LineCutter, TextBlock, TextCutter, text_blocks
from headrace.source.files.typed_files import NumberedRows, avro_rows, count_avro, count_parquet, parquet_rows
from headrace.source.ranges import Range
from headrace.storage.base import NotFound
from headrace.storage.store import Profile, Store

_CHECKPOINT_BYTES = 32 << 20  # between positions at which reading can start


def partition_values(path: str) -> list[tuple[str, str]]:
    """Names and values of directories such as `date=2026-01-31`."""
    parts = [each.partition("=") for each in path.split("/")[:-1]]
    return [(name, value) for name, equals, value in parts if equals and name and not name.startswith("file.")]


# ---- counting ----


def count_rows(file: BinaryIO, path: str, form: FileFormat, *, verify: bool = False) -> FileContent:
    """Count the rows of a file in bounded memory; `verify`: read Parquet and Avro files, not only their metadata."""
    if form.name in _TYPED:
        count, read = _TYPED[form.name]
        content = count(file, form)
        indexed = IndexedFile(path, 0, "", 0.0, 0, 0, content, form)
        damaged = verify and any(rows.rejects for _, rows in read(file, indexed, 0, content.rows))
        return replace(content, damaged=content.damaged or damaged)
    codec, rows, damaged = form.codec(path), 0, False
    checkpoints: list[tuple[int, int]] = []
    for block in text_blocks(decompressed(file, codec), _cutter(form, ()), form.record_bytes):
        rows, damaged = rows + len(block), damaged or block.damaged
        last = checkpoints[-1][1] if checkpoints else 0
        if codec == "none" and block.reject is None and block.position - last >= _CHECKPOINT_BYTES:
            checkpoints.append((rows, block.position))
    return FileContent(rows, damaged, tuple(checkpoints))


def _cutter(form: FileFormat, columns: tuple[str, ...], *, inside: bool = False) -> TextCutter:
    if form.name == "json_array":
        return ArrayCutter(inside=inside)
    return CsvCutter(form, columns) if form.name == "csv" else LineCutter(blank=form.name == "text")


# ---- reading ----


def _text_rows(file: BinaryIO, indexed: IndexedFile, start: int, until: int) -> NumberedRows:
    """Rows of a text file, from the last checkpoint before the range."""
    form = indexed.format
    row, position = max((each for each in indexed.content.checkpoints if each[0] <= start), default=(0, 0))
    columns = _columns(file, form) if position else ()
    file.seek(position)
    cutter = _cutter(form, columns, inside=position > 0)
    for block in text_blocks(decompressed(file, form.codec(indexed.path)), cutter, form.record_bytes, position):
        if row >= until:
            return
        if row + len(block) > start:
            yield row, _rows(block, cutter)
        row += len(block)


def _columns(file: BinaryIO, form: FileFormat) -> tuple[str, ...]:
    """Names of the columns in the header row of a CSV file."""
    if form.name != "csv":
        return ()
    cutter = CsvCutter(form)
    blocks = text_blocks(file.read, cutter, form.record_bytes)
    while not cutter.columns:
        next(blocks)
    return cutter.columns


def _rows(block: TextBlock, cutter: TextCutter) -> FileRows:
    if block.reject is not None:
        return rejected_row(block.buffer, block.reject)
    if isinstance(cutter, CsvCutter):
        return cutter.rows(block.buffer, block.starts, block.ends)
    return FileRows(cut(block.buffer, block.starts, block.ends, pa.binary()))


_Count = Callable[[BinaryIO, FileFormat], FileContent]
_Read = Callable[[BinaryIO, IndexedFile, int, int], NumberedRows]
_TYPED: dict[str, tuple[_Count, _Read]] = {
    "parquet": (count_parquet, parquet_rows),
    "avro": (count_avro, avro_rows),
}


@dataclass(frozen=True)
class FileReader:
    """Reads ranges of records inside a task."""

    uri: str
    profile: Profile
    files: Sequence[IndexedFile]

    def __call__(self, part: Range) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        for file in self.files:
            start, until = max(part.start, file.first), min(part.until, file.until)
            if start < until and file.status != "lost":
                yield from self._records(file, part, start - file.first, until - file.first)

    def _records(self, file: IndexedFile, part: Range, start: int, until: int) -> Iterator[pa.RecordBatch]:
        store = Store(file.moved_to or self.uri, self.profile)
        check_unchanged(store, file)
        rows = _TYPED[file.format.name][1] if file.format.name in _TYPED else _text_rows
        end, damaged = start, False
        with store.open(file.path) as opened:
            for row, several in rows(opened, file, start, until):
                end, damaged = row + len(several), damaged or bool(several.rejects)
                first, last = max(start, row), min(until, row + len(several))
                if first < last:
                    piece = several.slice(first - row, last - row)
                    yield record_batch(piece, file, (part.topic, part.partition), first)
        check_unchanged(store, file)
        if end < until and not damaged:
            raise _file_changed(store, file, f"has {end} records")


def check_unchanged(store: Store, file: IndexedFile) -> None:
    """Raise FileChanged if a file is not the one that was discovered."""
    tag = store.tag(file.path)
    if tag == file.tag or (tag is not None and file.status == "moved"):
        return
    raise _file_changed(store, file, "was deleted" if tag is None else "was changed")


def _file_changed(store: Store, file: IndexedFile, state: str) -> FileChanged:
    return FileChanged(
        f"{store.uri}/{file.path} {state} after it was discovered and before all of its {file.content.rows} records "
        "were read.",
        hint="Restore the file with its modification time, or run `headrace resume SPEC --accept-gap` to skip its "
        "unread records; a changed file is then read as a new one.",
        path=file.path,
    )


# ---- record batches ----


def record_batch(rows: FileRows, file: IndexedFile, partition: tuple[str, int], first: int) -> pa.RecordBatch:
    """Rows as records; `first`: the number of the first row in its file, from 0."""
    count, (topic, number) = len(rows), partition
    offsets = np.arange(file.first + first, file.first + first + count)
    timestamp = pa.scalar(round(file.modified * 1_000_000), pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type)
    columns = [
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(number, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.repeat(timestamp, count),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.nulls(count, pa.binary()),
        rows.values,
        _headers(rows, file, first),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _headers(rows: FileRows, file: IndexedFile, first: int) -> pa.ListArray:
    """Headers of the rows: path, modification time, the values of directories, row number, and why it is rejected.

    Keys and values are taken from a few distinct texts, and the numbers of the rows after them.
    """
    count = len(rows)
    modified = datetime.fromtimestamp(file.modified, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    fixed = [("file.path", file.path), ("file.modified", modified), *partition_values(file.path)]
    rejects = sorted(rows.rejects.items())
    keys = [*(name for name, _ in fixed), "file.row", REJECT_HEADER]
    texts = [value for _, value in fixed] + [f"{reason}: {detail}" for _, (reason, detail) in rejects]
    numbers = pa.array(np.arange(first + 1, first + 1 + count)).cast(pa.string())
    values = pa.concat_arrays([pa.array(texts, pa.string()), numbers]).cast(pa.binary())
    key_at = np.tile(np.arange(len(fixed) + 1), (count, 1))
    value_at = key_at.copy()
    value_at[:, -1] = np.arange(len(texts), len(texts) + count)
    sizes = np.full(count, len(fixed) + 1)
    places = np.array([position for position, _ in rejects], np.int64)
    sizes[places] += 1
    at = (places + 1) * (len(fixed) + 1)
    key_index = np.insert(key_at.ravel(), at, len(fixed) + 1)
    value_index = np.insert(value_at.ravel(), at, np.arange(len(fixed), len(fixed) + len(rejects)))
    return _header_lists(sizes, pa.array(keys).take(pa.array(key_index)), values.take(pa.array(value_index)))


def _header_lists(sizes: Numbers, keys: pa.StringArray, values: pa.BinaryArray) -> pa.ListArray:
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS)


def missing(store: Store, file: IndexedFile) -> bool:
    """Whether a file is not the one that was discovered."""
    try:
        check_unchanged(store, file)
    except (FileChanged, NotFound):
        return True
    return False
