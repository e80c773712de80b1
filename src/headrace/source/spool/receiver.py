"""The interfaces of a receiver, which accepts records, and of its destination: the spool, or topics of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from headrace.errors import HeadraceError
from headrace.source.spool.writer import Incoming, SpoolCounts

ReceiverReport = Callable[[dict[str, Any]], None]
"""Takes events: `{"event": "listening", "address": …}` for each address, and `{"event": "retry", …}`."""


class Acknowledgement(Protocol):
    """Durable records of a request."""

    @property
    def duplicate(self) -> bool:
        """Whether an earlier request has stored them."""

    @property
    def stored(self) -> int:
        """Number of records that are durable."""

    def results(self) -> list[str]:
        """Where each record is, or why it was refused, as JSON."""


class Destination(Protocol):
    """Where a receiver appends records. All methods are thread-safe."""

    def append(self, incoming: Incoming) -> Future[Any]:
        """Append the records; the future completes with an `Acknowledgement` when they are durable.

        An error, raised or of the future, means that the records are not acknowledged.
        """

    def check_room(self) -> None:
        """Raise the error that `append` would raise now."""

    @property
    def kind(self) -> str:
        """`spool` or `kafka`."""

    @property
    def counts(self) -> SpoolCounts:
        """What was appended since the start."""

    @property
    def failure(self) -> HeadraceError | None:
        """The error after which nothing can be appended until it is opened again."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the records that it holds."""

    def stored_records(self) -> int:
        """Number of records that it holds."""

    def close(self) -> None:
        """Store what waits, then close."""


class Receiver(Protocol):
    """Accepts records in threads of its own. It acknowledges a record only when the destination has confirmed it."""

    def start(self, spool: Destination, report: ReceiverReport) -> None:
        """Start receiving; raises an error if that is not possible with these settings."""

    def stop(self) -> None:
        """Stop receiving and end all threads, within a few seconds; may be called without a start."""

    def failure(self) -> HeadraceError | None:
        """The error that has ended it, if one has."""


@runtime_checkable
class ReceivingSource(Protocol):
    """A source whose records are received by a run of the pipeline, or by `headrace receive`."""

    def receive(self, report: ReceiverReport, *, accept: bool) -> None:
        """Open the destination if no other process has; with `accept`, start the receiver as well.

        May be called again after an error; what runs continues.
        """

    def open_destination(self) -> Destination:
        """Open the destination for `headrace receive`; LeaseHeld if another process writes the spool."""

    def new_receiver(self) -> Receiver:
        """A receiver with the settings of the spec."""

    def listed_topics(self) -> Sequence[str]:
        """Topics that exist before a record was received."""
