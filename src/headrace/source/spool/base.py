"""What the writer and the source need of the storage of a spool, on local disk or in an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from headrace.errors import SourceGap, StorageUnreachable
from headrace.source.spool.block import Block
from headrace.source.spool.layout import SpoolIdentity
from headrace.source.spool.log import NewBlock, RecoveredRequest


class WriteUnsettled(StorageUnreachable):
    """A write may or may not be stored. `settle` repeats it, and returns its first offsets, or raises this again."""

    settle: Callable[[], dict[str, int]]


class BlockLog(Protocol):
    """The blocks of a spool, for its only writer. Without threads."""

    def recover(self) -> list[RecoveredRequest]:
        """Find the end of each topic; returns the requests that can still be repeated."""

    def ends(self) -> dict[str, int]:
        """The durable end of each topic."""

    def size(self) -> int:
        """Bytes that are stored."""

    def committed(self) -> dict[str, int]:
        """The offsets before which records may be deleted."""

    def add_topic(self, topic: str) -> None:
        """Create a topic if it does not exist."""

    def write(self, blocks: Mapping[str, NewBlock]) -> dict[str, int]:
        """Append a block to each topic, durably; returns the first offsets.

        After a transient error nothing is stored, except after WriteUnsettled.
        """

    def is_trim_due(self, *, is_full: bool) -> bool:
        """Whether to read the committed position and to trim now."""

    def trim(self, position: Mapping[str, int], *, is_full: bool = False) -> None:
        """Delete records before the position, and requests that are too old."""

    def close(self) -> None:
        """Release what is open."""


class BlockReader(Protocol):
    """The durable blocks of a spool, for any process. Can be pickled for tasks."""

    def identity(self) -> SpoolIdentity | None:
        """Which spool it is; None if it does not exist yet."""

    def ends(self) -> dict[str, int]:
        """The durable end of each topic."""

    def first(self, topic: str) -> int:
        """The offset of the oldest record, or the end if there is none."""

    def commit(self, position: dict[str, int]) -> None:
        """Allow the writer to delete the records before a position."""

    def time_of(self, topic: str, offset: int) -> int | None:
        """When the record was stored, in milliseconds since 1970; None if it was deleted meanwhile."""

    def blocks(self, topic: str, start: int, until: int) -> Iterator[Block]:
        """The blocks with the records of a range; SourceGap if some are deleted, SpoolDamaged if changed or missing."""


def source_gap(topic: str, start: int, until: int) -> SourceGap:
    """The error for records that are deleted and have not been read."""
    return SourceGap(
        f"The spool of topic '{topic}' no longer has offsets {start} to {until - 1}.",
        hint="Run `headrace resume SPEC --accept-gap` to record the gap and continue after it.",
        topic=topic,
    )
