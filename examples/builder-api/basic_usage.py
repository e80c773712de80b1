"""Basic usage: configure a table, upsert a record, query it."""

from __future__ import annotations

from headrace.compat.builder import DeltaConfig, DeltaLakeConnector, DeltaSchema, UpsertOperation


def main() -> None:
    config = (
        DeltaConfig()
        .with_table_path("lake/basic_usage")
        .with_table_name("telemetry_data")
        .with_partition_by(["service_name", "date"])  # `date` comes from `timestamp`
        .with_optimize_enabled(True)
        .with_vacuum_enabled(True)
    )
    schema = (
        DeltaSchema()
        .with_field("id", "string", True)  # the third value: never NULL
        .with_field("timestamp", "timestamp", False)
        .with_field("service_name", "string", False)
        .with_field("duration_ms", "long", False)
        .with_field("status_code", "int", False)
    )
    table = DeltaLakeConnector(config).get_or_create_table(schema)

    span = {
        "id": "span_123",
        "timestamp": "2024-01-01T00:00:00Z",
        "service_name": "web-service",
        "duration_ms": 150,
        "status_code": 200,
    }
    result = table.upsert(UpsertOperation().with_records([span]).with_merge_key("id"))
    print(f"Upserted {result.upserted_count} records")

    # The same key again: the row is replaced.
    result = table.upsert(UpsertOperation().with_records([{**span, "duration_ms": 90}]).with_merge_key("id"))
    print(f"Inserted {result.inserted_count}, updated {result.updated_count}")

    query = table.query().filter("service_name = 'web-service'").select(["id", "timestamp", "duration_ms"])
    for record in query.execute().records:
        print(f"Record: {record['id']} {record['timestamp'].isoformat()} {record['duration_ms']} ms")


if __name__ == "__main__":
    main()
