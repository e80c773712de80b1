"""What every format promises: bytes in, typed rows and rejects out, nothing raised but a Stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

from headrace.decode.registry import Registered
from headrace.decode.structure import Structure
from headrace.reasons import Reason

NewField = Literal["ignore", "evolve", "rescue", "reject", "stop"]

DETAIL = 512  # characters a detail may have


@dataclass(frozen=True, slots=True)
class Limits:
    """How large, deep and wide one value may be, and how many rows it may hold."""

    record_bytes: int = 16 * 1024 * 1024
    depth: int = 64
    keys: int = 10_000
    rows: int = 100_000


@dataclass(frozen=True, slots=True)
class Rejects:
    """Values that could not become rows: position, reason and detail, as columns of equal length."""

    index: list[int] = field(default_factory=list)
    reason: list[Reason] = field(default_factory=list)
    detail: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.index)

    def add(self, index: int, reason: Reason, detail: str) -> None:
        """One more; the detail is cut to its limit."""
        self.index.append(index)
        self.reason.append(reason)
        self.detail.append(detail[:DETAIL])

    def add_all(self, index: Iterable[int], reason: Reason, detail: str) -> None:
        """Many positions with one reason and one detail."""
        for position in index:
            self.add(int(position), reason, detail)

    def in_order(self) -> Rejects:
        """The same, ascending by position."""
        order = sorted(range(len(self)), key=self.index.__getitem__)
        return Rejects(
            [self.index[at] for at in order], [self.reason[at] for at in order], [self.detail[at] for at in order]
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """One column of values, decoded: each input position is in `index` or in `rejects`, never in both.

    Where a value may hold many rows, it is in `index` once for each, and one that holds none is in neither.
    """

    rows: pa.Table  # exactly the payload schema, only good values
    index: pa.Int64Array  # position in the input of each row, ascending
    rejects: Rejects
    unknown: Structure | None = None  # what `evolve` would add, over otherwise good values
    ignored: dict[str, int] = field(default_factory=dict)  # dotted names of ignored new fields, with counts


class Decoder(Protocol):
    """A format bound to a payload schema."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Typed rows and rejects of a column of values."""
        ...

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a JSON pointer or dotted path as text, NULL where absent; unreadable values are rejects."""
        ...


@runtime_checkable
class Typed(Protocol):
    """A format whose values tell their type."""

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The type of each value, NULL where it tells none; unreadable values are rejects."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A format that can tell from a registry's schema alone what would become of its records."""

    def foresee(self, schema: Registered) -> tuple[str, Decoded]:
        """The type, and what becomes of one record with a value in every field; UnknownSchema when none could be."""
        ...


def fills_of(decoder: Decoder) -> Mapping[str, str]:
    """Columns that a decoder asks to be taken from the record where the value is silent, and what of the record."""
    fills: Mapping[str, str] = getattr(decoder, "fills", {})
    return fills
