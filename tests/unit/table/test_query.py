"""Questions about rows: every answer is right, whatever is left out on the way, and nothing else can be reached."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace import Table
from headrace.delta.scan import Relation
from headrace.errors import ChangeDataUnavailable, TableDamaged, UsageError, VersionNotFound
from headrace.storage.store import Store
from headrace.table.change_feed import Changes
from headrace.table.query import RowsInMemory
from headrace.transform.sql.parser import ExpressionNotAllowed

COLUMNS = {
    "id": "bigint!",
    "part": "string",
    "number": "int",
    "real": "double",
    "amount": "decimal(20,4)",
    "text": "string",
    "day": "date",
    "moment": "timestamp",
    "wall": "timestamp_ntz",
    "flag": "boolean",
    "raw": "binary",
    "tags": "array<string>",
    "names": "map<string,bigint>",
    "who": "struct<name: string, age: int>",
}
THEN = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)


def rows(start: int, count: int, part: str | None) -> list[dict[str, Any]]:
    """Rows with the values that hide best: NaN, both zeros, long texts that begin alike, microseconds, NULL."""
    reals = [math.nan, -0.0, 0.0, math.inf, -1.5, 2.5, None]
    return [
        {
            "id": number,
            "part": part,
            "number": None if number % 5 == 0 else number % 7 - 3,
            "real": reals[number % len(reals)],
            "amount": Decimal(number * 10_001).scaleb(-4),
            "text": None if number % 6 == 0 else "x" * (25 + number % 12) + str(number % 3),
            "day": date(2026, 1, 1) + timedelta(days=number % 40),
            "moment": THEN + timedelta(microseconds=number * 501),
            "wall": (THEN + timedelta(hours=number)).replace(tzinfo=None),
            "flag": number % 3 == 0 if number % 4 else None,
            "raw": b"\x00\xff%d" % number,
            "tags": [f"t{number % 2}", None] if number % 3 else [],
            "names": {"a": number},
            "who": {"name": f"n{number % 4}", "age": None} if number % 5 else None,
        }
        for number in range(start, start + count)
    ]


PARTS = ["a b", "c/d", None, "a b", "c/d", None]


def made(folder: Path) -> Table:
    """Six files in three partitions, one of them NULL."""
    table = Table.get_or_create(folder / "all", COLUMNS, ["part"])
    for at, part in enumerate(PARTS):
        table.bulk_insert(rows(at * 10, 10, part))
    return table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return made(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module", params=["as inserted", "compacted", "z-ordered"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The same, after its upkeep."""
    table = made(tmp_path_factory.mktemp("lake"))
    if request.param != "as inserted":
        table.optimize(z_order=["real", "text"] if request.param == "z-ordered" else ())
    return table


# ---- answers ----


def test_files_are_left_out_by_the_bounds_of_booleans(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "flag": "boolean"})
    for flag in (True, False):
        table.bulk_insert([{"id": int(flag), "flag": flag}])
        if flag:
            first = next((tmp_path / "t").glob("*.parquet"))
    first.unlink()
    assert table.query().where("flag = false").records() == [{"id": 0, "flag": False}]
    with pytest.raises(TableDamaged):
        table.query().where("flag = true").records()


def test_rows_come_back_as_they_went_in(table: Table) -> None:
    found = table.query().order_by("id").arrow()
    assert found.schema.equals(table.schema())
    given_rows = [row for at, part in enumerate(PARTS) for row in rows(at * 10, 10, part)]
    expected = pa.Table.from_pylist(given_rows, table.schema()).to_pylist(maps_as_pydicts="strict")
    assert repr(table.query().order_by("id").records()) == repr(expected)  # NaN is itself, and -0.0 is not 0.0
    assert len(table.query().pandas()) == 60


