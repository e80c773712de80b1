"""Compile a layout to one DuckDB query: the values, and the JSON type at every known path."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.decode.payload import PayloadNode, PayloadSchema, walk_nodes
from headrace.decode.scalars import duckdb_type, json_types
from headrace.engine import duck

Path = tuple[str, ...]

_OUTER = {"object": ("OBJECT",), "map": ("OBJECT",), "list": ("ARRAY",)}


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A known path below a list or a map: a JSONPath with wildcards, whose result is a list of types."""

    path: Path
    node: PayloadNode
    where: str  # the JSONPath
    keyed: bool  # each type belongs to a key of its own
    entry: bool  # that key is a map's

    @property
    def is_checked(self) -> bool:
        """Whether the types matter: for their validity, or for the number of keys."""
        return self.keyed or expected_types(self.node) is not None


@dataclass(frozen=True, slots=True)
class ExtractionQuery:
    """The SQL over a table `seen(v)`, and the meaning of its columns.

    `c<i>` is the value of column i, `d<i>` whether it is absent (columns with a default), `s<i>` whether new field i is
    present, `w<i>` the JSON types at wildcard path i, `ok` whether all other paths fit, `n` the number of keys there,
    `open` whether a value that is not read may contain invalid JSON.
    """

    sql: str
    wild: tuple[ListColumn, ...]


def extraction_query(layout: PayloadSchema, new_fields: tuple[Path, ...] = ()) -> ExtractionQuery:
    """Compile a layout, with the presence of new fields among its skipped paths."""
    places = list(walk_nodes(layout.root))
    plain = {path: (at + 1, node) for at, (path, node) in enumerate(p for p in places if "*" not in p[0])}
    wild = tuple(
        place for path, node in places if "*" in path and (place := _place(layout.root, path, node)).is_checked
    )
    wilds = {place.path: f"w{at}" for at, place in enumerate(wild)}
    columns = list(enumerate(layout.columns))

    pointers = [pointer(path) for path in plain] or [""]
    inner = [f"json_type(v, [{', '.join(map(duck.literal, pointers))}]) AS t"]
    inner += [f"json_type(v, {duck.literal(place.where)}) AS w{at}" for at, place in enumerate(wild)]
    if layout.columns:
        inner.append(f"from_json(v, {duck.literal(json.dumps(_structure(layout), ensure_ascii=False))}) AS x")
    fits = [fit for path, (at, node) in plain.items() if (fit := _fit(path, at, node))]
    if any(node.kind == "json" for _, node in places):
        # If formatting the whole value gives the same text, formatting any part of it does.
        inner.append("json(v) = v AS same")
        fits.append("same")

    outer = [f"{_value(column.path)} AS c{at}" for at, column in columns]
    outer += [f"t[{plain[column.path][0]}] IS NULL AS d{at}" for at, column in columns if column.node.default]
    outer += [f"t[{plain[path][0]}] IS NOT NULL AS s{at}" for at, path in enumerate(new_fields) if path in plain]
    outer += [f"len({wilds[path]}) > 0 AS s{at}" for at, path in enumerate(new_fields) if path in wilds]
    outer += [f"w{at}" for at in range(len(wild))]
    unread = [f"t[{at}] IN ('DOUBLE', 'ARRAY')" for at, node in plain.values() if expected_types(node) is None]
    outer.append(f"coalesce({' OR '.join(unread) or 'false'}, false) AS open")
    outer.append(f"coalesce({' AND '.join(fits) or 'true'}, false) AS ok")
    outer.append(f"list_count(t) - {0 if plain else 1} AS n")
    return ExtractionQuery(f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM seen)", wild)  # noqa: S608


def expected_types(node: PayloadNode) -> tuple[str, ...] | None:
    """The JSON types that are valid at a path, besides null; None for any."""
    if node.kind in ("json", "skip"):
        return None
    return _OUTER.get(node.kind) or json_types(node)


def pointer(path: Path) -> str:
    """A JSON pointer."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def json_path_of(root: PayloadNode, path: Path) -> str:
    """A JSONPath with wildcards for lists and maps."""
    node, text = root, "$"
    for part in path:
        text += (".*" if node.kind == "map" else "[*]") if part == "*" else f'."{part}"'
        node = node.children[part]
    return text


def _place(root: PayloadNode, path: Path, node: PayloadNode) -> ListColumn:
    above = root
    for part in path[:-1]:
        above = above.children[part]
    return ListColumn(path, node, json_path_of(root, path), path[-1] != "*" or above.kind == "map", above.kind == "map")


def _fit(path: Path, at: int, node: PayloadNode) -> str:
    types = expected_types(node)
    if types is None:
        return ""
    seen = f"t[{at}] IN ({', '.join(map(duck.literal, types))})"
    if node.kind != "object":
        seen += f" AND {_value(path)} IS NOT NULL"
    return f"({seen} OR t[{at}] IS NULL OR t[{at}] = 'NULL')"


def _value(path: Path) -> str:
    return "x." + ".".join(map(duck.quote, path))


def _structure(layout: PayloadSchema) -> dict[str, Any]:
    structure: dict[str, Any] = {}
    for column in layout.columns:
        here = structure
        for part in column.path[:-1]:
            here = here.setdefault(part, {})
        here[column.path[-1]] = _duck_type(column.node)
    return structure


def _duck_type(node: PayloadNode) -> str:
    if node.kind == "object":
        return f"STRUCT({', '.join(f'{duck.quote(key)} {_duck_type(child)}' for key, child in node.children.items())})"
    if node.kind == "list":
        return f"{_duck_type(node.children['*'])}[]"
    if node.kind == "map":
        return f"MAP(VARCHAR, {_duck_type(node.children['*'])})"
    return duckdb_type(node)
