"""Rows of files: every format and compression, in blocks of any size, whole or damaged; any split reads the same."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.decode.avro.container import container_decoder
from headrace.decode.base import DecodeLimits
from headrace.delta.schema import RECORD_SCHEMA
from headrace.reasons import Reason
from headrace.source.files import text_blocks
from headrace.source.files.indexed_file import FileFormat, IndexedFile
from headrace.source.files.reading import FileReader, count_rows, partition_values
from headrace.source.ranges import Range
from headrace.storage.store import Profile

LIMIT = 1_000_000
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few bytes, so that every row is cut somewhere."""
    monkeypatch.setattr(text_blocks, "BLOCK", 37)


def written(folder: Path, content: bytes, name: str, path: str = "", **options: Any) -> IndexedFile:
    """A file of the source, counted as a discovery counts it."""
    form = FileFormat(name, options.pop("compression", "auto"), options.pop("record_bytes", LIMIT), **options)
    file = folder / (path or f"in.{name}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    with file.open("rb") as opened:
        counted = count_rows(opened, file.name, form)
    status = file.stat()
    tag = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
    relative = str(file.relative_to(folder))
    return IndexedFile(relative, status.st_size, tag, status.st_mtime, 0, 100, counted, form)


def records(folder: Path, file: IndexedFile, start: int = 0, until: int | None = None) -> pa.Table:
    """Records of a part of the file."""
    reader = FileReader(str(folder), Profile(), [file])
    until = file.content.rows if until is None else until
    return pa.Table.from_batches(reader(Range("files", 0, file.first + start, file.first + until)), RECORD_SCHEMA)


def values(folder: Path, file: IndexedFile, start: int = 0, until: int | None = None) -> list[bytes]:
    return records(folder, file, start, until)["value"].to_pylist()


def rejects(folder: Path, file: IndexedFile) -> dict[int, str]:
    """Reason and detail of the rejected rows."""
    headers = (dict(pairs) for pairs in _headers(folder, file))
    return {row: each["file.reject"].decode() for row, each in enumerate(headers) if "file.reject" in each}


def _headers(folder: Path, file: IndexedFile) -> list[list[tuple[str, bytes]]]:
    return [[(pair["key"], pair["value"]) for pair in row] for row in records(folder, file)["headers"].to_pylist()]


def same_for_any_split(folder: Path, file: IndexedFile, draw: st.DataObject) -> None:
    """Two ranges next to each other have the records of both together, and the same offsets."""
    whole = records(folder, file)
    assert len(whole) == file.content.rows
    if not file.content.rows:
        return
    at = draw.draw(st.integers(0, file.content.rows))
    parts = [records(folder, file, 0, at), records(folder, file, at)]
    assert [row for part in parts for row in part.to_pylist()] == whole.to_pylist()
    assert whole["offset"].to_pylist() == list(range(100, 100 + len(whole)))


PACKED = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: arrow_packed(raw, "zstd"),
    ".lz4": lambda raw: arrow_packed(raw, "lz4"),
}


