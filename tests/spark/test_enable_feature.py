"""A table with direct commits gets column mapping or type widening; its pipelines go on with Spark and lose nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace import Table, faults
from headrace.cli import main
from headrace.delta.features import WRITER
from headrace.delta.log import read_commit
from headrace.delta.log_writer import LogWriter
from headrace.errors import DirectCommitBlocked, TableDamaged, TableFeature
from headrace.faults import Abandoned, Point
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from headrace.spec.types import type_name
from headrace.storage.store import Store
from services.batches import Batches
from services.delta_scan import scanned
from services.plans import spec_of

COLUMNS = [
    {"name": "id", "type": "int"},
    {"name": "day", "type": "string"},
    {"name": "v", "type": "short"},
    {"name": "s", "type": "struct<a: int>"},
]


class Runs:
    """One pipeline after the other on the same table, each with a spec of its own."""

    def __init__(self, spark: Any, lake: Path) -> None:
        self.spark, self.lake, self.offset = spark, lake, 0
        self.table = Table(lake / "web", spark=spark)
        self._running: Batches | None = None

    def start(self, **table: Any) -> Batches:
        """A pipeline as after a restart."""
        web = self._running = Batches(
            self.spark, self.lake, table={"columns": COLUMNS, "partition_by": ["day"], **table}
        )
        web.offset = self.offset
        web.pipeline.finish_open_batch()
        web.pipeline.tables.open()
        return web

    def stop(self) -> None:
        if self._running is not None:
            self.offset = self._running.offset
            self._running.lease.release()
            self._running = None

    def offsets(self) -> Counter[int]:
        """How often each record is in the table, as Spark reads it."""
        frame = self.spark.read.format("delta").load(self.table.path)
        return Counter(row["_source"]["offset"] for row in frame.select("_source").collect())

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """Columns of all rows, in the order of their records."""
        frame = self.spark.read.format("delta").load(self.table.path).orderBy("_source.offset")
        return [tuple(row.asDict(recursive=True)[name] for name in names) for row in frame.collect()]


@pytest.fixture
def runs(spark: Any, lake: Path) -> Iterator[Runs]:
    runs = Runs(spark, lake)
    yield runs
    runs.stop()


def test_columns_are_renamed_and_dropped_and_the_pipeline_appends_with_spark(runs: Runs) -> None:
    runs.start().run([{"id": 1, "day": "a", "v": 1, "s": {"a": 1}}, {"id": 2, "day": "b", "v": 2}])
    runs.stop()
    assert runs.table.enable_feature("columnMapping").pipelines == ("web",)
    web = runs.start()
    web.run([{"id": 3, "day": "a", "v": 3, "s": {"a": 3}}])
    runs.stop()
    commit = read_commit(Store(runs.table.path), runs.table.resolve())
    assert commit is not None
    assert commit.info["engineInfo"].startswith("Apache-Spark")
    assert (commit.account["batch"], commit.txns["headrace:web"]) == (2, 2)

    after = runs.table.update_schema(rename={"id": "key", "day": "date"}, drop=["v"], add={"n": "string"})
    assert after.schema.names == ["key", "date", "s", "_source", "n"]
    renamed = [
        {**COLUMNS[0], "name": "key"},
        {**COLUMNS[1], "name": "date"},
        COLUMNS[3],
        {"name": "n", "type": "string"},
    ]
    web = runs.start(columns=renamed, partition_by=["date"])
    web.run([{"key": 4, "date": "c", "s": {"a": 4}, "n": "x"}], [b"{"])
    runs.stop()
    assert runs.offsets() == Counter(range(4))
    expected = [(1, "a", {"a": 1}, None), (2, "b", None, None), (3, "a", {"a": 3}, None), (4, "c", {"a": 4}, "x")]
    assert runs.rows("key", "date", "s", "n") == expected
    query = runs.table.query().select("key", "date", "s", "n").order_by("key")
    assert [tuple(row.values()) for row in query.records()] == expected
    assert len(runs.table.query().where("key = 1 AND date = 'a'").records()) == 1


def test_columns_are_widened_by_the_api_and_by_the_pipeline(runs: Runs) -> None:
    runs.start().run([{"id": 1, "day": "a", "v": 1}])
    runs.stop()
    runs.table.enable_feature("typeWidening")
    runs.table.update_schema(widen={"v": "bigint"})
    web = runs.start(features=["typeWidening"], contract={"wrong_type": "widen"})
    intent, _ = web.run([{"id": 2**40, "day": "b", "v": 2**50}, {"id": "x", "day": "b"}])
    assert (intent.runs, intent.counts.dead) == (2, 1)
    runs.stop()
    assert runs.rows("id", "day", "v") == [(1, "a", 1), (2**40, "b", 2**50)]
    kinds = {item.name: type_name(item.type) for item in runs.table.schema()}
    assert (kinds["id"], kinds["v"]) == ("long", "long")
    assert runs.offsets() == Counter([0, 1])
    assert scanned(f"SELECT id, v FROM delta_scan('{runs.table.path}') ORDER BY 1", runs.lake) == [
        [1, 1],
        [2**40, 2**50],
    ]


@pytest.mark.parametrize("point", [Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE])
def test_a_death_in_the_first_batch_of_spark_leaves_every_row_once(runs: Runs, point: Point) -> None:
    runs.start().run([{"id": 1, "day": "a"}])
    runs.stop()
    runs.table.enable_feature("columnMapping")
    web = runs.start()
    with faults.armed(point, "abandon"), pytest.raises(Abandoned):
        web.run([{"id": 2, "day": "b"}])
    runs.stop()
    web = runs.start()
    assert web.pipeline.summary.recovered == 1
    web.run([{"id": 3, "day": "b"}])
    assert runs.offsets() == Counter(range(3))
    assert runs.rows("id", "day") == [(1, "a"), (2, "b"), (3, "b")]


def test_files_that_were_staged_for_a_direct_commit_are_not_appended_by_spark(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline in its first batch has no txn in the table yet, so its lease is not asked for."""
    Table.get_or_create(runs.table.path, {"id": "int", "day": "string", "_source": _SOURCE}, ["day"])
    web = runs.start(columns=COLUMNS[:2])
    commit = type(web.pipeline)._commit_one
    monkeypatch.setattr(type(web.pipeline), "_commit_one", _abandon)
    with pytest.raises(Abandoned):
        web.run([{"id": 1, "day": "a"}])
    monkeypatch.setattr(type(web.pipeline), "_commit_one", commit)
    runs.stop()
    assert runs.table.enable_feature("columnMapping").pipelines == ()
    restaged: list[Any] = []
    monkeypatch.setattr(Pipeline, "restage", lambda self, intent, committed: restaged.append(intent) or _stop())
    with pytest.raises(Abandoned):
        runs.start(columns=COLUMNS[:2])
    assert len(restaged) == 1, "what was staged for a direct commit is staged again"
    assert runs.rows("id") == []


