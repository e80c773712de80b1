"""Payload fields: the columns of a payload schema, with how each value is read.

An Arrow schema carries them, because rows, nested types, Spark tasks and Delta tables all have one: `payload_field`
reads a field's metadata and `PayloadField.to_arrow` writes it. No other module uses the metadata keys.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, cast

import pyarrow as pa

from headrace.delta.schema import RESCUED
from headrace.spec.table import Coerce, ColumnSpec
from headrace.spec.types import TIMESTAMP_NTZ, parse_type

Rescue = Literal["", "field", "type", "elements"]

_PREFIX = b"headrace."
_PATH, _ABSOLUTE_PATH = b"headrace.path", b"headrace.absolute_path"
_UNIT, _DEFAULT = b"headrace.unit", b"headrace.default"
_RESCUE, _ELEMENTS_OF, _RESCUED = b"headrace.rescue", b"headrace.elements_of", b"headrace.rescued"
_SKIPPED, _EXPLODED, _CHANGE = b"headrace.skipped", b"headrace.exploded", b"headrace.change"
_MESSAGE, _RECORD, _OPTIONAL = b"headrace.message", b"headrace.record", b"headrace.optional"
_COERCE = b"headrace.coerce"
_JSON_TEXT, _MASKED_TYPE = b"headrace.json", b"headrace.read"  # stored with a Delta table's columns
_TABLE_KEYS = (_JSON_TEXT, _MASKED_TYPE, b"comment")


@dataclass(frozen=True, slots=True)
class MessageScope:
    """What the columns tell about fields of the message that have no column."""

    open: bool = True  # such a field is in no record: it would have become a column
    skipped: tuple[str, ...] = ()  # except these: records have them, no column does


@dataclass(frozen=True, slots=True)
class PayloadField:
    """One field of a payload: its column, and how its value is read from a record."""

    name: str
    type: pa.DataType
    nullable: bool = True
    path: str = ""  # dotted, from the row to the value; empty: the name
    absolute_path: str = ""  # dotted, from the top of the value: of an envelope's column
    unit: str = ""  # of a time that is a number: s, ms, us, ns; `date`: of a timestamp that was a date
    default: str | None = None  # JSON text
    json_text: bool = False  # the column has the value's original JSON text
    skipped: bool = False  # a known field that is not read
    exploded: bool = False  # a list that is exploded: other fields of the record are not new fields of the table
    rescued: bool | None = None  # whether a value of a wrong type is rescued; None: as in the other columns
    rescue: Rescue = ""  # the column of rescued values: new fields only, wrong types too, or those of list elements
    elements_of: str = ""  # with `rescue`: the list
    change: bool = False  # an envelope's column that only a merge reads
    message: MessageScope | None = None  # the whole message as JSON text, for expressions
    record: bool = False  # of exploded rows: the record of each row
    optional: bool = False  # an envelope's column that a table has only if declared
    coerce: Coerce | None = None  # text and timestamps of the column take values of other types, too
    masked_type: str = ""  # of a masked column: the type of its values in the records
    other: Mapping[bytes, bytes] = field(default_factory=dict)  # other metadata, e.g. Delta's

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys from the row to the value."""
        return tuple(self.path.split(".")) if self.path else (self.name,)

    @property
    def children(self) -> tuple[PayloadField, ...]:
        """Fields of a struct, the element of a list, key and value of a map."""
        return payload_fields(self.type.field(at) for at in range(self.type.num_fields))

    @property
    def is_column(self) -> bool:
        """Whether the field is a column of the row, not one beside it."""
        return not (self.skipped or self.rescue or self.change or self.absolute_path or self.message)

    def to_arrow(self) -> pa.Field:
        """Write the field with its metadata."""
        texts = {
            _PATH: self.path,
            _ABSOLUTE_PATH: self.absolute_path,
            _UNIT: self.unit,
            _DEFAULT: self.default,
            _JSON_TEXT: "true" if self.json_text else "",
            _SKIPPED: "true" if self.skipped else "",
            _EXPLODED: "true" if self.exploded else "",
            _RESCUED: "" if self.rescued is None else json.dumps(self.rescued),
            _RESCUE: self.rescue,
            _ELEMENTS_OF: self.elements_of,
            _CHANGE: "true" if self.change else "",
            _MESSAGE: json.dumps(asdict(self.message)) if self.message else "",
            _RECORD: "true" if self.record else "",
            _OPTIONAL: "true" if self.optional else "",
            _COERCE: self.coerce.model_dump_json() if self.coerce else "",
            _MASKED_TYPE: self.masked_type,
        }
        metadata = {**self.other, **{key: text.encode() for key, text in texts.items() if text}}
        return pa.field(self.name, self.type, self.nullable, metadata or None)


