"""Tables that widen: made by Spark, widened between batches, read back by Spark; nothing is lost, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import faults
from headrace.delta.features import append_blocker
from headrace.delta.log import read_commit
from headrace.delta.snapshot import load_state
from headrace.errors import TableFeature
from headrace.faults import Abandoned, Point
from headrace.pipeline.pipeline import Pipeline
from headrace.recovery.startup import StartupRecovery
from headrace.spec.types import type_name
from headrace.storage.store import Store
from headrace.write.leased_writer import LeasedWriter
from services.batches import Batches
from services.plans import spec_of

WIDEN = {"features": ["typeWidening"], "contract": {"wrong_type": "widen"}}
NARROW = [{"name": "id", "type": "int"}, {"name": "v", "type": "short"}, {"name": "s", "type": "struct<a: int>"}]


@pytest.fixture
def batches(spark: Any, lake: Path) -> Iterator[Any]:
    """A maker of pipelines whose tables widen; the one before ends when the next begins."""
    made: list[Batches] = []

    def make(**content: Any) -> Batches:
        if made:
            made[-1].lease.release()
        table = {**WIDEN, **content.pop("table", {})}
        made.append(Batches(spark, lake, table=table, **content))
        made[-1].offset = made[-2].offset if len(made) > 1 else 0
        made[-1].pipeline.finish_open_batch()
        made[-1].pipeline.tables.open()
        return made[-1]

    yield make
    made[-1].lease.release()


def read(web: Batches) -> list[dict[str, Any]]:
    """As Spark reads them, in the order of their records."""
    frame = web.spark.read.format("delta").load(f"{web.lake}/web")
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(found, key=lambda row: row.pop("_source")["offset"])


def types(web: Batches) -> dict[str, str]:
    state = load_state(Store(f"{web.lake}/web"))
    assert state is not None
    return {item.name: type_name(item.type) for item in state.schema if item.name != "_source"}


def test_a_table_is_made_by_spark_and_widened_between_batches(batches: Any) -> None:
    web = batches(table={"columns": NARROW})
    intent, _ = web.run([{"id": 1, "v": 1, "s": {"a": 1}}])
    assert intent.runs == 1
    state = load_state(Store(f"{web.lake}/web"))
    assert state is not None
    assert append_blocker(state)
    assert read_commit(Store(f"{web.lake}/web"), 0).info["engineInfo"].startswith("Apache-Spark")
    intent, _ = web.run([{"id": 2**40, "v": 2}], [{"id": 3, "v": 1.5, "s": {"a": 2**40}}], [{"id": "x"}])
    assert intent.runs == 2
    assert intent.counts.dead == 1
    assert types(web) == {"id": "long", "v": "double", "s": "struct<a: long>"}
    intent, _ = web.run([{"id": 2**63, "v": 2.5}])
    assert intent.runs == 2
    intent, _ = web.run([{"id": 5, "v": 3}])
    assert intent.runs == 1
    assert types(web)["id"] == "decimal(20,0)"
    assert [(row["id"], row["v"], row["s"]) for row in read(web)] == [
        (1, 1.0, {"a": 1}),
        (2**40, 2.0, None),
        (3, 1.5, {"a": 2**40}),
        (Decimal(2**63), 2.5, None),
        (5, 3.0, None),
    ]


def test_a_restart_goes_on_with_the_wider_types(batches: Any) -> None:
    web = batches(table={"columns": NARROW})
    web.run([{"id": 1}])
    web.run([{"id": 2**40}])
    web = batches(table={"columns": NARROW})
    intent, _ = web.run([{"id": 2**41}])
    assert (intent.runs, types(web)["id"]) == (1, "long")
    assert [row["id"] for row in read(web)] == [1, 2**40, 2**41]


def test_inferred_tables_take_new_and_nested_fields_and_wider_types_at_once(batches: Any) -> None:
    web = batches()
    web.run([{"id": 1, "s": {"a": 1}, "mixed": 1}, {"mixed": "x"}])
    intent, _ = web.run([{"id": 1.5, "s": {"a": 2, "b": "new"}, "more": [{"c": 1}], "mixed": {"y": 0.10}}])
    assert intent.runs == 2
    intent, _ = web.run([{"s": {"b": "x"}, "more": [{"c": 2**63, "d": True}]}])
    assert intent.runs == 2
    assert types(web) == {
        "id": "decimal(21,1)",
        "s": "struct<a: long, b: string>",
        "mixed": "string",
        "more": "array<struct<c: decimal(20,0), d: boolean>>",
    }
    found = read(web)
    assert [row["id"] for row in found] == [1, None, Decimal("1.5"), None]
    assert [row["mixed"] for row in found] == ["1", '"x"', '{"y": 0.1}', None]
    assert found[2]["more"] == [{"c": 1, "d": None}]
    assert found[3]["more"] == [{"c": 2**63, "d": True}]
    # The note that a column keeps JSON text has come along: after a restart it still does.
    web = batches()
    intent, _ = web.run([{"mixed": [1]}])
    assert (intent.runs, read(web)[-1]["mixed"]) == (1, "[1]")


def test_dates_become_times(batches: Any) -> None:
    web = batches(table={"columns": [{"name": "d", "type": "date"}]})
    web.run([{"d": "2026-01-02"}])
    web.run([{"d": "2026-01-02T03:04:05"}], [{"d": "2026-01-03"}])
    web = batches(table={"columns": [{"name": "d", "type": "date"}]})
    intent, _ = web.run([{"d": "2026-01-04"}, {"d": "2026-01-04T00:00:01"}])
    assert (intent.runs, intent.counts.dead) == (1, 0)
    assert types(web) == {"d": "timestamp_ntz"}
    assert [str(row["d"]) for row in read(web)] == [
        "2026-01-02 00:00:00",
        "2026-01-02 03:04:05",
        "2026-01-03 00:00:00",
        "2026-01-04 00:00:00",
        "2026-01-04 00:00:01",
    ]


def test_arrays_and_maps_widen_inside(batches: Any) -> None:
    columns = [{"name": "l", "type": "array<int>"}, {"name": "m", "type": "map<string,struct<x: short>>"}]
    web = batches(table={"columns": columns})
    web.run([{"l": [1], "m": {"k": {"x": 1}}}])
    web.run([{"l": [2**40], "m": {"k": {"x": 70_000}}}])
    assert types(web) == {"l": "array<long>", "m": "map<string,struct<x: integer>>"}
    assert [(row["l"], row["m"]["k"]["x"]) for row in read(web)] == [([1], 1), ([2**40], 70_000)]


def test_partitions_properties_and_required_columns_are_those_of_the_spec(batches: Any) -> None:
    columns = [{"name": "id", "type": "int", "nullable": False}, {"name": "day", "type": "string"}]
    table = {"columns": columns, "partition_by": ["day"], "properties": {"delta.appendOnly": "true"}}
    web = batches(table=table)
    web.run([{"id": 1, "day": "a"}, {"id": 2, "day": None}], [{"day": "b"}])
    state = load_state(Store(f"{web.lake}/web"))
    assert state is not None
    assert state.partition_by == ("day",)
    ours = {"delta.enableTypeWidening": "true", "headrace.writer": "spark"}
    assert state.properties == {"delta.appendOnly": "true", **ours}
    assert [item.nullable for item in state.schema] == [False, True, True]
    web.run([{"id": 2**40, "day": "b"}])
    assert [(row["id"], row["day"]) for row in read(web)] == [(1, "a"), (2, None), (2**40, "b")]
    assert sorted(path.name for path in (web.lake / "web").glob("day=*")) == [
        "day=__HIVE_DEFAULT_PARTITION__",
        "day=a",
        "day=b",
    ]


@pytest.mark.parametrize("point", [Point.AFTER_TABLE_CREATION, Point.AFTER_COMMIT, Point.BEFORE_LEDGER_WRITE])
def test_a_death_while_the_table_is_made_leaves_one_table_with_every_row_once(batches: Any, point: Point) -> None:
    web = batches(table={"columns": NARROW})
    with faults.armed(point, "abandon"), pytest.raises(Abandoned):
        web.run([{"id": 1}, {"id": 2}])
    made = load_state(Store(f"{web.lake}/web"))
    assert made is not None
    web = batches(table={"columns": NARROW})
    assert web.pipeline.summary.recovered == 1
    web.run([{"id": 2**40}])
    after = load_state(Store(f"{web.lake}/web"))
    assert after is not None
    assert after.table_id == made.table_id
    assert [row["id"] for row in read(web)] == [1, 2, 2**40]


@pytest.mark.parametrize("point", [Point.AFTER_SCHEMA_CHANGE, Point.AFTER_COMMIT])
def test_a_death_while_types_widen_leaves_every_row_once(batches: Any, point: Point) -> None:
    web = batches(table={"columns": NARROW})
    web.run([{"id": 1, "v": 1}])
    begun = web.offset
    with faults.armed(point, "abandon"), pytest.raises(Abandoned):
        web.run([{"id": 2**40, "v": 1.5}])
    decided = point is Point.AFTER_COMMIT
    web = batches(table={"columns": NARROW})
    assert web.pipeline.summary.recovered == decided
    if not decided:
        web.offset = begun
        web.run([{"id": 2**40, "v": 1.5}])
    assert [(row["id"], row["v"]) for row in read(web)] == [(1, 1.0), (2**40, 1.5)]


def test_half_a_widening_is_finished_by_the_next(spark: Any, lake: Path) -> None:
    """Three places ask, one of them has been widened when the driver dies: the others are what is left to do."""
    store = Store(f"{lake}/t")
    table = f"delta.`{store.spark_uri}`"
    widening = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true', 'delta.columnMapping.mode' = 'name')"
    spark.sql(f"CREATE TABLE {table} (a INT, b INT, `odd ``name` STRUCT<c: INT>) USING delta {widening}")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN a TYPE BIGINT")
    heir = LeasedWriter(lambda: spark, store, "shop", Store(f"{lake}/tombstones"), 0)
    wide = (pa.int64(), pa.int64(), pa.struct([pa.field("c", pa.float64())]))
    wanted = pa.schema([item.with_type(kind) for item, kind in zip(heir.writable(), wide, strict=True)])
    for _ in range(2):
        heir.evolve(wanted)
        assert heir.state is not None
        assert [type_name(item.type) for item in heir.state.schema] == ["long", "long", "struct<c: double>"]
        assert heir.state.version == 3


def test_a_table_of_others_gets_the_feature_with_its_first_widening(batches: Any, spark: Any, lake: Path) -> None:
    source = "STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"
    spark.sql(f"CREATE TABLE delta.`{lake}/web` (id INT, _source {source}) USING delta")
    web = batches()
    web.run([{"id": 1}])
    state = load_state(Store(f"{lake}/web"))
    assert state is not None
    assert append_blocker(state) is None
    web.run([{"id": 2**40}])
    state = load_state(Store(f"{lake}/web"))
    assert state is not None
    assert "typeWidening" in state.protocol.reader_features
    web = batches()
    web.run([{"id": 2**41}])
    assert [row["id"] for row in read(web)] == [1, 2**40, 2**41]


def test_a_table_written_through_its_log_cannot_be_given_the_feature(spark: Any, lake: Path) -> None:
    plain = Batches(spark, lake)
    plain.run([{"id": 1}])
    plain.lease.release()
    later = Pipeline(spec_of(table={"path": f"{lake}/web", **WIDEN}), lambda: spark, recovery=StartupRecovery())
    with later.take_lease():
        later.open_ledger()
        with pytest.raises(TableFeature, match="features that only Spark may write"):
            later.tables.open()


def test_the_log_reader_and_the_schema_reader_take_what_widening_leaves(batches: Any) -> None:
    web = batches(table={"columns": NARROW})
    web.run([{"id": 1}])
    web.run([{"id": 2**40}])
    state = load_state(Store(f"{web.lake}/web"))
    assert state is not None
    raw = {item["name"]: item for item in json.loads(state.schema_json)["fields"]}
    assert raw["id"]["metadata"]["delta.typeChanges"][0]["toType"] == "long"
