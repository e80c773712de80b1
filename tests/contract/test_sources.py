"""What every source must do, whatever it reads from. A source is added by a case in `CASES`."""

from __future__ import annotations

import gzip
import json
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.schema import RECORD_SCHEMA
from headrace.dev.kafka import Broker
from headrace.source import generate
from headrace.source.base import Offsets, Source, open_source, restore_null_headers
from headrace.source.files.source import FilesSource
from headrace.source.generate import GenerateSource
from headrace.source.ranges import Range
from headrace.source.record_frame import SPLIT_RECORDS, split_range
from headrace.source.rivven.source import RivvenSource
from headrace.source.spool.block import BLOCK_SCHEMA
from headrace.source.spool.object_reader import ObjectReader
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.writer import Incoming, Spool
from headrace.validate.load import loads
from services.kafka import make_topic, produce
from services.rivven import is_built as rivven_is_built
from services.rivven import rivven_server, write_topics
from services.stores import StorageFolder, new_folder

RECORDS = 2 * SPLIT_RECORDS + 345  # of the first topic: enough for two tasks
TaskRead = Callable[[Range], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Filled:
    """A source with at least `RECORDS` records in its first partition."""

    reopen: Callable[[], Source]
    reader: TaskRead  # the function that a task calls


@contextmanager
def generated(folder: Path) -> Iterator[Filled]:
    spec = _spec(folder, f"generate: {{records: {2 * RECORDS}, partitions: 2}}")
    source = open_source(spec)
    assert isinstance(source, GenerateSource)
    yield Filled(partial(open_source, spec), partial(generate.batches, source._options()))


@contextmanager
def spooled(folder: Path) -> Iterator[Filled]:
    """Records in blocks of all sizes, some larger than a batch of the reader, in several segments."""
    spec = _spec(folder, "http: {topics: [orders, refunds], spool: {max_bytes: 16MB}}")
    _fill_spool(open_source(spec))
    yield Filled(partial(open_source, spec), partial(record_batches, open_reader(f"{spec.state_uri}/spool")))


@contextmanager
def spooled_in_an_object_store(folder: Path, storage: StorageFolder, settings: dict[str, Any]) -> Iterator[Filled]:
    """The same records, in objects."""
    http = {"topics": ["orders", "refunds"], "spool": {"path": f"{storage.uri}/spool", "max_bytes": "16MB"}}
    text = {"pipeline": "p", "source": {"http": http}, "table": {"path": f"{folder}/lake/t"}, "storage": settings}
    [spec] = loads(json.dumps(text), folder)
    _fill_spool(open_source(spec))
    yield Filled(partial(open_source, spec), partial(record_batches, ObjectReader(storage.store("spool"))))


def _fill_spool(source: Source) -> None:
    spool: Spool = source.open_destination()  # type: ignore[attr-defined]
    sent = 0
    for size in (1, 2, 12_345, 3, RECORDS - 12_351):
        values = [b'{"id": %d}' % each for each in range(sent, sent + size)]
        spool.append(Incoming("orders", _records(values))).result(30)
        sent += size
    spool.append(Incoming("refunds", _records([b"{}"]))).result(30)
    spool.close()


@contextmanager
def on_a_rivven_server(folder: Path) -> Iterator[Filled]:
    """Two topics, one with two partitions."""
    values = [b'{"id": %d}' % each for each in range(RECORDS)]
    write_topics(folder, {"orders": [values, values[:100]], "refunds": [values[:100]]})
    with rivven_server(folder) as server:
        spec = _spec(folder, f"rivven: {{broker: '{server.address}', topics: [orders, refunds]}}")
        source = open_source(spec)
        assert isinstance(source, RivvenSource)
        yield Filled(partial(open_source, spec), source.reader())
        source.close()
        server.kill()  # an orderly stop takes seconds


@contextmanager
def in_files(folder: Path) -> Iterator[Filled]:
    """Files of all sizes, compressed and not."""
    (folder / "in").mkdir()
    sent = 0
    for number, size in enumerate((1, 0, 12_345, 3, RECORDS - 12_349)):
        lines = b"".join(b'{"id": %d}\n' % each for each in range(sent, sent + size))
        packed = gzip.compress(lines) if number % 2 else lines
        (folder / "in" / f"{number}.jsonl{'.gz' if number % 2 else ''}").write_bytes(packed)
        sent += size
    spec = _spec(folder, f"files: {{path: {folder}/in, settle: 0s}}")
    source = open_source(spec)
    assert isinstance(source, FilesSource)
    [each] = whole(source)
    yield Filled(partial(open_source, spec), source.reader(source.files_of(each)))


@contextmanager
def on_a_kafka_broker(folder: Path, broker: Broker, spark: Any) -> Iterator[Filled]:
    """Two topics, one with two partitions; Spark's connector reads the records, in the JVM."""
    names = [make_topic(broker.bootstrap, f"t-{uuid.uuid4().hex[:12]}", partitions) for partitions in (2, 1)]
    values = [b'{"id": %d}' % each for each in range(RECORDS)]
    for name, partition, count in ((names[0], 0, RECORDS), (names[0], 1, 100), (names[1], 0, 100)):
        produce(broker.bootstrap, name, values[:count], partition=partition)
    spec = _spec(folder, f"kafka: {{brokers: '{broker.bootstrap}', topics: [{', '.join(names)}]}}")
    source = open_source(spec)

    def read(part: Range) -> Iterator[pa.RecordBatch]:
        for batch in source.read(spark, [part]).frame.toArrow().cast(RECORD_SCHEMA).to_batches():
            yield restore_null_headers(batch)

    yield Filled(partial(open_source, spec), read)
    source.close()


CASES = {"files": in_files, "generate": generated, "spool": spooled, "rivven": on_a_rivven_server}  # read in the task
KAFKA = pytest.param("kafka", marks=[pytest.mark.service, pytest.mark.spark])


def _marks(case: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if case == "rivven" and not rivven_is_built() else []


IN_TASK = [
    *(pytest.param(case, marks=_marks(case)) for case in CASES),
    pytest.param("object spool", marks=pytest.mark.service),
]


@pytest.fixture(params=IN_TASK)
def filled_for_tasks(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Filled]:
    with _in_task(request, tmp_path, monkeypatch) as case:
        yield case


def _in_task(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AbstractContextManager[Filled]:
    if request.param != "object spool":
        return CASES[request.param](tmp_path)
    storage = new_folder("s3", request, tmp_path)
    return spooled_in_an_object_store(tmp_path, storage, storage.spec_settings(monkeypatch))


@pytest.fixture(params=[*IN_TASK, KAFKA])
def filled(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Filled]:
    if request.param == "kafka":
        broker, spark = (request.getfixturevalue(name) for name in ("kafka", "spark"))
        with on_a_kafka_broker(tmp_path, broker, spark) as case:
            yield case
    else:
        with _in_task(request, tmp_path, monkeypatch) as case:
            yield case


@pytest.fixture
def source(filled: Filled) -> Iterator[Source]:
    opened = filled.reopen()
    yield opened
    opened.close()


def _spec(folder: Path, source: str):
    [spec] = loads(f"pipeline: p\nsource: {{{source}}}\ntable: {{path: {folder}/lake/t}}\n", folder)
    return spec


def _records(values: list[bytes]) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.array([b"%d" % (each % 7) for each in range(count)], pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, BLOCK_SCHEMA.field("headers").type),
        "timestamp": pa.array(range(count), pa.int64()).cast(BLOCK_SCHEMA.field("timestamp").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in BLOCK_SCHEMA.names], schema=BLOCK_SCHEMA)


def whole(source: Source) -> list[Range]:
    """Everything that the source has."""
    topics = source.topics()
    return [Range(topic, part, each.earliest, each.latest, topics[topic]) for (topic, part), each in ordered(source)]


def ordered(source: Source):
    return sorted(source.bounds().items())


def table(reader: TaskRead, *ranges: Range) -> pa.Table:
    return pa.Table.from_batches([batch for each in ranges for batch in reader(each)], RECORD_SCHEMA)


def middle(source: Source) -> Offsets:
    return {each: (bounds.earliest + bounds.latest) // 2 for each, bounds in source.bounds().items()}


# ---- records ----


def test_a_range_has_exactly_its_offsets(filled: Filled, source: Source) -> None:
    for each in whole(source):
        read = table(filled.reader, each)
        assert read["offset"].to_pylist() == list(range(each.start, each.until))
        assert set(read["topic"].to_pylist()) == {each.topic}
        assert set(read["partition"].to_pylist()) == {each.partition}
        assert read["timestamp"].null_count == 0


def test_a_range_that_is_read_again_has_the_same_records(filled: Filled, source: Source) -> None:
    first = whole(source)[0]
    part = replace(first, start=first.start + 17, until=first.until - 19)
    assert table(filled.reader, part).equals(table(filled.reader, part))
    assert table(filled.reader, part).equals(table(filled.reader, first).slice(17, part.until - part.start))


def test_tasks_that_share_a_range_read_its_records(filled: Filled, source: Source) -> None:
    largest = max(whole(source), key=lambda each: each.until - each.start)
    parts = split_range(largest, 4)
    assert len(parts) > 1
    assert table(filled.reader, *parts).equals(table(filled.reader, largest))


def test_batches_are_small(filled_for_tasks: Filled) -> None:
    source = filled_for_tasks.reopen()
    assert max(batch.num_rows for batch in filled_for_tasks.reader(whole(source)[0])) <= 20_000
    source.close()


def test_a_task_gets_the_reader_by_pickle(filled_for_tasks: Filled) -> None:
    source = filled_for_tasks.reopen()
    reader: TaskRead = pickle.loads(pickle.dumps(filled_for_tasks.reader))  # noqa: S301
    first = replace(whole(source)[0], until=10)
    assert table(reader, first).equals(table(filled_for_tasks.reader, first))
    source.close()


# ---- offsets ----


def test_bounds_latest_and_start_agree(source: Source) -> None:
    bounds = source.bounds()
    assert source.latest(list(bounds)) == {each: offsets.latest for each, offsets in bounds.items()}
    assert {topic for topic, _ in bounds} == set(source.topics())
    for each, offset in source.start(bounds).items():
        assert bounds[each].earliest <= offset <= bounds[each].latest


def test_the_lag_is_what_is_unread(source: Source) -> None:
    bounds, position = source.bounds(), middle(source)
    lag = source.lag(position)
    assert lag.records == sum(bounds[each].latest - offset for each, offset in position.items())
    assert lag.ends == {each: offsets.latest for each, offsets in bounds.items()}
    assert lag.seconds is None or 0 <= lag.seconds < 600
    latest = source.lag(source.latest(list(bounds)))
    assert (latest.records, latest.seconds) in ((0, 0), (0, None))


def test_a_source_that_is_opened_again_is_the_same(filled: Filled, source: Source) -> None:
    again = filled.reopen()
    assert (again.topics(), again.bounds()) == (source.topics(), source.bounds())
    again.close()


# ---- commits ----


def test_a_commit_releases_nothing_behind_it(filled: Filled, source: Source) -> None:
    position = middle(source)
    unread = [replace(each, start=position[each.topic, each.partition]) for each in whole(source)]
    before = table(filled.reader, *unread)
    source.committed(position)
    source.committed(position)  # as at every start
    assert table(filled.reader, *unread).equals(before)
    again = filled.reopen()
    for each, bounds in again.bounds().items():
        assert bounds.earliest <= position[each]
    assert again.latest(list(position)) == source.latest(list(position))
    again.close()


def test_a_sample_commits_nothing(filled: Filled, source: Source) -> None:
    bounds = source.bounds()
    first = whole(source)[0]
    for where in ("end", "start"):
        sample = source.tail(5, where)
        assert sample.schema == RECORD_SCHEMA
        assert 5 <= len(sample) <= 5 * len(bounds)
        offsets = [each["offset"] for each in sample.to_pylist() if each["topic"] == first.topic]
        assert all(first.start <= offset < max(each.until for each in whole(source)) for offset in offsets)
    assert source.bounds() == bounds


# ---- the end ----


def test_close_is_quick_and_may_be_repeated(filled: Filled) -> None:
    source = filled.reopen()
    source.bounds()
    started = time.monotonic()
    source.close()
    source.close()
    assert time.monotonic() - started < 2
