"""A table's schema in three spellings: Delta's JSON, pyarrow's types (our type language), and SQL names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from headrace.errors import TableFeature, UsageError

JSON_TEXT = b"headrace.json"  # field metadata: the column keeps a value's original JSON text
READ = b"headrace.read"  # field metadata of a masked column: the type that its values have in the records
DATED = {b"headrace.unit": b"date"}  # of a timestamp that was a date: a date is read as its first moment

TIMESTAMP = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DELTA_NAMES = {kind: name for name, kind in _PRIMITIVES.items()}

# What a spec may call a type: SQL's words, Delta's, and Arrow's (the unsigned ones widen to what holds them).
_SPELLINGS: dict[str, pa.DataType] = {
    **_PRIMITIVES,
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bytes": pa.binary(),
    "utf8": pa.string(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date32": pa.date32(),
    "date64": pa.date32(),
}
_COMPOUND = ("decimal(p,s)", "array<T>", "map<string,T>", "struct<name: T, …>")
_PLAIN_NAME = r"[^\s:,<>`]+"
_RAW = "\0"  # before metadata that is not text but JSON of another kind, so that it goes back as it came
_DECIMAL = re.compile(r"(?:decimal|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def type_names() -> tuple[str, ...]:
    """Every plain type name a spec may use."""
    return (*_SPELLINGS, *_COMPOUND)


def plain_type_names() -> tuple[str, ...]:
    """The types, each under one name."""
    return (*_PRIMITIVES, *_COMPOUND)


# Types of databases, languages and other formats, and what holds their values here.
_HOLD = {
    "timestamp": "datetime datetime2 datetime64 datetimeoffset timestamptz timestamp_tz timestamp_ltz instant",
    "timestamp_ntz": "timestampntz smalldatetime localdatetime",
    "string": "str char character nchar nvarchar varchar2 clob citext uuid guid uniqueidentifier enum symbol inet "
    "time timetz interval duration json jsonb variant super any",
    "binary": "blob bytea varbinary bytearray fixed",
    "array<T>": "list vector sequence repeated set tuple array",
    "map<string,T>": "dict hstore hash map",
    "struct<name: T, …>": "record row object message struct",
    "decimal(p,s)": "decimal numeric number bignumeric dec",
    "decimal(19,4)": "money",
    "decimal(38,0)": "hugeint int128 biginteger",
    "short": "int2 smallserial",
    "integer": "int4 serial mediumint",
    "long": "bigserial uint unsigned",
    "float": "float4 float16 half",
    "double": "float8 precision",
    "boolean": "bit logical",
}
_FOREIGN = {name: kind for kind, names in _HOLD.items() for name in names.split()}
_JSON = ("json", "jsonb", "variant", "super")
_WORD = re.compile(
    r"`[^`]*`\s*:|[A-Za-z_][\w.]*\s*:|(?:decimal|numeric|number|dec)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)"
    r"|(double precision|character varying|timestamp with(?:out)? time zone)(?:\s*\(\s*\d+\s*\))?"
    r"|([A-Za-z_]\w*)(?:\s*\(\s*\d+\s*\)|\s*\[\w*\])?",
    re.IGNORECASE,
)
_TWO_WORDS = {
    "double precision": "double",
    "character varying": "string",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}


def meant_type(text: str) -> str:
    """The type that a text was perhaps meant to be, `array<timestamp>` for `list<datetime>`; empty if there is none."""
    text = text.strip()[:200]
    if text.lower() in _JSON:
        return "string (with json: true it keeps the JSON text)"
    meant = _WORD.sub(_meant_word, text)
    return meant if meant != text and _is_type(meant) else ""


def _is_type(text: str) -> bool:
    """Whether a text is a type, once its letters stand for something."""
    filled = text.replace("(p,s)", "(38,18)").replace("<name: T, …>", "<name: long>").replace("T>", "long>")
    try:
        return not _parse(filled)[1].strip()
    except UsageError:
        return False


def _meant_word(found: re.Match[str]) -> str:
    word = found[0]
    if word.endswith(":"):
        return word  # a field's name
    if found[1]:
        precision, scale = min(int(found[1]), 38), int(found[2] or 0)
        return f"decimal({max(precision, 1)},{min(scale, max(precision, 1))})"
    if found[3]:
        return _TWO_WORDS[found[3].lower()]
    name = found[4].lower()
    if name in _FOREIGN:
        takes_types = found.string[found.end() :].lstrip().startswith("<")
        return _FOREIGN[name].partition("<")[0] if takes_types else _FOREIGN[name]
    if name in _SPELLINGS:
        return name
    near = get_close_matches(name, _SPELLINGS, n=1, cutoff=0.6)
    return near[0] if near else word


def parse_type(text: str) -> pa.DataType:
    """A spec's type name as a pyarrow type; UsageError when it is none."""
    try:
        kind, rest = _parse(text.strip())
    except UsageError as refused:
        hint = f"Did you mean {meant}? " if (meant := meant_type(text)) else ""
        raise UsageError(refused.seen, next=f"{hint}{refused.next}".rstrip()) from None
    if rest.strip():
        raise UsageError(f"'{text}' is not a type: '{rest.strip()}' is left over.")
    return kind


