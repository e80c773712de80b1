"""The log tail against rivals, foreign writers and a bad network, on local disk and on a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType

from headrace.delta.log import LOG
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import to_delta
from headrace.delta.txn import batch_txn
from headrace.errors import Fenced, StorageUnreachable
from headrace.storage.store import Profile, Store
from services.concurrent_writers import append_at_once, create_at_once, rivals, write_many
from services.s3 import S3
from services.s3gate import Gate, s3gate
from services.staging import SCHEMA, ids, marks, opened, rows, staged
from services.wait import eventually

ROUNDS = 20
MARKS = [batch_txn("shop")]


def through(s3: S3, endpoint: str) -> Profile:
    return Profile({**s3.settings, "endpoint": endpoint})


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty place for tables, on each kind of storage."""
    if request.param == "local":
        return Store(str(tmp_path / "lake"))
    server: S3 = request.getfixturevalue("s3")
    return Store(f"s3a://{server.bucket()}/my lake", through(server, server.endpoint))


@pytest.fixture
def gate(s3: S3) -> Iterator[Gate]:
    with s3gate(s3.endpoint) as opened_gate:
        yield opened_gate


@pytest.fixture
def straight(s3: S3, bucket: str) -> Store:
    """A table's place on S3, reached without the gate."""
    return Store(f"s3://{bucket}/orders", through(s3, s3.endpoint))


@pytest.fixture
def gated(s3: S3, straight: Store, gate: Gate) -> Store:
    """The same place, reached through the gate."""
    return Store(straight.uri, through(s3, gate.endpoint))


def made(store: Store) -> LogWriter:
    """A table at version 0 with the ids 1 and 2, made by batch 1."""
    tail = LogWriter.open(store, MARKS)
    assert tail.create(to_delta(SCHEMA), (), {}, str(uuid.uuid4()), [staged(store, [1, 2])], marks(1), {}) is not None
    return tail


def versions(store: Store) -> int:
    return sum(item.path.endswith(".json") for item in store.list(LOG))


