"""Column types in spec notation: `long`, `decimal(10,2)`, `array<struct<a: string>>`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

import pyarrow as pa

from headrace.errors import UsageError

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


_DECIMAL = re.compile(r"(?:decimal|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")


def type_names() -> tuple[str, ...]:
    """All simple type names that a spec accepts."""
    return (*_SPELLINGS, *_COMPOUND)


def plain_type_names() -> tuple[str, ...]:
    """Type names without synonyms."""
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


def suggested_type(text: str) -> str:
    """Closest valid type, such as `array<timestamp>` for `list<datetime>`; empty if there is none."""
    text = text.strip()[:200]
    if text.lower() in _JSON:
        return "string (with json: true it keeps the JSON text)"
    suggestion = _WORD.sub(_suggested_word, text)
    return suggestion if suggestion != text and _is_type(suggestion) else ""


def _is_type(text: str) -> bool:
    """Whether a text is a type once its placeholders are filled in."""
    filled = text.replace("(p,s)", "(38,18)").replace("<name: T, …>", "<name: long>").replace("T>", "long>")
    try:
        return not _parse(filled)[1].strip()
    except UsageError:
        return False


def _suggested_word(match: re.Match[str]) -> str:
    word = match[0]
    if word.endswith(":"):
        return word  # a field name
    if match[1]:
        precision, scale = min(int(match[1]), 38), int(match[2] or 0)
        return f"decimal({max(precision, 1)},{min(scale, max(precision, 1))})"
    if match[3]:
        return _TWO_WORDS[match[3].lower()]
    name = match[4].lower()
    if name in _FOREIGN:
        takes_types = match.string[match.end() :].lstrip().startswith("<")
        return _FOREIGN[name].partition("<")[0] if takes_types else _FOREIGN[name]
    if name in _SPELLINGS:
        return name
    near = get_close_matches(name, _SPELLINGS, n=1, cutoff=0.6)
    return near[0] if near else word


def parse_type(text: str) -> pa.DataType:
    """Parse a type name into a pyarrow type; UsageError if it is invalid."""
    try:
        kind, rest = _parse(text.strip())
    except UsageError as error:
        question = f"Did you mean {suggestion}? " if (suggestion := suggested_type(text)) else ""
        raise UsageError(error.message, hint=f"{question}{error.hint}".rstrip()) from None
    if rest.strip():
        raise UsageError(f"Invalid type: '{text}'; unexpected '{rest.strip()}'.")
    return kind


def _parse(text: str) -> tuple[pa.DataType, str]:
    text = text.lstrip()
    if match := _DECIMAL.match(text.lower()):
        return _decimal(text, int(match[1]), int(match[2] or 0)), text[match.end() :]
    word = re.match(r"[A-Za-z_][A-Za-z0-9_]*", text)
    if word is None:
        raise UsageError(f"Invalid type: '{text}'.", hint=f"Valid types: {', '.join(type_names())}.")
    name, rest = word[0].lower(), text[word.end() :].lstrip()
    if name in ("array", "map", "struct") and rest.startswith("<"):
        return _parse_nested(name, rest[1:])
    if name not in _SPELLINGS:
        raise UsageError(f"Invalid type: '{word[0]}'.", hint=f"Valid types: {', '.join(type_names())}.")
    return _SPELLINGS[name], rest


def _decimal(text: str, precision: int, scale: int) -> pa.DataType:
    if not (1 <= precision <= 38 and scale <= precision):
        raise UsageError(
            f"Invalid type: '{text}'; a decimal has a precision of 1 to 38 and a scale up to the precision."
        )
    return pa.decimal128(precision, scale)


def _parse_nested(name: str, rest: str) -> tuple[pa.DataType, str]:
    if name == "array":
        item, rest = _parse(rest)
        return pa.list_(pa.field("element", item)), _expect(rest, ">")
    if name == "map":
        key, rest = _parse(rest)
        value, rest = _parse(_expect(rest, ","))
        if not pa.types.is_string(key):
            raise UsageError("Map keys must be strings: map<string,T>.")
        return pa.map_(key, value), _expect(rest, ">")
    fields: list[pa.Field] = []
    while True:
        match = re.match(rf"\s*(?:`((?:[^`]|``)+)`|({_PLAIN_NAME}))\s*:", rest)
        if match is None:
            raise UsageError(f"Invalid struct field: '{rest}'; expected name: type.")
        item, rest = _parse(rest[match.end() :])
        fields.append(pa.field(match[2] or match[1].replace("``", "`"), item))
        rest = rest.lstrip()
        if not rest.startswith(","):
            return _struct(fields), _expect(rest, ">")
        rest = rest[1:]


def _struct(fields: list[pa.Field]) -> pa.DataType:
    check_field_names(fields, "The struct has the field")
    return pa.struct(fields)


def check_field_names(fields: Iterable[pa.Field], has: str = "The table has the column") -> None:
    """Raise UsageError for duplicate column or field names, which no reader accepts."""
    items = list(fields)
    names = [item.name.lower() for item in items]
    if duplicates := [item.name for item in items if names.count(item.name.lower()) > 1]:
        raise UsageError(f"{has} '{duplicates[0]}' more than once; names are case-insensitive.")
    for item in items:
        for inner in _inner(item.type):
            check_field_names(inner, f"Column {item.name} has the field")


def _inner(kind: pa.DataType) -> Iterator[Iterable[pa.Field]]:
    """Fields of the outermost structs in a type."""
    if pa.types.is_struct(kind):
        yield kind
    elif pa.types.is_map(kind):
        yield from _inner(kind.item_type)
    elif is_list(kind):
        yield from _inner(kind.value_type)


def _expect(rest: str, token: str) -> str:
    rest = rest.lstrip()
    if not rest.startswith(token):
        raise UsageError(f"Invalid type: missing '{token}' before '{rest}'.")
    return rest[1:]


def type_name(kind: pa.DataType) -> str:
    """Spec notation of a pyarrow type."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return "struct<" + ", ".join(f"{_name(item.name)}: {type_name(item.type)}" for item in kind) + ">"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    return _DELTA_NAMES[kind]


def _name(name: str) -> str:
    return name if re.fullmatch(_PLAIN_NAME, name) else f"`{name.replace('`', '``')}`"


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def same_columns(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether values of a type can be converted to a column type; each value is checked later."""
    if have == want or same_type(have, want):
        return True
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_a(have) for is_a in numbers) and any(is_a(want) for is_a in numbers)


def same_type(first: pa.DataType, second: pa.DataType) -> bool:
    """Whether types are equal apart from nullability and metadata."""
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        names = [item.name for item in first] == [item.name for item in second]
        return names and all(same_type(a.type, b.type) for a, b in zip(first, second, strict=True))
    if pa.types.is_map(first) and pa.types.is_map(second):
        return same_type(first.key_type, second.key_type) and same_type(first.item_type, second.item_type)
    if pa.types.is_list(first) and pa.types.is_list(second):
        return same_type(first.value_type, second.value_type)
    return bool(first == second)
