"""The life of a Delta table through `headrace.Table`: no broker, no Spark and no Java."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import headrace
from headrace.errors import SchemaMismatch


def main() -> None:
    orders = headrace.Table.get_or_create(
        "lake/orders",
        {"id": "bigint!", "day": "date", "shop": "string", "amount": "decimal(12,2)"},
        partition_by=["day"],
    )

    # Insert: all records in one commit, or none.
    first, second = date(2026, 1, 1), date(2026, 1, 2)
    inserted = orders.bulk_insert(
        [
            {"id": 1, "day": first, "shop": "north", "amount": Decimal("9.90")},
            {"id": 2, "day": first, "shop": "south", "amount": Decimal("20")},
            {"id": 3, "day": second, "shop": "north"},  # without an amount
        ]
    )
    print(f"inserted {inserted.rows} rows in {inserted.files} files, version {inserted.version}")

    # A value that does not fit its column is refused, never converted.
    try:
        orders.bulk_insert([{"id": 4, "day": second, "shop": "east", "amount": "twelve"}])
    except SchemaMismatch as error:
        print(f"refused: {error.name}")

    # Upsert by key, update and delete by condition: one commit each.
    upserted = orders.upsert(
        [
            {"id": 3, "day": second, "shop": "north", "amount": Decimal("7.50")},
            {"id": 4, "day": second, "shop": "east", "amount": Decimal("12")},
            {"id": 5, "day": second, "shop": "east"},
        ],
        key="id",
    )
    print(f"upserted: {upserted.inserted} inserted, {upserted.updated} updated")
    updated = orders.update("shop = 'north'", {"amount": "amount + 1"})
    deleted = orders.delete("id = 2")
    print(f"updated {updated.rows} rows, deleted {deleted.rows}")

    # Query: now, and as it was.
    north = orders.query().where("shop = 'north'").select("id", "amount").order_by("id")
    print(f"north: {[(row['id'], str(row['amount'])) for row in north.records()]}")
    print(f"rows now: {orders.query().count()}, in version 1: {orders.query().at(version=1).count()}")

    # History, a new column, maintenance, and back to an older version.
    print(f"history: {', '.join(entry.operation for entry in orders.history())}")
    orders.update_schema(add={"note": "string"})
    orders.optimize()
    restored = orders.restore(version=1)
    print(
        f"restored version {restored.to}: {orders.query().count()} rows, columns {orders.query().arrow().column_names}"
    )


if __name__ == "__main__":
    main()
