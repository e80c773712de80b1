"""Message types for decoding, built from descriptors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from headrace.decode.protobuf.wire import FIXED32, FIXED64, GROUP, LENGTH, VARINT

# How a well-known type is decoded; all other messages are "plain".
Meaning = Literal["plain", "timestamp", "duration", "wrapper", "json", "empty"]

_UNRESOLVED = re.compile(r"couldn't resolve name '(.*)'")  # as the linker reports an unknown type
_MAX_FIELDS = 10_000  # of a message with all nested ones
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


class BadProtobufSchema(Exception):
    """A schema cannot be used; the message has the reason."""


class NoMessage(BadProtobufSchema):
    """A schema has no message with that name or index."""


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
    presence: bool = False  # absent differs from the default
    choice: str = ""  # name of its oneof
    map: bool = False
    message: Message | None = None
    names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))  # of an enum's numbers

    @property
    def wire(self) -> int:
        """Wire type of one value."""
        return _WIRES.get(self.kind, VARINT)

    @property
    def packable(self) -> bool:
        """Whether the values of the field can be packed."""
        return self.repeated and self.wire not in (LENGTH, GROUP)


@dataclass(frozen=True, slots=True)
class Message:
    """A message type: its full name and its fields, or how it is decoded if it is a well-known type."""

    name: str
    fields: tuple[Field, ...]
    meaning: Meaning = "plain"
    json: str = ""  # Struct, Value or ListValue


@dataclass(frozen=True)
class Schema:
    """Linked files; message indexes refer to the last one."""

    pool: Any
    file: Any
    depth: int
    _messages: dict[str, Message] = field(default_factory=dict)

    def message(self, name: str) -> Message:
        """A message type by its full name."""
        try:
            descriptor = self.pool.FindMessageTypeByName(name)
        except KeyError:
            raise NoMessage(f"no message {name[:200]}") from None
        return self._message(descriptor)

    def at(self, indexes: Iterable[int]) -> Message:
        """A message type by its indexes: among the top-level messages of the file, then among nested ones."""
        inner = list(self.file.message_types_by_name.values())
        here: Any = None
        for index in indexes:
            # Java's serializer defines the format and counts messages of the text; others also count map entries.
            named = [each for each in inner if not each.GetOptions().map_entry]
            counted = named if index < len(named) else inner
            if not 0 <= index < len(counted) or counted[index].GetOptions().map_entry:
                raise NoMessage(f"no message at index {index}")
            here = counted[index]
            inner = list(here.nested_types)
        return self._message(here)

    def _message(self, descriptor: Descriptor) -> Message:
        if descriptor.full_name not in self._messages:
            self._messages[descriptor.full_name] = MessageBuilder(self.depth).message(descriptor, ())
        return self._messages[descriptor.full_name]


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
            raise BadProtobufSchema(f"{file.position(unresolved[1]) if unresolved else name}: {detail}") from None
    if last is None:
        raise BadProtobufSchema("it has no file")
    return Schema(pool, last, depth)


def described_type(raw: bytes, depth: int = 64) -> Schema:
    """A schema of a descriptor set, as `protoc --descriptor_set_out --include_imports` writes it."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(raw).file
    except DecodeError:
        raise BadProtobufSchema("it is not a descriptor set") from None
    return linked(map(ParsedFile, _in_order(files)), depth)


def _in_order(files: Iterable[Any]) -> list[Any]:
    """Sort files so that imported ones come first; otherwise the order is kept."""
    waiting = {file.name: file for file in files}
    order: list[Any] = []

    def add(name: str) -> None:
        if (file := waiting.pop(name, None)) is not None:
            for needed in file.dependency:
                add(needed)
            order.append(file)

    try:
        for name in list(waiting):
            add(name)
    except RecursionError:
        raise BadProtobufSchema("imports nested too deeply") from None
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
    """Serialized descriptors of the files that every schema can import, imported ones first."""
    from google.protobuf import (  # noqa: F401 - the import adds the file to the default pool
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


class MessageBuilder:
    """Builds message types from descriptors; recursive and too large types are errors.

    `leaves` are message types that the caller reads itself: they have no fields, and may be recursive.
    """

    def __init__(self, depth: int, leaves: Collection[str] = ()) -> None:
        self._depth, self._leaves = depth, leaves
        self._sizes: dict[str, int] = {}
        self._heights: dict[str, int] = {}
        self._messages: dict[str, Message] = {}

    def message(self, descriptor: Any, parents: tuple[str, ...] = ()) -> Message:
        """The type of a descriptor inside of its parents; raises BadProtobufSchema."""
        name = descriptor.full_name
        meaning = _MEANINGS.get(name, "plain")
        if name in self._leaves:
            return Message(name, ())
        if meaning == "json":
            return Message(name, (), "json", name.rpartition(".")[2])
        if name in parents:
            raise BadProtobufSchema(f"{name} is recursive, which a table schema cannot be")
        if len(parents) > 2 * self._depth:  # map entries count, too
            raise BadProtobufSchema(f"{name} is nested deeper than {self._depth} levels")
        if name not in self._messages:
            fields = tuple(self._field(each, (*parents, name)) for each in descriptor.fields)
            inner = [each.message.name for each in fields if each.message]
            self._sizes[name] = len(fields) + sum(self._sizes.get(each, 0) for each in inner)
            self._heights[name] = 1 + max((self._heights.get(each, 1) for each in inner), default=0)
            if self._sizes[name] > _MAX_FIELDS:
                raise BadProtobufSchema(f"{name} has more than {_MAX_FIELDS} fields, nested ones included")
            if self._heights[name] > self._depth:
                raise BadProtobufSchema(f"{name} is nested deeper than {self._depth} levels")
            self._messages[name] = Message(name, fields, meaning if fields else "empty")
        return self._messages[name]

    def _field(self, descriptor: Any, parents: tuple[str, ...]) -> Field:
        inner = descriptor.message_type
        entry = inner is not None and inner.GetOptions().map_entry
        # An absent key or value of a map entry is its default.
        in_entry = descriptor.containing_type.GetOptions().map_entry
        choice = descriptor.containing_oneof
        return Field(
            descriptor.name,
            descriptor.number,
            _KINDS[descriptor.type],
            repeated=descriptor.is_repeated,
            required=descriptor.is_required,
            presence=descriptor.has_presence and not in_entry,
            choice=choice.name if choice is not None and len(choice.fields) > 1 else "",
            map=entry,
            message=None if inner is None else self.message(inner, parents),
            names=MappingProxyType({})
            if descriptor.enum_type is None
            else MappingProxyType(_names(descriptor.enum_type)),
        )


def _names(enum: Any) -> dict[int, str]:
    """The first name of each number; aliases are dropped."""
    names: dict[int, str] = {}
    for value in enum.values:
        names.setdefault(value.number, value.name)
    return names
