"""The contract of every format: bytes in, typed rows and rejects out; only errors that stop the pipeline are raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from headrace.decode.byte_scan import Numbers
from headrace.decode.inference import Structure, merge_inferred
from headrace.errors import ContractViolation
from headrace.reasons import Reason

if TYPE_CHECKING:  # its imports take long, and few specs have a registry
    from headrace.decode.registry.client import Registered

NewField = Literal["ignore", "evolve", "rescue", "reject", "stop"]

DETAIL = 512  # maximum characters of a detail
NAMES = 200  # ignored fields that are counted by name, and maximum characters of a name
UNTOLD = "…"  # name of all other ignored fields together


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits on the size, depth and width of a value, and on its rows."""

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
    """Values that could not be decoded: position, reason and detail, as columns of equal length."""

    index: list[int] = field(default_factory=list)
    reason: list[Reason] = field(default_factory=list)
    detail: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[tuple[int, Reason, str]]:
        return zip(self.index, self.reason, self.detail, strict=True)

    def add(self, index: int, reason: Reason, detail: str) -> None:
        """Add a reject; the detail is cut to its limit."""
        self.index.append(index)
        self.reason.append(reason)
        self.detail.append(detail[:DETAIL])

    def add_all(self, index: Iterable[int], reason: Reason, detail: str) -> None:
        """Add many positions with the same reason and detail."""
        for position in index:
            self.add(int(position), reason, detail)

    def join(self, others: Rejects, at: Numbers | None = None) -> None:
        """Add other rejects; `at` maps their positions to positions in the input."""
        self.index.extend(others.index if at is None else at[others.index].tolist())
        self.reason.extend(others.reason)
        self.detail.extend(others.detail)

    def firsts(self) -> Rejects:
        """Only the first reject of each position."""
        known: dict[int, tuple[Reason, str]] = {}
        for position, reason, detail in self:
            known.setdefault(position, (reason, detail))
        return Rejects([*known], [reason for reason, _ in known.values()], [detail for _, detail in known.values()])

    def and_then(self, more: Rejects) -> Rejects:
        """These rejects and others, ascending by position; the first reject of a position wins."""
        rejects = Rejects()
        rejects.join(self)
        rejects.join(more)
        return rejects.firsts().in_order()

    def without(self, reason: Reason) -> Rejects:
        """Without the rejects of one reason."""
        kept = Rejects()
        for index, why, detail in self:
            if why is not reason:
                kept.add(index, why, detail)
        return kept

    def in_order(self) -> Rejects:
        """Sorted by position."""
        order = sorted(range(len(self)), key=self.index.__getitem__)
        return Rejects(
            [self.index[at] for at in order], [self.reason[at] for at in order], [self.detail[at] for at in order]
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column of values: each input position is either in `index` or in `rejects`.

    A value with several rows is in `index` once for each row; a value without rows is in neither.
    """

    rows: pa.Table  # exactly the payload schema, only good values
    index: pa.Int64Array  # position in the input of each row, ascending
    rejects: Rejects
    unknown: Structure | None = None  # what `evolve` would add, over otherwise good values
    ignored: dict[str, int] = field(default_factory=dict)  # dotted names of ignored new fields, with counts


class Decoder(Protocol):
    """A format bound to a payload schema."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        ...

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a JSON pointer or dotted path as text, NULL if absent; unreadable values are rejected."""
        ...


@runtime_checkable
class TypedDecoder(Protocol):
    """A format whose values have a type."""

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The type of each value, NULL if it has none; unreadable values are rejected."""
        ...


@runtime_checkable
class SchemaPredictor(Protocol):
    """A format that can predict from a registry schema how its records are decoded."""

    def predict(self, schema: Registered) -> tuple[str, Decoded]:
        """The type, and the result of decoding a record with a value in every field; raises UnknownSchema."""
        ...


def fills_of(decoder: Decoder) -> Mapping[str, str]:
    """Columns that a decoder fills from the record if the value has none, with the record's column."""
    fills: Mapping[str, str] = getattr(decoder, "fills", {})
    return fills


def join_rejects(parts: list[Decoded], schema: pa.Schema) -> Decoded:
    """Join parts of one input that were decoded separately, in the order of the input."""
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
    """Dead-letter detail for a record with more new fields than allowed."""
    name = next(iter(structure.get("fields", {})), "")[:100]
    return f"{name}: {columns} new columns, {limits.new_columns} may be added (limits.new_columns, limits.columns)"


def new_field_stop(name: str) -> ContractViolation:
    """Error for a new field under the contract `new_field: stop`."""
    return ContractViolation(f"A record has the new field '{name[:100]}', and the contract is new_field: stop.")


def limit_names(names: Mapping[str, int]) -> dict[str, int]:
    """Limit the counts of ignored fields, whose names producers choose, to what the ledger can store."""
    counts: Counter[str] = Counter()
    for name, count in names.items():
        counts[name if len(name) <= NAMES else name[:NAMES] + UNTOLD] += count
    others = counts.pop(UNTOLD, 0)
    kept = dict(counts.most_common(NAMES)) if len(counts) > NAMES else dict(counts)
    others += counts.total() - sum(kept.values())
    return {**kept, UNTOLD: others} if others else kept
