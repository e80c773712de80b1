"""Avro schemas: parse them to a tree of types, enforce limits, compute fingerprints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import pyarrow as pa

UNION = "union"
LARGEST = 4 * 1024 * 1024  # characters of a schema
_TYPES = 10_000  # types in one schema, each counted where it is used
_PRECISION = 38  # digits; a decimal with more stays bytes
_PRIMITIVE: Mapping[str, tuple[pa.DataType, int, int | None]] = {  # type, least bytes, bytes if all have as many
    "null": (pa.null(), 0, 0),
    "boolean": (pa.bool_(), 1, 1),
    "int": (pa.int32(), 1, None),
    "long": (pa.int64(), 1, None),
    "float": (pa.float32(), 4, 4),
    "double": (pa.float64(), 8, 8),
    "bytes": (pa.binary(), 1, None),
    "string": (pa.string(), 1, None),
}
_MOMENTS = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


class BadAvroSchema(ValueError):
    """A schema that cannot be used; the text is the reason."""


@dataclass(frozen=True)
class Type:
    """One type of a schema: its encoding and its Arrow type."""

    kind: str
    arrow: pa.DataType
    least: int  # bytes its shortest value has
    width: int | None = None  # bytes each value has, where all have as many
    names: tuple[str, ...] = ()  # of a record's fields, a union's branches, an enum's symbols
    children: tuple[Type, ...] = ()  # a record's fields, a union's branches; the one of an array or a map
    name: str = ""  # of a record, an enum or a fixed, in full

    @property
    def is_decimal(self) -> bool:
        """Whether bytes are a decimal."""
        return bool(pa.types.is_decimal(self.arrow))

    @property
    def is_text(self) -> bool:
        """Whether values are a length and so many bytes."""
        return self.kind in ("string", "bytes") and not self.is_decimal

    @cached_property
    def depth(self) -> int:
        """Number of levels, this one included."""
        return 1 + max((child.depth for child in self.children), default=0)

    @cached_property
    def weight(self) -> int:
        """Number of types, this one included."""
        return 1 + sum(child.weight for child in self.children)

    @cached_property
    def shape(self) -> str:
        """Equal for types with the same encoding and Arrow type, whatever their names."""
        inner = ",".join(child.shape for child in self.children)
        return f"{self.kind} {'' if inner else self.arrow} {self.width} {json.dumps(self.names)} ({inner})"

    @cached_property
    def entry(self) -> Type:
        """A map's entry as a record."""
        key = Type("string", pa.string(), 1)
        return _record(("key", "value"), (key, self.children[0]))

    @property
    def only(self) -> tuple[int, Type] | None:
        """The only branch of a union that is not null, with its number."""
        others = [(at, child) for at, child in enumerate(self.children) if child.kind != "null"]
        return others[0] if self.kind == UNION and len(others) == 1 else None


def parse_avro_schema(text: str, references: Mapping[str, str] | None = None, *, depth: int = 64) -> Type:
    """Parse a schema; `references` are the schemas whose names it uses, innermost first."""
    parser = _Parser(depth)
    for each in (references or {}).values():
        parser.whole(each)
    return parser.whole(text)


