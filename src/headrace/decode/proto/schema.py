"""Message types as the decode needs them, out of descriptors: fields by number, well-known types by what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from headrace.decode.proto.wire import FIXED32, FIXED64, GROUP, LENGTH, VARINT

# What a well-known type means; a message type that is none of them is "plain".
Meaning = Literal["plain", "timestamp", "duration", "wrapper", "json", "empty"]

_UNRESOLVED = re.compile(r"couldn't resolve name '(.*)'")  # as the linker reports an unknown type
_PLACES = 10_000  # fields of a message with all that is below it
_KINDS = {
    getattr(FieldDescriptor, f"TYPE_{kind.upper()}"): kind
    for kind in (
        *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"),
        *("fixed64", "sfixed64", "double", "fixed32", "sfixed32", "float"),
        *("string", "bytes", "message", "group"),
    )
}
_WIRES = {
    **dict.fromkeys(("fixed64", "sfixed64", "double"), FIXED64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), LENGTH),
    "group": GROUP,
}
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_MEANINGS: Mapping[str, Meaning] = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Struct": "json",
    "google.protobuf.Value": "json",
    "google.protobuf.ListValue": "json",
    **dict.fromkeys((f"google.protobuf.{name}Value" for name in _WRAPPED), "wrapper"),
}


class BadSchema(Exception):
    """A schema cannot be used; the text says why."""


class NoMessage(BadSchema):
    """A schema has no message of that name, or at that place."""


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A file's descriptor, and for errors the line of each import and type name in its text."""

    descriptor: Any
    lines: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def position(self, name: str) -> str:
        """The file, with the line of an import or a type name if it is known."""
        line = self.lines.get(name)
        return f"{self.descriptor.name}:{line}" if line else str(self.descriptor.name)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message type."""

    name: str
    number: int
    kind: str
    repeated: bool = False
    required: bool = False
    presence: bool = False  # whether absent differs from the default
    choice: str = ""  # the oneof it is of
    map: bool = False
    message: Message | None = None
    names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))  # of an enum's numbers

    @property
    def wire(self) -> int:
        """The wire type of one value."""
        return _WIRES.get(self.kind, VARINT)

    @property
    def packable(self) -> bool:
        """Whether many values may stand in one field."""
        return self.repeated and self.wire not in (LENGTH, GROUP)


@dataclass(frozen=True, slots=True)
class Message:
    """A message type: its full name, its fields, and what it means where it is a well-known one."""

    name: str
    fields: tuple[Field, ...]
    meaning: Meaning = "plain"
    json: str = ""  # which of the JSON-like types it is


@dataclass(frozen=True)
class Schema:
    """Linked files; the messages of the last one are found by index."""

    pool: Any
    file: Any
    depth: int
    _made: dict[str, Message] = field(default_factory=dict)

    def message(self, name: str) -> Message:
        """A message type by its full name."""
        try:
            found = self.pool.FindMessageTypeByName(name)
        except KeyError:
            raise NoMessage(f"there is no message {name[:200]}") from None
        return self._message(found)

    def at(self, indexes: Iterable[int]) -> Message:
        """A message type by its place in the file: the index among the top-level ones, then among nested ones."""
        inner = list(self.file.message_types_by_name.values())
        here: Any = None
        for index in indexes:
            # Java's writers, whose format it is, count the messages of the text; some others also a map's entries.
            named = [each for each in inner if not each.GetOptions().map_entry]
            counted = named if index < len(named) else inner
            if not 0 <= index < len(counted) or counted[index].GetOptions().map_entry:
                raise NoMessage(f"there is no message at index {index}")
            here = counted[index]
            inner = list(here.nested_types)
        return self._message(here)

    def _message(self, found: Descriptor) -> Message:
        if found.full_name not in self._made:
            self._made[found.full_name] = _Maker(self.depth).message(found, ())
        return self._made[found.full_name]


def linked(files: Iterable[ParsedFile], depth: int = 64) -> Schema:
    """A schema of files, imported ones first; BadSchema when they do not link."""
    pool = descriptor_pool.DescriptorPool()
    for raw in _well_known():
        pool.AddSerializedFile(raw)
    last = None
    for file in files:
        name = file.descriptor.name
        if name in WELL_KNOWN:
            continue
        try:
            pool.AddSerializedFile(file.descriptor.SerializeToString())
            last = pool.FindFileByName(name)
        except (TypeError, KeyError, ValueError) as error:
            detail = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")[:300]
            unresolved = _UNRESOLVED.fullmatch(detail)
            raise BadSchema(f"{file.position(unresolved[1]) if unresolved else name}: {detail}") from None
    if last is None:
        raise BadSchema("it has no file")
    return Schema(pool, last, depth)


def described(raw: bytes, depth: int = 64) -> Schema:
    """A schema of a descriptor set, as `protoc --descriptor_set_out --include_imports` writes it."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(raw).file
    except DecodeError:
        raise BadSchema("it is not a descriptor set") from None
    return linked(map(ParsedFile, _in_order(files)), depth)


