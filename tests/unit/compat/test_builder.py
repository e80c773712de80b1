"""The builder API: programs written in its style run line by line, in synchronous Python."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace import Table
from headrace.compat.builder import (
    BulkInsertOperation,
    ConcurrentModification,
    DeleteOperation,
    DeltaConfig,
    DeltaFieldType,
    DeltaLakeConnector,
    DeltaLakeError,
    DeltaSchema,
    DeltaTable,
    FeatureRequired,
    OperationDisabled,
    PartitionNotFound,
    SchemaMismatch,
    TableNotFound,
    TimeTravelQueryOperation,
    UpsertOperation,
)
from headrace.errors import UsageError
from headrace.importers.detect import import_file

TOML = """\
[deltalake]
table_path = "{path}"
table_name = "telemetry_data"
partition_by = ["service_name", "date", "hour"]

[deltalake.table]
optimize_enabled = true
vacuum_enabled = true
retention_hours = 168  # 7 days
compression = "SNAPPY"
parallelism = 4
batch_size = 10000

[deltalake.operations]
upsert_enabled = true
delete_enabled = true
bulk_insert_enabled = true
streaming_enabled = true

[deltalake.schema]
auto_evolution = true
strict_mode = false
allow_nullable = true
merge_schema = true

[deltalake.storage]
file_size_target = 134217728  # 128MB
file_size_max = 268435456     # 256MB
min_file_size = 67108864      # 64MB
"""


def generate_telemetry_data() -> list[dict[str, Any]]:
    return [
        {
            "id": f"span_{i}",
            "timestamp": "2024-01-01T00:00:00Z",
            "service_name": "web-service",
            "duration_ms": 100 + (i % 200),
            "status_code": 500 if i % 10 == 0 else 200,
        }
        for i in range(1000)
    ]


def config(tmp_path: Path, *by: str) -> DeltaConfig:
    return DeltaConfig().with_table_path(tmp_path / "telemetry").with_partition_by(by or ["service_name", "date"])


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """A thousand spans."""
    made = DeltaLakeConnector(config(tmp_path)).get_or_create_table()
    made.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()))
    return made


def test_basic_usage(tmp_path: Path) -> None:
    config = (
        DeltaConfig()
        .with_table_path(tmp_path / "delta" / "table")
        .with_table_name("telemetry_data")
        .with_partition_by(["service_name", "date"])
        .with_optimize_enabled(True)
        .with_vacuum_enabled(True)
    )
    connector = DeltaLakeConnector(config)
    table = connector.get_or_create_table()
    schema = (
        DeltaSchema()
        .with_field("id", "string", True)
        .with_field("timestamp", "timestamp", False)
        .with_field("service_name", "string", False)
        .with_field("duration_ms", "long", False)
        .with_field("status_code", "int", False)
    )
    assert schema.columns()["id"] == "string!"
    upsert_op = (
        UpsertOperation()
        .with_records(
            [
                {
                    "id": "span_123",
                    "timestamp": "2024-01-01T00:00:00Z",
                    "service_name": "web-service",
                    "duration_ms": 150,
                    "status_code": 200,
                }
            ]
        )
        .with_merge_key("id")
    )
    result = table.upsert(upsert_op)
    assert f"Upserted {result.upserted_count} records" == "Upserted 1 records"
    query_result = (
        table.query().filter("service_name = 'web-service'").select(["id", "timestamp", "duration_ms"]).execute()
    )
    assert [list(record) for record in query_result.records] == [["id", "timestamp", "duration_ms"]]
    assert table.name == "telemetry_data"
    assert table.get_metadata().partition_columns == ("service_name", "date")
    assert table.query().select(["date"]).execute().records == [{"date": date(2024, 1, 1)}]


def test_advanced_configuration(tmp_path: Path) -> None:
    config = (
        DeltaConfig()
        .with_table_path(tmp_path / "table")
        .with_table_name("telemetry_data")
        .with_partition_by(["service_name", "date", "hour"])
        .with_optimize_enabled(True)
        .with_vacuum_enabled(True)
        .with_retention_hours(168)
        .with_compression("SNAPPY")
        .with_parallelism(4)
        .with_batch_size(10000)
    )
    connector = DeltaLakeConnector(config)
    with pytest.warns(UserWarning, match="applies to the pipeline") as warned:
        table = connector.get_or_create_table()
    assert [str(each.message) for each in warned] == [
        "parallelism applies to the pipeline of a deltalake.toml, not to this table: an operation chooses its number "
        "of threads.",
        "batch_size applies to the pipeline of a deltalake.toml, not to this table: an operation is one commit, "
        "however many records it has.",
    ]
    bulk_op = (
        BulkInsertOperation()
        .with_records(generate_telemetry_data())
        .with_partition_path("service_name=web-service/date=2024-01-01")
    )
    result = table.bulk_insert(bulk_op)
    assert f"Bulk inserted {result.inserted_count} records" == "Bulk inserted 1000 records"
    for _ in range(5):
        table.upsert(UpsertOperation().with_records(generate_telemetry_data()[:1]).with_merge_key("id"))
    time_travel_query = TimeTravelQueryOperation().with_version(5).with_filter("service_name = 'web-service'")
    query_result = table.time_travel_query(time_travel_query)
    assert f"Time travel query returned {len(query_result.records)} records" == (
        "Time travel query returned 1000 records"
    )
    history = table.get_history()
    assert [(each.version, each.num_records) for each in history.versions][-2:] == [(1, 1000), (0, 0)]
    assert all(each.timestamp and each.operation and each.user for each in history.versions)
    assert table.query().select(["hour"]).limit(1).execute().records == [{"hour": 0}]


def test_a_configuration_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "deltalake.toml").write_text(TOML.format(path=tmp_path / "telemetry"))
    loaded = DeltaConfig.from_toml(tmp_path / "deltalake.toml")
    assert loaded.partition_by == ("service_name", "date", "hour")
    assert (loaded.retention_hours, loaded.batch_size, loaded.file_size_max) == (168, 10000, 268435456)
    with pytest.warns(UserWarning, match="applies to the pipeline"):
        table = DeltaLakeConnector(loaded).get_or_create_table()
    table.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()))
    properties = table.get_metadata().properties
    assert properties["delta.targetFileSize"] == "134217728"
    assert properties["delta.parquet.compression.codec"] == "snappy"


@pytest.mark.parametrize(
    "bad",
    [
        "[deltalake]\nfoo = 1",
        "[deltalake.table]\ntable_path = 'x'",
        "[deltalake]\npartition_by = 'date'",
        "[deltalake]\ntable = 'x'",
        "[deltalake]\npartition_buckets = 1",
        "[deltalake.operations]\nupsert_enabled = 'false'",
        "[deltalake.schema]\nstrict_mode = 1",
        "[deltalake.table]\nretention_hours = '168'",
        "[deltalake.table]\nretention_hours = -1",
        "[deltalake.table]\ncompression = 'BROTLI'",
        "[deltalake.table]\nparallelism = true",
        "[deltalake.storage]\nfile_size_target = '128MB'",
        "[deltalake.storage]\nfile_size_target = 100\nfile_size_max = 199",
        "[deltalake.storage]\nfile_size_target = 100\nmin_file_size = 101",
        "[deltalake]\n[operations]\nupsert_enabled = false",
        "deltalake = 3",
        "[",
        "",
        None,
    ],
)
def test_a_configuration_that_says_something_else_is_refused(tmp_path: Path, bad: str | None) -> None:
    if bad is not None:
        (tmp_path / "x.toml").write_text(bad)
    with pytest.raises(UsageError, match=r"x\.toml"):
        DeltaConfig.from_toml(tmp_path / "x.toml")


def test_what_is_switched_off_is_refused(tmp_path: Path, table: DeltaTable) -> None:
    (tmp_path / "off.toml").write_text(
        TOML.format(path=tmp_path / "telemetry")
        .replace("_enabled = true", "_enabled = false")
        .replace("parallelism = 4\nbatch_size = 10000\n", "")
    )
    off = DeltaLakeConnector(DeltaConfig.from_toml(tmp_path / "off.toml")).get_table()
    before = table.get_metadata().version
    for do in (
        lambda: off.upsert(UpsertOperation().with_records([{"id": "x"}]).with_merge_key("id")),
        lambda: off.delete(DeleteOperation().with_condition("true")),
        lambda: off.bulk_insert(BulkInsertOperation().with_records([{"id": "x"}])),
        lambda: off.optimize(),
        lambda: off.vacuum(),
        lambda: DeltaLakeConnector(off.config).delete_table(),
    ):
        with pytest.raises(OperationDisabled, match="is disabled for"):
            do()
    assert off.get_metadata().version == before


def test_connector(tmp_path: Path, table: DeltaTable) -> None:
    connector = DeltaLakeConnector(config(tmp_path))
    assert connector.get_table().get_metadata().version == 1
    assert connector.list_tables() == [str(tmp_path / "telemetry")]
    connector.delete_table()
    assert connector.list_tables() == []
    with pytest.raises(TableNotFound):
        connector.get_table()


def test_schema_definition_and_evolution(tmp_path: Path) -> None:
    schema = (
        DeltaSchema()
        .with_field("id", DeltaFieldType.String, True)
        .with_field("timestamp", DeltaFieldType.Timestamp, False)
        .with_field("service_name", DeltaFieldType.String, False)
        .with_field("duration_ms", DeltaFieldType.Long, False)
        .with_field("status_code", DeltaFieldType.Int, False)
        .with_field("attributes", DeltaFieldType.Map, False)
    )
    table = DeltaLakeConnector(config(tmp_path, "service_name")).get_or_create_table(schema)
    evolved_schema = schema.with_field("user_id", DeltaFieldType.String, False).with_field(
        "session_id", DeltaFieldType.String, False
    )
    table.update_schema(evolved_schema)
    assert table.get_metadata().schema.names == [each.name for each in evolved_schema.fields]
    span = {"id": "a", "service_name": "x", "status_code": 200, "attributes": {"k": "v"}, "user_id": "ann"}
    table.upsert(UpsertOperation().with_records([span]).with_merge_key("id"))
    assert table.query().execute().records[0]["attributes"] == {"k": "v"}
    with pytest.raises(SchemaMismatch):
        table.upsert(UpsertOperation().with_records([{"service_name": "x"}]).with_merge_key("user_id"))


def test_a_schema_says_what_a_table_cannot_become(tmp_path: Path, table: DeltaTable) -> None:
    before = table.get_metadata()
    retyped = DeltaSchema().with_field("id", "string").with_field("duration_ms", "string").with_field("user", "string")
    with pytest.raises(SchemaMismatch, match="cannot widen column duration_ms from long to string"):
        table.update_schema(retyped)
    with pytest.raises(SchemaMismatch, match="NOT NULL"):
        table.update_schema(DeltaSchema().with_field("id", "string", True))
    assert table.update_schema(DeltaSchema().with_field("id", "string")) == before, "what is not named stays"
    lazy = DeltaLakeConnector(config(tmp_path / "lazy", "a")).get_or_create_table()
    made = lazy.update_schema(DeltaSchema().with_field("a", "string").with_field("b", "struct<c:int>"))
    assert (made.version, made.partition_columns) == (0, ("a",))
    grown = lazy.update_schema(DeltaSchema().with_field("b", "struct<c:int,d:int>"))
    assert [each.name for each in grown.schema.field("b").type] == ["c", "d"]


def test_a_feature_is_enabled_only_without_a_dry_run(table: DeltaTable) -> None:
    before = table.get_metadata()
    plan = table.enable_feature("columnMapping", dry_run=True)
    assert (plan.version, plan.enabled, table.get_metadata()) == (before.version, False, before)
    with pytest.raises(FeatureRequired, match="columnMapping") as refused:
        table.rename_columns({"duration_ms": "duration"})
    assert "`enable_feature`" in refused.value.hint
    with pytest.raises(FeatureRequired, match="columnMapping"):
        table.drop_columns("duration_ms")
    done = table.enable_feature("columnMapping")
    assert (done.version, done.enabled, done.after) == (before.version + 1, True, plan.after)
    assert not table.enable_feature("columnMapping").enabled, "it already is"
    with pytest.raises(UsageError, match="Invalid feature"):
        table.enable_feature("dropColumns")


def test_time_travel(table: DeltaTable) -> None:
    table.delete(DeleteOperation().with_condition("status_code = 500"))
    by_version = TimeTravelQueryOperation().with_version(1).with_filter("service_name = 'web-service'")
    assert len(table.time_travel_query(by_version).records) == 1000
    then = table.get_history().versions[0].timestamp
    assert then is not None
    by_timestamp = TimeTravelQueryOperation().with_timestamp(then.isoformat()).with_select_fields(["id"])
    assert len(table.time_travel_query(by_timestamp).records) == 900
    with pytest.raises(DeltaLakeError, match="mutually exclusive"):
        table.time_travel_query(by_timestamp.with_version(1))


def test_optimization_and_maintenance(table: DeltaTable) -> None:
    table.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()[:5]))
    optimize_result = table.optimize()
    assert (optimize_result.files_optimized, optimize_result.z_order_columns) == (2, ())
    assert table.optimize(["id"]).z_order_columns == ("id",)
    assert table.vacuum(168).files_deleted == 0
    stats = table.get_statistics()
    assert stats.total_size > 0
    assert (stats.file_count, stats.partition_count, stats.record_count) == (1, 1, 1005)
    metadata = table.get_metadata()
    assert (metadata.version, metadata.partition_columns) == (4, ("service_name", "date"))
    table.upsert(UpsertOperation().with_records(generate_telemetry_data()[:1]).with_merge_key(["id"]))
    table.query().limit(1).execute()
    metrics = table.get_operation_metrics()
    assert all(each and each > 0 for each in (metrics.upsert_latency, metrics.query_latency, metrics.optimize_latency))


def test_files_are_optimized_to_their_sizes(tmp_path: Path) -> None:
    sized = config(tmp_path, "service_name").with_file_size_target(2**30)
    table = DeltaLakeConnector(sized).get_or_create_table()
    for _ in range(2):
        table.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data() * 50))
    size = table.get_statistics().total_size // 2
    assert DeltaTable(sized.having(min_file_size=1)).optimize().files_optimized == 0, "no file is that small"
    split = sized.having(file_size_target=size // 4, min_file_size=1, file_size_max=size // 2)
    assert DeltaTable(split).optimize().files_optimized == 2
    parts = table.get_statistics().file_count
    assert parts > 2
    assert (table.optimize().files_optimized, table.get_statistics().file_count) == (parts, 1)


def test_an_older_version_is_restored(table: DeltaTable) -> None:
    before = table.get_history().versions[0]
    table.delete(DeleteOperation().with_condition("true"))
    result = table.restore(1)
    assert (result.version, result.restored_version, result.next) == (3, 1, "")
    assert table.get_statistics().record_count == 1000
    table.delete(DeleteOperation().with_condition("status_code = 500"))
    assert before.timestamp is not None
    assert table.restore(timestamp=before.timestamp).restored_version == 1
    assert table.get_statistics().record_count == 1000
    with pytest.raises(DeltaLakeError, match="mutually exclusive"):
        table.restore(1, before.timestamp)
    with pytest.raises(DeltaLakeError, match="Specify"):
        table.restore()


def test_partitioning_strategies(tmp_path: Path) -> None:
    timed = DeltaLakeConnector(config(tmp_path / "a", "date", "hour", "service_name")).get_or_create_table()
    timed.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()))
    assert timed.get_statistics().partition_count == 1
    hashed = DeltaConfig().with_table_path(tmp_path / "b").with_partition_by(["id"]).with_partition_strategy("hash")
    table = DeltaLakeConnector(hashed).get_or_create_table()
    table.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()))
    assert table.get_metadata().partition_columns == ("id_bucket",)
    assert table.get_statistics().partition_count == hashed.partition_buckets
    done = table.upsert(UpsertOperation().with_records(generate_telemetry_data()).with_merge_key("id"))
    assert (done.inserted_count, done.updated_count) == (0, 1000), "a key is always in the same bucket"
    with pytest.raises(UsageError, match="Specify value or hash or time"):
        hashed.with_partition_strategy("range")


@pytest.mark.parametrize("strategy", ["value", "time", "hash"])
def test_builder_and_importer_accept_the_same_strategies(tmp_path: Path, strategy: str) -> None:
    text = '[deltalake]\ntable_path = "lake/spans"\npartition_by = ["date", "hour", "service_name"]\n'
    file = tmp_path / "deltalake.toml"
    file.write_text(f'{text}partition_strategy = "{strategy}"\n')
    imported = import_file(str(file), file.read_text(), {})
    assert imported is not None
    assert imported.findings.errors == []
    partitions = imported.drafts[0].plain()["table"]["partition_by"]
    names = [each if isinstance(each, str) else each["as"] for each in partitions]
    assert list(DeltaConfig.from_toml(file).columns) == names


def spans() -> pa.Table:
    """Three of the thousand, in Arrow's types."""
    rows = pa.Table.from_pylist(generate_telemetry_data()[:3])
    return rows.set_column(1, "timestamp", rows["timestamp"].cast(pa.timestamp("us", "UTC")))