def test_two_drivers_of_one_pipeline_commit_each_batch_once(lake: Store) -> None:
    store = lake.child("orders")
    made(store)
    with rivals() as race:
        for batch in range(2, ROUNDS + 2):
            files = [[staged(store, [batch * 10 + driver])] for driver in (0, 1)]
            receipts = race(append_at_once, [store] * 2, ["shop"] * 2, [batch] * 2, files)
            assert sorted(receipt.skipped for receipt in receipts) == [False, True]
    assert versions(store) == ROUNDS + 1
    assert sorted({value // 10 for value in ids(store)[2:]}) == list(range(2, ROUNDS + 2))
    assert len(ids(store)) == ROUNDS + 2


def test_two_pipelines_share_a_table(lake: Store) -> None:
    store = lake.child("orders")
    made(store)
    with rivals() as race:
        for batch in range(2, ROUNDS + 2):
            files = [[staged(store, [batch * 10 + driver])] for driver in (0, 1)]
            race(append_at_once, [store] * 2, ["shop", "web"], [batch] * 2, files)
    assert versions(store) == 2 * ROUNDS + 1
    assert ids(store)[2:] == [batch * 10 + driver for batch in range(2, ROUNDS + 2) for driver in (0, 1)]


def test_two_creators_make_one_table_with_both_batches(lake: Store) -> None:
    with rivals() as race:
        for round in range(ROUNDS):
            store = lake.child(f"orders-{round}")
            files = [[staged(store, [1])], [staged(store, [2])]]
            names = [str(uuid.uuid4()), str(uuid.uuid4())]
            won = race(create_at_once, [store] * 2, ["shop", "web"], names, files)
            assert sorted(won) == [False, True]
            assert (versions(store), ids(store)) == (2, [1, 2])
            assert str(opened(store).metadata().id) == names[won.index(True)]


def test_two_creators_of_one_pipeline_make_one_table_with_one_batch(lake: Store) -> None:
    with rivals() as race:
        for round in range(5):
            store = lake.child(f"orders-{round}")
            files = [[staged(store, [1])]] * 2
            won = race(create_at_once, [store] * 2, ["shop"] * 2, [str(uuid.uuid4())] * 2, files)
            assert sorted(won) == [False, True]
            assert (versions(store), ids(store)) == (1, [1])


def test_foreign_appends_and_ours_are_all_there(lake: Store) -> None:
    store = lake.child("orders")
    made(store)
    files = [staged(store, [100 + number]) for number in range(ROUNDS)]
    with rivals() as race:
        race(write_many, [store] * 2, [True, False], [files] * 2)
    assert ids(store) == [1, 2, *range(100, 100 + ROUNDS), *range(1000, 1000 + ROUNDS)]
    assert opened(store).transaction_version("headrace:shop") == ROUNDS + 1


def test_a_column_added_while_a_commit_is_on_its_way(gate: Gate, gated: Store, straight: Store) -> None:
    tail = made(gated)
    held = gate.on("PUT", r"_delta_log/0+1\.json", "hold")
    with ThreadPoolExecutor(1) as pool:
        commit = pool.submit(tail.append, [staged(straight, [3])], marks(2), {})
        assert held.reached.wait(30)
        opened(straight).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
        held.released.set()
        receipt = commit.result(30)
    assert (receipt.version, receipt.skipped) == (2, False)
    assert rows(straight)[2] == {"id": 3, "day": None, "note": None}


def test_a_zombie_whose_commit_arrives_late_changes_nothing(gate: Gate, gated: Store, straight: Store) -> None:
    zombie, file = made(gated), staged(straight, [3])
    held = gate.on("PUT", r"_delta_log/0+1\.json", "hold")
    with ThreadPoolExecutor(1) as pool:
        commit = pool.submit(zombie.append, [file], marks(2), {})
        assert held.reached.wait(30)
        heir = LogWriter.open(straight, MARKS)
        heir.append([file], marks(2), {})
        heir.append([staged(straight, [4])], marks(3), {})
        held.released.set()
        with pytest.raises(Fenced):
            commit.result(30)
    assert (versions(straight), ids(straight)) == (3, [1, 2, 3, 4])


@pytest.mark.parametrize("times", [1, 2, 9])
def test_a_lost_reply_is_one_version(gate: Gate, gated: Store, straight: Store, times: int) -> None:
    """Lost once, the client's own retry meets our version as a false 412; lost every time, all it has is an error."""
    tail = made(gated)
    lost = gate.on("PUT", r"_delta_log/0+1\.json", "lose", times=times)
    receipt = tail.append([staged(straight, [3])], marks(2), {})
    assert lost.seen >= min(times, 4)
    assert (receipt.version, receipt.skipped) == (1, False)
    assert tail.append([staged(straight, [4])], marks(3), {}).version == 2
    assert (versions(straight), ids(straight)) == (3, [1, 2, 3, 4])


def test_a_lost_reply_when_a_table_is_born(gate: Gate, gated: Store, straight: Store) -> None:
    gate.on("PUT", r"_delta_log/0+\.json", "lose", times=9)
    tail = made(gated)
    assert tail.append([staged(straight, [3])], marks(2), {}).version == 1
    assert ids(straight) == [1, 2, 3]


def test_a_lost_reply_and_then_no_answer_at_all(gate: Gate, gated: Store, straight: Store) -> None:
    tail, file = made(gated), staged(straight, [3])
    gate.on("PUT", r"_delta_log/0+1\.json", "lose", times=9)
    gate.on("*", r"_delta_log/0+1\.json", "refuse", times=1000)
    with pytest.raises(StorageUnreachable):
        tail.append([file], marks(2), {})
    row = pa.table({"id": [50], "day": ["x"]})
    write_deltalake(straight.delta_uri, row, mode="append", storage_options=straight.delta_options)
    gate.open()
    receipt = tail.append([file], marks(2), {})
    assert (receipt.version, receipt.skipped) == (1, False)
    assert ids(straight) == [1, 2, 3, 50]


def test_a_put_that_never_arrived_is_put_again(gate: Gate, gated: Store, straight: Store) -> None:
    tail, file = made(gated), staged(straight, [3])
    gate.on("PUT", r"_delta_log/0+1\.json", "close", times=1000)
    with pytest.raises(StorageUnreachable):
        tail.append([file], marks(2), {})
    assert versions(straight) == 1
    gate.open()
    assert tail.append([file], marks(2), {}).version == 1
    assert ids(straight) == [1, 2, 3]


def test_a_put_that_arrives_after_its_retry_changes_nothing(gate: Gate, gated: Store, straight: Store) -> None:
    """The requests of the first try are stuck on the way and arrive when their batch is long committed."""
    tail, file = made(gated), staged(straight, [3])
    late = gate.on("PUT", r"_delta_log/0+1\.json", "late", times=4)
    with pytest.raises(StorageUnreachable):
        tail.append([file], marks(2), {})
    assert tail.append([file], marks(2), {}).version == 1
    tail.append([staged(straight, [4])], marks(3), {})
    late.released.set()
    eventually(lambda: [status for _, key, status in gate.answers if "0001.json" in key].count(412) == late.times)
    assert (versions(straight), ids(straight)) == (3, [1, 2, 3, 4])


def test_a_hundred_batches_through_a_bad_network(gate: Gate, gated: Store, straight: Store) -> None:
    """Every 7th request is answered 503, every 11th reply is lost, every 13th connection is closed."""
    tail = made(gated)
    gate.on("*", LOG, "refuse", every=7)
    gate.on("*", LOG, "lose", every=11)
    gate.on("*", LOG, "close", every=13)
    for batch in range(2, 102):
        file, receipt = staged(straight, [batch + 1]), None
        while receipt is None:
            try:
                receipt = tail.append([file], marks(batch), {})
            except StorageUnreachable:
                continue
    assert (versions(straight), ids(straight)) == (101, list(range(1, 103)))


def test_spark_reads_what_the_log_writer_wrote(spark: Any, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "my lake" / "ürders"))
    days = ["plain", "a b", "100%", "x=y", "ü", "a/b", "a%2Fb", "#?&+:;,'\"", "日本", "{x}[y]^z`~", "a:b"]
    tail = LogWriter.open(store, MARKS)
    files = [staged(store, [number], day) for number, day in enumerate(days)]
    tail.create(to_delta(SCHEMA), ("day",), {}, str(uuid.uuid4()), files[:5], marks(1), {"batch": 1})
    tail.append(files[5:], marks(2), {"batch": 2})
    wider = SCHEMA.append(pa.field("at", pa.timestamp("us")))
    tail.evolve(to_delta(wider), {})
    tail.append([staged(store, [99], "late")], marks(3), {}, schema=to_delta(SCHEMA))
    frame = spark.read.format("delta").load(store.spark_uri)
    assert [(row.id, row.day, row.at) for row in frame.orderBy("id").collect()] == [
        *((number, day, None) for number, day in enumerate(days)),
        (99, "late", None),
    ]
    assert frame.where("day = 'a%2Fb'").count() == 1
    history = spark.sql(f"DESCRIBE HISTORY delta.`{store.spark_uri}`").collect()
    assert [row.operation for row in history] == [
        "STREAMING UPDATE",
        "CHANGE COLUMNS",
        "STREAMING UPDATE",
        "CREATE TABLE AS SELECT",
    ]
    assert history[0].isBlindAppend
    assert history[0].operationMetrics["numOutputRows"] == "1"
    assert [row["day"] for row in rows(store)] == [*days, "late"]
