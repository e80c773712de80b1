"""Random Protobuf schemas and messages, and the rows they must become, told by Google's own library."""

from __future__ import annotations

import random
import struct
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

SCALARS = [
    *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"),
    *("fixed64", "sfixed64", "double", "fixed32", "sfixed32", "float", "string", "bytes"),
]
KEYS = [kind for kind in SCALARS if kind not in ("enum", "double", "float", "bytes")]
SPANS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(1 << 31), (1 << 31) - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(1 << 63), (1 << 63) - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, (1 << 32) - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, (1 << 64) - 1)),
}


def schema(pick: random.Random, closed: bool = True) -> Any:
    """A file with a message `t.M` of some depth; with closed enums, or without."""
    syntax = pick.choice(["proto2", "proto3"])
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax=syntax)
    enum = file.enum_type.add(name="E")
    for number, name in enumerate(["ZERO", "ONE", "TWO"]):
        enum.value.add(name=name, number=number * 7)
    _message(file.message_type.add(name="M"), syntax, pick, 2)
    if not closed and syntax == "proto2":
        _open(file.message_type[0])
    return file


def _open(message: Any) -> None:
    for field in message.field:
        if field.type == Proto.TYPE_ENUM:
            field.type = Proto.TYPE_INT32
            field.ClearField("type_name")
    for inner in message.nested_type:
        _open(inner)


def _message(made: Any, syntax: str, pick: random.Random, depth: int) -> None:
    numbers = pick.sample([*range(1, 20), 100, 2047, 2048, 300_000, (1 << 29) - 1], pick.randrange(1, 8))
    for nth, number in enumerate(numbers):
        field = made.field.add(name=f"f{nth}", number=number, label=pick.choice([1, 1, 3]))
        shape = pick.choice(["scalar", "scalar", "scalar", "message", "map", "group"])
        if shape == "group" and syntax != "proto2":
            shape = "message"
        if shape == "scalar" or depth == 0:
            _scalar(field, pick.choice(SCALARS))
            packable = field.type not in (Proto.TYPE_STRING, Proto.TYPE_BYTES)
            if field.label == 3 and packable and pick.random() < 0.5:
                field.options.packed = pick.random() < 0.5
            elif field.label == 1 and syntax == "proto2" and pick.random() < 0.2:
                field.label = 2
        elif shape == "map":
            _map(made, field, pick, syntax, depth)
        else:
            inner = made.nested_type.add(name=f"N{nth}")
            _message(inner, syntax, pick, depth - 1)
            field.type = Proto.TYPE_GROUP if shape == "group" else Proto.TYPE_MESSAGE
            field.type_name = inner.name
    _choices(made, syntax, pick)


def _scalar(field: Any, kind: str) -> None:
    field.type = getattr(Proto, f"TYPE_{kind.upper()}")
    if kind == "enum":
        field.type_name = ".t.E"


def _map(made: Any, field: Any, pick: random.Random, syntax: str, depth: int) -> None:
    entry = made.nested_type.add(name=f"{field.name.upper()}Entry")
    entry.options.map_entry = True
    _scalar(entry.field.add(name="key", number=1, label=1), pick.choice(KEYS))
    value = entry.field.add(name="value", number=2, label=1)
    if pick.random() < 0.3:
        inner = made.nested_type.add(name=f"{field.name.upper()}Value")
        _message(inner, syntax, pick, depth - 1)
        value.type, value.type_name = Proto.TYPE_MESSAGE, inner.name
    else:
        _scalar(value, pick.choice(SCALARS))
    field.label, field.type, field.type_name = 3, Proto.TYPE_MESSAGE, entry.name


def _choices(made: Any, syntax: str, pick: random.Random) -> None:
    """Put some single fields into a oneof; in proto3 some others become optional."""
    single = [field for field in made.field if field.label == 1]
    if len(single) > 1 and pick.random() < 0.5:
        made.oneof_decl.add(name="choice")
        for field in single[:3]:
            field.oneof_index = 0
    for field in single:
        if syntax == "proto3" and not field.HasField("oneof_index") and pick.random() < 0.3:
            field.oneof_index, field.proto3_optional = len(made.oneof_decl), True
            made.oneof_decl.add(name=f"_{field.name}")


def factory(file: Any, name: str = "t.M") -> Any:
    """The class of a message."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def fill(message: Any, pick: random.Random, size: int = 4) -> Any:
    """Give random fields of a message random values; what is required is there."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and pick.random() < 0.3:
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), inner, pick, size)
        elif inner is not None and field.is_repeated:
            for _ in range(pick.randrange(size)):
                fill(getattr(message, field.name).add(), pick, size)
        elif inner is not None:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), pick, size)
        elif field.is_repeated:
            getattr(message, field.name).extend(value(field, pick) for _ in range(pick.randrange(size)))
        else:
            setattr(message, field.name, value(field, pick))
    return message


def _fill_map(target: Any, entry: Any, pick: random.Random, size: int) -> None:
    key, item = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for _ in range(pick.randrange(size)):
        if item.message_type is not None:
            fill(target[value(key, pick)], pick, size)
        else:
            target[value(key, pick)] = value(item, pick)


def value(field: Any, pick: random.Random) -> Any:
    """A value of a scalar field."""
    kind = next(kind for kind in SCALARS if getattr(Proto, f"TYPE_{kind.upper()}") == field.type)
    if kind in SPANS:
        low, high = SPANS[kind]
        return pick.choice([0, 1, low, high, pick.randint(low, high), pick.randrange(300)])
    if kind == "bool":
        return pick.random() < 0.5
    if kind == "enum":
        return pick.choice([0, 7, 14] if field.enum_type.is_closed else [0, 7, 14, 5, -1])
    if kind == "double":
        return pick.choice([0.0, -0.0, 1.5, -1e300, pick.random()])
    if kind == "float":
        return struct.unpack("<f", struct.pack("<f", pick.uniform(-1e6, 1e6)))[0]
    text = "".join(pick.choice(["a", "é", "\0", "水", "x" * 50]) for _ in range(pick.randrange(4)))
    return text if kind == "string" else text.encode()


def row(message: Any) -> dict[str, Any]:
    """What a message must become."""
    return {field.name: _cell(message, field) for field in message.DESCRIPTOR.fields}


def _cell(message: Any, field: Any) -> Any:
    found = getattr(message, field.name)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, item = inner.fields_by_name["key"], inner.fields_by_name["value"]
        return sorted((_key(key, name), _one(item, found[name])) for name in found)
    if field.is_repeated:
        return [_one(field, each) for each in found]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(field, found)


def _key(field: Any, name: Any) -> str:
    return name if field.type == Proto.TYPE_STRING else str(name).lower()


def _one(field: Any, found: Any) -> Any:
    if field.message_type is not None:
        return row(found)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(found)
        return known.name if known else str(found)
    if field.type in (Proto.TYPE_UINT64, Proto.TYPE_FIXED64):
        return Decimal(found)
    return found