def _parse(text: str) -> tuple[pa.DataType, str]:
    text = text.lstrip()
    if found := _DECIMAL.match(text.lower()):
        return _decimal(text, int(found[1]), int(found[2] or 0)), text[found.end() :]
    word = re.match(r"[A-Za-z_][A-Za-z0-9_]*", text)
    if word is None:
        raise UsageError(f"'{text}' is not a type.", next=f"Known types: {', '.join(type_names())}.")
    name, rest = word[0].lower(), text[word.end() :].lstrip()
    if name in ("array", "map", "struct") and rest.startswith("<"):
        return _parse_nested(name, rest[1:])
    if name not in _SPELLINGS:
        raise UsageError(f"'{word[0]}' is not a type.", next=f"Known types: {', '.join(type_names())}.")
    return _SPELLINGS[name], rest


def _decimal(text: str, precision: int, scale: int) -> pa.DataType:
    if not (1 <= precision <= 38 and scale <= precision):
        raise UsageError(f"'{text}': a decimal has 1 to 38 digits and no more decimals than digits.")
    return pa.decimal128(precision, scale)


def _parse_nested(name: str, rest: str) -> tuple[pa.DataType, str]:
    if name == "array":
        item, rest = _parse(rest)
        return pa.list_(pa.field("element", item)), _expect(rest, ">")
    if name == "map":
        key, rest = _parse(rest)
        value, rest = _parse(_expect(rest, ","))
        if not pa.types.is_string(key):
            raise UsageError("A map's keys are strings: map<string,T>.")
        return pa.map_(key, value), _expect(rest, ">")
    fields: list[pa.Field] = []
    while True:
        found = re.match(rf"\s*(?:`((?:[^`]|``)+)`|({_PLAIN_NAME}))\s*:", rest)
        if found is None:
            raise UsageError(f"'{rest}': a struct's fields are written name: type.")
        item, rest = _parse(rest[found.end() :])
        fields.append(pa.field(found[2] or found[1].replace("``", "`"), item))
        rest = rest.lstrip()
        if not rest.startswith(","):
            return _struct(fields), _expect(rest, ">")
        rest = rest[1:]


def _struct(fields: list[pa.Field]) -> pa.DataType:
    check_names(fields, "A struct has the field")
    return pa.struct(fields)


def check_names(fields: Iterable[pa.Field], has: str = "The table has the column") -> None:
    """UsageError where two columns, or two fields inside one, have the same name: no reader opens such a table."""
    held = list(fields)
    names = [item.name.lower() for item in held]
    if twice := [item.name for item in held if names.count(item.name.lower()) > 1]:
        raise UsageError(f"{has} '{twice[0]}' twice; names that differ only in case are the same.")
    for item in held:
        for inner in _inner(item.type):
            check_names(inner, f"Column {item.name} has the field")


def _inner(kind: pa.DataType) -> Iterator[Iterable[pa.Field]]:
    """The fields of every struct that is right inside a type."""
    if pa.types.is_struct(kind):
        yield kind
    elif pa.types.is_map(kind):
        yield from _inner(kind.item_type)
    elif _is_list(kind):
        yield from _inner(kind.value_type)


def _expect(rest: str, mark: str) -> str:
    rest = rest.lstrip()
    if not rest.startswith(mark):
        raise UsageError(f"A type lacks its '{mark}' before '{rest}'.")
    return rest[1:]


def as_read(item: pa.Field) -> pa.Field:
    """A column as its values are in the records, where that is not how they are stored."""
    metadata = dict(item.metadata or {})
    kind = metadata.pop(READ, b"").decode()
    if kind == "json":
        return pa.field(item.name, item.type, item.nullable, {**metadata, JSON_TEXT: b"true"})
    if kind:
        return pa.field(item.name, parse_type(kind), item.nullable, metadata or None)
    if item.type == TIMESTAMP_NTZ and b'"date"' in metadata.get(b"delta.typeChanges", b""):
        return item.with_metadata({**metadata, **DATED})
    if pa.types.is_struct(item.type):
        return item.with_type(pa.struct([as_read(inner) for inner in item.type]))
    if pa.types.is_map(item.type):
        return item.with_type(pa.map_(item.type.key_field, as_read(item.type.item_field)))
    return item.with_type(pa.list_(as_read(item.type.value_field))) if pa.types.is_list(item.type) else item


def is_masked(item: pa.Field) -> bool:
    """Whether a mask lies over a column, or over a field inside of it."""
    inner = item.type if pa.types.is_struct(item.type) else ()
    return READ in (item.metadata or {}) or any(is_masked(each) for each in inner)