def test_times_in_the_old_form_of_spark_are_read_and_copied_as_they_are(tmp_path: Path) -> None:
    """96 bits, which Arrow takes for nanoseconds: those end in 2262 and then begin anew, without an error."""
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "at": "timestamp"})
    times = {1: datetime(9999, 12, 31, tzinfo=UTC), 2: datetime(1500, 1, 1, tzinfo=UTC)}
    table.bulk_insert([{"id": key, "at": at} for key, at in times.items()])
    (file,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(pq.read_table(file), file, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(file).schema.column(1).physical_type == "INT96"
    assert {row["id"]: row["at"] for row in table.query().records()} == times
    table.upsert([{"id": 3, "at": times[1]}, {"id": 2, "at": times[2]}], "id")
    assert {row["id"]: row["at"] for row in table.query().records()} == {**times, 3: times[1]}


def test_steps_narrow_and_change_nothing(table: Table) -> None:
    asked = table.query()
    few = asked.where("part = 'a b'").where("number > 0").select("id", twice="id * 2").order_by("id desc").limit(2)
    assert few.records() == [{"id": 39, "twice": 78}, {"id": 34, "twice": 68}]
    assert asked.count() == 60
    assert (
        asked.where("part is null and who.name = 'n1'").count()
        == asked.where("part is null").where("who.name = 'n1'").count()
        > 0
    )
    assert asked.limit(0).records() == []


def test_batches_are_a_stream(table: Table) -> None:
    stream = table.query().select("id").batches()
    first = next(stream)
    assert table.query().count() == 60  # another question in between
    assert sum(map(len, stream)) + len(first) == 60


def test_names_are_found_in_any_case_and_kept_as_asked(table: Table) -> None:
    assert table.query().select("ID").order_by("Id").limit(1).records() == [{"ID": 0}]


def test_the_clock_is_one_moment(table: Table) -> None:
    assert table.query().where("moment < now() and day <= current_date + 40").count() > 0
    assert len(set(table.query().select(t="now()").arrow()["t"].to_pylist())) == 1


VALUES = {
    "number": st.integers(-4, 4).map(str),
    "real": st.sampled_from(["'NaN'::double", "0.0", "-0.0", "2.5", "'inf'::double", "-2"]),
    "amount": st.sampled_from(["0", "10.001", "30.003", "59.0059"]),
    "text": st.integers(20, 40).map(lambda length: f"'{'x' * length}1'"),
    "day": st.integers(1, 28).map(lambda day: f"date '2026-01-{day:02}'"),
    "moment": st.integers(0, 40_000).map(
        lambda micros: f"timestamptz '{(THEN + timedelta(microseconds=micros)).isoformat()}'"
    ),
    "wall": st.integers(0, 60).map(lambda hours: f"timestamp '{(THEN + timedelta(hours=hours)).replace(tzinfo=None)}'"),
    "part": st.sampled_from(["'a b'", "'c/d'", "'b'"]),
    "id": st.integers(-1, 61).map(str),
    "who.name": st.sampled_from(["'n1'", "'n2'", "'z'"]),
}
comparisons = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), VALUES[name]).map(
        " ".join
    )
)
others = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.one_of(
        st.just(f"{name} is null"),
        st.just(f"{name} is not null"),
        st.lists(VALUES[name], min_size=1, max_size=3).map(lambda each: f"{name} in ({', '.join(each)})"),
    )
)
predicates = st.recursive(
    comparisons | others,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda each: f"({' '.join(each)})"),
        inner.map(lambda each: f"(not {each})"),
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(predicate=predicates)
@example("real > 100")
@example("real = 'NaN'::double")
@example("moment > timestamptz '2026-01-01 12:00:00.123999Z'")
def test_what_is_left_out_by_statistics_is_not_missed(kept: Table, predicate: str) -> None:
    whole = kept.query().arrow()
    plain = RowsInMemory(store=Store(kept.path), rows=Relation(whole.schema, whole))
    found, expected = (each.where(predicate).order_by("id").select("id").arrow() for each in (kept.query(), plain))
    assert found == expected


def test_maintenance_changes_no_row(kept: Table, table: Table) -> None:
    assert repr(kept.query().order_by("id").records()) == repr(table.query().order_by("id").records())


