"""The spool in an object store, here a local directory with the operations of one."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import (
    AuthenticationFailed,
    EndpointInvalid,
    Fenced,
    HeadraceError,
    LeaseHeld,
    PermissionDenied,
    SourceGap,
    SpoolDamaged,
    SpoolFull,
    StorageFull,
    StorageUnreachable,
    StorageUnsupported,
    UsageError,
)
from headrace.source.ranges import Range
from headrace.source.spool import object_reader
from headrace.source.spool import objects as objects_module
from headrace.source.spool.base import BlockReader, WriteUnsettled
from headrace.source.spool.block import Request
from headrace.source.spool.log import NewBlock
from headrace.source.spool.object_log import ObjectLog
from headrace.source.spool.object_reader import ObjectReader
from headrace.source.spool.object_spool import open_object_spool
from headrace.source.spool.objects import SpoolObjects, object_path
from headrace.source.spool.reader import record_batches
from headrace.source.spool.writer import Appended, Incoming, Spool, SpoolLimits
from headrace.storage.base import AlreadyExists, NotFound, ObjectMeta
from headrace.storage.lease import Clock, Lease
from headrace.storage.local import LocalFolder
from headrace.storage.store import Store
from services.wait import eventually
from unit.source.spool.test_writer import records

DAY = 86_400


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "spool"))


def values(reader: BlockReader, topic: str, start: int, until: int) -> list[bytes]:
    return [
        value for batch in record_batches(reader, Range(topic, 0, start, until)) for value in batch["value"].to_pylist()
    ]


def objects(store: Store) -> list[str]:
    return [item.path for item in store.list("log")]


def object_log(store: Store, clock: Callable[[], float] | None = None) -> ObjectLog:
    more = {"clock": clock} if clock else {}
    log = ObjectLog(store, segment_bytes=1, request_age=3600, trim_seconds=0, **more)
    log.recover()
    return log


def write(log: ObjectLog, *values: bytes, topic: str = "a") -> int:
    return log.write({topic: NewBlock([records(*values)])})[topic]


def test_appended_records_are_read_back_by_tasks(store: Store) -> None:
    with closing(open_object_spool(store, "p")) as spool:
        assert spool.append(Incoming("a", records(b"0", b"1"))).result(10) == Appended(0, 2)
        assert spool.append(Incoming("/ns/b c", records(b"x"))).result(10) == Appended(0, 1)
        assert spool.append(Incoming("a", records(b"2"))).result(10) == Appended(2, 3)
        assert spool.stored_records() == 4
    reader = ObjectReader(store)
    assert reader.ends() == {"a": 3, "/ns/b c": 1}
    in_task: ObjectReader = pickle.loads(pickle.dumps(reader))  # noqa: S301
    assert values(in_task, "a", 1, 3) == [b"1", b"2"]
    assert values(in_task, "/ns/b c", 0, 1) == [b"x"]
    assert (reader.first("a"), reader.first("later")) == (0, 0)
    identity = reader.identity()
    assert identity is not None
    assert identity.pipeline == "p"


def test_appends_to_several_topics_are_one_object(store: Store) -> None:
    log = object_log(store)
    before = len(objects(store))
    assert log.write({"a": NewBlock([records(b"0")]), "b": NewBlock([records(b"1")])}) == {"a": 0, "b": 0}
    assert len(objects(store)) == before + 1


def test_a_long_header_is_read(store: Store) -> None:
    log = object_log(store)
    topics = [f"topic-{number:04}-{'x' * 100}" for number in range(300)]
    log.write({topic: NewBlock([records(b"v")]) for topic in topics})
    assert ObjectReader(store).ends() == dict.fromkeys(topics, 1)
    assert object_log(store).ends() == dict.fromkeys(topics, 1)


def test_a_spool_that_does_not_exist_has_no_records(store: Store) -> None:
    reader = ObjectReader(store)
    assert (reader.identity(), reader.ends(), reader.first("a")) == (None, {}, 0)


def test_a_second_writer_is_refused_while_the_first_one_renews_its_lease(store: Store) -> None:
    with closing(open_object_spool(store, "p", ttl=2, renew=0.1)):
        with pytest.raises(LeaseHeld, match=r"is written by another process, on .* with pid") as held:
            open_object_spool(store, "p", ttl=2, renew=0.1)
        assert held.value.facts["ready"]
        with pytest.raises(UsageError, match="belongs to the pipeline 'p'"):  # also while it is written
            open_object_spool(store, "other", ttl=2, renew=0.1)
    with pytest.raises(UsageError, match="belongs to the pipeline 'p'"):
        open_object_spool(store, "other")


def test_the_writer_of_a_lost_machine_is_followed_when_its_lease_expires(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its last note is valid when the next one starts, as it is when both machines are restarted at once."""
    spool = open_object_spool(store, "p", ttl=1)
    spool.append(Incoming("a", records(b"0"))).result(10)
    monkeypatch.setattr(Lease, "renew", lambda _: None)  # it is lost
    with closing(open_object_spool(store, "p", ttl=1)) as following:
        with pytest.raises(Fenced, match="is written by another process"):
            spool.append(Incoming("a", records(b"1"))).result(10)
        assert isinstance(spool.failure, Fenced)
        assert following.append(Incoming("a", records(b"2"))).result(10) == Appended(1, 2)
    assert values(ObjectReader(store), "a", 0, 2) == [b"0", b"2"]


