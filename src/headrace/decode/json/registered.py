"""JSON with a schema registry: the schema gives the record's type, its fields and which of them are required.

Its other keywords are not validated; use expectations for rules about values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.decode.base import Decoded, DecodeLimits, Decoder, NewField, Rejects, fills_of
from headrace.decode.byte_scan import Numbers, bools
from headrace.decode.inference import JSON, Structure, added, by_key, evolve, merge_inferred, struct
from headrace.decode.input import sized, spread
from headrace.decode.registry.client import Registered, UnknownSchema, registry_of
from headrace.decode.registry.framing import Framed, unframed
from headrace.reasons import Reason
from headrace.spec.registry import RegistrySpec

_TYPES = {"integer": "long", "number": "double", "string": "string", "boolean": "boolean"}
_DEPTH = 16  # depth of references
_NODES = 10_000  # nodes of one schema with its references; beyond, JSON text


@dataclass(frozen=True)
class RegisteredSchema:
    """Facts about the records of a schema."""

    title: str
    structure: Structure
    required: tuple[str, ...]


class RegisteredJson:
    """JSON in Confluent's wire format, for one payload schema."""

    def __init__(
        self, inner: Decoder, registry: RegistrySpec, payload: pa.Schema, new_field: NewField, limits: DecodeLimits
    ) -> None:
        self._inner = inner
        self._registry = registry_of(registry)
        self._payload = payload
        self._new_field = new_field
        self._limits = limits

    @property
    def fills(self) -> Mapping[str, str]:
        """As the inner format."""
        return fills_of(self._inner)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a column of values to typed rows and rejects."""
        framed, schemas, rejects = self._open(values)
        decoded = self._inner.decode(framed.payloads)
        rejects.join(decoded.rejects, framed.at)
        index = decoded.index.to_numpy()
        missing = self._missing(decoded.rows, framed.ids[index], schemas)
        lacking = {int(index[row]): name for row, name in sorted(missing.items(), reverse=True)}
        for value, name in lacking.items():
            rejects.add(int(framed.at[value]), Reason.MISSING, f"{name}: the schema requires it")
        kept = np.flatnonzero(~np.isin(index, list(lacking)))  # a record with one bad row has none
        rows = decoded.rows.take(pa.array(kept)) if missing else decoded.rows
        unknown = self._unknown(decoded.unknown, [schemas[id] for id in np.unique(framed.ids[index[kept]]).tolist()])
        return replace(
            decoded, rows=rows, index=pa.array(framed.at[index[kept]]), rejects=rejects.in_order(), unknown=unknown
        )

    def peek(self, values: pa.BinaryArray, path: str) -> tuple[pa.StringArray, Rejects]:
        """The scalar at a path as text."""
        framed, _, rejects = self._open(values)
        texts, refused = self._inner.peek(framed.payloads, path)
        rejects.join(refused, framed.at)
        return spread(texts, framed.at, len(values)), rejects.in_order()

    def types(self, values: pa.BinaryArray) -> tuple[pa.StringArray, Rejects]:
        """The title of each value's schema."""
        framed, schemas, rejects = self._open(values)
        titles = pa.array([schemas[id].title or None for id in framed.ids.tolist()], pa.string())
        return spread(titles, framed.at, len(values)), rejects.in_order()

    def predict(self, schema: Registered) -> tuple[str, Decoded]:
        """The type, and the result of decoding a record with a value in every field that has a type."""
        registered = _parse_schema(schema)
        value = json.dumps(_sample(registered.structure)).encode()
        decoded = self._inner.decode(pa.array([value], pa.binary()))
        open_ = {name for name, item in registered.structure["fields"].items() if item == JSON}
        rejects = Rejects()
        for position, reason, detail in decoded.rejects:
            if reason is not Reason.MISSING or detail.partition(":")[0] not in open_:
                rejects.add(position, reason, detail)
        return registered.title, replace(decoded, rejects=rejects, unknown=self._unknown(decoded.unknown, [registered]))

    def _open(self, values: pa.BinaryArray) -> tuple[Framed, Mapping[int, RegisteredSchema], Rejects]:
        """Values without their frames, with their schemas; values without a schema are rejected."""
        kept, at, rejects = sized(values, self._limits)
        framed = unframed(kept, at, rejects)
        schemas: dict[int, RegisteredSchema] = {}
        problems: dict[int, str] = {}
        for id in np.unique(framed.ids).tolist():
            try:
                schemas[id] = _parse_schema(self._registry.schema(id))
            except UnknownSchema as unknown:
                problems[id] = str(unknown)
        if problems:
            bad = np.isin(framed.ids, list(problems))
            for row in np.flatnonzero(bad).tolist():
                rejects.add(int(framed.at[row]), Reason.UNKNOWN_SCHEMA, problems[int(framed.ids[row])])
            framed = Framed(framed.payloads.filter(pa.array(~bad)), framed.ids[~bad], framed.at[~bad])
        return framed, schemas, rejects

    def _missing(self, rows: pa.Table, ids: Numbers, schemas: Mapping[int, RegisteredSchema]) -> dict[int, str]:
        """Rows without a field that their schema requires, with its name."""
        missing: dict[int, str] = {}
        for id in np.unique(ids).tolist():
            theirs = ids == id
            for name in schemas[id].required:
                if name in rows.column_names:
                    absent = theirs & bools(rows[name].combine_chunks().is_null())
                    for row in np.flatnonzero(absent).tolist():
                        missing.setdefault(row, name)
        return missing

    def _unknown(self, unknown: Structure | None, schemas: list[RegisteredSchema]) -> Structure | None:
        """New fields, with the types of the schemas rather than those of the values."""
        if self._new_field != "evolve" or not schemas:
            return None if self._new_field != "evolve" else unknown
        structure = reduce(merge_inferred, (each.structure for each in schemas))
        if evolve(self._payload, structure) == self._payload:
            return unknown
        if added(by_key(self._payload), structure) > self._limits.new_columns:  # then only fields that have values
            filled = unknown["fields"] if unknown else {}
            structure = struct({name: item for name, item in structure["fields"].items() if name in filled})
        if not unknown:
            return structure if structure["fields"] else None
        beside = {name: item for name, item in unknown["fields"].items() if name not in structure["fields"]}
        rounded = {name: JSON for name in _rounded(schemas, structure) if _is_big(unknown["fields"].get(name, {}))}
        return struct({**structure["fields"], **rounded, **beside})


