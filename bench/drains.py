"""What is drained beside the plain topic: keys of a spec that several parts share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.encodings import Encoding
from bench.records import FIELDS

_MADE = {  # column: its expression and its type
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
    "transform": [{"jmespath": {name: text for name, (text, _) in _MADE.items()}}],
    "columns": {**FIELDS, **{name: kind for name, (_, kind) in _MADE.items()}},
}
"""Ten JMESPath transforms as kafka-delta-ingest's users write them."""

UNLIKE: Mapping[str, Any] = {"contract": {"new_field": "evolve"}}
"""Tables that take what each type has of its own."""


def by_type(table: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A table for each type; every drain also makes the tables."""
    return {"route": "event_type", "table": table or {}}


def behind(encoding: Encoding, registry: str) -> dict[str, Any]:
    """Values of a format, by a registry."""
    return {"spec": {"decode": {encoding.format: {"registry": registry}}}}
