"""Spec keys that several parts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.encodings import Encoding
from bench.records import FIELDS

_COMPUTED = {  # column: expression and type
    "day": ("substr(timestamp, `0`, `10`)", "string"),
    "user_id": ("user.id", "bigint"),
    "country": ("user.country", "string"),
    "plan": ("user.plan || 'free'", "string"),
    "first_tag": ("tags[0]", "string"),
    "tag_count": ("length(tags)", "int"),
    "failed": ("status >= `400`", "boolean"),
    "since": ("epoch_seconds_to_iso8601(user.id)", "string"),
    "kafka_offset": ("kafka.offset", "bigint"),
    "kafka_partition": ("kafka.partition", "int"),
}
TEN: Mapping[str, Any] = {
    "transform": [{"jmespath": {name: text for name, (text, _) in _COMPUTED.items()}}],
    "columns": {**FIELDS, **{name: kind for name, (_, kind) in _COMPUTED.items()}},
}
"""Ten JMESPath transforms as users of kafka-delta-ingest write them."""

UNLIKE: Mapping[str, Any] = {"contract": {"new_field": "evolve"}}
"""Tables that add a column for each new field."""


def by_type(table: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One table per type; each drain creates the tables."""
    return {"route": "event_type", "table": table or {}}


def with_registry(encoding: Encoding, registry: str) -> dict[str, Any]:
    """Values of a format with a schema registry."""
    return {"spec": {"decode": {encoding.format: {"registry": registry}}}}
