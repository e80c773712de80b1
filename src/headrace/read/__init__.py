"""Sources: where envelopes come from. A source is one file here and one line in the table below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.batch import Range
from headrace.spec import Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Partition = tuple[str, int]  # topic, partition
Offsets = dict[Partition, int]  # the next offset to read


@dataclass(frozen=True)
class Bounds:
    """What a partition holds now: `[earliest, latest)`."""

    earliest: int
    latest: int


class Source(Protocol):
    """Reads envelopes; knows where its partitions begin and end. Asking twice changes nothing."""

    def topics(self) -> dict[str, str]:
        """Topic names with the ids the broker gave them."""

    def bounds(self) -> dict[Partition, Bounds]:
        """Earliest and latest offsets of every partition, under the spec's isolation."""

    def start(self) -> Offsets:
        """Where the spec says to begin, resolved to offsets."""

    def stream(self, spark: SparkSession, position: Offsets, limits: Mapping[str, int | str]) -> DataFrame:
        """A streaming frame of envelopes from `position` on."""

    def read(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """A plain frame of exactly these ranges."""

    def ends(self, offset: str) -> Offsets:
        """The end offsets in the text Spark keeps for a batch."""

    def tail(self, count: int, where: str) -> Any:
        """The last (or first) `count` envelopes of each topic as an Arrow table, without Spark."""

    def lag(self, position: Offsets) -> tuple[int, float | None]:
        """Records that wait, and the age of the oldest of them in seconds (None when it cannot be told)."""

    def close(self) -> None:
        """Let connections go."""


def _kafka(spec: Spec) -> Source:
    from headrace.read.kafka import KafkaSource

    return KafkaSource(spec)


def _generate(spec: Spec) -> Source:
    from headrace.read.generate import GenerateSource

    return GenerateSource(spec)


SOURCES: dict[str, Callable[[Spec], Source]] = {"kafka": _kafka, "generate": _generate}


def open_source(spec: Spec) -> Source:
    """The source a spec names."""
    return SOURCES[spec.source_kind](spec)


ENVELOPE_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType AS timestamp_type",
    "key",
    "value",
    "headers",
)
