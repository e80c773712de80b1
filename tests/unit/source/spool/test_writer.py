"""The writer: groups, duplicates, limits, its lock, and readers beside it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import HeadraceError, LeaseHeld, SequenceReused, SpoolDamaged, SpoolFull, UsageError
from headrace.source.ranges import Range
from headrace.source.spool.block import BLOCK_SCHEMA
from headrace.source.spool.disk import LocalDisk, _LocalFile
from headrace.source.spool.log import NewBlock, SegmentLog, SyncFailed
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.window import RequestWindow
from headrace.source.spool.writer import Appended, Incoming, Spool, SpoolLimits
from services.wait import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def records(*values: bytes) -> pa.RecordBatch:
    rows = [
        {"key": b"k", "value": value, "headers": [{"key": "h", "value": b"1"}], "timestamp": NOW} for value in values
    ]
    return pa.RecordBatch.from_pylist(rows, BLOCK_SCHEMA)


def values(folder: Path, topic: str, start: int, until: int) -> list[bytes]:
    batches = record_batches(open_reader(str(folder)), Range(topic, 0, start, until))
    return [value for batch in batches for value in batch["value"].to_pylist()]


def test_appended_records_are_read_back(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, "p")
    assert spool.append(Incoming("a", records(b"0", b"1"))).result(10) == Appended(0, 2)
    assert spool.append(Incoming("a", records(b"2"))).result(10) == Appended(2, 3)
    assert spool.append(Incoming("/ns/b c", records(b"x"))).result(10) == Appended(0, 1)
    spool.close()
    reader = open_reader(str(tmp_path))
    assert reader.ends() == {"a": 3, "/ns/b c": 1}
    (batch,) = record_batches(open_reader(str(tmp_path)), Range("a", 0, 1, 3))
    assert batch.to_pylist() == [
        {
            "topic": "a",
            "partition": 0,
            "offset": offset,
            "timestamp": NOW,
            "timestamp_type": 0,
            "key": b"k",
            "value": value,
            "headers": [{"key": "h", "value": b"1"}],
        }
        for offset, value in ((1, b"1"), (2, b"2"))
    ]


def test_appends_of_many_threads_share_syncs(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, "p")
    futures = []

    def produce(name: int) -> None:
        futures.extend(spool.append(Incoming("a", records(b"%d-%d" % (name, each)))) for each in range(200))

    threads = [threading.Thread(target=produce, args=(name,)) for name in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait(futures, 30)
    assert sorted(future.result().first_offset for future in futures) == list(range(1000))
    assert spool.counts.records == 1000
    assert spool.counts.syncs < 500
    spool.close()
    assert len(set(values(tmp_path, "a", 0, 1000))) == 1000


def test_a_client_that_no_longer_waits_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gRPC client with a deadline cancels the coroutine that waits for its records, and a retry of the same ones."""
    written, go_on, write = threading.Event(), threading.Event(), SegmentLog.write

    def wait_and_write(log: SegmentLog, blocks: Mapping[str, NewBlock]) -> dict[str, int]:
        written.set()
        assert go_on.wait(60)
        return write(log, blocks)

    async def give_up() -> None:
        request = Incoming("a", records(b"0"), "p", "1")
        waiting = [asyncio.wrap_future(spool.append(request)) for _ in range(2)]
        await asyncio.to_thread(written.wait, 60)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    monkeypatch.setattr(SegmentLog, "write", wait_and_write)
    spool = Spool.open(tmp_path, "p")
    asyncio.run(give_up())
    go_on.set()
    assert spool.append(Incoming("a", records(b"1"))).result(60) == Appended(1, 2)
    assert spool.append(Incoming("a", records(b"0"), "p", "1")).result(60) == Appended(0, 1, True)
    spool.close()