_SOURCE = "struct<topic: string, partition: int, offset: bigint, timestamp: timestamp>"


def _abandon(*_: Any) -> Any:
    raise Abandoned


def _stop() -> Any:
    raise Abandoned


def test_changes_are_read_by_the_names_of_today(runs: Runs) -> None:
    table = Table.get_or_create(
        runs.table.path,
        {"id": "int", "p": "string", "s": "struct<a: int, b: int>"},
        ["p"],
        {"delta.enableChangeDataFeed": "true"},
    )
    table.bulk_insert([{"id": 1, "p": "x", "s": {"a": 5, "b": 6}}])
    table.update("id = 1", {"id": "2"})
    table.enable_feature("columnMapping")
    runs.table.update_schema(rename={"id": "key", "p": "q"}, add={"id2": "string"})
    runs.spark.sql(f"ALTER TABLE delta.`{runs.table.path}` RENAME COLUMN s.a TO z")
    runs.table.update("key = 2", {"key": "3", "id2": "'new'"})
    columns = ("_change_type", "_commit_version", "key", "q", "s", "id2")
    found = [tuple(row[name] for name in columns) for row in runs.table.changes(0).records()]
    s = {"z": 5, "b": 6}
    last = runs.table.resolve()
    assert sorted(found, key=str) == sorted(
        [
            ("insert", 1, 1, "x", s, None),
            ("update_preimage", 2, 1, "x", s, None),
            ("update_postimage", 2, 2, "x", s, None),
            ("update_preimage", last, 2, "x", s, None),
            ("update_postimage", last, 3, "x", s, "new"),
        ],
        key=str,
    )