class _Parser:
    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.known: dict[str, Type | None] = {}  # None: not finished

    def whole(self, text: str) -> Type:
        schema = self.any(_loaded(text), "", 0)
        if schema.depth > self.depth:
            raise BadAvroSchema(f"it is deeper than {self.depth} levels")
        return schema

    def any(self, schema: Any, space: str, level: int) -> Type:
        if level > 4 * self.depth:
            raise BadAvroSchema(f"it is deeper than {self.depth} levels")
        if isinstance(schema, str):
            return self._named(schema, space)
        if isinstance(schema, list):
            kind = self._union(schema, space, level)
        elif isinstance(schema, dict):
            kind = self._complex(schema, space, level)
        else:
            raise BadAvroSchema(f"{str(schema)[:40]!r} is not a type")
        if kind.weight > _TYPES:
            raise BadAvroSchema(f"it has more than {_TYPES} types")
        return kind

    def _named(self, name: str, space: str) -> Type:
        if name in _PRIMITIVE:
            arrow, least, width = _PRIMITIVE[name]
            return Type(name, arrow, least, width)
        full = _full(name, space)
        full = full if full in self.known else name
        if full not in self.known:
            raise BadAvroSchema(f"the type {name[:100]!r} is not defined")
        if (definition := self.known[full]) is None:
            raise BadAvroSchema(f"the type {name[:100]!r} is recursive: a table has no column for it")
        return definition

    def _complex(self, schema: Mapping[str, Any], space: str, level: int) -> Type:
        kind = schema.get("type")
        if kind == "array":
            return _array(self.any(schema.get("items"), space, level + 1))
        if kind == "map":
            value = self.any(schema.get("values"), space, level + 1)
            return Type("map", pa.map_(pa.string(), value.arrow), 1, children=(value,))
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, str(kind), space, level)
        return _logical(self.any(kind, space, level + 1), schema)

    def _definition(self, schema: Mapping[str, Any], kind: str, space: str, level: int) -> Type:
        name, namespace = schema.get("name"), schema.get("namespace")
        if not isinstance(name, str) or not name:
            raise BadAvroSchema(f"a {kind} has no name")
        full = _full(name, namespace if isinstance(namespace, str) else space)
        if full in self.known:
            raise BadAvroSchema(f"the type {full[:100]!r} is defined twice")
        self.known[full] = None
        definition = replace(_DEFINED[kind](self, schema, full.rpartition(".")[0], level), name=full)
        self.known[full] = definition
        return definition

    def record(self, schema: Mapping[str, Any], space: str, level: int) -> Type:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise BadAvroSchema("a record has no list of fields")
        names = [each.get("name") for each in fields]
        if not all(isinstance(name, str) and name for name in names):
            raise BadAvroSchema("a field has no name")
        if len({name.lower() for name in names}) < len(names):
            raise BadAvroSchema("a record has two fields whose names differ only in case, or not at all")
        return _record(tuple(names), tuple(self.any(each.get("type"), space, level + 1) for each in fields))

    def enum(self, schema: Mapping[str, Any], space: str, level: int) -> Type:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(isinstance(each, str) for each in symbols):
            raise BadAvroSchema("an enum has no list of symbols")
        return Type("enum", pa.string(), 1, names=tuple(symbols))

    def fixed(self, schema: Mapping[str, Any], space: str, level: int) -> Type:
        size = schema.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
            raise BadAvroSchema("a fixed has no size")
        return _logical(Type("fixed", pa.binary(), size, size), schema)

    def _union(self, schema: list[Any], space: str, level: int) -> Type:
        branches = tuple(self.any(each, space, level + 1) for each in schema)
        if not branches or any(each.kind == UNION for each in branches):
            raise BadAvroSchema("a union has no branches, or a nested union")
        names = _branch_names(schema, branches)
        least = 1 + min(each.least for each in branches)
        return Type(UNION, _union_type(names, branches), least, names=names, children=branches)


_DEFINED: Mapping[str, Callable[[_Parser, Mapping[str, Any], str, int], Type]] = {
    "record": _Parser.record,
    "error": _Parser.record,
    "enum": _Parser.enum,
    "fixed": _Parser.fixed,
}