def test_a_writer_that_was_suspended_for_days_finds_its_number_used(store: Store) -> None:
    now = [1_000_000.0]
    suspended = object_log(store, lambda: now[0])
    write(suspended, b"0")
    following = object_log(store, lambda: now[0])
    for number in range(1, 5):
        write(following, b"%d" % number)
    now[0] += 6 * DAY
    following.trim({"a": 5})
    assert ObjectReader(store).first("a") == 5
    with pytest.raises(Fenced):
        write(suspended, b"lost")
    now[0] += 2 * DAY
    write(following, b"5")
    following.trim({"a": 6})
    assert len(objects(store)) == 1


def test_a_writer_without_appends_ends_when_another_has_begun(store: Store) -> None:
    log = object_log(store)
    log.trim({})
    object_log(store)
    with pytest.raises(Fenced):
        log.trim({})


@pytest.mark.parametrize("unsettled", [False, True])
def test_a_writer_that_was_suspended_until_its_number_was_free_again_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch, unsettled: bool
) -> None:
    """Also if it repeats a put whose response was lost."""
    now = [1_000_000.0]
    suspended = object_log(store, lambda: now[0])
    write(suspended, b"0")
    repeat = partial(write, suspended, b"lost")
    if unsettled:
        with monkeypatch.context() as patch:
            patch.setattr(LocalFolder, "put_new", unreachable)
            with pytest.raises(WriteUnsettled) as raised:
                repeat()
        repeat = raised.value.settle
    following = object_log(store, lambda: now[0])
    write(following, b"1")
    now[0] += 8 * DAY
    following.trim({"a": 2})
    assert len(objects(store)) == 1
    with pytest.raises(Fenced):
        repeat()