FRAMES: dict[str, Callable[[], Any]] = {
    "tuple": lambda: tuple(generate_telemetry_data()[:3]),
    "generator": lambda: (each for each in generate_telemetry_data()[:3]),
    "arrow": spans,
    "reader": lambda: spans().to_reader(),
    "pandas": lambda: spans().to_pandas(),
    "nanoseconds": lambda: spans().to_pandas().astype({"timestamp": "datetime64[ns, UTC]", "id": "category"}),
    "polars": lambda: pl.DataFrame(spans()),
    "categories": lambda: pl.DataFrame(spans()).with_columns(pl.col("id").cast(pl.Categorical)),
    "texts": lambda: pd.DataFrame(generate_telemetry_data()[:3]),
}


@pytest.mark.parametrize("form", FRAMES)
@pytest.mark.parametrize("lazily", [True, False])
def test_records_of_every_form_get_their_partitions(tmp_path: Path, form: str, lazily: bool) -> None:
    timed = DeltaLakeConnector(config(tmp_path / "t", "date", "hour")).get_or_create_table()
    hashed = DeltaLakeConnector(config(tmp_path / "h", "id").with_partition_strategy("hash")).get_or_create_table()
    alike = DeltaLakeConnector(config(tmp_path / "a", "id").with_partition_strategy("hash")).get_or_create_table()
    alike.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()[:3]))
    for table in (timed, hashed):
        if not lazily:
            table.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()[:1]))
        done = table.upsert(UpsertOperation().with_records(FRAMES[form]()).with_merge_key("id"))
        assert (done.inserted_count, done.updated_count) == ((3, 0) if lazily else (2, 1))
    found = timed.query().select(["date", "hour"]).execute().records
    assert found == [{"date": date(2024, 1, 1), "hour": 0}] * 3
    buckets = [each.query().select(["id", "id_bucket"]).order_by("id").execute() for each in (hashed, alike)]
    assert buckets[0] == buckets[1], "the same whatever the records are"