def arrow_packed(raw: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(raw)
    return bytes(sink.getvalue())


# ---- lines ----

LINE = st.binary(max_size=90).filter(lambda raw: b"\n" not in raw and not raw.endswith(b"\r"))


@QUICK
@given(lines=st.lists(LINE, max_size=30), ends=st.booleans(), suffix=st.sampled_from(list(PACKED)), draw=st.data())
def test_each_line_of_text_is_a_record(
    tmp_path: Path, lines: list[bytes], ends: bool, suffix: str, draw: st.DataObject
) -> None:
    breaks = [draw.draw(st.sampled_from([b"\n", b"\r\n"])) for _ in lines]
    raw = b"".join(line + end for line, end in zip(lines, breaks, strict=True))
    raw = raw if ends or not lines or not lines[-1] else raw[: -len(breaks[-1])]
    assume(not raw.startswith(b"\xef\xbb\xbf"))  # a byte-order mark has a test of its own
    file = written(tmp_path, PACKED[suffix](raw), "text", f"in.txt{suffix}")
    assert values(tmp_path, file) == lines
    same_for_any_split(tmp_path, file, draw)


@QUICK
@given(objects=st.lists(st.dictionaries(st.text(max_size=4), st.integers()), max_size=25), draw=st.data())
def test_blank_lines_are_no_records(tmp_path: Path, objects: list[Any], draw: st.DataObject) -> None:
    lines = [json.dumps(each).encode() for each in objects]
    raw = b"".join(draw.draw(st.sampled_from([b"", b"\n", b" \t\r\n", b"\r\n"])) + line + b"\n" for line in lines)
    file = written(tmp_path, raw, "json_lines")
    assert values(tmp_path, file) == lines
    same_for_any_split(tmp_path, file, draw)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert values(tmp_path, written(tmp_path, b"\xef\xbb\xbfone\ntwo", "text")) == [b"one", b"two"]


def test_a_line_beyond_the_limit_is_one_rejected_record_and_others_continue(tmp_path: Path) -> None:
    raw = b'{"a":1}\n' + b"x" * 500 + b'\n{"a":2}\n'
    file = written(tmp_path, raw, "json_lines", record_bytes=100)
    assert values(tmp_path, file) == [b'{"a":1}', b"x" * 100, b'{"a":2}']
    assert rejects(tmp_path, file) == {1: "too_big: more than 100 bytes, which is the limit"}
    assert not file.content.damaged


def test_reading_starts_at_a_checkpoint_and_not_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.source.files.reading._CHECKPOINT_BYTES", 100)
    for name, raw in {
        "text": b"".join(b"line %d\n" % number for number in range(200)),
        "csv": b"a,b\n" + b"".join(b'%d,"x\ny"\n' % number for number in range(200)),
        "json_array": b"[" + b", ".join(b'{"a": [%d]}' % number for number in range(200)) + b"]",
    }.items():
        file = written(tmp_path, raw, name)
        assert file.content.rows == 200
        assert len(file.content.checkpoints) > 10
        row, position = file.content.checkpoints[-1]
        whole = values(tmp_path, file)
        damaged = bytearray(raw)
        damaged[40 : position - 40] = b"\0" * (position - 80)  # is not read
        (tmp_path / file.path).write_bytes(damaged)
        status = (tmp_path / file.path).stat()
        tag = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
        same = IndexedFile(file.path, file.size, tag, file.modified, 0, 100, file.content, file.format)
        assert values(tmp_path, same, row) == whole[row:]


# ---- JSON arrays ----

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab",[]{}\\é\n', max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@QUICK
@given(elements=st.lists(VALUE, max_size=20), draw=st.data())
def test_elements_of_an_array_keep_their_bytes(tmp_path: Path, elements: list[Any], draw: st.DataObject) -> None:
    blank = st.sampled_from(["", " ", "\n  ", "\t"])
    texts = [json.dumps(each, ensure_ascii=draw.draw(st.booleans()), indent=draw.draw(st.none() | st.just(1)))
             for each in elements]  # fmt: skip
    padded = [f"{draw.draw(blank)}{text}{draw.draw(blank)}" for text in texts]
    raw = f"{draw.draw(blank)}[{','.join(padded)}{draw.draw(blank) if padded else ''}]{draw.draw(blank)}"
    file = written(tmp_path, raw.encode(), "json_array")
    assert values(tmp_path, file) == [text.encode() for text in texts]
    assert not file.content.damaged
    same_for_any_split(tmp_path, file, draw)


@pytest.mark.parametrize(
    ("raw", "expected", "rejected"),
    [
        (b"[ ]", [], {}),
        (b"[1.50,1e400]", [b"1.50", b"1e400"], {}),
        (b'[{"a":1},]', [b'{"a":1}', b""], {}),
        (b"[,]", [b"", b""], {}),
        (b'[{"a":1},{"a', [b'{"a":1}', b'{"a'], {1: Reason.MALFORMED}),
        (b'{"a":1}', [b'{"a":1}'], {0: Reason.MALFORMED}),
        (b"", [b""], {0: Reason.MALFORMED}),
        (b"[1] \n [2]", [b"1", b"[2]"], {1: Reason.TRAILING_DATA}),
        (b"[" + b"1" * 400 + b"]", [b"1" * 100], {0: Reason.TOO_BIG}),
    ],
)
def test_arrays_that_are_damaged(
    tmp_path: Path, raw: bytes, expected: list[bytes], rejected: dict[int, Reason]
) -> None:
    file = written(tmp_path, raw, "json_array", record_bytes=100)
    assert values(tmp_path, file) == expected
    assert {row: text.partition(":")[0] for row, text in rejects(tmp_path, file).items()} == rejected
    assert file.content.damaged == bool(rejected)


# ---- CSV ----

FIELD = st.text(alphabet='ab ,;"\n\r\té1.', max_size=8)


@QUICK
@given(rows=st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=15), delimiter=st.sampled_from(",;\t"), draw=st.data())
def test_csv_is_read_as_python_writes_it(tmp_path: Path, rows: list[Any], delimiter: str, draw: st.DataObject) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerow(["id", 'a "b"', "c"])
    writer.writerows(rows)
    file = written(tmp_path, text.getvalue().encode(), "csv", delimiter=delimiter)
    read = [json.loads(value) for value in values(tmp_path, file)]
    assert read == [dict(zip(["id", 'a "b"', "c"], row, strict=True)) for row in rows]
    same_for_any_split(tmp_path, file, draw)


