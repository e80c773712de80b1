"""Schema evolution: add fields by a schema, by new records, and see what is refused."""

from __future__ import annotations

from dataclasses import replace

from headrace.compat.builder import (
    DeltaConfig,
    DeltaFieldType,
    DeltaLakeConnector,
    DeltaSchema,
    SchemaMismatch,
    UpsertOperation,
)


def main() -> None:
    config = DeltaConfig().with_table_path("lake/schema_evolution").with_table_name("telemetry_data")
    schema = (
        DeltaSchema()
        .with_field("id", DeltaFieldType.String, True)
        .with_field("timestamp", DeltaFieldType.Timestamp, False)
        .with_field("service_name", DeltaFieldType.String, False)
        .with_field("duration_ms", DeltaFieldType.Long, False)
        .with_field("attributes", DeltaFieldType.Map, False)
    )
    table = DeltaLakeConnector(config).get_or_create_table(schema)
    old = {"id": "span_1", "service_name": "web-service", "duration_ms": 150, "attributes": {"region": "eu"}}
    table.upsert(UpsertOperation().with_records([old]).with_merge_key("id"))

    # Add fields by a schema. Rows that were there have NULL in them.
    evolved = schema.with_field("user_id", DeltaFieldType.String, False)
    table.update_schema(evolved)

    # A new field in a record becomes a column.
    new = {"id": "span_2", "service_name": "web-service", "duration_ms": 90, "user_id": "ann", "session_id": "s1"}
    table.upsert(UpsertOperation().with_records([new]).with_merge_key("id"))
    print(f"Columns: {', '.join(table.get_metadata().schema.names)}")
    for record in table.query().select(["id", "user_id", "session_id"]).order_by("id").execute().records:
        print(f"Record: {record}")

    # A type that the old values do not have is refused.
    try:
        table.update_schema(DeltaSchema().with_field("duration_ms", DeltaFieldType.String))
    except SchemaMismatch as error:
        print(f"Refused: {error.name}")

    # In strict mode, so is a new field.
    strict = DeltaLakeConnector(replace(config, strict_mode=True)).get_table()
    try:
        strict.upsert(UpsertOperation().with_records([{"id": "span_3", "colour": "red"}]).with_merge_key("id"))
    except SchemaMismatch as error:
        print(f"Refused in strict mode: {error.name}")


if __name__ == "__main__":
    main()
