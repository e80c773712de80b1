"""Start position of a source whose records have offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.base import SpecModel, exactly_one, word_or_mapping
from headrace.spec.units import Moment


def first_offsets(value: Any) -> Any:
    """Validate start offsets: by partition, or by topic and partition, but not both."""
    inner = list(value.values()) if isinstance(value, Mapping) else []
    nested = bool(inner) and all(isinstance(item, Mapping) and item for item in inner)
    pairs = [pair for offsets in (inner if nested else [value] if inner else []) for pair in offsets.items()]
    if not pairs or not all(_PARTITION.fullmatch(str(number)) and _is_offset(first) for number, first in pairs):
        raise ValueError("start offsets by partition: {0: 12}, or by topic and partition: {orders: {0: 12}}")
    return value


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


_PARTITION = re.compile(r"[0-9]{1,9}")
Offsets = Annotated[Mapping[str, int | Mapping[str, int]], BeforeValidator(first_offsets)]


class StartAt(SpecModel):
    """Start position by timestamp or by offsets."""

    timestamp: Moment | None = Field(
        default=None, description="Start at the first record at or after this RFC 3339 timestamp with time zone."
    )
    offsets: Offsets | None = Field(
        default=None,
        description="Start offset of each partition: `{0: 12}` for a single topic, `{orders: {0: 12}}` for "
        "several. Other partitions start at the earliest offset.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> StartAt:
        exactly_one(self, "timestamp", "offsets")
        return self

    def offsets_by_topic(self, topics: Sequence[str]) -> dict[str, dict[int, int]]:
        """Start offsets by topic and partition; without a topic, they apply to the only topic."""
        by_topic: dict[str, dict[int, int]] = {}
        for name, offsets in (self.offsets or {}).items():
            if isinstance(offsets, Mapping):
                by_topic[name] = {int(partition): offset for partition, offset in offsets.items()}
            elif topics:
                by_topic.setdefault(topics[0], {})[int(name)] = offsets
        return by_topic


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("word")] | Annotated[StartAt, Tag("mapping")],
    Discriminator(word_or_mapping),
]