def test_fields_keep_their_text_and_literals_their_digits(tmp_path: Path) -> None:
    raw = b'id,name,amount,ok\r\n1,007,1.50,true\r\n,"",0.1234567890123456789,"1"\r\n2,x,01,yes\n'
    file = written(tmp_path, raw, "csv", literals=("id", "amount", "ok"))
    assert values(tmp_path, file) == [
        b'{"id":1,"name":"007","amount":1.50,"ok":true}',
        b'{"id":null,"name":"","amount":0.1234567890123456789,"ok":1}',
        b'{"id":2,"name":"x","amount":"01","ok":"yes"}',
    ]


def test_rows_that_do_not_fit_are_rejected_with_their_bytes(tmp_path: Path) -> None:
    raw = b'a,b\n1,2\n3\n4,5,6\n7,x"y"\n8,"z"z\n9,\xff\n\n10,"open\n11,12\n'
    file = written(tmp_path, raw, "csv")
    assert values(tmp_path, file) == [
        b'{"a":"1","b":"2"}', b"3", b"4,5,6", b'7,x"y"', b'8,"z"z', b"9,\xff", b'10,"open\n11,12\n',
    ]  # fmt: skip
    quotes = "malformed: a quote inside a field that is not quoted, or a quoted field that does not end"
    assert rejects(tmp_path, file) == {
        1: "malformed: 1 fields, expected 2",
        2: "malformed: 3 fields, expected 2",
        3: quotes,
        4: quotes,
        5: "encoding: not valid UTF-8",
        6: quotes,
    }


def test_columns_of_the_spec_make_the_first_row_a_record(tmp_path: Path) -> None:
    file = written(tmp_path, b"1,2\n", "csv", columns=("x", "y"))
    assert values(tmp_path, file) == [b'{"x":"1","y":"2"}']


@pytest.mark.parametrize("content", [b"a,a\n1,2\n", b"id,name\r1,a\r2,b\r"])
def test_a_header_row_that_is_not_valid_rejects_the_file(tmp_path: Path, content: bytes) -> None:
    file = written(tmp_path, content, "csv")
    assert file.content.damaged
    assert list(rejects(tmp_path, file)) == [0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"id;name\n1;a\n2;b\n", "malformed: the header row is one field with a semicolon: check csv.delimiter"),
        (b"id\tname\n1\ta\n", "malformed: the header row is one field with a tab: check csv.delimiter"),
        ("id,name\r\n1,a\r\n".encode("utf-16"), "encoding: the file is UTF-16, expected UTF-8"),
    ],
    ids=["semicolons", "tabs", "UTF-16"],
)
def test_a_file_that_the_spec_does_not_describe_is_no_row_of_nulls(tmp_path: Path, content: bytes, reason: str) -> None:
    file = written(tmp_path, content, "csv")
    assert rejects(tmp_path, file)[0].startswith(reason)