def test_new_columns_of_a_frame_are_added(table: DeltaTable) -> None:
    more = spans().append_column("size", pa.array([1, 2, 3])).append_column("nothing", pa.nulls(3))
    assert table.upsert(UpsertOperation().with_records(more).with_merge_key("id")).updated_count == 3
    assert [each["size"] for each in table.query().filter("size > 1").order_by("size").execute().records] == [2, 3]
    assert "nothing" not in table.get_metadata().schema.names, "it has no type"


def test_a_schema_gets_the_partition_columns_that_are_made(tmp_path: Path) -> None:
    schema = DeltaSchema().with_field("id", "string", True).with_field("timestamp", "timestamp")
    timed = DeltaLakeConnector(config(tmp_path / "t", "date", "hour")).get_or_create_table(schema)
    assert timed.get_metadata().schema.names == ["id", "timestamp", "date", "hour"]
    timed.bulk_insert(BulkInsertOperation().with_records([{"id": "a", "timestamp": "2024-01-01T05:59:59Z"}]))
    assert timed.query().select(["date", "hour"]).execute().records == [{"date": date(2024, 1, 1), "hour": 5}]
    hashed = config(tmp_path / "h", "id").with_partition_strategy("hash")
    assert DeltaLakeConnector(hashed).get_or_create_table(schema).get_metadata().partition_columns == ("id_bucket",)
    with pytest.raises(UsageError, match="unknown column 'timestamp', required for 'date'"):
        DeltaLakeConnector(config(tmp_path / "n", "date")).get_or_create_table(DeltaSchema().with_field("id", "string"))