def test_files_are_left_out(table: Table, tmp_path: Path) -> None:
    """A file that cannot match is not even opened: it could as well be gone."""
    made = Table.get_or_create(tmp_path / "t", {"id": "bigint", "part": "string"}, ["part"])
    for number in range(4):
        made.bulk_insert([{"id": number, "part": f"p{number % 2}"}])
    gone = made.query().where("part = 'p1' or id = 2").count()
    assert gone == 3
    for path in Path(made.path).glob("part=p0/*"):
        path.unlink()
    assert made.query().where("part = 'p1'").count() == 2
    assert made.query().where("id = 3").records() == [{"id": 3, "part": "p1"}]
    with pytest.raises(TableDamaged, match="repair"):
        made.query().count()


# ---- refusals ----


@pytest.mark.parametrize(
    "predicate",
    [
        "id in (select 1)",
        "id = (select max(id) from _rows_)",
        "current_setting('memory_limit') is not null",
        "read_text('/etc/passwd') is not null",
        "id = 1; drop table x",
        "1 = 1) or (1 = 1",
        "nobody = 1",
        "_topic = 'x'",
        "_now_ is not null",
        "getenv('HOME') is null",
        "",
    ],
)
def test_what_is_no_expression_over_the_row_is_refused(table: Table, predicate: str) -> None:
    for asked in (table.query().where(predicate), table.query().select(x=predicate), table.query().select(predicate)):
        with pytest.raises(ExpressionNotAllowed):
            asked.arrow()


@pytest.mark.parametrize("order", ["nobody", "id sideways", "id, part", "id; select 1", ""])
def test_an_order_is_by_columns(table: Table, order: str) -> None:
    with pytest.raises(UsageError):
        table.query().order_by(order).arrow()


def test_what_makes_no_sense(table: Table) -> None:
    with pytest.raises(UsageError, match="mutually exclusive"):
        table.query().at(version=1, timestamp=THEN)
    with pytest.raises(UsageError, match="Duplicate column"):
        table.query().select("id", "ID").arrow()
    with pytest.raises(UsageError):
        table.query().limit(-1)
    with pytest.raises(UsageError, match="Invalid version: '1'"):
        table.query().at(version="1").arrow()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="zone"):
        table.query().at(timestamp="2026-01-01").arrow()
    with pytest.raises(UsageError, match="query failed: "):
        table.query().where("cast(text as int) > 0").arrow()


# ---- other versions ----