def _in_order(files: Iterable[Any]) -> list[Any]:
    """Files behind those they import; the given order where it does not matter."""
    waiting = {file.name: file for file in files}
    order: list[Any] = []

    def place(name: str) -> None:
        if (file := waiting.pop(name, None)) is not None:
            for needed in file.dependency:
                place(needed)
            order.append(file)

    try:
        for name in list(waiting):
            place(name)
    except RecursionError:
        raise BadSchema("its files import each other too deeply") from None
    return order


WELL_KNOWN = tuple(
    f"google/protobuf/{name}.proto"
    for name in (
        *("any", "api", "descriptor", "duration", "empty", "field_mask"),
        *("source_context", "struct", "timestamp", "type", "wrappers"),
    )
)


@cache
def _well_known() -> list[bytes]:
    """The files that every schema may import without bringing them, in the order of their imports."""
    from google.protobuf import (  # noqa: F401 - to import one adds it to the default pool
        any_pb2,
        api_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    default = descriptor_pool.Default()
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(default.FindFileByName(name).serialized_pb) for name in WELL_KNOWN
    ]
    return [file.SerializeToString() for file in _in_order(files)]


class _Maker:
    """Message types of descriptors, as trees: none may be in itself, and none too large."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._sizes: dict[str, int] = {}
        self._heights: dict[str, int] = {}
        self._made: dict[str, Message] = {}

    def message(self, found: Any, way: tuple[str, ...]) -> Message:
        name = found.full_name
        meaning = _MEANINGS.get(name, "plain")
        if meaning == "json":
            return Message(name, (), "json", name.rpartition(".")[2])
        if name in way:
            raise BadSchema(f"{name} holds itself, which no columns can")
        if len(way) > 2 * self._depth:  # an entry of a map counts, too
            raise BadSchema(f"{name} is nested deeper than {self._depth} levels")
        if name not in self._made:
            fields = tuple(self._field(each, (*way, name)) for each in found.fields)
            inner = [each.message.name for each in fields if each.message]
            self._sizes[name] = len(fields) + sum(self._sizes.get(each, 0) for each in inner)
            self._heights[name] = 1 + max((self._heights.get(each, 1) for each in inner), default=0)
            if self._sizes[name] > _PLACES:
                raise BadSchema(f"{name} has more than {_PLACES} fields with all that is below it")
            if self._heights[name] > self._depth:
                raise BadSchema(f"{name} is nested deeper than {self._depth} levels")
            self._made[name] = Message(name, fields, meaning if fields else "empty")
        return self._made[name]

    def _field(self, found: Any, way: tuple[str, ...]) -> Field:
        inner = found.message_type
        entry = inner is not None and inner.GetOptions().map_entry
        # A part of a map's entry that is not there has its default.
        in_entry = found.containing_type.GetOptions().map_entry
        choice = found.containing_oneof
        return Field(
            found.name,
            found.number,
            _KINDS[found.type],
            repeated=found.is_repeated,
            required=found.is_required,
            presence=found.has_presence and not in_entry,
            choice=choice.name if choice is not None and len(choice.fields) > 1 else "",
            map=entry,
            message=None if inner is None else self.message(inner, way),
            names=MappingProxyType({}) if found.enum_type is None else MappingProxyType(_names(found.enum_type)),
        )


def _names(found: Any) -> dict[int, str]:
    """The first name of each number."""
    names: dict[int, str] = {}
    for value in found.values:
        names.setdefault(value.number, value.name)
    return names