def test_what_a_record_says_of_its_partition_counts(tmp_path: Path) -> None:
    table = DeltaLakeConnector(config(tmp_path, "date")).get_or_create_table()
    said, unsaid = {"id": 1, "timestamp": "2024-01-01T00:00:00Z", "date": date(2020, 2, 2)}, {"id": 2, "date": None}
    table.bulk_insert(BulkInsertOperation().with_records([said, {**said, **unsaid}]))
    assert [each["date"] for each in table.query().order_by("id").execute().records] == [
        date(2020, 2, 2),
        date(2024, 1, 1),
    ]


def test_a_table_without_nulls(tmp_path: Path) -> None:
    table = DeltaLakeConnector(config(tmp_path, "date").having(allow_nullable=False)).get_or_create_table()
    table.bulk_insert(BulkInsertOperation().with_records(spans()))
    assert not any(item.nullable for item in table.get_metadata().schema)
    with pytest.raises(SchemaMismatch, match="duration_ms"):
        table.bulk_insert(BulkInsertOperation().with_records([{**generate_telemetry_data()[0], "duration_ms": None}]))


def test_a_table_has_a_place() -> None:
    with pytest.raises(UsageError, match="no table_path"):
        DeltaLakeConnector(DeltaConfig()).get_or_create_table()
    somewhere = DeltaConfig().with_table_path("s3://bucket/table")
    with pytest.raises(UsageError, match="unknown key: endpoints"):
        DeltaLakeConnector(somewhere.with_storage({"endpoints": "x"})).get_or_create_table()
    with pytest.raises(UsageError, match="Invalid storage: 'x'"):
        somewhere.with_storage("x")  # type: ignore[arg-type]