def payload_field(item: pa.Field) -> PayloadField:
    """Read a payload field from an Arrow field."""
    metadata: dict[bytes, bytes] = item.metadata or {}
    if not metadata:
        return PayloadField(item.name, item.type, item.nullable)
    texts = {key: value.decode() for key, value in metadata.items() if key.startswith(_PREFIX)}
    message = json.loads(texts.get(_MESSAGE, "null"))
    return PayloadField(
        item.name,
        item.type,
        item.nullable,
        path=texts.get(_PATH, ""),
        absolute_path=texts.get(_ABSOLUTE_PATH, ""),
        unit=texts.get(_UNIT, ""),
        default=texts.get(_DEFAULT),
        json_text=_JSON_TEXT in texts,
        skipped=_SKIPPED in texts,
        exploded=_EXPLODED in texts,
        rescued=json.loads(texts.get(_RESCUED, "null")),
        rescue=cast(Rescue, texts.get(_RESCUE, "")),
        elements_of=texts.get(_ELEMENTS_OF, ""),
        change=_CHANGE in texts,
        message=MessageScope(message["open"], tuple(message["skipped"])) if message else None,
        record=_RECORD in texts,
        optional=_OPTIONAL in texts,
        coerce=Coerce.model_validate_json(texts[_COERCE]) if _COERCE in texts else None,
        masked_type=texts.get(_MASKED_TYPE, ""),
        other={key: value for key, value in metadata.items() if not key.startswith(_PREFIX)},
    )


def payload_fields(items: Iterable[pa.Field]) -> tuple[PayloadField, ...]:
    """Read the payload fields of an Arrow schema or struct."""
    return tuple(payload_field(item) for item in items)


def declared_field(column: ColumnSpec) -> pa.Field:
    """Payload field of a declared column."""
    wrong_type = column.contract.wrong_type
    return PayloadField(
        column.name,
        parse_type(column.type),
        column.nullable,
        path=column.path or "",
        unit=column.unit or "",
        default=None if column.default is None else json.dumps(column.default),
        json_text=bool(column.json_text),
        rescued=wrong_type == "rescue" if wrong_type else None,
    ).to_arrow()


def coerced_field(item: pa.Field, coerce: Coerce, declared: Collection[str]) -> pa.Field:
    """The field with its text and timestamps coerced; a column with inferred JSON text becomes one with text.

    A declared column with `json` or `unit` is not changed, nor is one in which a table has JSON text.
    """
    spec = payload_field(item)
    if not spec.is_column or spec.unit or (spec.json_text and (item.name in declared or not coerce.string)):
        return item
    return replace(spec, coerce=coerce, json_text=False).to_arrow()


def json_field(name: str, nullable: bool = True) -> pa.Field:
    """Make the field of a column that has JSON text."""
    return PayloadField(name, pa.string(), nullable, json_text=True).to_arrow()


def is_json_text(item: pa.Field) -> bool:
    """Whether a column has JSON text."""
    return _JSON_TEXT in (item.metadata or {})


def rescue_field(rescue: Rescue) -> pa.Field:
    """Make the field of the column that has rescued values."""
    return PayloadField(RESCUED.name, RESCUED.type, rescue=rescue).to_arrow()


def stored_field(item: pa.Field) -> pa.Field:
    """Remove the metadata that a Delta table does not store."""
    metadata = {key: value for key, value in (item.metadata or {}).items() if key in _TABLE_KEYS}
    return item.with_metadata(metadata or None)


def dated_field(item: pa.Field) -> pa.Field:
    """Mark a timestamp that was a date: a date in a record is read as its first moment."""
    return replace(payload_field(item), unit="date").to_arrow()


def input_field(column: pa.Field) -> pa.Field:
    """Make the payload field of a table column: with the type that values have in the records, not in the table."""
    spec, kind = payload_field(column), column.type
    if spec.masked_type == "json":
        return replace(spec, masked_type="", json_text=True).to_arrow()
    if spec.masked_type:
        return replace(spec, masked_type="", type=parse_type(spec.masked_type)).to_arrow()
    if kind == TIMESTAMP_NTZ and b'"date"' in spec.other.get(b"delta.typeChanges", b""):
        return dated_field(column)
    if pa.types.is_struct(kind):
        return column.with_type(pa.struct([input_field(inner) for inner in kind]))
    if pa.types.is_map(kind):
        return column.with_type(pa.map_(kind.key_field, input_field(kind.item_field)))
    return column.with_type(pa.list_(input_field(kind.value_field))) if pa.types.is_list(kind) else column


def is_masked(column: pa.Field) -> bool:
    """Whether a column, or a field inside of it, is masked."""
    inner = column.type if pa.types.is_struct(column.type) else ()
    return _MASKED_TYPE in (column.metadata or {}) or any(is_masked(item) for item in inner)
