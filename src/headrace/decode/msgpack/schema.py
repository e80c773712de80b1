"""Schemas of MessagePack values by id: from a file, a folder or a URL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.decode.registry.client import Registered, Registry, UnknownSchema
from headrace.errors import UsageError
from headrace.spec.registry import RegistrySpec
from headrace.spec.types import parse_type

JSON = pa.json_(pa.string())

_BYTES = 4 * 1024 * 1024  # of one file
_FILES = 10_000
_FIELDS = 2_000
_IDS = 1 << 32


class BadSchemas(Exception):
    """A file or a response is not a schema; the text is the reason."""


@dataclass(frozen=True, slots=True)
class MsgpackSchema:
    """The name of a record's type, and its fields in order."""

    name: str
    fields: tuple[tuple[str, pa.DataType], ...]


class Schemas(Protocol):
    """Source of schemas."""

    def schema(self, id: int) -> MsgpackSchema:
        """The schema of an id; raises UnknownSchema."""
        ...


class FromFiles:
    """Schemas of a file or folder, read once."""

    def __init__(self, path: str) -> None:
        self._path = path

    def schema(self, id: int) -> MsgpackSchema:
        """The schema of an id."""
        try:
            known = in_path(self._path)
        except BadSchemas as bad:
            raise UsageError(f"The schemas in {self._path} cannot be used: {bad}.") from None
        if id not in known:
            raise UnknownSchema(f"no schema in {Path(self._path).name} has the id {id}")
        return known[id]


class FromAddress(Registry):
    """Schemas from a URL: `<url>/<id>`, with the limits and the cache of a schema registry."""

    def _fetched(self, id: int) -> Registered:
        response = self._ask(f"/{id}", None)
        if response is None:
            raise UnknownSchema(f"the registry has no schema {id}")
        return Registered(id, "JSON", json.dumps(response))


class ByAddress:
    """The schemas of a URL, parsed."""

    def __init__(self, spec: RegistrySpec) -> None:
        self._registry = _at(spec)
        self._known: dict[int, MsgpackSchema] = {}

    def schema(self, id: int) -> MsgpackSchema:
        """The schema of an id."""
        if id not in self._known:
            text = self._registry.schema(id).text
            try:
                self._known[id] = form_of(json.loads(text))
            except BadSchemas as bad:
                raise UnknownSchema(f"schema {id} cannot be used: {bad}") from None
        return self._known[id]


@lru_cache(maxsize=64)
def _at(spec: RegistrySpec) -> FromAddress:
    return FromAddress(spec)


def in_path(path: str) -> Mapping[int, MsgpackSchema]:
    """All schemas of a file or folder by id; raises BadSchemas."""
    place = Path(path)
    try:
        files = sorted(place.glob("*.json")) if place.is_dir() else [place]
        return _in_files(tuple((file, file.stat().st_mtime_ns) for file in files[: _FILES + 1]))
    except OSError as error:
        raise BadSchemas(f"{place.name} cannot be read ({error.strerror})") from None


@lru_cache(maxsize=16)
def _in_files(files: tuple[tuple[Path, int], ...]) -> Mapping[int, MsgpackSchema]:
    if not files or len(files) > _FILES:
        raise BadSchemas("the directory has no *.json" if not files else f"the directory has more than {_FILES} files")
    known: dict[int, MsgpackSchema] = {}
    for file, _ in files:
        for item in _items(file):
            id = item.get("id") if isinstance(item, dict) else None
            if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < _IDS:
                raise BadSchemas(f"{file.name}: a schema has an id of 0 to {_IDS - 1}")
            if id in known:
                raise BadSchemas(f"{file.name}: a second schema has the id {id}")
            try:
                known[id] = form_of(item)
            except BadSchemas as bad:
                raise BadSchemas(f"{file.name}, id {id}: {bad}") from None
    return known


def _items(file: Path) -> Iterator[Any]:
    if file.stat().st_size > _BYTES:
        raise BadSchemas(f"{file.name} has more than {_BYTES} bytes")
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise BadSchemas(f"{file.name} is not JSON") from None
    yield from content if isinstance(content, list) else [content]


def form_of(item: Any) -> MsgpackSchema:
    """Parse a schema: name and fields, each with a name and a type; raises BadSchemas."""
    name, fields = (item.get("name"), item.get("fields")) if isinstance(item, dict) else (None, None)
    if not isinstance(name, str) or not name or not isinstance(fields, list) or not 0 < len(fields) <= _FIELDS:
        raise BadSchemas("schema requires `name` and `fields`")
    columns = tuple(_field(each) for each in fields)
    if len({each.lower() for each, _ in columns}) < len(columns):
        raise BadSchemas("two fields have the same name")
    return MsgpackSchema(name, columns)


def _field(item: Any) -> tuple[str, pa.DataType]:
    name, kind = (item.get("name"), item.get("type")) if isinstance(item, dict) else (None, None)
    if not isinstance(name, str) or not name or not isinstance(kind, str) or len(kind) > 10_000:
        raise BadSchemas("field requires `name` and `type`")
    if kind == "json":
        return name, JSON
    try:
        arrow_type = parse_type(kind)
    except (UsageError, RecursionError) as error:
        raise BadSchemas(f"{name[:100]}: {str(error)[:200]}") from None
    if (unsupported := _unsupported(arrow_type)) is not None:
        raise BadSchemas(
            f"{name[:100]}: {unsupported} is not a MessagePack type; "
            "declare the wire type here and the column type in table.columns"
        )
    return name, arrow_type


def _unsupported(kind: pa.DataType) -> pa.DataType | None:
    """The first nested type that MessagePack does not have."""
    if pa.types.is_struct(kind):
        return next((unsupported for item in kind if (unsupported := _unsupported(item.type)) is not None), None)
    if pa.types.is_list(kind):
        return _unsupported(kind.value_type)
    if pa.types.is_map(kind):
        return _unsupported(kind.item_type) if pa.types.is_string(kind.key_type) else kind.key_type
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary)
    if any(is_a(kind) for is_a in known) or (pa.types.is_timestamp(kind) and kind.tz is not None):
        return None
    return kind