def _sample(structure: Structure) -> Any:
    """A value that matches a schema; fields without a type are left out."""
    if "fields" in structure:
        return {name: _sample(item) for name, item in structure["fields"].items() if item != JSON}
    if structure["type"] == "list":
        return [_sample(structure["element"])]
    return {"long": 1, "double": 0.5, "boolean": True}.get(structure["type"], "")


def _is_big(structure: Structure) -> bool:
    return structure.get("type") in ("big long", "json")


def _rounded(schemas: list[RegisteredSchema], structure: Structure) -> list[str]:
    """Fields that are integers in one schema and doubles in another, so that an integer may be rounded."""
    longs = {name for each in schemas for name, item in each.structure["fields"].items() if item == {"type": "long"}}
    return [name for name in longs if structure["fields"][name] == {"type": "double"}]


@lru_cache(maxsize=1024)
def _parsed(text: str, references: tuple[tuple[str, str], ...]) -> RegisteredSchema:
    try:
        return _read(json.loads(text), {name: json.loads(other) for name, other in references})
    except (ValueError, RecursionError):
        raise UnknownSchema("the schema is not JSON, or too deep") from None


def _read(schema: Any, references: Mapping[str, Any]) -> RegisteredSchema:
    if not isinstance(schema, dict):
        raise UnknownSchema("the schema is not an object")
    structure = _Reader(schema, references).structure(schema, ("#",))
    title = schema.get("title")
    return RegisteredSchema(
        title if isinstance(title, str) else "", structure if "fields" in structure else struct({}), _required(schema)
    )


def _required(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Properties that are required and not nullable."""
    names, properties = schema.get("required"), schema.get("properties")
    if not isinstance(names, list) or not isinstance(properties, dict):
        return ()
    return tuple(name for name in names if isinstance(name, str) and "null" not in _types(properties.get(name)))


def _parse_schema(registered: Registered) -> RegisteredSchema:
    if registered.kind != "JSON":
        raise UnknownSchema(f"schema {registered.id} is {registered.kind}, expected JSON")
    return _parsed(registered.text, tuple(registered.references.items()))


class _Reader:
    """Converts a JSON Schema to a structure; what is not certain becomes JSON text."""

    def __init__(self, schema: Mapping[str, Any], references: Mapping[str, Any]) -> None:
        self._schema = schema
        self._references = references
        self._left = _NODES

    def structure(self, node: Any, path: tuple[str, ...] = ()) -> Structure:
        """The structure of a node; `path` has the references that led to it, to end at a recursive one."""
        self._left -= 1
        if not isinstance(node, dict) or self._left < 0:
            return JSON
        if "$ref" in node:
            name = str(node["$ref"])
            return JSON if name in path or len(path) > _DEPTH else self.structure(self._referred(name), (*path, name))
        kinds = _types(node) - {"null"}
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if len(kinds) != 1:
            return self._choice(node, path)
        (kind,) = kinds
        if kind == "object":
            return self._object(node, path)
        if kind == "array":
            element = self.structure(node.get("items"), path)
            return JSON if element == JSON else {"type": "list", "element": element}
        return {"type": _TYPES[kind]} if kind in _TYPES else JSON

    def _object(self, node: Mapping[str, Any], path: tuple[str, ...]) -> Structure:
        properties = node.get("properties")
        if not isinstance(properties, dict) or not properties:
            return JSON
        return struct({str(name): self.structure(item, path) for name, item in properties.items()})

    def _choice(self, node: Mapping[str, Any], path: tuple[str, ...]) -> Structure:
        """A choice of null and one other type is the other type; any other choice is JSON text."""
        for key in ("oneOf", "anyOf"):
            if isinstance(options := node.get(key), list):
                real = [each for each in options if _types(each) != {"null"}]
                return self.structure(real[0], path) if len(real) == 1 else JSON
        return JSON

    def _referred(self, name: str) -> Any:
        where, _, pointer = name.partition("#")
        node: Any = self._references.get(where) if where else self._schema
        for part in filter(None, pointer.split("/")):
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        return node


def _types(node: Any) -> set[str]:
    kind = node.get("type") if isinstance(node, dict) else None
    return {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
