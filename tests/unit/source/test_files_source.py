"""The source `files`: offsets of files, what is read and what is left alone, crashes, races, and files that change."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.delta.schema import RECORD_SCHEMA
from headrace.errors import FileChanged, SourceGap, SourceTopicGone, StorageUnreachable
from headrace.pipeline.preview import preview_records
from headrace.source.base import GapSource, NoticeSource
from headrace.source.files.file_index import FileIndex
from headrace.source.files.indexed_file import FileContent, FileFormat, IndexedFile
from headrace.source.files.source import FilesSource, split_by_files
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.storage.base import AlreadyExists
from headrace.storage.store import Store
from headrace.validate.load import examine_text, loads
from services.stores import STORES, StorageFolder, new_folder
from services.wait import eventually

PARTITION = ("files", 0)


class Drop:
    """A directory that files are dropped into, and sources that read it."""

    def __init__(self, folder: StorageFolder, settings: Any = None) -> None:
        self.folder, self.settings = folder, settings or {}
        self.store = folder.store("in")
        self.sources: list[FilesSource] = []

    def spec(self, **options: Any) -> Spec:
        files = {"path": f"{self.folder.uri}/in", "settle": "0s", "poll": "100ms", **options}
        content = {"pipeline": "drop", "source": {"files": files}, "table": {"path": f"{self.folder.uri}/lake/t"}}
        return loads(json.dumps(content | {"storage": self.settings}))[0]

    def source(self, **options: Any) -> FilesSource:
        """A source as a new process opens it."""
        self.sources.append(FilesSource(self.spec(**options)))
        return self.sources[-1]

    def put(self, name: str, *values: int) -> None:
        self.store.put(name, b"".join(b'{"n":%d}\n' % value for value in values))

    def names(self, folder: str = "in") -> list[str]:
        return [item.path for item in self.folder.store(folder).list()]


@pytest.fixture
def drop(tmp_path: Path) -> Drop:
    drop = Drop(StorageFolder("local", str(tmp_path), {}))
    (tmp_path / "in").mkdir()
    return drop


@pytest.fixture(params=STORES)
def any_drop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    folder = new_folder(request.param, request, tmp_path)
    drop = Drop(folder, folder.spec_settings(monkeypatch))
    if request.param == "local":
        Path(drop.folder.uri, "in").mkdir(parents=True)
    return drop


def latest(source: FilesSource) -> int:
    return source.bounds()[PARTITION].latest


def numbers(source: FilesSource, start: int = 0, until: int | None = None) -> list[int]:
    """The numbers in the records of a range, read as a task reads it."""
    until = latest(source) if until is None else until
    part = Range(*PARTITION, start, until)
    table = pa.Table.from_batches(source.reader(source.files_of(part))(part), RECORD_SCHEMA)
    offsets = table["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    return [json.loads(value)["n"] for value in table["value"].to_pylist()]


# ---- discovery ----


def test_files_get_offsets_once_and_keep_them(any_drop: Drop) -> None:
    any_drop.put("b.jsonl", 1, 2)
    first = any_drop.source()
    assert isinstance(first, NoticeSource)
    assert isinstance(first, GapSource)
    topics = first.topics()
    assert numbers(first) == [1, 2]
    any_drop.put("a/date=1/c.jsonl", 3)
    any_drop.put("empty.jsonl")
    second = any_drop.source()  # a new process
    assert second.topics() == topics
    assert numbers(second) == [1, 2, 3]
    assert numbers(second, 1, 3) == [2, 3]
    assert second.latest([PARTITION]) == {PARTITION: 3}
    assert second.start(second.bounds()) == {PARTITION: 0}


def test_new_files_are_listed_after_the_interval(drop: Drop) -> None:
    source = drop.source(poll="10m")
    assert latest(source) == 0
    drop.put("a.jsonl", 1)
    assert latest(source) == 0
    source = drop.source()
    assert latest(source) == 1
    drop.put("b.jsonl", 1)
    eventually(lambda: source.latest([PARTITION])[PARTITION] == 2, 5, "the file is listed")


def test_files_that_are_being_written_or_hidden_are_left_alone(drop: Drop, tmp_path: Path) -> None:
    for name in ("_tmp/a", ".b", "c.jsonl.tmp", "d.part", "e.csv"):
        drop.put(name, 1)
    drop.put("_date=1/f.jsonl", 2)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jsonl").write_text('{"n":3}\n')
    (tmp_path / "in" / "link.jsonl").symlink_to(outside / "secret.jsonl")
    (tmp_path / "in" / "linked").symlink_to(outside)
    assert numbers(drop.source(pattern="*.jsonl")) == [2]
    drop.put("g.jsonl", 4)
    old = time.time() - 60
    os.utime(tmp_path / "in" / "g.jsonl", (old, old))
    drop.put("h.jsonl", 5)
    assert numbers(drop.source(pattern="*.jsonl", settle="20s")) == [2, 4]


@pytest.mark.parametrize(("start", "expected"), [("earliest", [1, 2, 3]), ("latest", [3])])
def test_start(drop: Drop, start: str, expected: list[int]) -> None:
    drop.put("a.jsonl", 1)
    drop.put("b.jsonl", 2)
    assert latest(drop.source(start=start)) == len(expected) - 1
    drop.put("c.jsonl", 3)
    assert numbers(drop.source(start=start)) == expected


def test_start_by_time(drop: Drop, tmp_path: Path) -> None:
    drop.put("a.jsonl", 1)
    os.utime(tmp_path / "in" / "a.jsonl", (1_000_000_000, 1_000_000_000))
    drop.put("b.jsonl", 2)
    assert numbers(drop.source(start={"timestamp": "2020-01-01T00:00:00Z"})) == [2]


def test_a_directory_that_does_not_exist_stops(tmp_path: Path) -> None:
    source = Drop(StorageFolder("local", str(tmp_path), {})).source()
    with pytest.raises(SourceTopicGone):
        source.topics()


def test_a_crash_before_the_index_is_written_changes_nothing(drop: Drop, monkeypatch: pytest.MonkeyPatch) -> None:
    drop.put("a.jsonl", 1, 2)
    source = drop.source()
    topics = source.topics()

    def unreachable(*_: Any) -> str:
        raise StorageUnreachable("down")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_new", unreachable)
        with pytest.raises(StorageUnreachable):
            source.bounds()
    assert numbers(drop.source()) == [1, 2]
    assert drop.source().topics() != topics  # no record was read under the id that was never written


def test_two_processes_that_discover_at_once_agree(drop: Drop, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = drop.source(), drop.source()
    assert latest(one) == latest(other) == 0
    drop.put("a.jsonl", 1, 2)
    put_new, raced = Store.put_new, []

    def race(store: Store, path: str, data: bytes) -> str:
        if not raced:
            raced.append(path)
            drop.put("b.jsonl", 3)
            other._listed = None
            assert latest(other) == 3
        return put_new(store, path, data)

    monkeypatch.setattr(Store, "put_new", race)
    one._listed = None
    assert latest(one) == 3
    assert raced
    assert numbers(one) == numbers(other) == numbers(drop.source()) == [1, 2, 3]


# ---- the index ----


def entry(number: int, first: int, rows: int, path: str = "") -> IndexedFile:
    content, form = FileContent(rows, checkpoints=((1, 10),)), FileFormat("text", "auto", 9)
    return IndexedFile(path or f"f{number}", 1, "t", float(number), number, first, content, form)


def test_the_index_is_bounded_and_its_objects_are_replaced(tmp_path: Path) -> None:
    index = FileIndex(Store(str(tmp_path)), 100)
    for number in range(330):
        index.add([entry(number, 2 * number, 2)], committed=2 * number)
    assert len(list(tmp_path.iterdir())) <= 100
    loaded = FileIndex(Store(str(tmp_path)), 100)
    loaded.load()
    assert loaded.id == index.id
    assert loaded.files == index.files
    assert len(loaded.files) <= 150
    assert (loaded.latest, loaded.earliest) == (660, loaded.files[0].first)
    assert loaded.forgotten == 330 - len(loaded.files)
    assert loaded.watermark == (float(loaded.forgotten - 1), f"f{loaded.forgotten - 1}")
    assert [file.number for file in loaded.between(601, 605)] == [300, 301, 302]


def test_files_that_are_not_recorded_are_not_forgotten(tmp_path: Path) -> None:
    index = FileIndex(Store(str(tmp_path)), 100)
    for number in range(210):
        index.add([entry(number, number, 1)], committed=5)
    assert index.files[0].number == 5


def test_a_second_writer_of_an_object_is_refused(tmp_path: Path) -> None:
    one, other = (FileIndex(Store(str(tmp_path)), 100) for _ in range(2))
    one.add([entry(0, 0, 1)], 0)
    with pytest.raises(AlreadyExists):
        other.add([entry(0, 0, 1, "g")], 0)
    other.load()
    assert other.files == one.files


def test_files_behind_the_watermark_are_reported(drop: Drop, tmp_path: Path) -> None:
    source = drop.source(seen_files=100)
    for number in range(160):
        source._index.add([entry(number, number, 1)], committed=number)
    assert source._index.forgotten
    drop.put("late.jsonl", 1)
    os.utime(tmp_path / "in" / "late.jsonl", (1, 1))
    rows = latest(source)
    assert rows == 160
    assert not source.notices()  # it may be one of those that were forgotten
    drop.put("later.jsonl", 1)
    os.utime(tmp_path / "in" / "later.jsonl", (1, 1))
    source._listed = None
    assert latest(source) == 160
    assert [(each["state"], each["path"]) for each in source.notices()] == [("late", "later.jsonl")]


def test_files_whose_names_cannot_be_stored_are_reported(drop: Drop, tmp_path: Path) -> None:
    drop.put("a\nb 日本'%?#[1]*.jsonl", 1)
    for name in (b"\xff.jsonl", b"a\\b.jsonl"):
        Path(os.fsdecode(bytes(tmp_path / "in") + b"/" + name)).write_bytes(b'{"n":2}\n')
    source = drop.source()
    for _ in range(2):
        source._listed = None
        assert numbers(source) == [1]
    reported = [(each["state"], each["path"]) for each in source.notices()]
    assert sorted(reported) == [("invalid_name", "\\udcff.jsonl"), ("invalid_name", "a\\b.jsonl")]
    assert source.tail(10)["value"].to_pylist() == [b'{"n":1}']


def test_files_from_the_future_are_reported(drop: Drop, tmp_path: Path) -> None:
    drop.put("a.jsonl", 1)
    drop.put("b.jsonl", 2)
    os.utime(tmp_path / "in" / "b.jsonl", (2**33, 2**33))
    source = drop.source()
    for _ in range(2):
        source._listed = None
        assert numbers(source) == [1]
    assert [(each["state"], each["path"]) for each in source.notices()] == [("future", "b.jsonl")]
    (tmp_path / "in" / "b.jsonl").touch()
    source._listed = None
    assert numbers(source) == [1, 2]


# ---- files that change ----


def test_a_changed_file_is_reported_once_and_not_read_again(any_drop: Drop) -> None:
    any_drop.put("a.jsonl", 1)
    source = any_drop.source()
    assert latest(source) == 1
    any_drop.put("a.jsonl", 1, 2, 3)
    for _ in range(2):
        source._listed = None
        assert latest(source) == 1
    assert [(each["state"], each["path"]) for each in source.notices()] == [("changed", "a.jsonl")]
    assert source.notices() == []


@pytest.mark.parametrize("deleted", [True, False])
def test_a_file_that_changes_before_it_is_read_stops_until_it_is_accepted(any_drop: Drop, deleted: bool) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        any_drop.put(name, ord(name[0]))
    source = any_drop.source()
    assert latest(source) == 3
    any_drop.store.delete(["b.jsonl"])
    if not deleted:
        any_drop.put("b.jsonl", 7, 8)
    state = "deleted" if deleted else "changed"
    with pytest.raises(FileChanged, match=rf"b\.jsonl was {state}.*--accept-gap"):
        numbers(source, 0, 3)
    assert numbers(source, 2, 3) == [ord("c")]
    resumed = any_drop.source()
    assert resumed.accept_gaps({PARTITION: 1}) == ["b.jsonl: its unread records are skipped"]
    assert resumed.accept_gaps({PARTITION: 1}) == []
    assert numbers(any_drop.source()) == [ord("a"), ord("c"), *([] if deleted else [7, 8])]


# ---- after reading ----


def test_files_are_deleted_only_after_all_their_records_are_recorded(any_drop: Drop) -> None:
    any_drop.put("a.jsonl", 1, 2)
    any_drop.put("b.jsonl", 3, 4)
    source = any_drop.source(after="delete")
    assert latest(source) == 4
    source.committed({PARTITION: 3})
    eventually(lambda: any_drop.names() == ["b.jsonl"], 10, "the first file is deleted")
    source.close()
    assert any_drop.names() == ["b.jsonl"]
    assert any_drop.source(after="delete").bounds()[PARTITION].earliest == 2
    any_drop.put("a.jsonl", 5)  # the name of a deleted file may be used again
    assert latest(any_drop.source(after="delete")) == 5
    assert numbers(any_drop.source(after="delete"), 2, 5) == [3, 4, 5]
    with pytest.raises(SourceGap, match="offsets 1 to 4 are needed"):
        numbers(any_drop.source(), 1, 5)


def test_moved_files_can_still_be_read(any_drop: Drop) -> None:
    after = {"move": f"{any_drop.folder.uri}/done"}
    for values in ((1,), (2, 3)):
        any_drop.put("x/a.jsonl", *values)
        source = any_drop.source(after=after)
        source.committed({PARTITION: latest(source)})
        source.close()
        assert any_drop.names() == []
    assert sorted(any_drop.names("done")) == ["_1/x/a.jsonl", "x/a.jsonl"]
    assert numbers(any_drop.source(after=after)) == [1, 2, 3]


@pytest.mark.parametrize("after", ["delete", "move"])
def test_a_crash_between_release_and_record(any_drop: Drop, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    option = "delete" if after == "delete" else {"move": f"{any_drop.folder.uri}/done"}
    any_drop.put("a.jsonl", 1)
    any_drop.put("b.jsonl", 2)
    source = any_drop.source(after=option)
    assert latest(source) == 2
    with monkeypatch.context() as patch:
        patch.setattr(FileIndex, "add", lambda *_: (_ for _ in ()).throw(StorageUnreachable("down")))
        source.committed({PARTITION: 2})
        eventually(lambda: any_drop.names() == [], 10, "both are released")
        source.close()
    assert any(each["state"] == "not_released" for each in source.notices())
    again = any_drop.source(after=option)
    assert latest(again) == 2
    again.committed({PARTITION: 2})  # as at each start
    again.close()
    assert {file.status for file in again._index.files} == {"deleted" if after == "delete" else "moved"}
    if after == "move":
        assert numbers(any_drop.source(after=option)) == [1, 2]


def test_an_interrupted_copy_is_repeated(any_drop: Drop) -> None:
    any_drop.put("a.jsonl", 1)
    after = {"move": f"{any_drop.folder.uri}/done"}
    source = any_drop.source(after=after)
    assert latest(source) == 1
    if not any_drop.store.local:  # a rename is not interrupted
        any_drop.folder.store("done").put("a.jsonl", any_drop.store.get("a.jsonl"))
    source.committed({PARTITION: 1})
    source.close()
    assert any_drop.names() == []
    # Azure gives the copy another tag, so that it cannot be recognized.
    assert {"a.jsonl"} <= {*any_drop.names("done")} <= {"a.jsonl", "_0/a.jsonl"}
    assert numbers(any_drop.source(after=after)) == [1]


def test_damaged_and_changed_files_are_kept(drop: Drop) -> None:
    drop.store.put("a.jsonl.gz", b"no gzip")
    drop.put("b.jsonl", 1)
    source = drop.source(after="delete")
    assert latest(source) == 2
    assert [(each["state"], each["path"]) for each in source.notices()] == [("damaged", "a.jsonl.gz")]
    drop.put("b.jsonl", 1, 2)
    source.committed({PARTITION: 2})
    source.close()
    assert drop.names() == ["a.jsonl.gz", "b.jsonl"]


# ---- lag, preview, tasks ----


def test_lag_is_known_without_a_listing(drop: Drop) -> None:
    drop.put("a.jsonl", 1, 2)
    assert latest(drop.source()) == 2
    lag = drop.source().lag({PARTITION: 1})
    assert (lag.records, set(lag.ends)) == (1, {PARTITION})
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 600
    assert drop.source().lag({PARTITION: 2}).seconds == 0


def test_a_preview_reads_the_newest_file_and_writes_nothing(drop: Drop, tmp_path: Path) -> None:
    drop.put("a.jsonl", 1, 2, 3)
    drop.put("b.jsonl", 4, 5)
    os.utime(tmp_path / "in" / "a.jsonl", (1_600_000_000, 1_600_000_000))
    tails = {where: drop.source().tail(3, where) for where in ("end", "start", "2026-01-01T00:00:00Z")}
    read = {where: [json.loads(value)["n"] for value in tail["value"].to_pylist()] for where, tail in tails.items()}
    assert read == {"end": [4, 5, 3], "start": [1, 2, 3], "2026-01-01T00:00:00Z": [4, 5]}
    assert preview_records(drop.spec(), None, 2).counts.routed == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_rejected_rows_are_dead_letters_even_if_they_could_be_decoded(drop: Drop) -> None:
    drop.store.put("a.csv", b'n,m\n1,2\n{}\n"3",4\n')
    spec = drop.spec(format="csv")
    preview = preview_records(spec, None, 10)
    [rows] = preview.tables.values()
    assert rows.select(["n", "m"]).to_pylist() == [{"n": "1", "m": "2"}, {"n": "3", "m": "4"}]
    assert preview.dead_letters.select(["value", "reason", "detail"]).to_pylist() == [
        {"value": b"{}", "reason": "malformed", "detail": "1 fields, expected 2"}
    ]


def test_tasks_read_whole_files_or_from_checkpoints() -> None:
    files = [entry(0, 0, 30_000), entry(1, 30_000, 30_000), entry(2, 60_000, 1000)]
    whole = Range("files", 0, 5_000, 61_000)
    assert [(part.start, part.until) for part in split_by_files(whole, files, 2)] == [(5_000, 30_001), (30_001, 61_000)]
    assert split_by_files(whole, files, 1) == [whole]
    many = split_by_files(whole, files, 100)
    assert [part.start for part in many][1:] == [part.until for part in many][:-1]


# ---- rules ----


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"path": "/data"}, "overlaps with"),
        ({"path": "/data/lake/t/x"}, "overlaps with"),
        ({"path": "/in", "after": {"move": "/in/done"}}, "is below the path of the source"),
        ({"path": "/in", "after": {"move": "s3://bucket/done"}}, "is not in the storage of"),
        ({"path": "s3://one/in", "after": {"move": "s3://two/done"}}, "is not in the storage of"),
        ({"path": "/in/x", "after": {"move": "/in"}}, "contains the path"),
        ({"path": "/in", "format": "parquet"}, "Avro container file"),
        ({"path": "/in", "csv": {"delimiter": ";"}}, "not used with format json_lines"),
        ({"path": "/in", "format": "csv", "csv": {"columns": ["a", "a"]}}, "a duplicate name"),
        ({"path": "/in", "format": "csv", "csv": {"columns": ["a"], "literals": ["b"]}}, "unknown column 'b'"),
        ({"path": "/in", "format": "csv", "csv": {"delimiter": '"'}}, "the same character"),
        ({"path": "/in", "pattern": "a/*.csv"}, "pattern"),
    ],
)
def test_specs_that_cannot_work(files: dict[str, Any], message: str) -> None:
    content = {"pipeline": "p", "source": {"files": files}, "table": {"path": "/data/lake/t"}}
    diagnostics = examine_text(json.dumps(content), Path.cwd())
    assert message in str(diagnostics)


def test_a_target_below_the_source_may_have_a_hidden_name() -> None:
    files = {"path": "/in", "after": {"move": "/in/_done"}}
    assert loads(json.dumps({"pipeline": "p", "source": {"files": files}, "table": {"path": "/data/t"}}))
