"""Schemas from where they are kept: a file with its imports, or a registry's texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from headrace.decode.proto.schema import WELL_KNOWN, BadSchema, Schema, described, linked
from headrace.decode.proto.text import parsed

# What Confluent's registries let schemas import without a reference: options, which have no meaning here, and a type.
_IMPLIED = {
    "confluent/meta.proto": 'syntax = "proto3"; package confluent;',
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type; '
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
}
_BYTES = 16 * 1024 * 1024
_IMPORTS = 256


def in_file(path: str, depth: int) -> Schema:
    """The schema of a `.proto` file or a descriptor set; BadSchema when it has none, OSError when it is not there."""
    file = Path(path)
    changed = file.stat()
    return _in_file(file, depth, changed.st_mtime_ns, changed.st_size)


@lru_cache(maxsize=16)
def _in_file(file: Path, depth: int, changed: int, size: int) -> Schema:
    if size > _BYTES:
        raise BadSchema(f"{file.name} has more than {_BYTES} bytes")
    if file.suffix == ".proto":
        return linked(_with_imports(file), depth)
    return described(file.read_bytes(), depth)


def _with_imports(file: Path) -> list[Any]:
    """A file behind all it imports; imports are found in its own folder or in one around it."""
    found: dict[str, Any] = {}

    def add(name: str, text: str, way: tuple[str, ...]) -> None:
        if name in way:
            raise BadSchema(f"{name} imports itself")
        if len(found) + len(way) > _IMPORTS:
            raise BadSchema(f"{file.name} imports more than {_IMPORTS} files")
        made = parsed(text, name)
        for needed in made.dependency:
            if needed not in found and needed not in WELL_KNOWN:
                add(needed, _import(file, needed), (*way, name))
        found[name] = made

    add(file.name, _text(file), ())
    return list(found.values())


def _import(file: Path, name: str) -> str:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise BadSchema(f"{file.name}: the import {name[:200]} leads out of its folder")
    for folder in file.parents:
        if (candidate := folder / name).is_file():
            return _text(candidate)
    raise BadSchema(f"{file.name}: the import {name[:200]} is not to be found")


def _text(file: Path) -> str:
    if file.stat().st_size > _BYTES:
        raise BadSchema(f"{file.name} has more than {_BYTES} bytes")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadSchema(f"{file.name} is not UTF-8") from None


def in_texts(text: str, references: Mapping[str, str], depth: int) -> Schema:
    """The schema of a registry's text and of those it refers to, each under the name it is imported by."""
    return _in_texts(text, tuple(references.items()), depth)


@lru_cache(maxsize=256)
def _in_texts(text: str, references: tuple[tuple[str, str], ...], depth: int) -> Schema:
    texts = {name: each for name, each in {**_IMPLIED, **dict(references)}.items() if name not in WELL_KNOWN}
    return linked([*(parsed(each, name) for name, each in texts.items()), parsed(text, "the schema")], depth)
