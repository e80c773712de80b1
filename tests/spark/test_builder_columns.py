"""The builder API renames, drops and widens columns through Spark once the feature is enabled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.compat.builder import BulkInsertOperation, DeltaConfig, DeltaLakeConnector, DeltaSchema


def test_columns_are_renamed_dropped_and_widened(spark: Any, tmp_path: Path) -> None:
    schema = DeltaSchema().with_field("id", "int").with_field("note", "string").with_field("shop", "string")
    table = DeltaLakeConnector(DeltaConfig().with_table_path(tmp_path / "t")).get_or_create_table(schema)
    table.bulk_insert(BulkInsertOperation().with_records([{"id": 1, "note": "a", "shop": "north"}]))
    assert table.enable_feature("columnMapping").enabled
    assert table.enable_feature("typeWidening").enabled

    assert table.rename_columns({"note": "remark"}).schema.names == ["id", "remark", "shop"]
    assert table.drop_columns("shop").schema.names == ["id", "remark"]
    widened = table.update_schema(DeltaSchema().with_field("id", "long"))
    assert str(widened.schema.field("id").type) == "int64"

    table.bulk_insert(BulkInsertOperation().with_records([{"id": 2**40, "remark": "b"}]))
    rows = table.query().order_by("id").execute().records
    assert rows == [{"id": 1, "remark": "a"}, {"id": 2**40, "remark": "b"}]
    assert spark.read.format("delta").load(str(tmp_path / "t")).columns == ["id", "remark"]
