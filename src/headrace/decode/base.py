"""The contract of every format: bytes in, typed rows and rejects out; only errors that stop the pipeline are raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Mask, Numbers
from headrace.decode.inference import Structure, merge_inferred
from headrace.errors import ContractViolation
from headrace.reasons import Reason

if TYPE_CHECKING:  # its imports take long, and few specs have a registry
    from headrace.decode.registry.client import Registered

NewField = Literal["ignore", "evolve", "rescue", "reject", "stop"]

DETAIL = 512  # maximum characters of a detail
NAMES = 200  # ignored fields that are counted by name, and maximum characters of a name
UNTOLD = "…"  # name of all other ignored fields together
REASONS = tuple(Reason)
CODES = {reason: np.uint8(code) for code, reason in enumerate(REASONS)}
ReasonCodes = np.ndarray[Any, np.dtype[np.uint8]]


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
class RejectColumns:
    """Position, reason and detail of rejects as columns: rejecting a million records must not take a million calls."""

    index: Numbers
    reason: ReasonCodes  # positions in REASONS
    detail: pa.StringArray

    def __len__(self) -> int:
        return len(self.index)

    def take(self, at: Numbers) -> RejectColumns:
        """The rejects at these places."""
        return RejectColumns(self.index[at], self.reason[at], self.detail.take(pa.array(at)))


class Rejects:
    """Values that could not be decoded: position, reason and detail, in the order in which they were added."""

    __slots__ = ("_added", "_columns")

    def __init__(self, index: Iterable[int] = (), reason: Iterable[Reason] = (), detail: Iterable[str] = ()) -> None:
        self._columns = _NO_REJECTS
        # Added one by one, after the columns.
        self._added = [(at, why, what[:DETAIL]) for at, why, what in zip(index, reason, detail, strict=True)]

    @classmethod
    def of(cls, columns: RejectColumns) -> Rejects:
        """Rejects that are columns already."""
        rejects = cls()
        rejects._columns = columns
        return rejects

    @property
    def columns(self) -> RejectColumns:
        """All rejects as columns."""
        if self._added:
            self._columns = _joined([self._columns, _as_columns(self._added)])
            self._added = []
        return self._columns

    @property
    def index(self) -> list[int]:
        """All positions."""
        positions: list[int] = self.columns.index.tolist()
        return positions

    @property
    def reason(self) -> list[Reason]:
        """The reason of each."""
        return [REASONS[code] for code in self.columns.reason.tolist()]

    @property
    def detail(self) -> list[str]:
        """The detail of each."""
        details: list[str] = self.columns.detail.to_pylist()
        return details

    def __len__(self) -> int:
        return len(self._columns) + len(self._added)

    def __iter__(self) -> Iterator[tuple[int, Reason, str]]:
        return zip(self.index, self.reason, self.detail, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rejects) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rejects({list(self)})"

    def add(self, index: int, reason: Reason, detail: str) -> None:
        """Add a reject; the detail is cut to its limit."""
        self._added.append((index, reason, detail[:DETAIL]))

    def add_all(self, index: Iterable[int] | Numbers, reason: Reason, detail: str | pa.StringArray) -> None:
        """Add many positions with the same reason, and the same detail or one for each."""
        positions = np.asarray(index if isinstance(index, np.ndarray) else list(index), np.int64)
        if not len(positions):
            return
        details = pa.repeat(detail[:DETAIL], len(positions)) if isinstance(detail, str) else _cut(detail)
        self.join(Rejects.of(RejectColumns(positions, np.full(len(positions), CODES[reason]), details)))

    def join(self, others: Rejects, at: Numbers | None = None) -> None:
        """Add other rejects; `at` maps their positions to positions in the input."""
        if not len(others):
            return
        more = others.columns
        if at is not None:
            more = RejectColumns(at[more.index], more.reason, more.detail)
        self._columns = _joined([self.columns, more])

    def has(self, reason: Reason) -> bool:
        """Whether any has the reason."""
        return bool((self.columns.reason == CODES[reason]).any())

    def among(self, reasons: Collection[Reason]) -> Numbers:
        """Positions of the rejects with one of the reasons."""
        return self.columns.index[self._having(reasons)]

    def counts(self) -> dict[Reason, int]:
        """Number of rejects by reason."""
        counts = np.bincount(self.columns.reason, minlength=len(REASONS)).tolist()
        return {reason: count for reason, count in zip(REASONS, counts, strict=True) if count}

    def firsts(self) -> Rejects:
        """Only the first reject of each position."""
        _, first = np.unique(self.columns.index, return_index=True)
        return self if len(first) == len(self) else self.at(np.sort(first))

    def and_then(self, more: Rejects) -> Rejects:
        """These rejects and others, ascending by position; the first reject of a position wins."""
        rejects = Rejects()
        rejects.join(self)
        rejects.join(more)
        return rejects.firsts().in_order()

    def without(self, reason: Reason) -> Rejects:
        """Without the rejects of one reason."""
        return self.at(np.flatnonzero(~self._having([reason]))) if self.has(reason) else self

    def in_order(self) -> Rejects:
        """Sorted by position."""
        index = self.columns.index
        return self if (np.diff(index) >= 0).all() else self.at(np.argsort(index, kind="stable"))

    def at(self, places: Numbers) -> Rejects:
        """The rejects at these places of the columns."""
        return Rejects.of(self.columns.take(places))

    def _having(self, reasons: Collection[Reason]) -> Mask:
        mask: Mask = np.isin(self.columns.reason, [CODES[reason] for reason in reasons])
        return mask


_NO_REJECTS = RejectColumns(np.zeros(0, np.int64), np.zeros(0, np.uint8), pa.array([], pa.string()))


def _as_columns(rejects: list[tuple[int, Reason, str]]) -> RejectColumns:
    index, reasons, details = zip(*rejects, strict=True)
    codes = np.array([CODES[reason] for reason in reasons], np.uint8)
    return RejectColumns(np.array(index, np.int64), codes, pa.array(details, pa.string()))


def _joined(parts: list[RejectColumns]) -> RejectColumns:
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else _NO_REJECTS
    return RejectColumns(
        np.concatenate([part.index for part in filled]),
        np.concatenate([part.reason for part in filled]),
        pa.concat_arrays([part.detail for part in filled]),
    )


def _cut(details: pa.StringArray) -> pa.StringArray:
    longest = pc.max(pc.binary_length(details)).as_py() or 0
    return pc.utf8_slice_codeunits(details, 0, DETAIL) if longest > DETAIL else details


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
class TopicDecoder(Protocol):
    """A format in which the topic of a record tells what its value is."""

    def decode_of_topics(self, values: pa.BinaryArray, topics: pa.StringArray) -> Decoded:
        """Decode a column of values to typed rows and rejects; `topics` has the topic of each."""
        ...


@runtime_checkable
class SchemaPredictor(Protocol):
    """A format that can predict from a registry schema how its records are decoded."""

    def predict(self, schema: Registered) -> tuple[str, Decoded]:
        """The type, and the result of decoding a record with a value in every field; raises UnknownSchema."""
        ...


@runtime_checkable
class NewFieldFinder(Protocol):
    """A format that can tell the new fields of several owners of values at once."""

    def new_fields(self, values: pa.BinaryArray, owner: Numbers) -> dict[int, Structure]:
        """By owner, what `evolve` would add for its values, which are all good; `owner` has the one of each value."""
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