def test_a_lost_response_is_settled_by_reading_the_object(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put_new = LocalFolder.put_new

    def retry(folder: LocalFolder, path: str, data: bytes) -> str:
        """As a client of an object store does when the first response does not arrive."""
        put_new(folder, path, data)
        return put_new(folder, path, data)

    log = object_log(store)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put_new", retry)
        assert write(log, b"0") == 0
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put_new", retry)
        patch.setattr(LocalFolder, "get", unreachable)
        with pytest.raises(WriteUnsettled) as unsettled:
            write(log, b"1")
    assert unsettled.value.settle() == {"a": 1}
    assert write(log, b"2") == 2
    assert values(ObjectReader(store), "a", 0, 3) == [b"0", b"1", b"2"]


def unreachable(*_: object) -> None:
    raise StorageUnreachable("no response")


@pytest.mark.parametrize("stored", [True, False])
def test_requests_of_an_outage_are_refused_and_stored_once_when_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Whether the put of the outage has reached the store or not."""
    put_new = LocalFolder.put_new

    def lose(folder: LocalFolder, path: str, data: bytes) -> str:
        if stored and path.startswith("log/"):
            put_new(folder, path, data)
        raise StorageUnreachable("no response")

    request = Incoming("a", records(b"0"), "web", "1")
    with closing(open_object_spool(store, "p")) as spool:
        with monkeypatch.context() as patch:
            patch.setattr(LocalFolder, "put_new", lose)
            patch.setattr(LocalFolder, "get", unreachable)
            assert isinstance(spool.append(request).exception(10), WriteUnsettled)
            for again in (request, Incoming("a", records(b"1"))):
                with pytest.raises(StorageUnreachable):
                    spool.append(again)
            assert spool.stored_records() == 0
        assert eventually(lambda: appended(spool, request)) == Appended(0, 1, duplicate=True)
        assert spool.append(Incoming("a", records(b"1"))).result(10) == Appended(1, 2)
        assert spool.failure is None
    assert values(ObjectReader(store), "a", 0, 2) == [b"0", b"1"]


def appended(spool: Spool, request: Incoming) -> Appended | None:
    try:
        return spool.append(request).result(10)
    except StorageUnreachable:
        return None


@pytest.mark.parametrize("kind", [EndpointInvalid, PermissionDenied, AuthenticationFailed, UsageError, StorageFull])
def test_any_error_of_a_store_that_has_worked_is_an_outage(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: type[HeadraceError]
) -> None:
    """A name that is not resolved, or rights that are changed; at the first start they are errors of the settings."""

    def fail(*_: object) -> None:
        raise kind("not now", hint="Wait.")

    request, limits = Incoming("a", records(b"0"), "web", "1"), SpoolLimits(segment_bytes=1)
    with closing(open_object_spool(store, "p", limits)) as spool:
        with monkeypatch.context() as patch:
            for name in ("put_new", "get", "tag"):
                patch.setattr(LocalFolder, name, fail)
            assert spool.stored_records() == 0
            assert isinstance(spool.append(request).exception(10), WriteUnsettled)
            with pytest.raises(StorageUnreachable, match="not now") as outage:
                spool.check_room()
            assert outage.value.hint == "Wait."
        assert eventually(lambda: appended(spool, request)) == Appended(0, 1, duplicate=True)
        assert spool.append(Incoming("a", records(b"1"))).result(10) == Appended(1, 2)
        assert spool.failure is None
    assert values(ObjectReader(store), "a", 0, 2) == [b"0", b"1"]
    log = object_log(store)
    for name in ("put", "tag", "delete"):
        with monkeypatch.context() as patch:
            patch.setattr(LocalFolder, name, fail)
            with pytest.raises(StorageUnreachable, match="not now"):
                log.trim({"a": 2})
    monkeypatch.setattr(LocalFolder, "get", fail)
    with pytest.raises(kind):
        open_object_spool(store, "p")


def test_a_group_whose_outcome_is_unknown_is_settled_before_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the client cannot read the response: the object may be stored."""
    put_new = LocalFolder.put_new

    def unreadable(folder: LocalFolder, path: str, data: bytes) -> str:
        put_new(folder, path, data)
        raise UsageError("The response cannot be read.")

    log = object_log(store)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put_new", unreadable)
        patch.setattr(LocalFolder, "get", unreachable)
        with pytest.raises(WriteUnsettled) as unsettled:
            write(log, b"0")
    assert unsettled.value.settle() == {"a": 0}
    assert write(log, b"1") == 1


def test_requests_of_objects_that_are_deleted_during_a_start_are_recognized(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an earlier writer that was suspended in its last deletion; and one that deletes old requests."""
    earlier = object_log(store)
    for number in range(4):
        request = Request("web", str(number), 0, 0, 1)
        earlier.write({"a": NewBlock([records(b"%d" % number)], [request])})
    earlier.trim({"a": 1})
    monkeypatch.setattr(ObjectLog, "_find_successor", lambda _: None)  # it has looked before
    deletions = {
        "log": lambda: earlier.trim({"a": 3}),
        "requests": lambda: store.delete([next(iter(store.list("requests"))).path]),
    }
    get = LocalFolder.get

    def delete_and_get(folder: LocalFolder, path: str) -> bytes:
        deletions.pop(path.partition("/")[0], lambda: None)()
        return get(folder, path)

    log = ObjectLog(store, segment_bytes=1, request_age=3600)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "get", delete_and_get)
        recovered = log.recover()
    assert not deletions
    assert {each.request.sequence for each in recovered} == {"1", "2", "3"}
    assert write(log, b"4") == 4


def test_a_start_while_others_start_and_delete_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object may be deleted after it was listed, or after its number was found used."""
    write(object_log(store), b"0")
    missing = ["log/", "log/"]
    read = LocalFolder.read

    def delete_and_read(folder: LocalFolder, path: str, start: int, until: int) -> bytes:
        if missing and path.startswith(missing[-1]):
            missing.pop()
            raise NotFound(path)
        return read(folder, path, start, until)

    monkeypatch.setattr(LocalFolder, "read", delete_and_read)
    assert object_log(store).ends() == {"a": 1}
    assert not missing

    def taken(*_: object) -> None:
        raise AlreadyExists("log/")

    def gone(*_: object) -> None:
        raise NotFound("log/")

    monkeypatch.setattr(LocalFolder, "put_new", taken)
    monkeypatch.setattr(LocalFolder, "get", gone)
    with pytest.raises(StorageUnreachable, match="is being opened by another process"):
        object_log(store)


def test_a_repeated_request_is_stored_once_also_after_restarts_and_deletion(store: Store) -> None:
    request = Incoming("a", records(b"0", b"1"), "web", "7", fingerprint=5)
    with closing(open_object_spool(store, "p", SpoolLimits(segment_bytes=1))) as spool:
        first, second = spool.append(request), spool.append(request)
        assert (first.result(10), second.result(10)) == (Appended(0, 2), Appended(0, 2, duplicate=True))
    reader = ObjectReader(store)
    for _ in range(2):
        reader.commit({"a": 2})
        with closing(open_object_spool(store, "p", SpoolLimits(segment_bytes=1))) as spool:
            assert spool.append(request).result(10) == Appended(0, 2, duplicate=True)
            eventually(lambda: reader.first("a") == 2)
            assert spool.append(request).result(10) == Appended(0, 2, duplicate=True)


def test_a_full_spool_refuses_until_records_are_committed(store: Store) -> None:
    limits = SpoolLimits(max_bytes=20_000, segment_bytes=2_000)
    with closing(open_object_spool(store, "p", limits)) as spool:
        accepted, error = 0, None
        while error is None and accepted < 30:
            try:
                accepted = spool.append(Incoming("a", records(b"x" * 1000))).result(10).until
            except SpoolFull as full:
                error = full
        assert error is not None
        assert 5 < accepted <= 20
        ObjectReader(store).commit({"a": accepted})
        spool.trim()
        eventually(lambda: spool.stored_bytes < 2_000)
        assert spool.append(Incoming("a", records(b"y"))).result(10) == Appended(accepted, accepted + 1)


def test_a_start_reads_no_records_without_requests(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log, sizes = object_log(store), []
    request = [Request("web", "1", 0, 0, 1)]
    for requests in ([], request, []):
        log.write({"a": NewBlock([records(b"x" * 100_000)], requests)})
    get = LocalFolder.get

    def get_counted(folder: LocalFolder, path: str) -> bytes:
        sizes.append(len(data := get(folder, path)))
        return data

    monkeypatch.setattr(LocalFolder, "get", get_counted)
    following = ObjectLog(store, segment_bytes=1, request_age=3600)
    assert [each.request.sequence for each in following.recover()] == ["1"]
    assert len([size for size in sizes if size > 100_000]) == 1


def wait_for_others(function: Callable[..., bytes], paths: list[str]) -> Callable[..., bytes]:
    """A read that ends when all these objects are being read."""
    together = threading.Barrier(len(paths))

    def read(folder: LocalFolder, path: str, *part: int) -> bytes:
        if path in paths:
            together.wait(20)
        return function(folder, path, *part)

    return read


def test_objects_are_read_in_parallel(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers before a deletion, and kept requests at a start."""
    log = object_log(store)
    for number in range(4):
        log.write({"a": NewBlock([records(b"v")], [Request("web", str(number), 0, 0, 1)])})
    following = object_log(store, lambda: time.time() + DAY)  # whose start reads no requests
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "read", wait_for_others(LocalFolder.read, objects(store)[1:5]))
        following.trim({})
    for number in range(4):
        following = object_log(store)
        following.trim({"a": number + 1})
    kept = [item.path for item in store.list("requests")]
    assert len(kept) == 4
    monkeypatch.setattr(LocalFolder, "get", wait_for_others(LocalFolder.get, kept))
    assert len(ObjectLog(store, segment_bytes=1, request_age=3600).recover()) == 4


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 95, 120])
def test_the_newest_object_is_found_without_a_listing_of_all(
    store: Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(objects_module, "_LISTED", 10)
    for number in range(1, count + 1):
        store.put(object_path(number), b"")
    listed, list_ = [], LocalFolder.list

    def list_counted(folder: LocalFolder, prefix: str, after: str | None) -> Iterator[ObjectMeta]:
        for item in list_(folder, prefix, after):
            listed.append(item)
            yield item

    monkeypatch.setattr(LocalFolder, "list", list_counted)
    for known in {0, count // 2, count}:
        listed.clear()
        assert SpoolObjects(store).newest(known) == count
        assert len(listed) <= 20


def test_a_reader_keeps_a_bounded_number_of_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_reader, "_ENDS", 20)
    log, reader = object_log(store), ObjectReader(store)
    for number in range(8):
        log.write({f"{number}-{topic}": NewBlock([records(b"v")]) for topic in range(3)})
        assert len(reader.ends()) == 3 * (number + 1)
        assert sum(len(each.ends) for each in reader._headers.values()) <= max(20, len(reader.ends()))


def test_an_idle_writer_reads_the_committed_position_with_each_deletion_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, committed = [], ObjectLog.committed

    def committed_counted(log: ObjectLog) -> dict[str, int]:
        reads.append(log)
        return committed(log)

    monkeypatch.setattr(ObjectLog, "committed", committed_counted)
    with closing(open_object_spool(store, "p")) as spool:
        for _ in range(5):
            spool.trim()
            eventually(lambda: not spool._trim_now)
        spool.append(Incoming("a", records(b"0"))).result(10)  # after the last one
    assert len(reads) == 1


def test_deleted_records_are_a_gap(store: Store) -> None:
    log, reader = object_log(store), ObjectReader(store)
    for number in range(4):
        write(log, b"%d" % number)
    log.trim({"a": 2})
    assert (reader.first("a"), reader.time_of("a", 1)) == (2, None)
    with pytest.raises(SourceGap, match="no longer has offsets 0 to 1"):
        values(reader, "a", 0, 4)
    assert values(reader, "a", 2, 4) == [b"2", b"3"]


def test_a_task_that_is_repeated_after_its_records_were_deleted_ends(store: Store) -> None:
    log, reader = object_log(store), ObjectReader(store)
    for number in range(3):
        write(log, b"%d" % number)
    assert reader.ends() == {"a": 3}
    late: ObjectReader = pickle.loads(pickle.dumps(reader))  # noqa: S301
    write(log, b"3")
    log.trim({"a": 4})
    with pytest.raises(SourceGap, match="no longer has offsets 0 to 3"):
        values(late, "a", 0, 3)


def test_a_missing_or_changed_object_is_damage(store: Store) -> None:
    log = object_log(store)
    for number in range(4):
        write(log, b"%d" % number * 100)
    path = objects(store)[2]
    content = store.get(path)
    for changed in (None, content.replace(b"1" * 100, b"2" * 100), content[:-64], content.replace(b'"a"', b'"b"')):
        store.delete([path])
        if changed is not None:
            store.put(path, changed)
        with pytest.raises(SpoolDamaged) as damaged:
            values(ObjectReader(store), "a", 0, 4)
        assert damaged.value.hint
        with pytest.raises(SpoolDamaged):
            object_log(store)
    store.put(path, content)
    assert len(values(ObjectReader(store), "a", 0, 4)) == 4


def test_a_spool_that_was_emptied_is_damage(store: Store) -> None:
    log = object_log(store)
    write(log, b"0", b"1")
    ObjectReader(store).commit({"a": 2})
    store.delete(objects(store))
    with pytest.raises(SpoolDamaged, match="end at offset 0, but those before 2 were stored"):
        object_log(store)


def test_a_start_during_the_last_deletion_of_another_writer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that are deleted after they were listed are no damage: the front is behind them."""
    log, put_new = object_log(store), LocalFolder.put_new
    for number in range(6):
        write(log, b"%d" % number)
    deletions = [lambda: log.trim({"a": 4})]

    def delete_and_put(folder: LocalFolder, path: str, data: bytes) -> str:
        if deletions:
            deletions.pop()()
        return put_new(folder, path, data)

    monkeypatch.setattr(LocalFolder, "put_new", delete_and_put)
    following = object_log(store)
    assert not deletions
    assert following.ends() == {"a": 6}
    assert write(following, b"6") == 6
    assert values(ObjectReader(store), "a", 4, 7) == [b"4", b"5", b"6"]
    following.trim({"a": 7})
    assert ObjectReader(store).first("a") == 7


def test_a_start_that_was_suspended_while_its_number_was_used_and_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is free again, and before the front: records after it would not be read."""
    log, put_new = object_log(store), LocalFolder.put_new
    write(log, b"0")

    def go_on() -> None:
        for number in range(1, 5):
            write(log, b"%d" % number)
        log.trim({"a": 4})

    pending = [go_on]

    def go_on_and_put(folder: LocalFolder, path: str, data: bytes) -> str:
        if pending:
            pending.pop()()
        return put_new(folder, path, data)

    monkeypatch.setattr(LocalFolder, "put_new", go_on_and_put)
    following = object_log(store)
    assert following.ends() == {"a": 5}
    assert write(following, b"5") == 5
    assert values(ObjectReader(store), "a", 4, 6) == [b"4", b"5"]


def test_a_store_without_put_if_absent_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFolder, "put_new", LocalFolder.put)
    with pytest.raises(StorageUnsupported):
        open_object_spool(store, "p")


def test_watching_a_lease_does_not_wait_for_a_holder_that_renews(store: Store) -> None:
    """The tick of the clock is that of a machine; only the renewal tells that the holder is alive."""
    with Lease.take(store, ttl=0.4, renew=0.05, clock=Clock()), pytest.raises(LeaseHeld):
        Lease.take(store, ttl=30, renew=0.1, watch=True)


def test_a_start_whose_listing_is_before_the_front_lists_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier writer has put objects and deleted all listed ones: the object at the front exists."""
    log, listed = object_log(store), SpoolObjects.listed
    write(log, b"0")
    pending = [b"1", b"2", b"3"]

    def list_and_go_on(files: SpoolObjects, after: int = 0) -> dict[int, ObjectMeta]:
        found = listed(files, after)
        while pending:
            write(log, pending.pop(0))
            log.trim({"a": 3 - len(pending)})
        return found

    monkeypatch.setattr(SpoolObjects, "listed", list_and_go_on)
    following = object_log(store)
    assert following.ends() == {"a": 4}
    assert write(following, b"4") == 4
