"""What others do to a pipeline's tables while it runs, and what it answers: it follows, or it stops with a name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from headrace import faults
from headrace.dev.kafka import Broker
from headrace.errors import (
    HeadraceError,
    PipelineStopped,
    TableChanged,
    TableFeature,
    TableGone,
    TableReplaced,
    TableRestored,
)
from headrace.recovery.resume import Decision, decide
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from services.kafka import make_topic, produce
from services.pipelines import make_spec
from services.threads import drain, drain_all, ids, letters, numbered, one_table, opened, watched
from services.wait import eventually

Alter = Callable[[str, Any], object]
pytestmark = pytest.mark.usefixtures("spark")


def remake(path: str, schema: pa.Schema) -> None:
    """The same table with other columns, emptied."""
    write_deltalake(path, schema.empty_table(), mode="overwrite", schema_mode="overwrite")


def without(path: str, *names: str) -> pa.Schema:
    there = pa.schema(DeltaTable(path).schema().to_arrow())
    return pa.schema([item for item in there if item.name not in names])


def _gone(path: str, _: Any) -> None:
    shutil.rmtree(path)


def _replaced(path: str, _: Any) -> None:
    shutil.rmtree(path)
    write_deltalake(path, pa.table({"id": [-1], "text": ["theirs"]}))


def _dropped(path: str, _: Any) -> None:
    remake(path, without(path, "text"))


def _retyped(path: str, _: Any) -> None:
    remake(path, without(path, "id").append(pa.field("id", pa.string())))


def _required(path: str, _: Any) -> None:
    remake(path, without(path, "id").append(pa.field("id", pa.int64(), nullable=False)))


def _renamed(path: str, spark: Any) -> None:
    mapped = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({mapped})")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN text TO words")


def _checked(path: str, spark: Any) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (id >= 0)")


def _appended(path: str, _: Any) -> None:
    for number in range(5):
        write_deltalake(path, pa.table({"id": [-1 - number], "text": ["theirs"]}), mode="append", schema_mode="merge")


def _grown(path: str, _: Any) -> None:
    DeltaTable(path).alter.add_columns([Field("note", PrimitiveType("string"))])


ALTERATIONS: dict[str, tuple[Alter, type[PipelineStopped] | None]] = {
    "gone": (_gone, TableGone),
    "replaced": (_replaced, TableReplaced),
    "dropped": (_dropped, TableChanged),
    "retyped": (_retyped, TableChanged),
    "required": (_required, TableChanged),
    "renamed": (_renamed, TableFeature),
    "checked": (_checked, TableFeature),
    "appended": (_appended, None),
    "grown": (_grown, None),
}


@dataclass
class Altered:
    """A pipeline whose table was altered between two batches, and what stopped it."""

    spec: Spec
    path: str
    topic: str
    stop: HeadraceError | None


@pytest.fixture(scope="module")
def altered(spark: Any, kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Altered]:
    """Every alteration at once: one run, a pipeline for each."""
    lake = tmp_path_factory.mktemp("altered")
    topic = make_topic(kafka.bootstrap, "altered", 1)
    specs = [one_table(kafka.bootstrap, topic, lake / name, pipeline=name) for name in ALTERATIONS]
    produce(kafka.bootstrap, topic, numbered(0, 10))
    with watched(*specs) as running:
        running.until_read(10 * len(specs), 120)
        for name, (alter, _) in ALTERATIONS.items():
            alter(str(lake / name), spark)
        produce(kafka.bootstrap, topic, numbered(10, 10))
        stops = {name for name, (_, kind) in ALTERATIONS.items() if kind}
        eventually(
            lambda: {event["pipeline"] for event in running.of("error")} >= stops,
            120,
            lambda: f"all of {stops} stopped; {running.of('stop')}",
        )
        running.until_read(10 * len(specs) + 10 * (len(specs) - len(stops)), 60)
        running.stop()
    return {
        spec.pipeline: Altered(spec, str(lake / spec.pipeline), topic, outcome.error)
        for spec, outcome in zip(specs, running.outcomes, strict=True)
    }


@pytest.mark.parametrize("name", [name for name, (_, kind) in ALTERATIONS.items() if kind])
def test_what_cannot_be_followed_stops_the_pipeline_with_its_name(altered: dict[str, Altered], name: str) -> None:
    case, kind = altered[name], ALTERATIONS[name][1]
    assert kind is not None
    assert isinstance(case.stop, kind)
    assert case.stop.hint, "it says what to do next"
    assert case.path in case.stop.message


def test_rows_of_others_and_their_new_columns_are_followed(altered: dict[str, Altered]) -> None:
    assert altered["appended"].stop is None
    assert ids(altered["appended"].path) == [*range(-5, 0), *range(20)]
    assert altered["grown"].stop is None
    rows = opened(altered["grown"].path).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == list(range(20))
    assert {row["note"] for row in rows} == {None}


@pytest.mark.parametrize(("name", "rows", "dead"), [("dropped", 10, 0), ("retyped", 0, 10), ("required", 10, 0)])
def test_other_columns_are_accepted_by_a_person(altered: dict[str, Altered], name: str, rows: int, dead: int) -> None:
    case = altered[name]
    version = opened(case.path).version()
    with pytest.raises(TableChanged, match="--accept-new-table"):
        drain(case.spec)
    assert opened(case.path).version() == version
    assert decide(case.spec, [Decision.NEW_TABLE]) == [f"{case.path}: batch 2 continues with the table as it is now"]
    drain(case.spec)
    assert opened(case.path).to_pyarrow_table().num_rows == rows
    assert [letter["reason"] for letter in letters(case.spec)] == ["type"] * dead


def test_a_feature_that_forbids_appends_stops_every_start_until_it_is_accepted(
    altered: dict[str, Altered], spark: Any
) -> None:
    case = altered["renamed"]
    rows = spark.read.format("delta").load(case.path).count()
    with pytest.raises(TableFeature, match="--accept-new-table"):
        drain(case.spec)
    assert spark.read.format("delta").load(case.path).count() == rows == 10
    assert "written by Spark from now on" in decide(case.spec, [Decision.NEW_TABLE])[0]
    drain(case.spec)
    assert spark_ids(spark, case.path) == list(range(20))
    assert "Spark" in last_engine(case.path)


def test_a_constraint_that_is_taken_back_lets_the_same_batch_in(altered: dict[str, Altered], spark: Any) -> None:
    case = altered["checked"]
    with pytest.raises(TableFeature):
        drain(case.spec)
    spark.sql(f"ALTER TABLE delta.`{case.path}` DROP CONSTRAINT positive")
    drain(case.spec)
    assert ids(case.path) == list(range(20))


@pytest.mark.parametrize(("name", "left"), [("gone", []), ("replaced", [-1])])
def test_a_table_that_is_gone_or_replaced_is_accepted_by_a_person(
    altered: dict[str, Altered], name: str, left: list[int], kafka: Broker
) -> None:
    case = altered[name]
    with pytest.raises(PipelineStopped, match="--accept-new-table") as stop:
        drain(case.spec)
    assert stop.value.name == ALTERATIONS[name][1].__name__  # type: ignore[union-attr]
    said = decide(case.spec, [Decision.NEW_TABLE])
    assert len(said) == 1
    assert case.path in said[0]
    drain(case.spec)
    assert ids(case.path) == [*left, *range(10, 20)], "the open batch and all after it"
    assert decide(case.spec, [Decision.NEW_TABLE]) == [f"{name}: nothing to accept; nothing was changed"]


def test_a_table_that_goes_while_the_pipeline_rests(kafka: Broker, new_topic: Callable[..., str], lake: Path) -> None:
    topic = new_topic()
    produce(kafka.bootstrap, topic, numbered(0, 5))
    specs = [one_table(kafka.bootstrap, topic, lake / name, pipeline=name) for name in ("gone", "replaced")]
    drain_all(specs)
    _gone(str(lake / "gone"), None)
    _replaced(str(lake / "replaced"), None)
    stops = drain_all(specs)
    assert isinstance(stops["gone"], TableGone)
    assert isinstance(stops["replaced"], TableReplaced)
    for spec in specs:
        decide(spec, [Decision.NEW_TABLE])
    produce(kafka.bootstrap, topic, numbered(5, 5))
    assert drain_all(specs) == {"gone": None, "replaced": None}
    assert ids(lake / "gone") == list(range(5, 10))
    assert ids(lake / "replaced") == [-1, *range(5, 10)]


def test_a_column_added_in_the_middle_of_a_batch_takes_the_files_that_were_staged_before(
    kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic, path = new_topic(), str(lake / "t")
    produce(kafka.bootstrap, topic, numbered(0, 5))
    spec = one_table(kafka.bootstrap, topic, path)
    drain(spec)
    produce(kafka.bootstrap, topic, numbered(5, 5))
    staged: set[str] = set()

    def add_column() -> None:
        staged.update(file.name for file in lake.glob("t/*.parquet"))
        _grown(path, None)

    with faults.armed("after_staging", add_column, batch=2):
        drain(spec)
    assert {Path(uri).name for uri in opened(path).file_uris()} == staged
    assert ids(path) == list(range(10))
    produce(kafka.bootstrap, topic, numbered(10, 5, note="n"))
    drain(spec)
    rows = opened(path).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["note"] for row in rows] == [None] * 10 + ["n"] * 5


def test_two_topics_go_into_one_new_table(kafka: Broker, new_topic: Callable[..., str], lake: Path) -> None:
    """Each pipeline plans its first batch for a table that the other one creates with other columns."""
    topics, path = (new_topic(), new_topic()), str(lake / "both")
    produce(kafka.bootstrap, topics[0], numbered(0, 10, note="n", same=1))
    produce(kafka.bootstrap, topics[1], numbered(10, 10, amount=1.5, same=2))
    specs = [
        one_table(kafka.bootstrap, topic, path, pipeline=name)
        for name, topic in zip(("one", "two"), topics, strict=True)
    ]
    assert drain_all(specs) == {"one": None, "two": None}
    rows = opened(path).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == list(range(20))
    assert [row["note"] for row in rows] == ["n"] * 10 + [None] * 10
    assert [row["amount"] for row in rows] == [None] * 10 + [1.5] * 10


# ---- tables that Spark writes ----

DDL = {
    "checked": "(id BIGINT NOT NULL, text STRING) USING delta TBLPROPERTIES ('delta.constraints.small' = 'id < 1000')",
    "generated": "(id BIGINT NOT NULL, text STRING, twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta",
    "mapped": "(id BIGINT NOT NULL, text STRING) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
}


def spark_ids(spark: Any, path: str) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(path).collect())


def last_engine(path: str) -> str:
    log = sorted(Path(path).glob("_delta_log/*.json"))[-1]
    infos = [json.loads(line)["commitInfo"] for line in log.read_text().splitlines() if '"commitInfo"' in line]
    return str(infos[0]["engineInfo"])


def test_tables_that_a_blind_append_would_break_are_appended_by_spark_beside_others(
    spark: Any, kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic = new_topic()
    for name, columns in DDL.items():
        spark.sql(f"CREATE TABLE delta.`{lake / name}` {columns}")
    specs = [one_table(kafka.bootstrap, topic, lake / name, pipeline=name) for name in DDL]
    produce(kafka.bootstrap, topic, [*numbered(0, 10), b'{"text": "no id"}'])
    assert drain_all(specs) == dict.fromkeys(DDL)
    for name in DDL:
        spark.sql(f"INSERT INTO delta.`{lake / name}` (id, text) VALUES (-1, 'theirs')")
    spark.sql(f"ALTER TABLE delta.`{lake / 'checked'}` DROP CONSTRAINT small")  # could be adopted now, and is not
    produce(kafka.bootstrap, topic, numbered(10, 10))
    assert drain_all(specs) == dict.fromkeys(DDL)
    for spec in specs:
        path = spec.uri_of(RouteId())
        assert spark_ids(spark, path) == list(range(-1, 20))
        assert "Spark" in last_engine(path)
        assert [letter["reason"] for letter in letters(spec)] == ["missing"]
    rows = spark.read.format("delta").load(str(lake / "generated")).collect()
    assert all(row.twice == row.id * 2 for row in rows)


def test_rows_that_only_the_table_refuses_stop_the_pipeline_and_change_nothing(
    spark: Any, kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic, path = new_topic(), str(lake / "checked")
    spark.sql(f"CREATE TABLE delta.`{path}` {DDL['checked']}")
    table = {"path": path, "infer": {"records": 1}, "constraints": {"small": "id > 0"}}  # laxer than the table
    spec = make_spec(kafka.bootstrap, [topic], lake, route={"by": "fixed"}, transform=[], table=table)
    produce(kafka.bootstrap, topic, numbered(995, 10))
    for _ in range(2):
        with pytest.raises(TableChanged, match="small"):
            drain(spec)
    assert spark_ids(spark, path) == []
    spark.sql(f"ALTER TABLE delta.`{path}` DROP CONSTRAINT small")
    drain(spec)
    assert spark_ids(spark, path) == list(range(995, 1005))


def test_a_table_that_spark_appends_is_refilled_too(
    spark: Any, kafka: Broker, new_topic: Callable[..., str], lake: Path
) -> None:
    topic, path = new_topic(), str(lake / "checked")
    spark.sql(f"CREATE TABLE delta.`{path}` {DDL['checked']}")
    spec = one_table(kafka.bootstrap, topic, path)
    for start in (0, 5, 10):
        produce(kafka.bootstrap, topic, numbered(start, 5))
        drain(spec)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1")
    assert spark_ids(spark, path) == list(range(5))
    with pytest.raises(TableRestored, match="--table-restored=refill"):
        drain(spec)
    (said,) = decide(spec, [Decision.REFILLED_TABLE])
    assert "10 undone rows" in said
    assert spark_ids(spark, path) == list(range(15))
    produce(kafka.bootstrap, topic, numbered(15, 5))
    drain(spec)
    assert spark_ids(spark, path) == list(range(20))