def test_one_column_may_be_a_text(table: DeltaTable) -> None:
    assert DeltaConfig().with_partition_by("date").partition_by == ("date",)
    asked = TimeTravelQueryOperation().with_version(1).with_select_fields("id")
    assert list(table.time_travel_query(asked).records[0]) == ["id"]
    assert list(table.query().select("id").limit(1).execute().records[0]) == ["id"]
    assert table.optimize("id").z_order_columns == ("id",)


@pytest.mark.parametrize(
    ("codec", "size"), [("SNAPPY", 134217728), ("GZIP", 67108864), ("uncompressed", 67108864), ("NONE", 67108864)]
)
def test_compression_and_storage(tmp_path: Path, codec: str, size: int) -> None:
    chosen = config(tmp_path).with_compression(codec).with_file_size_target(size)
    table = DeltaLakeConnector(chosen).get_or_create_table()
    table.bulk_insert(BulkInsertOperation().with_records(generate_telemetry_data()))
    (file,) = (tmp_path / "telemetry").rglob("*.parquet")
    assert file.name.endswith({"SNAPPY": ".snappy.parquet", "GZIP": ".gz.parquet"}.get(codec, ".c000.parquet"))
    said = table.get_metadata().properties["delta.parquet.compression.codec"]
    assert said == {"SNAPPY": "snappy", "GZIP": "gzip"}.get(codec, "none")
    assert len(table.query().execute().records) == 1000