def _loaded(text: str) -> Any:
    if len(text) > LARGEST:
        raise BadAvroSchema(f"it has more than {LARGEST} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # Some registries return a primitive type as a name without quotes.
        if text in _PRIMITIVE:
            return text
        raise BadAvroSchema("it is not JSON") from None


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _record(names: tuple[str, ...], fields: tuple[Type, ...]) -> Type:
    widths = [each.width for each in fields]
    width = None if None in widths else sum(each or 0 for each in widths)
    arrow = pa.struct([pa.field(name, each.arrow) for name, each in zip(names, fields, strict=True)])
    return Type("record", arrow, sum(each.least for each in fields), width, names, fields)


def _array(item: Type) -> Type:
    if item.least == 0:
        raise BadAvroSchema("an array's items have no bytes, so that a few bytes could declare millions of items")
    return Type("array", pa.list_(pa.field("element", item.arrow)), 1, children=(item,))


def _logical(kind: Type, schema: Mapping[str, Any]) -> Type:
    """Apply the logical type; an unknown or invalid one is ignored, as the Avro specification says."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return kind
    arrow = _MOMENTS.get((kind.kind, logical))
    if logical == "decimal" and kind.kind in ("bytes", "fixed"):
        arrow = _decimal(schema.get("precision"), schema.get("scale", 0))
    if logical == "uuid" and kind.kind == "fixed" and kind.width == 16:
        arrow = pa.string()
    return kind if arrow is None else Type(kind.kind, arrow, kind.least, kind.width)


def _decimal(precision: Any, scale: Any) -> pa.DataType | None:
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in (precision, scale)):
        return None
    return pa.decimal128(precision, scale) if 0 <= scale <= precision and 0 < precision <= _PRECISION else None


def _branch_names(schema: list[Any], branches: tuple[Type, ...]) -> tuple[str, ...]:
    """Field names of a union with several branches: the type names without namespace."""
    full = [
        str(each.get("name", branch.kind)) if isinstance(each, dict) else str(each)
        for each, branch in zip(schema, branches, strict=True)
    ]
    short = [name.rpartition(".")[2] for name in full]
    unique = len({name.lower() for name in short}) == len(short)
    names = short if unique else [name.replace(".", "_") for name in full]
    if len({name.lower() for name in names}) < len(names):
        raise BadAvroSchema("a union has two branches of one name")
    return tuple(names)


def _union_type(names: tuple[str, ...], branches: tuple[Type, ...]) -> pa.DataType:
    others = [(name, each) for name, each in zip(names, branches, strict=True) if each.kind != "null"]
    if len(others) < 2:
        return others[0][1].arrow if others else pa.null()
    return pa.struct([pa.field(name, each.arrow) for name, each in others])


# ---- fingerprints ----


def fingerprint(text: str) -> bytes:
    """CRC-64-AVRO fingerprint of a schema's canonical form, as in a single-object encoding."""
    table = _crc_table()
    crc = _EMPTY
    for byte in canonical_avro(_loaded(text)).encode():
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc.to_bytes(8, "little")


_EMPTY = 0xC15D213AA4D7A795


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (_EMPTY if number & 1 else 0)
        table.append(number)
    return tuple(table)


def canonical_avro(schema: Any, space: str = "") -> str:
    """Avro's parsing canonical form."""
    if isinstance(schema, str):
        return json.dumps(schema if schema in _PRIMITIVE else _full(schema, space), ensure_ascii=False)
    if isinstance(schema, list):
        return "[" + ",".join(canonical_avro(each, space) for each in schema) + "]"
    kind = schema["type"]
    if kind in _PRIMITIVE or not isinstance(kind, str):
        return canonical_avro(kind, space)
    parts = {"type": json.dumps("record" if kind == "error" else kind)}
    if kind in _DEFINED:
        full = _full(schema["name"], schema.get("namespace", space))
        space = full.rpartition(".")[0]
        parts = {"name": json.dumps(full, ensure_ascii=False), **parts}
    if kind in ("record", "error"):
        parts["fields"] = "[" + ",".join(_canonical_field(each, space) for each in schema["fields"]) + "]"
    if kind == "enum":
        parts["symbols"] = json.dumps(schema["symbols"], separators=(",", ":"), ensure_ascii=False)
    if kind == "fixed":
        parts["size"] = str(schema["size"])
    if kind == "array":
        parts["items"] = canonical_avro(schema["items"], space)
    if kind == "map":
        parts["values"] = canonical_avro(schema["values"], space)
    return "{" + ",".join(f'"{name}":{part}' for name, part in parts.items()) + "}"


def _canonical_field(field: Mapping[str, Any], space: str) -> str:
    name = json.dumps(field["name"], ensure_ascii=False)
    return f'{{"name":{name},"type":{canonical_avro(field["type"], space)}}}'