def test_older_versions(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint"})
    for number in range(5):
        table.bulk_insert([{"id": number}])
    assert [table.query().at(version=at).count() for at in range(6)] == [0, 1, 2, 3, 4, 5]
    for entry in table.history():
        assert entry.timestamp is not None
        found = table.query().at(timestamp=entry.timestamp + timedelta(milliseconds=1)).count()
        assert found >= entry.version
    assert table.query().at(timestamp=datetime.now(UTC)).count() == 5
    with pytest.raises(VersionNotFound, match="versions 0 to 5"):
        table.query().at(version=6).count()
    with pytest.raises(VersionNotFound):
        table.query().at(timestamp="2001-01-01T00:00:00Z").count()


def test_a_moment_means_the_newest_version_by_then(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint"})
    for number in range(1, 40):
        table.bulk_insert([{"id": number}])
    for number in range(40):  # a commit a minute
        path = tmp_path / "t" / "_delta_log" / f"{number:020}.json"
        head, _, rest = path.read_text().partition(',"operation"')
        path.write_text(f'{head.rpartition(":")[0]}:{1_700_000_000_000 + number * 60_000},"operation"{rest}')
    start = datetime.fromtimestamp(1_700_000_000, UTC)
    for number in range(40):
        for seconds in (0, 30, 59):
            assert table.resolve(timestamp=start + timedelta(minutes=number, seconds=seconds)) == number
    with pytest.raises(VersionNotFound):
        table.resolve(timestamp=start - timedelta(seconds=1))


def test_softly_deleted_rows_are_hidden_unless_asked_for(tmp_path: Path) -> None:
    soft = {"id": "bigint", "_deleted": "boolean", "_deleted_at": "timestamp"}
    table = Table.get_or_create(tmp_path / "t", soft)
    table.bulk_insert([{"id": 1}, {"id": 2, "_deleted": True, "_deleted_at": THEN}, {"id": 3, "_deleted": False}])
    assert table.query().order_by("id").select("id").records() == [{"id": 1}, {"id": 3}]
    assert table.query().with_deleted().where("_deleted").select("id").records() == [{"id": 2}]
    assert table.query().where("id = 2").count() == 0


# ---- changes ----


def test_changes_of_appends_are_the_files_they_added(table: Table) -> None:
    found = table.changes(2, 3).order_by("id").arrow()
    assert found.schema.names == [*COLUMNS, "_change_type", "_commit_version", "_commit_timestamp"]
    assert found["id"].to_pylist() == list(range(10, 30))
    assert found["_commit_version"].to_pylist() == [2] * 10 + [3] * 10
    expected = table.query().at(version=3).where("id >= 10").order_by("id").arrow()
    assert repr(found.select(list(COLUMNS)).to_pylist()) == repr(expected.to_pylist())
    assert table.changes(1).where("part = 'c/d'").count() == 20
    assert table.changes("2001-01-01T00:00:00Z").count() == 60


def test_compaction_is_no_change_and_new_columns_are_null_before(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint", "s": "struct<a: int>"})
    table.bulk_insert([{"id": 1, "s": {"a": 1}}])
    table.bulk_insert([{"id": 2}])
    table.optimize()
    table.update_schema(add={"note": "string"})
    table.bulk_insert([{"id": 3, "note": "x"}])
    assert [(row["id"], row["note"]) for row in table.changes(0).order_by("id").records()] == [
        (1, None),
        (2, None),
        (3, "x"),
    ]


def test_rows_that_went_are_told_by_the_change_data_feed_or_not_at_all(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint"})
    table.bulk_insert([{"id": 1}, {"id": 2}])
    DeltaTable(table.path).delete("id = 1")
    with pytest.raises(ChangeDataUnavailable, match=r"version 2 \(DELETE\)"):
        table.changes(0).arrow()
    assert table.changes(0, 1).count() == 2
    table.set_properties({"delta.enableChangeDataFeed": "true"})
    table.bulk_insert([{"id": 3}])
    DeltaTable(table.path).delete("id = 3")
    found = table.changes(4).order_by("_commit_version").records()
    assert [(row["id"], row["_change_type"], row["_commit_version"]) for row in found] == [
        (3, "insert", 4),
        (3, "delete", 5),
    ]
    with pytest.raises(VersionNotFound):
        table.changes(5, 4).arrow()


def test_the_feed_and_the_files_tell_the_same(tmp_path: Path) -> None:
    columns = {"id": "bigint", "part": "date"}
    plain = Table.get_or_create(tmp_path / "a", columns, ["part"])
    fed = Table.get_or_create(tmp_path / "b", columns, ["part"], {"delta.enableChangeDataFeed": "true"})
    for table in (plain, fed):
        for number in range(3):
            table.bulk_insert([{"id": number, "part": date(2026, 1, 1 + number)}, {"id": number + 10}])
    asked = [
        table.changes(0).select("id", "part", "_change_type", "_commit_version").order_by("id")
        for table in (plain, fed)
    ]
    assert asked[0].arrow() == asked[1].arrow()
    assert asked[0].count() == 6


def test_an_error_of_a_stream_keeps_its_class_and_its_next_step(tmp_path: Path) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint"})
    table.bulk_insert([{"id": 1}])
    pq.write_table(pa.table({"id": ["one"]}), next((tmp_path / "t").glob("*.parquet")))
    readers = (Changes.arrow, Changes.count, lambda changes: list(changes.batches()))
    for read in readers:
        with pytest.raises(TableDamaged, match=r"column id is string in the file .* and int64 in the table") as info:
            read(table.changes(0))
        assert info.value.hint == "Rewrite the file with the program that wrote it; its rows are intact."
