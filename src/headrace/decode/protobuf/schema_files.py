"""Schemas from where they are stored: a file with its imports, or the texts of a registry."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from headrace.decode.protobuf.proto_text import parsed
from headrace.decode.protobuf.schema import WELL_KNOWN, BadProtobufSchema, ParsedFile, Schema, described_type, linked

# Files that Confluent's registry provides to every schema. `meta` defines options, which are not evaluated here.
_CONFLUENT = {
    "confluent/meta.proto": 'syntax = "proto3"; package confluent;',
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type; '
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
    "confluent/type/variant.proto": 'syntax = "proto3"; package confluent.type; '
    "message Variant { bytes metadata = 1; bytes value = 2; }",
    "confluent/types/decimal.proto": 'syntax = "proto3"; import public "confluent/type/decimal.proto";',
}
_GOOGLE_TYPE = re.compile(r"google/type/[a-z_]+\.proto")  # the registry provides these, too
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_MAX_BYTES = 16 * 1024 * 1024
_MAX_FILES = 256
_PUT_BESIDE = "put it in the directory of the file or in a directory around it"
_REGISTER = "register it as a reference of the schema"


def in_file(path: str, depth: int) -> Schema:
    """The schema of a `.proto` file or a descriptor set.

    Raises BadSchema when the file is not a schema, OSError when it cannot be read.
    """
    file = Path(path)
    status = file.stat()
    return _in_file(file, depth, status.st_mtime_ns, status.st_size)


def files_of(path: str) -> list[Path]:
    """A `.proto` file with all files that it imports from its folder or folders around it, or a descriptor set.

    Raises BadSchema when the file is not a schema, OSError when it cannot be read.
    """
    file = Path(path)
    files = [file]

    def imported_text(name: str) -> str | None:
        if (path := _import_beside(file, name)) is None:
            return None
        files.append(path)
        return _text(path)

    if file.suffix == ".proto":
        _with_imports(file.name, _text(file), imported_text, _PUT_BESIDE)
    return files


@lru_cache(maxsize=16)
def _in_file(file: Path, depth: int, modified: int, size: int) -> Schema:
    if size > _MAX_BYTES:
        raise BadProtobufSchema(f"{file.name} has more than {_MAX_BYTES} bytes")
    if file.suffix == ".proto":
        return linked(_with_imports(file.name, _text(file), lambda name: _beside(file, name), _PUT_BESIDE), depth)
    return described_type(file.read_bytes(), depth)


def in_texts(text: str, references: Mapping[str, str], depth: int) -> Schema:
    """The schema of a registry's text and of the texts it refers to, each under the name it is imported by."""
    return _in_texts(text, tuple(references.items()), depth)


@lru_cache(maxsize=256)
def _in_texts(text: str, references: tuple[tuple[str, str], ...], depth: int) -> Schema:
    return linked(_with_imports("the schema", text, dict(references).get, _REGISTER), depth)


def _with_imports(main: str, text: str, source: Callable[[str], str | None], remedy: str) -> list[ParsedFile]:
    """The descriptors of a text and of all it imports, imported files first; `source` has the text of an import."""
    files: dict[str, ParsedFile] = {}

    def add(name: str, text: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise BadProtobufSchema(f"{name} imports itself")
        if len(files) + len(importers) > _MAX_FILES:
            raise BadProtobufSchema(f"{main} imports more than {_MAX_FILES} files")
        file = _descriptor(text, name)
        for imported in file.descriptor.dependency:
            if imported in files or imported in WELL_KNOWN:
                continue
            inner = source(imported)
            if inner is None and (inner := _provided(imported)) is None:
                raise BadProtobufSchema(f"{file.position(imported)}: import {imported[:200]} not found; {remedy}")
            add(imported, inner, (*importers, name))
        files[name] = file

    add(main, text, ())
    return list(files.values())


def _descriptor(text: str, name: str) -> ParsedFile:
    """A text as a descriptor. Python's Confluent client registers the descriptor itself, in Base64."""
    if not _BASE64.fullmatch(text):
        return parsed(text, name)
    try:
        file = FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError):
        raise BadProtobufSchema(f"{name} is neither a .proto text nor a descriptor in Base64") from None
    file.name = name
    return ParsedFile(file)


def _provided(name: str) -> str | None:
    """The text of a file that schemas can import without a reference."""
    if _GOOGLE_TYPE.fullmatch(name):
        bundled = resources.files("google.type") / name.removeprefix("google/type/")
        return bundled.read_text(encoding="utf-8") if bundled.is_file() else None
    return _CONFLUENT.get(name)


def _beside(file: Path, name: str) -> str | None:
    """The text of an import."""
    path = _import_beside(file, name)
    return None if path is None else _text(path)


def _import_beside(file: Path, name: str) -> Path | None:
    """The file of an import, in the folder of the importing file or a folder around it."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or not name.endswith(".proto"):
        raise BadProtobufSchema(f"{file.name}: the import {name[:200]} is not the relative path of a .proto file")
    candidates = (folder / name for folder in file.parents)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _text(file: Path) -> str:
    if file.stat().st_size > _MAX_BYTES:
        raise BadProtobufSchema(f"{file.name} has more than {_MAX_BYTES} bytes")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadProtobufSchema(f"{file.name} is not UTF-8") from None