def test_a_header_of_one_column_may_quote_a_delimiter(tmp_path: Path) -> None:
    file = written(tmp_path, b'"a;b"\nx\n', "csv")
    assert values(tmp_path, file) == [b'{"a;b":"x"}']


# ---- damaged compression ----


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst", ".lz4"])
def test_the_rows_before_a_damage_are_read(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK", 1 << 16)
    random = np.random.default_rng(1)
    lines = [b'{"n": %d, "r": "%s"}' % (n, random.bytes(30).hex().encode()) for n in range(30_000)]
    packed = PACKED[suffix](b"\n".join(lines) + b"\n")
    file = written(tmp_path, packed[: len(packed) * 3 // 4], "json_lines", f"in.jsonl{suffix}")
    assert file.content.damaged
    *read, _ = values(tmp_path, file)
    assert read == lines[: len(read)]
    assert len(read) > 1000
    [(row, reason)] = rejects(tmp_path, file).items()
    assert row == len(read)
    assert reason.startswith("malformed: ")


def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.source.files.compressed._UNCHECKED", 1000)
    monkeypatch.setattr(text_blocks, "BLOCK", 1 << 16)
    file = written(tmp_path, gzip.compress(b"x\n" * 1_000_000), "text", "in.txt.gz")
    [reason] = rejects(tmp_path, file).values()
    assert reason.startswith("ratio: ")
    assert file.content.rows < 500_000


def test_members_that_follow_each_other_are_one_file(tmp_path: Path) -> None:
    for suffix in (".gz", ".bz2", ".xz", ".zst", ".lz4"):
        raw = PACKED[suffix](b"a\n") + PACKED[suffix](b"b\n")
        assert values(tmp_path, written(tmp_path, raw, "text", f"in.txt{suffix}")) == [b"a", b"b"]


# ---- Parquet and Avro ----

TYPED = pa.table(
    {
        "d": pa.array([Decimal("-123456789012345678901234567890.1234567"), None], pa.decimal128(38, 7)),
        "t": pa.array([datetime(2026, 1, 1, 1, 2, 3, 456789, UTC), None], pa.timestamp("us", "UTC")),
        "l": pa.array([datetime(1969, 1, 1, 1, 2, 3, 4), None], pa.timestamp("us")),
        "day": pa.array([date(1960, 1, 1), None]),
        "b": pa.array([b"\0\xff", None], pa.binary()),
        "n": pa.array(
            [{"x": [1, None, 3], "m": [("k", 1.5)]}, None],
            pa.struct([("x", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.float64()))]),
        ),
        "u": pa.array([2**64 - 1, 0], pa.uint64()),
        "i": pa.array([-(2**63), 2**63 - 1]),
        "f": pa.array([0.1, float("-inf")]),
        "s": pa.array(['é"', ""]).dictionary_encode(),
        "ok": pa.array([True, None]),
        "e": pa.array([[], None], pa.list_(pa.string())),
        "fixed": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    }
)


def decoded(folder: Path, file: IndexedFile, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of Avro values, by the decoder."""
    decoder = container_decoder(schema, "reject", DecodeLimits())
    result = decoder.decode(records(folder, file)["value"].combine_chunks())
    assert list(result.rejects) == []
    rows: list[dict[str, Any]] = result.rows.to_pylist()
    return rows


def test_parquet_rows_keep_their_types(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(TYPED, sink)
    file = written(tmp_path, sink.getvalue(), "parquet")
    schema = pa.schema([item.with_type(plain(item.type)) for item in TYPED.schema])
    assert decoded(tmp_path, file, schema) == TYPED.to_pylist()


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of the column in a table."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.int64())
    return {pa.uint64(): pa.decimal128(20, 0)}.get(kind, pa.string() if pa.types.is_dictionary(kind) else kind)


@QUICK
@given(
    numbers=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60),
    group=st.integers(1, 20),
    draw=st.data(),
)
def test_parquet_is_read_by_row_groups(
    tmp_path: Path, numbers: list[int | None], group: int, draw: st.DataObject
) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), sink, row_group_size=group)
    file = written(tmp_path, sink.getvalue(), "parquet")
    assert decoded(tmp_path, file, pa.schema([("n", pa.int64())])) == [{"n": number} for number in numbers]
    same_for_any_split(tmp_path, file, draw)


AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "s", "type": "string"},
    ],
}


def avro_file(rows: list[dict[str, Any]], codec: str) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(AVRO), rows, codec=codec, sync_interval=200)
    return sink.getvalue()


@QUICK
@given(
    numbers=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=60),
    codec=st.sampled_from(["null", "deflate", "bzip2", "xz"]),
    draw=st.data(),
)
def test_each_record_of_an_avro_file_has_its_schema(
    tmp_path: Path, numbers: list[int | None], codec: str, draw: st.DataObject
) -> None:
    rows = [{"n": number, "d": Decimal("1.25"), "s": f"é{number}"} for number in numbers]
    file = written(tmp_path, avro_file(rows, codec), "avro")
    assert file.content.rows == len(rows)
    if rows:
        schema = pa.schema([("n", pa.int64()), ("d", pa.decimal128(10, 2)), ("s", pa.string())])
        assert decoded(tmp_path, file, schema) == rows
    same_for_any_split(tmp_path, file, draw)


def test_damaged_typed_files_have_one_rejected_record(tmp_path: Path) -> None:
    raw = avro_file([{"n": number, "d": Decimal("1.25"), "s": "x"} for number in range(500)], "deflate")
    cut = written(tmp_path, raw[:-100], "avro")
    assert cut.content.damaged
    assert list(rejects(tmp_path, cut)) == [cut.content.rows - 1]
    for name in ("avro", "parquet"):
        file = written(tmp_path, b"PAR1 or not", name)
        assert (file.content.rows, file.content.damaged) == (1, True)
        assert values(tmp_path, file) == [b"PAR1 or not"]
        assert list(rejects(tmp_path, file)) == [0]


def test_a_damaged_block_is_found_when_files_are_deleted(tmp_path: Path) -> None:
    raw = bytearray(avro_file([{"n": number, "d": Decimal("1.25"), "s": "x" * 50} for number in range(500)], "bzip2"))
    raw[len(raw) // 2] ^= 0xFF
    form = FileFormat("avro", "auto", LIMIT)
    assert not count_rows(io.BytesIO(raw), "x.avro", form).damaged  # the headers of the blocks are valid
    assert count_rows(io.BytesIO(raw), "x.avro", form, verify=True).damaged
    file = written(tmp_path, bytes(raw), "avro")
    [(row, reason)] = rejects(tmp_path, file).items()
    assert "records of the block are not read" in reason
    assert len(records(tmp_path, file)) > 400
    assert row not in (0, 499)


# ---- headers ----


def test_headers_have_path_time_directories_and_row(tmp_path: Path) -> None:
    file = written(tmp_path, b"one\ntwo\n", "text", "date=2026-01-31/hour=7/in.txt")
    first, second = (dict(pairs) for pairs in _headers(tmp_path, file))
    assert first["file.path"] == b"date=2026-01-31/hour=7/in.txt"
    assert (first["date"], first["hour"]) == (b"2026-01-31", b"7")
    assert (first["file.row"], second["file.row"]) == (b"1", b"2")
    modified = datetime.fromisoformat(second["file.modified"].decode())
    assert abs(modified.timestamp() - file.modified) < 1e-5
    assert records(tmp_path, file)["timestamp"].to_pylist() == [modified] * 2


def test_directories_cannot_replace_the_headers_of_the_source() -> None:
    assert partition_values("file.path=x/a=1/=2/b/c=d=e/f.csv") == [("a", "1"), ("c", "d=e")]