def test_changes_are_read_in_the_types_of_today(runs: Runs) -> None:
    table = Table.get_or_create(runs.table.path, {"id": "int"}, (), {"delta.enableChangeDataFeed": "true"})
    table.bulk_insert([{"id": 1}])
    table.update("id = 1", {"id": 2})
    table.enable_feature("typeWidening")
    runs.table.update_schema(widen={"id": "bigint"})
    runs.table.update("id = 2", {"id": 2**40})
    found = sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in runs.table.changes(0).records())
    last = runs.table.resolve()
    assert found == [
        (1, "insert", 1),
        (2, "update_postimage", 2),
        (2, "update_preimage", 1),
        (last, "update_postimage", 2**40),
        (last, "update_preimage", 2),
    ]


def test_duplicates_are_found_by_a_renamed_key(runs: Runs) -> None:
    rules = {"keys": ["id"], "within": "1h"}
    runs.start(deduplicate=rules).run([{"id": 1, "day": "a"}])
    runs.stop()
    runs.table.enable_feature("columnMapping")
    runs.table.update_schema(rename={"id": "key"})
    columns = [{**COLUMNS[0], "name": "key"}, *COLUMNS[1:]]
    web = runs.start(columns=columns, deduplicate={**rules, "keys": ["key"]})
    intent, _ = web.run([{"key": 1, "day": "a"}, {"key": 2, "day": "a"}])
    assert sum(intent.counts.duplicates.values()) == 1
    assert runs.rows("key") == [(1,), (2,)]


