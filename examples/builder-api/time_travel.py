"""Time travel: query a table as it was, by version and by timestamp, and list its history."""

from __future__ import annotations

from typing import Any

from headrace.compat.builder import (
    BulkInsertOperation,
    DeleteOperation,
    DeltaConfig,
    DeltaLakeConnector,
    TimeTravelQueryOperation,
)


def generate_telemetry_data() -> list[dict[str, Any]]:
    return [
        {
            "id": f"span_{number}",
            "timestamp": "2024-01-01T00:00:00Z",
            "service_name": "web-service",
            "duration_ms": 100 + number % 200,
            "status_code": 500 if number % 10 == 0 else 200,
        }
        for number in range(1000)
    ]


def main() -> None:
    config = (
        DeltaConfig()
        .with_table_path("lake/time_travel")
        .with_table_name("telemetry_data")
        .with_partition_by(["service_name", "date", "hour"])
        .with_retention_hours(168)
        .with_compression("SNAPPY")
    )
    table = DeltaLakeConnector(config).get_or_create_table()  # created by the first write, from its records

    spans = BulkInsertOperation().with_records(generate_telemetry_data())
    result = table.bulk_insert(spans.with_partition_path("service_name=web-service/date=2024-01-01"))
    print(f"Bulk inserted {result.inserted_count} records")
    inserted = table.get_history().versions[0]

    deleted = table.delete(DeleteOperation().with_condition("status_code = 500"))
    print(f"Deleted {deleted.deleted_count} records")

    by_version = TimeTravelQueryOperation().with_version(inserted.version).with_filter("status_code = 500")
    print(f"Errors in version {inserted.version}: {len(table.time_travel_query(by_version).records)}")
    print(f"Errors now: {len(table.query().filter('status_code = 500').execute().records)}")

    assert inserted.timestamp is not None
    by_timestamp = TimeTravelQueryOperation().with_timestamp(inserted.timestamp.isoformat())
    print(f"Records at the time of the insert: {len(table.time_travel_query(by_timestamp).records)}")

    for version in table.get_history().versions:
        print(f"Version {version.version}: {version.num_records} records, {version.operation}")


if __name__ == "__main__":
    main()
