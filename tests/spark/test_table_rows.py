"""Rows of tables that only Spark may write: the same calls, the same rows as by our own hands."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Table
from headrace.cli import main
from headrace.errors import FeatureRequired, PartitionNotFound, SchemaMismatch, UsageError
from headrace.spec.types import parse_type, type_name
from headrace.table.records import fit_records
from headrace.table.spark_rows import SparkRows

COLUMNS = {"id": "bigint", "p": "string", "v": "bigint", "text": "string"}
FEATURES = ("'delta.enableDeletionVectors' = 'true'", "'delta.enableRowTracking' = 'true'")


@pytest.fixture
def make(spark: Any, tmp_path: Path) -> Callable[..., Table]:
    def made(name: str = "t", *properties: str) -> Table:
        path = tmp_path / name
        spark.sql(
            f"CREATE TABLE delta.`{path}` (id BIGINT, p STRING, v BIGINT, text STRING) USING delta PARTITIONED BY (p) "
            f"TBLPROPERTIES ({', '.join(properties or FEATURES)})"
        )
        return Table(path, spark=spark)

    return made


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "id": chance.randrange(30),
            "p": chance.choice("ab"),
            "v": chance.randrange(9),
            "text": chance.choice(["it's", 'a "b"', "c\\d", None]),
        }
        for _ in range(count)
    ]


LIFE: list[Callable[[Table], Any]] = [
    lambda table: table.upsert(rows(20, 1), "id"),
    lambda table: table.upsert([*rows(20, 2), {"id": 29, "p": "b", "text": "c\\d", "v": 1}], "id", sequence_by="v"),
    lambda table: table.delete("v = 3 or text = 'it''s' or text = 'c\\d'"),
    lambda table: table.upsert([{"id": each["id"], "v": 1} for each in rows(9, 3)], ["id", "p"], partition="p=a"),
    lambda table: table.update('"v" < 4', {"v": "v + 10", "text": "upper(text) || '\\'", "id": 77}, partition="p=a"),
    lambda table: table.delete("id between 0 and 15", hard=False),
    lambda table: table.delete("id = 1000"),
]


@pytest.mark.parametrize("life", [LIFE[1:3], pytest.param(LIFE, marks=pytest.mark.slow)], ids=["short", "long"])
def test_spark_and_the_in_process_merge_lead_to_the_same_rows(
    make: Callable[..., Table], tmp_path: Path, life: list[Callable[[Table], Any]]
) -> None:
    by_spark, by_hand = make(), Table.get_or_create(tmp_path / "own", COLUMNS, ["p"])
    assert (by_spark.metadata().writer, by_hand.metadata().writer) == ("spark", "direct")
    for number, change in enumerate(life):
        one, two = change(by_spark), change(by_hand)
        counts = [{name: getattr(each, name) for name in each.__slots__ if name != "version"} for each in (one, two)]
        assert counts[0] == counts[1], number
        found = [
            sorted(
                (
                    {key: value for key, value in each.items() if key != "_deleted_at"}
                    for each in table.query().with_deleted().records()
                ),
                key=str,
            )
            for table in (by_spark, by_hand)
        ]
        assert found[0] == found[1], number
        assert one.version == by_spark.resolve()


def test_frames_of_spark_are_records_and_answers(spark: Any, tmp_path: Path) -> None:
    own = Table.get_or_create(tmp_path / "own", COLUMNS, ["p"])
    frame = spark.createDataFrame([(1, "a", 1, "x"), (2, "b", 2, None)], "id BIGINT, p STRING, v BIGINT, text STRING")
    assert own.bulk_insert(frame).rows == 2
    done = own.upsert(frame.selectExpr("id + 1 AS id", "'b' AS p", "cast(v AS INT) AS v"), "id")
    assert (done.inserted, done.updated) == (1, 1)
    asked = own.query().where("id > 1").select("id", "v").order_by("id").spark(spark)
    assert [tuple(row) for row in asked.collect()] == [(2, 1), (3, 2)]
    made = Table.get_or_create(tmp_path / "made")
    every = (
        "1Y AS tiny, timestamp'2026-01-02T03:04:05.678901Z' AS at, timestamp_ntz'2026-01-02 03:04:05' AS local, "
        "1.50 AS price, date'2026-01-02' AS day, X'FF' AS raw, array(1, NULL) AS l, named_struct('x', true) AS s"
    )
    assert made.bulk_insert(spark.sql(f"SELECT {every}")).rows == 1
    there = spark.read.format("delta").load(made.path)
    assert there.collect() == spark.sql(f"SELECT {every}").collect()
    kinds = {item.name: type_name(item.type) for item in made.schema()}
    assert (kinds["at"], kinds["local"], kinds["price"]) == ("timestamp", "timestamp_ntz", "decimal(3,2)")


def test_records_that_can_be_read_once_survive_a_second_attempt_of_spark(
    make: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, late = make(), [True, True]

    def read(*given: Any) -> Any:
        rows = fit_records(*given)
        if len(late) and late.pop():
            raise _Concurrent("[DELTA_CONCURRENT_APPEND] files were added")
        return rows

    for module in ("spark_files", "upsert"):
        monkeypatch.setattr(f"headrace.table.{module}.fit_records", read)
    assert table.bulk_insert({"id": number, "p": part} for number, part in enumerate(["a", None])).rows == 2
    late.append(True)
    done = table.upsert(pa.table({"id": [1, 2], "v": [5, 5]}).to_reader(), "id")
    assert (done.inserted, done.updated, late) == (1, 1, [])

    nowhere = "p=__HIVE_DEFAULT_PARTITION__"
    with pytest.raises(UsageError, match="a partition of NULL"):
        table.upsert([{"id": 1}], "id", partition=nowhere)
    assert table.update("id = 1", {"v": 6}, nowhere).rows == 1
    assert table.delete("v = 5", nowhere).rows == 1
    assert [(row["id"], row["p"]) for row in table.query().order_by("id").records()] == [(0, "a"), (1, None)]
    with pytest.raises(SchemaMismatch, match="NOT NULL"):
        table.update_schema(add={"q": "long!"})
    table.update_schema(add={"s": "struct<a: int>"})
    assert table.update_schema(add={"s.b": "date"}).schema.field("s").type == parse_type("struct<a: int, b: date>")


def test_what_does_not_fit_is_refused_by_name(make: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> None:
    table = make("c", "'delta.constraints.small' = 'v < 100'")
    table.upsert([{"id": 1, "p": "a", "v": 1}], "id")
    with pytest.raises(SchemaMismatch, match="small"):
        table.update("true", {"v": 200})
    with pytest.raises(SchemaMismatch):
        table.upsert([{"id": 2, "v": 200}], "id")
    with pytest.raises(SchemaMismatch):
        table.update("true", {"v": "text"})
    with pytest.raises(UsageError, match="PARSE_SYNTAX_ERROR"):
        table.delete("id // 2 = 0 and v = 1")
    with monkeypatch.context() as patch:
        patch.setattr(SparkRows, "_count", lambda *_: 5)
        with pytest.raises(UsageError, match="condition is ambiguous"):
            table.delete("true")
    with pytest.raises(PartitionNotFound):
        table.delete("true", partition="v=1")
    table.update("true", {"v": 2})
    assert table.query().select("v").records() == [{"v": 2}]


@pytest.mark.slow
def test_a_session_is_started_where_none_is_given(make: Callable[..., Table]) -> None:
    table = make()
    assert Table(table.path).upsert([{"id": 1, "p": "a"}], "id").inserted == 1


@pytest.mark.slow
def test_spark_that_comes_second_does_it_again(
    make: Callable[..., Table], spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, meant, others = make(), SparkRows._count, [lambda: None]
    table.upsert([{"id": 1, "p": "a", "v": 1}], "id")

    def late(self: SparkRows, wanted: Any) -> int:
        found = meant(self, wanted)
        if others:
            others.pop()
            raise _Concurrent("[DELTA_CONCURRENT_APPEND] files were added")
        return found

    monkeypatch.setattr(SparkRows, "_count", late)
    assert table.delete("id = 1").rows == 1
    assert not others


class _Concurrent(Exception):
    def getCondition(self) -> str:
        return "DELTA_CONCURRENT_APPEND"


@pytest.mark.slow
def test_columns_are_widened_renamed_commented_and_dropped(make: Callable[..., Table], spark: Any) -> None:
    table = make()
    table.upsert([{"id": 1, "p": "a", "v": 5, "text": "x"}], "id")
    assert [row.asDict() for row in table.query().spark(spark).collect()] == [{"id": 1, "p": "a", "v": 5, "text": "x"}]
    with pytest.raises(FeatureRequired, match="columnMapping"):
        table.update_schema(rename={"text": "words"})
    with pytest.raises(FeatureRequired, match="typeWidening"):
        table.update_schema(widen={"v": "decimal(20,0)"})
    table.set_properties({"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true", "team": "ann"})
    about = table.update_schema(
        add={"n": "int"}, widen={"v": "decimal(20,0)"}, rename={"text": "words"}, comment={"id": "it's the key"}
    )
    assert about.schema.names == ["id", "p", "v", "words", "n"]
    assert about.schema.field("v").type == pa.decimal128(20, 0)
    assert about.schema.field("id").metadata[b"comment"] == b"it's the key"
    assert about.properties["team"] == "ann"
    assert table.update_schema(drop=["n"], widen={}).schema.names == ["id", "p", "v", "words"]
    with pytest.raises(UsageError, match="Cannot drop column 'p'"):
        table.update_schema(drop=["p"])
    with pytest.raises(SchemaMismatch, match="cannot widen"):
        table.update_schema(widen={"id": "int"})
    assert "team" not in table.set_properties({"team": None}).properties
    assert table.update("id = 1", {"v": 6}).rows == 1
    assert table.query().records() == [{"id": 1, "p": "a", "v": 6, "words": "x"}]


@pytest.mark.slow
def test_commands_change_columns_that_spark_writes(
    make: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make("t", "'delta.columnMapping.mode' = 'name'", "'delta.enableTypeWidening' = 'true'")

    def run(*options: str) -> tuple[int, str]:
        command = ["headrace", "table", "update-schema", table.path, *options]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().out

    monkeypatch.setattr("typer.confirm", lambda _: False)
    code, out = run("--drop", "text")
    assert (code, "drop text and its values" in out, table.schema().names) == (0, True, list(COLUMNS))
    assert run("--drop", "text", "--widen", "v decimal(20,0)", "--rename", "id=key", "--yes")[0] == 0
    about = table.schema()
    assert (about.names, about.field("v").type) == (["key", "p", "v"], pa.decimal128(20, 0))