def said(table: DeltaTable, operation: UpsertOperation) -> str:
    try:
        result = table.upsert(operation)
        return f"Upsert successful: {result.upserted_count} records"
    except SchemaMismatch as error:
        return f"Schema mismatch: expected {error.expected}, got {error.actual}"
    except ConcurrentModification as error:
        return f"Concurrent modification detected at version {error.version}"
    except PartitionNotFound as error:
        return f"Partition not found: {error.partition}"
    except DeltaLakeError as error:
        return f"Unexpected error: {error}"


def test_error_handling(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    span = generate_telemetry_data()[0]
    operation = UpsertOperation().with_records([span]).with_merge_key("id")
    assert said(table, operation) == "Upsert successful: 1 records"
    wrong = operation.with_records([{**span, "duration_ms": "long"}])
    assert said(table, wrong) == "Schema mismatch: expected long, got str"
    assert said(table, operation.with_partition_path("shop=x")) == "Partition not found: shop=x"
    twice = operation.with_records([span, span]).with_deduplication(False)
    assert said(table, twice).startswith("Unexpected error: 2 records have the key id = span_0.")
    monkeypatch.setattr("headrace.table.ownership._ATTEMPTS", 0)
    assert said(table, operation) == "Concurrent modification detected at version 2"


def test_new_fields_are_added_unless_it_is_strict(tmp_path: Path, table: DeltaTable) -> None:
    more = [{**generate_telemetry_data()[0], "user": "ann"}, {**generate_telemetry_data()[1], "size": 1.5}]
    strict = DeltaLakeConnector(config(tmp_path).having(strict_mode=True)).get_table()
    with pytest.raises(SchemaMismatch, match="no column 'user'"):
        strict.upsert(UpsertOperation().with_records(more).with_merge_key("id"))
    assert table.upsert(UpsertOperation().with_records(more).with_merge_key("id")).updated_count == 2
    assert table.query().filter("user = 'ann' or size > 1").order_by("id").execute().records[1]["size"] == 1.5


def test_records_that_are_refused_add_no_column(table: DeltaTable) -> None:
    span, before = {**generate_telemetry_data()[0], "user": "ann"}, table.get_metadata()
    upsert = UpsertOperation().with_merge_key("id").with_records
    for refused in (
        upsert([{**span, "id": None}]),
        upsert([{**span, "duration_ms": "long"}]),
        upsert([span, span]).with_deduplication(False),
        upsert([span]).with_partition_path("service_name=other"),
        upsert([span]).with_merge_key("key"),
        upsert([span]).with_merge_key([]),
    ):
        with pytest.raises(DeltaLakeError):
            table.upsert(refused)
    with pytest.raises(SchemaMismatch):
        table.bulk_insert(BulkInsertOperation().with_records(pa.Table.from_pylist([{**span, "duration_ms": 1.5}])))
    assert table.get_metadata() == before
    Table(table.config.table_path).set_properties({"delta.appendOnly": "true"})
    with pytest.raises(OperationDisabled, match="is append-only"):
        table.upsert(upsert([span]))
    assert table.get_metadata().schema == before.schema
    table.bulk_insert(BulkInsertOperation().with_records([span]))
    assert table.get_metadata().schema.names == [*before.schema.names, "user"]


def test_soft_deletes(table: DeltaTable) -> None:
    gone = DeleteOperation().with_condition("id = 'span_0'").with_hard_delete(False)
    done = table.delete(gone.with_partition_path("service_name=web-service"))
    assert done.deleted_count == 1
    assert table.query().filter("id = 'span_0'").execute().records == []


@pytest.mark.parametrize(
    "records",
    [
        [{"timestamp": "today"}],
        [{"a": 1}, {"a": "x"}],
        pd.DataFrame({"timestamp": ["today"]}),
        pa.table({"timestamp": [3]}),
        [{"timestamp": "2024-01-01T00:00:00Z"}, 5],
    ],
)
def test_records_that_make_no_table_are_refused(tmp_path: Path, records: Any) -> None:
    table = DeltaLakeConnector(config(tmp_path, "date")).get_or_create_table()
    with pytest.raises((SchemaMismatch, UsageError)):
        table.bulk_insert(BulkInsertOperation().with_records(records))
    assert not (tmp_path / "telemetry").exists()
