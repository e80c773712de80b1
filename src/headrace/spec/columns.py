"""Whether what a spec says of a table can be a Delta table: names, types, defaults, partitions, contract."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.spec.findings import Complaint, closest
from headrace.spec.table import Column, TableOptions, TableSpec
from headrace.spec.tree import Path

if TYPE_CHECKING:
    from headrace.spec.model import Step

RESERVED = frozenset({"_source", "_change_type", "_commit_version", "_commit_timestamp"})
_REFUSED = re.compile(r"[ ,;{}()\n\t=\x00-\x1f]")


def check_columns(table: TableSpec, own: TableOptions, here: Path, steps: Sequence[Step]) -> Iterator[Complaint]:
    """Everything that is wrong with a table; `own` are the options written here, the others are inherited."""
    yield from _columns(own.columns, (*here, "columns"))
    yield from _partitions(table, here, steps)
    yield from _contract(table, own, here)
    yield from _properties(own, here)


def names_after(steps: Sequence[Step], names: Sequence[str]) -> list[str]:
    """The columns there are after some steps."""
    left = list(names)
    for step in steps:
        left = [name for name in left if name not in (step.drop or ())]
        left = [(step.rename or {}).get(name, name) for name in left]
        left += [name for name in step.set or {} if name not in left]
    return left


def bad_name(name: str) -> str:
    """Why a name cannot be a column; empty when it can."""
    if name.lower() in RESERVED:
        return f"'{name}' is kept for Headrace and Delta"
    if not name or len(name) > 255:
        return "a name that is empty or longer than 255"
    found = _REFUSED.search(name)
    return f"{found[0]!r} in a column's name" if found else ""


def _columns(columns: Sequence[Column], here: Path) -> Iterator[Complaint]:
    seen: set[str] = set()
    for index, column in enumerate(columns):
        if trouble := bad_name(column.name):
            yield Complaint((*here, index, "name"), trouble, "a name without ' ,;{}()=' and control characters")
        if column.name.lower() in seen:
            yield Complaint((*here, index, "name"), f"'{column.name}' a second time (case does not count)", "each once")
        seen.add(column.name.lower())
        yield from _column(column, (*here, index))


def _column(column: Column, here: Path) -> Iterator[Complaint]:
    from headrace.tables.schema import TIMESTAMP, parse_type, type_names

    try:
        kind = parse_type(column.type)
    except UsageError as trouble:
        names = type_names()
        yield Complaint((*here, "type"), trouble.seen.removesuffix("."), ", ".join(names), closest(column.type, names))
        return
    yield from _inner_names(kind, (*here, "type"))
    if column.unit is not None and kind != TIMESTAMP:
        yield Complaint((*here, "unit"), f"a unit for {column.type}", "unit only for timestamp")
    if column.json_text and not _is_text(kind):
        yield Complaint((*here, "json"), f"JSON text in {column.type}", "json only for string")
    if column.path is not None and not all(column.path.split(".")):
        yield Complaint((*here, "path"), f"'{column.path}'", "a.b, without empty parts")
    if column.default is not None and (wanted := _misfit(column, kind)):
        yield Complaint((*here, "default"), "a default that does not fit", wanted)


def _inner_names(kind: Any, here: Path) -> Iterator[Complaint]:
    import pyarrow as pa

    inner = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        folded = [item.name.lower() for item in inner]
        for item in inner:
            if trouble := bad_name(item.name):
                yield Complaint(here, trouble, "a field's name without ' ,;{}()=' and control characters")
        if len(set(folded)) < len(folded):
            yield Complaint(here, "a field twice (case does not count)", "each once")
    for item in inner:
        yield from _inner_names(item.type, here)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind))


def _misfit(column: Column, kind: Any) -> str:
    """What a default must be; empty when it is."""
    import pyarrow.types as is_

    if column.json_text:
        return ""
    tests: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], bool], str], ...] = (
        (is_.is_boolean, lambda value, _: isinstance(value, bool), "true or false"),
        (is_.is_integer, _fits_integer, "a whole number that the type holds"),
        (is_.is_floating, lambda value, _: _is_number(value), "a number"),
        (is_.is_decimal, _fits_decimal, "a number with the type's digits, in quotes where it is long"),
        (is_.is_string, lambda value, _: isinstance(value, str), "text"),
        (is_.is_binary, lambda value, _: _reads(lambda: b64decode(value, validate=True)), "Base64 text"),
        (is_.is_date, lambda value, _: _reads(lambda: date.fromisoformat(value)), "a date, 2025-01-31"),
        (is_.is_timestamp, _fits_timestamp, "a time like those of the records"),
        (is_.is_struct, lambda value, _: isinstance(value, dict), "a mapping"),
        (is_.is_map, lambda value, _: isinstance(value, dict), "a mapping"),
        (is_.is_list, lambda value, _: isinstance(value, list), "a list"),
    )
    for is_kind, fits, wanted in tests:
        if is_kind(kind):
            given = (column.default, column) if is_kind is is_.is_timestamp else (column.default, kind)
            return "" if fits(*given) else wanted
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fits_integer(value: Any, kind: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)


def _fits_decimal(value: Any, kind: Any) -> bool:
    try:
        number = Decimal(str(value))
        scaled = number.scaleb(kind.scale)
    except InvalidOperation:
        return False
    whole = not isinstance(value, bool) and number.is_finite() and scaled == scaled.to_integral_value()
    return whole and abs(scaled) < 10**kind.precision


def _fits_timestamp(value: Any, column: Column) -> bool:
    if column.unit in ("s", "ms", "us", "ns"):
        return isinstance(value, int) and not isinstance(value, bool)
    return _reads(lambda: datetime.fromisoformat(value))


def _reads(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (ValueError, TypeError):
        return False
    return True


def check_names(steps: Sequence[Step]) -> Iterator[Complaint]:
    """Every name that the transform makes and Delta refuses."""
    for index, step in enumerate(steps):
        made = [("set", name, name) for name in step.set or {}]
        made += [("rename", old, new) for old, new in (step.rename or {}).items()]
        for key, at, name in made:
            if trouble := bad_name(name):
                yield Complaint(("transform", index, key, at), trouble, "a name that Delta takes")
        folded = [name.lower() for _, _, name in made]
        if len(set(folded)) < len(folded):
            yield Complaint(("transform", index), "two columns of one name (case does not count)", "each once")


def _partitions(table: TableSpec, here: Path, steps: Sequence[Step]) -> Iterator[Complaint]:
    closed = table.declared and table.contract.new_field != "evolve"
    names = names_after(steps, [column.name for column in table.columns])
    nested = {column.name for column in table.columns if _is_nested(column.type)}
    for index, name in enumerate(table.partition_by):
        path = (*here, "partition_by", index)
        if name.lower() in [other.lower() for other in table.partition_by[:index]]:
            yield Complaint(path, f"'{name}' a second time", "each once")
        elif name == "_source" or name in nested:
            yield Complaint(path, f"'{name}', which has parts", "columns with plain values")
        elif closed and name not in names:
            yield Complaint(path, f"no column '{name}'", ", ".join(names), closest(name, names))
    if closed and not table.source and set(names) <= set(table.partition_by):
        yield Complaint((*here, "partition_by"), "every column", "at least one column that is not a partition's")


def _is_nested(text: str) -> bool:
    return text.strip().lower().startswith(("array", "map", "struct"))


def _contract(table: TableSpec, own: TableOptions, here: Path) -> Iterator[Complaint]:
    keys = own.contract_keys
    if own.strict:
        for name in sorted(keys.model_fields_set):
            if getattr(keys, name) not in (None, "reject"):
                yield Complaint((*here, "contract", name), "another answer beside strict: true", "reject, or no strict")
    if table.contract.missing == "default":
        open_columns = [column.name for column in table.columns if not column.nullable and column.default is None]
        if open_columns or not table.declared:
            seen = f"no default for {', '.join(open_columns)}" if open_columns else "no declared columns"
            yield Complaint((*here, "contract", "missing"), seen, "a default on every column with nullable: false")


def _properties(table: TableOptions, here: Path) -> Iterator[Complaint]:
    """A table made here must be one that a blind append may write, for good."""
    from headrace.tables.adopt import may_adopt
    from headrace.tables.log import Metadata, Protocol, TableState

    for name, value in table.properties.items():
        path = (*here, "properties", name)
        made = Metadata("", '{"type":"struct","fields":[]}', (), {name: value})
        if may_adopt(TableState(0, made, Protocol())) is not None:
            yield Complaint(path, f"'{value}'", "properties that ask nothing of an append")
        if name == "delta.setTransactionRetentionDuration":
            yield Complaint(
                path, "marks that expire", "no such retention: the marks are what makes a record count once"
            )