def type_name(kind: pa.DataType) -> str:
    """A pyarrow type as people write it in a spec."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return "struct<" + ", ".join(f"{_name(item.name)}: {type_name(item.type)}" for item in kind) + ">"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if _is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    return _DELTA_NAMES[kind]


def held_as(kind: pa.DataType) -> pa.DataType:
    """The type in which a table holds all values of an Arrow type; UsageError where there is none."""
    if pa.types.is_dictionary(kind):
        return held_as(kind.value_type)
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else TIMESTAMP_NTZ
    if pa.types.is_struct(kind):
        return pa.struct([held_field(item) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(held_as(kind.key_type), held_field(kind.item_field))
    if _is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", held_as(kind.value_type), kind.value_field.nullable))
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    for is_kind, held in _HELD:
        if is_kind(kind):
            return held
    if kind in _DELTA_NAMES:
        return kind
    raise UsageError(f"A table cannot hold {kind}.", next=f"Its types are {', '.join(_PRIMITIVES)} and decimal(p,s).")


def held_field(item: pa.Field) -> pa.Field:
    """A column as a table holds it, without what Parquet and frames note beside it for themselves."""
    notes = {key: value for key, value in (item.metadata or {}).items() if not key.startswith(_NOTES)}
    try:
        return item.with_type(held_as(item.type)).with_metadata(notes or None)
    except UsageError as refused:
        raise UsageError(f"Column {item.name}: {refused.seen}", next=refused.next) from None


_DIGITS = 38  # of a decimal
_NOTES = (b"PARQUET:", b"ARROW:", b"_PL_")
_HELD: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date64, pa.date32()),
)


def _name(name: str) -> str:
    return name if re.fullmatch(_PLAIN_NAME, name) else f"`{name.replace('`', '``')}`"


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def to_delta(schema: pa.Schema) -> str:
    """Delta's schemaString for a pyarrow schema."""
    return json.dumps({"type": "struct", "fields": [_field_to_delta(item) for item in schema]}, ensure_ascii=False)


def _field_to_delta(item: pa.Field) -> dict[str, Any]:
    metadata = {key.decode(): _plain(value.decode()) for key, value in (item.metadata or {}).items()}
    return {"name": item.name, "type": _type_to_delta(item.type), "nullable": item.nullable, "metadata": metadata}


def _plain(value: str) -> Any:
    return json.loads(value[1:]) if value.startswith(_RAW) else value


def _type_to_delta(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field_to_delta(item) for item in kind]}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type_to_delta(kind.key_type),
            "valueType": _type_to_delta(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    if _is_list(kind):
        contains_null = kind.value_field.nullable
        return {"type": "array", "elementType": _type_to_delta(kind.value_type), "containsNull": contains_null}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _DELTA_NAMES[kind]


def from_delta(text: str) -> pa.Schema:
    """A pyarrow schema out of Delta's schemaString; TableFeature for a type we do not know."""
    return pa.schema([_field_from_delta(item) for item in json.loads(text)["fields"]])


def _field_from_delta(raw: dict[str, Any]) -> pa.Field:
    metadata = {
        key: value if isinstance(value, str) else _RAW + json.dumps(value) for key, value in raw["metadata"].items()
    }
    return pa.field(raw["name"], _type_from_delta(raw["type"]), raw["nullable"], metadata or None)


def _type_from_delta(raw: Any) -> pa.DataType:
    if isinstance(raw, str):
        if found := _DECIMAL.fullmatch(raw):
            return pa.decimal128(int(found[1]), int(found[2] or 0))
        if raw in _PRIMITIVES:
            return _PRIMITIVES[raw]
        raise TableFeature(f"A column has type '{raw}', which Headrace cannot write.")
    if raw["type"] == "struct":
        return pa.struct([_field_from_delta(item) for item in raw["fields"]])
    if raw["type"] == "array":
        return pa.list_(pa.field("element", _type_from_delta(raw["elementType"]), raw["containsNull"]))
    return pa.map_(
        _type_from_delta(raw["keyType"]),
        pa.field("value", _type_from_delta(raw["valueType"]), raw["valueContainsNull"]),
    )


SOURCE = pa.field(
    "_source",
    pa.struct(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", TIMESTAMP),
        ]
    ),
)

RESCUED = pa.field("_rescued", pa.string())  # what does not fit its column, or has none
METADATA = pa.field("_danube_metadata", pa.string(), nullable=False)
KEPT = (SOURCE.name, RESCUED.name, METADATA.name)  # names of columns that Headrace itself fills
_RESERVED = frozenset({"_headrace", "_change_type", "_commit_version", "_commit_timestamp", *KEPT})


def reserved(name: str) -> bool:
    """Whether a name is kept for Headrace and Delta: no record, spec or merged table has a column of it."""
    return name.lower() in _RESERVED or name.lower().startswith("_headrace_")


HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

ENVELOPE = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestamp_type", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)

DEAD_LETTERS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("table", pa.string()),
        pa.field("step", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("schema_id", pa.int64()),
        pa.field("pipeline", pa.string()),
        pa.field("spec", pa.string()),
        pa.field("rejected_at", TIMESTAMP),
        pa.field("date", pa.date32()),
    ]
)