def test_the_command_that_a_pipeline_names_lets_it_go_on(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.start().run([{"id": 1, "day": "a"}])
    runs.stop()
    widening = {"features": ["typeWidening"], "contract": {"wrong_type": "widen"}}
    table = {"path": runs.table.path, "columns": COLUMNS, "partition_by": ["day"], **widening}
    later = Pipeline(spec_of(table=table), lambda: runs.spark, recovery=StartupRecovery())
    with later.take_lease():
        later.open_ledger()
        with pytest.raises(TableFeature) as refused:
            later.tables.open()
    command = re.match(r"Run `(headrace table enable-feature PATH typeWidening)`, then run again", refused.value.hint)
    assert command, refused.value.hint
    monkeypatch.setattr("sys.argv", [*command[1].replace("PATH", runs.table.path).split(), "--yes"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "typeWidening enabled in version" in capsys.readouterr().out
    web = runs.start(**widening)
    web.run([{"id": 2**40, "day": "b"}])
    assert runs.rows("id") == [(1,), (2**40,)]


def test_a_table_that_spark_writes_gets_the_feature_from_spark(runs: Runs) -> None:
    runs.spark.sql(f"CREATE TABLE delta.`{runs.table.path}` (id INT, v INT) USING delta")
    runs.table.bulk_insert([{"id": 1, "v": 1}])
    done = runs.table.enable_feature("columnMapping")
    assert (done.enabled, done.version, done.before[0].write) == (True, 2, done.after[0].write)
    runs.table.update_schema(rename={"id": "key"}, drop=["v"])
    assert runs.table.query().records() == [{"key": 1}]
    said = next(each.read for each in done.after if each.client == "delta-rs")
    assert said == "QueryBuilder; others read renamed columns as NULL"
    from deltalake import DeltaTable

    assert DeltaTable(runs.table.path).to_pyarrow_table().to_pylist() == [{"key": None}]
    assert runs.table.enable_feature("typeWidening").enabled
    assert runs.table.update_schema(widen={"key": "bigint"}).schema.field("key").type.bit_width == 64
    runs.table.bulk_insert([{"key": 2**40}])
    assert runs.table.query().order_by("key").records() == [{"key": 1}, {"key": 2**40}]


@pytest.mark.parametrize("feature", ["columnMapping", "typeWidening"])
def test_a_restore_does_not_bring_direct_commits_back(runs: Runs, feature: str) -> None:
    table = Table.get_or_create(runs.table.path, {"id": "int"})
    table.bulk_insert([{"id": 1}])
    late = LogWriter.open(Store(table.path))
    runs.table.enable_feature(feature)
    runs.table.bulk_insert([{"id": 2}])
    assert runs.table.restore(version=1).to == 1
    about = runs.table.metadata()
    assert (about.writer, about.properties[WRITER]) == ("spark", "spark")
    with pytest.raises(DirectCommitBlocked):
        late.append((), {}, {})
    runs.spark.sql(f"RESTORE TABLE delta.`{table.path}` TO VERSION AS OF 1")
    about = runs.table.metadata()
    assert (about.writer, WRITER in about.properties) == ("spark", False), "Spark restores the properties, too"
    with pytest.raises(DirectCommitBlocked, match=f"uses the feature {feature}"):
        LogWriter.open(Store(table.path)).append((), {}, {})
    runs.table.bulk_insert([{"id": 3}])
    assert runs.table.query().order_by("id").records() == [{"id": 1}, {"id": 3}]


def test_duckdb_loses_partition_columns_after_a_rename(runs: Runs) -> None:
    table = Table.get_or_create(runs.table.path, {"id": "int", "p": "string", "v": "int"}, ["p"])
    table.bulk_insert([{"id": 1, "p": "x", "v": 2}])
    said = next(each.read for each in table.enable_feature("columnMapping").after if each.client == "DuckDB")
    assert said == "yes; after a rename, partition columns may be NULL"
    query = f"SELECT * FROM delta_scan('{runs.table.path}')"
    assert scanned(query, runs.lake) == [[1, "x", 2]]
    runs.table.update_schema(drop=["v"])
    assert scanned(query, runs.lake) == [[1, "x"]]
    runs.table.update_schema(rename={"id": "key"})
    assert scanned(query, runs.lake) == [[1, None]]


def test_both_features_are_read_together(runs: Runs) -> None:
    columns = {"id": "int", "p": "int", "day": "date", "f": "float", "d": "decimal(5,2)", "s": "struct<a: int, b: int>"}
    table = Table.get_or_create(runs.table.path, columns, ["p"])
    table.bulk_insert([{"id": 1, "p": 5, "day": "2026-01-02", "f": 0.5, "d": Decimal("1.20"), "s": {"a": 1, "b": 2}}])
    for feature in ("columnMapping", "typeWidening"):
        assert runs.table.enable_feature(feature).enabled
    runs.table.update_schema(widen={"id": "decimal(20,0)", "day": "timestamp_ntz", "f": "double", "d": "decimal(9,4)"})
    runs.table.update_schema(rename={"id": "key", "p": "q", "s": "t"})
    runs.spark.sql(f"ALTER TABLE delta.`{table.path}` RENAME COLUMN t.a TO z")
    runs.spark.sql(f"ALTER TABLE delta.`{table.path}` ALTER COLUMN t.z TYPE BIGINT")
    runs.table.bulk_insert([{"key": 2, "q": 6, "t": {"z": 2**40, "b": 3}, "day": "2026-01-02T03:04:05"}])
    frame = runs.spark.read.format("delta").load(table.path).orderBy("key")
    expected = [row.asDict(recursive=True) for row in frame.collect()]
    assert expected[0]["t"] == {"z": 1, "b": 2}
    assert runs.table.query().order_by("key").records() == expected
    assert runs.table.query().where("q = 6").select("key").count() == 1
    assert runs.table.query().within("q=5").count() == 1
    assert runs.table.update("key = 1", {"q": 7}).rows == 1
    next(Path(table.path).rglob("*.parquet")).unlink()
    for file in Path(table.path).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(TableDamaged, match="missing"):
        runs.table.query().records()
