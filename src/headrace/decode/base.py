"""What every format promises: bytes in, typed rows and rejects out, nothing raised but a Stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from headrace.decode.byte_scan import Numbers
from headrace.decode.inference import Structure, merge_inferred
from headrace.decode.registry.client import Registered
from headrace.reasons import Reason

NewField = Literal["ignore", "evolve", "rescue", "reject", "stop"]

DETAIL = 512  # characters a detail may have
NAMES = 200  # ignored fields that are counted by name, and characters of a name; the others together
UNTOLD = "…"  # ignored new fields that are too many to be told by name


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """How large, deep and wide one value may be, and how many rows it may hold."""

    record_bytes: int = 16 * 1024 * 1024
    depth: int = 64
    keys: int = 10_000
    rows: int = 100_000
    values: int = 1_000_000  # of one JSON text, arrays and objects among them
    new_columns: int = 500  # that one value may ask for, nested fields included
    repeated_bytes: int = 256_000_000  # of what all rows of one record have in common


LIMITS = DecodeLimits()


@dataclass(frozen=True, slots=True)
class Rejects:
    """Values that could not become rows: position, reason and detail, as columns of equal length."""

    index: list[int] = field(default_factory=list)
    reason: list[Reason] = field(default_factory=list)
    detail: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[tuple[int, Reason, str]]:
        return zip(self.index, self.reason, self.detail, strict=True)

    def add(self, index: int, reason: Reason, detail: str) -> None:
        """One more; the detail is cut to its limit."""
        self.index.append(index)
        self.reason.append(reason)
        self.detail.append(detail[:DETAIL])

    def add_all(self, index: Iterable[int], reason: Reason, detail: str) -> None:
        """Many positions with one reason and one detail."""
        for position in index:
            self.add(int(position), reason, detail)

    def join(self, others: Rejects, at: Numbers | None = None) -> None:
        """Take others in; `at` says where in the input the values are that their positions mean."""
        self.index.extend(others.index if at is None else at[others.index].tolist())
        self.reason.extend(others.reason)
        self.detail.extend(others.detail)

    def firsts(self) -> Rejects:
        """The first of each position."""
        known: dict[int, tuple[Reason, str]] = {}
        for position, reason, detail in self:
            known.setdefault(position, (reason, detail))
        return Rejects([*known], [reason for reason, _ in known.values()], [detail for _, detail in known.values()])

    def and_then(self, more: Rejects) -> Rejects:
        """With more of them, ascending; of a position that is in both, the first speaks."""
        rejects = Rejects()
        rejects.join(self)
        rejects.join(more)
        return rejects.firsts().in_order()

    def without(self, reason: Reason) -> Rejects:
        """The same, without those of one reason."""
        kept = Rejects()
        for index, why, detail in self:
            if why is not reason:
                kept.add(index, why, detail)
        return kept

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
class TypedDecoder(Protocol):
    """A format whose values tell their type."""

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The type of each value, NULL where it tells none; unreadable values are rejects."""
        ...


@runtime_checkable
class SchemaPredictor(Protocol):
    """A format that can tell from a registry's schema alone what would become of its records."""

    def foresee(self, schema: Registered) -> tuple[str, Decoded]:
        """The type, and what becomes of one record with a value in every field; UnknownSchema when none could be."""
        ...


def fills_of(decoder: Decoder) -> Mapping[str, str]:
    """Columns that a decoder asks to be taken from the record where the value is silent, and what of the record."""
    fills: Mapping[str, str] = getattr(decoder, "fills", {})
    return fills


def join_rejects(parts: list[Decoded], schema: pa.Schema) -> Decoded:
    """Parts of one input, decoded apart, as one answer in the order of the input."""
    rejects, ignored, unknown = Rejects(), Counter[str](), None
    for part in parts:
        rejects.join(part.rejects)
        ignored.update(part.ignored)
        if part.unknown:
            unknown = merge_inferred(unknown, part.unknown) if unknown else part.unknown
    filled = [part.rows for part in parts if len(part.index)] or [part.rows for part in parts]
    rows = pa.concat_tables(filled) if filled else schema.empty_table()
    index = np.concatenate([part.index.to_numpy() for part in parts]) if parts else np.zeros(0, np.int64)
    if len(parts) > 1:
        order = np.argsort(index, kind="stable")
        index = index[order]
        rows = rows.take(pa.array(order)) if rows.column_names else rows
    return Decoded(rows.combine_chunks(), pa.array(index), rejects.in_order(), unknown, dict(ignored))


def too_many(structure: Structure, columns: int, limits: DecodeLimits) -> str:
    """What a dead letter says of a record with more new fields than there is room for."""
    name = next(iter(structure.get("fields", {})), "")[:100]
    return f"{name}: {columns} new columns, {limits.new_columns} may be added (limits.new_columns, limits.columns)"


def few(names: Mapping[str, int]) -> dict[str, int]:
    """Counts of ignored fields, whose names producers choose: so many, and so long, as a ledger can hold."""
    counts: Counter[str] = Counter()
    for name, count in names.items():
        counts[name if len(name) <= NAMES else name[:NAMES] + UNTOLD] += count
    others = counts.pop(UNTOLD, 0)
    kept = dict(counts.most_common(NAMES)) if len(counts) > NAMES else dict(counts)
    others += counts.total() - sum(kept.values())
    return {**kept, UNTOLD: others} if others else kept
