"""Columns that all peers write. Imports nothing of Headrace, so that a consumer starts without it."""

from __future__ import annotations

import pyarrow as pa

SOURCE = pa.field(
    "_source",
    pa.struct(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
        ]
    ),
)
HEADERS = pa.field("headers", pa.map_(pa.string(), pa.binary()))
FIELDS = {
    "id": "bigint",
    "event_type": "string",
    "timestamp": "timestamp",
    "session_id": "string",
    "user": "struct<id: bigint, country: string, plan: string>",
    "url": "string",
    "status": "int",
    "duration_ms": "double",
    "amount": "double",
    "tags": "array<string>",
    "ok": "boolean",
}
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("event_type", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("session_id", pa.string()),
        ("user", pa.struct([("id", pa.int64()), ("country", pa.string()), ("plan", pa.string())])),
        ("url", pa.string()),
        ("status", pa.int32()),
        ("duration_ms", pa.float64()),
        ("amount", pa.float64()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("ok", pa.bool_()),
        HEADERS,
        SOURCE,
    ]
)