def test_records_that_are_appended_just_before_the_close_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the writer has found nothing to write, and has not looked whether it must end."""
    closing, futures = list[threading.Thread](), list[Future[Appended]]()

    def append_and_close(spool: Spool, _: object) -> None:
        if not closing and threading.current_thread() is spool._thread:
            futures.append(spool.append(Incoming("a", records(b"0"))))
            closing.append(threading.Thread(target=spool.close))
            closing[0].start()
            eventually(lambda: spool._closing)

    spool = Spool.open(tmp_path, "p")
    monkeypatch.setattr(Spool, "_add", append_and_close)
    spool.trim()  # wakes the writer
    eventually(lambda: closing)
    closing[0].join(60)
    assert futures[0].result(10) == Appended(0, 1)


def test_a_repeated_request_is_stored_once_also_after_restarts_and_deletion(tmp_path: Path) -> None:
    limits = SpoolLimits(segment_bytes=1)
    request = Incoming("a", records(b"0", b"1"), "web", "7", fingerprint=5)
    spool = Spool.open(tmp_path, "p", limits)
    first, second = spool.append(request), spool.append(request)  # the second before the first is durable, or after it
    assert (first.result(10), second.result(10)) == (Appended(0, 2), Appended(0, 2, duplicate=True))
    for _ in range(2):
        spool.close()
        spool = Spool.open(tmp_path, "p", limits)
        assert spool.append(request).result(10) == Appended(0, 2, duplicate=True)
        open_reader(str(tmp_path)).commit({"a": 2})
        spool.trim()
        eventually(lambda: open_reader(str(tmp_path)).first("a") == 2)
    assert spool.append(Incoming("a", records(b"2"), "web", "8")).result(10) == Appended(2, 3)
    assert spool.append(Incoming("a", records(b"0", b"1"), "app", "7")).result(10) == Appended(3, 5)
    with pytest.raises(SequenceReused, match="'7' of producer 'web'"):
        spool.append(Incoming("a", records(b"other"), "web", "7", fingerprint=6))
    spool.close()


def test_a_full_spool_refuses_until_records_are_committed(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, "p", SpoolLimits(max_bytes=20_000, segment_bytes=2_000))
    accepted, error = 0, None
    while error is None and accepted < 30:
        try:
            accepted = spool.append(Incoming("a", records(b"x" * 1000))).result(10).until
        except SpoolFull as full:
            error = full
    assert error is not None
    assert error.retry_after > 0
    assert 5 < accepted <= 20
    open_reader(str(tmp_path)).commit({"a": accepted})
    spool.trim()
    eventually(lambda: spool.stored_bytes < 2_000)
    assert spool.append(Incoming("a", records(b"y"))).result(10) == Appended(accepted, accepted + 1)
    spool.close()


def test_offsets_continue_after_everything_is_deleted(tmp_path: Path) -> None:
    for round_ in range(3):
        spool = Spool.open(tmp_path, "p", SpoolLimits(segment_bytes=1))
        assert spool.append(Incoming("a", records(b"v"))).result(10).first_offset == round_
        open_reader(str(tmp_path)).commit({"a": round_ + 1})
        spool.trim()
        eventually(lambda until=round_ + 1: open_reader(str(tmp_path)).first("a") == until)
        spool.close()


def test_a_spool_has_one_writer_and_one_pipeline(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, "p")
    with pytest.raises(LeaseHeld, match="written by another process"):
        Spool.open(tmp_path, "p")
    with pytest.raises(UsageError, match="belongs to the pipeline 'p'"):  # also while it is written
        Spool.open(tmp_path, "other")
    spool.close()
    with pytest.raises(UsageError, match="belongs to the pipeline 'p'"):
        Spool.open(tmp_path, "other")


def test_a_changed_byte_is_damage(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, "p")
    spool.append(Incoming("a", records(b"0" * 100))).result(10)
    spool.append(Incoming("a", records(b"1" * 100))).result(10)
    spool.close()
    (segment,) = tmp_path.glob("topics/a/*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"0" * 100) + 50] = ord("2")
    segment.write_bytes(content)
    with pytest.raises(SpoolDamaged, match="wrong checksum at byte 0"):
        values(tmp_path, "a", 0, 2)
    assert values(tmp_path, "a", 1, 2) == [b"1" * 100]
    with pytest.raises(SpoolDamaged, match="records end at offset 0, but those before 2 were stored"):
        Spool.open(tmp_path, "p")


def test_an_incomplete_end_is_cut(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, "p")
    spool.append(Incoming("a", records(b"0"))).result(10)
    spool.close()
    (segment,) = tmp_path.glob("topics/a/*.seg")
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[:-1])
    spool = Spool.open(tmp_path, "p")
    assert spool.append(Incoming("a", records(b"1"))).result(10) == Appended(1, 2)
    spool.close()
    assert values(tmp_path, "a", 0, 2) == [b"0", b"1"]


def test_requests_of_deleted_segments_are_kept_up_to_their_number(tmp_path: Path) -> None:
    """However old they are: a broker redelivers what was not acknowledged when the pipeline runs again."""
    limits = SpoolLimits(segment_bytes=1, max_requests=20, request_age=1e9)
    spool = Spool.open(tmp_path, "p", limits)
    for number in range(100):
        spool.append(Incoming("a", records(b"%d" % number), sequence=str(number))).result(10)
    open_reader(str(tmp_path)).commit({"a": 100})
    spool.trim()
    kept = tmp_path / "topics" / "a"
    eventually(lambda: len(list(kept.glob("*.seg"))) == 1 and len(list(kept.glob("*.ids"))) <= 21)
    spool.close()
    spool = Spool.open(tmp_path, "p", limits)
    assert spool.append(Incoming("a", records(b"99"), sequence="99")).result(10) == Appended(99, 100, duplicate=True)
    assert spool.append(Incoming("a", records(b"81"), sequence="81")).result(10) == Appended(81, 82, duplicate=True)
    assert spool.append(Incoming("a", records(b"0"), sequence="0")).result(10) == Appended(100, 101)
    spool.close()


def test_an_internal_error_is_raised_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory")

    spool = Spool.open(tmp_path, "p")
    with monkeypatch.context() as patch:
        patch.setattr(RequestWindow, "add", fail)
        assert isinstance(spool.append(Incoming("a", records(b"0"), "p", "1")).exception(60), MemoryError)
    with pytest.raises(HeadraceError, match="MemoryError: no memory"):
        spool.append(Incoming("a", records(b"1")))
    spool.close()
    spool = Spool.open(tmp_path, "p")  # it was stored
    assert spool.append(Incoming("a", records(b"0"), "p", "1")).result(60) == Appended(0, 1, True)
    spool.close()


@pytest.mark.parametrize("failing", [(_LocalFile, "truncate"), (LocalDisk, "sync_folder")], ids=["cut", "folder"])
def test_a_disk_that_fails_twice_ends_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[type, str]
) -> None:
    """What a failed write or a new segment has left is unknown then: nothing may be acknowledged after it."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write_a_part(file: _LocalFile, parts: Sequence[bytes | memoryview]) -> None:
        os.write(file._descriptor, bytes(parts[0])[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    spool = Spool.open(tmp_path, "p", SpoolLimits(segment_bytes=1))
    assert spool.append(Incoming("a", records(b"0"))).result(10) == Appended(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(*failing, fail)
        patch.setattr(_LocalFile, "write", write_a_part)
        assert isinstance(spool.append(Incoming("a", records(b"1"))).exception(10), SyncFailed)
    with pytest.raises(SyncFailed, match=r"The spool cannot be synced: Input/output error\."):
        spool.append(Incoming("a", records(b"2")))
    spool.close()
    spool = Spool.open(tmp_path, "p")
    assert spool.append(Incoming("a", records(b"2"))).result(10) == Appended(1, 2)
    spool.close()
    assert values(tmp_path, "a", 0, 2) == [b"0", b"2"]
