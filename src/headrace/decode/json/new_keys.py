"""Rows with more keys than the layout: find the new names, and check everything else about the rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.decode.byte_scan import Mask, Numbers, bools
from headrace.decode.json.extraction import json_path_of, pointer
from headrace.decode.payload import PayloadNode, PayloadSchema, walk_nodes
from headrace.decode.scalars import UnfitValue
from headrace.engine import duck

# No object holds a key twice, at any depth below the first.
_NO_TWINS = """
SELECT coalesce(list_bool_and(list_transform(json_keys(v, '$.**'),
                                             lambda keys: len(list_distinct(keys)) = len(keys))), true) AS good
FROM seen
"""


@dataclass(frozen=True, slots=True)
class NewKeys:
    """The result for texts whose known paths are valid."""

    clean: Mask  # the row is valid
    has_new: Mask  # it has new fields
    names: Counter[str] = field(default_factory=Counter)  # new fields of clean rows, dotted


class NewKeyFinder:
    """A layout compiled to the query for the keys of its objects."""

    def __init__(self, layout: PayloadSchema, is_new_field: Callable[[PayloadNode, str, str], bool]) -> None:
        self._is_new_field = is_new_field
        objects = [
            ((), layout.root),
            *((path, node) for path, node in walk_nodes(layout.root) if node.kind == "object"),
        ]
        self._levels = [(_where(path), node) for path, node in objects]
        self._wild = any("*" in path for path, _ in objects)
        lists = [_keys(layout.root, path) for path, _ in objects]
        shapes = ", ".join(
            f"list_sort(list_distinct({each}))" if "*" in path else f"coalesce({each}, [])"
            for each, (path, _) in zip(lists, objects, strict=True)
        )
        total = " + ".join(f"coalesce(len({each}), 0)" for each in lists)
        self._sql = f"SELECT CAST(to_json([{shapes}]) AS VARCHAR) AS shape, {total} AS n FROM seen"  # noqa: S608

    def survey(self, texts: pa.StringArray, entries: Numbers, colons: Numbers, harmless: Mask) -> NewKeys:
        """Examine rows by their few distinct shapes; the number of colons shows which rows have keys deeper down."""
        result = duck.plan_of_query(self._sql, seen=pa.table({"v": texts}))
        shapes = result["shape"].combine_chunks().dictionary_encode()
        new_keys = [self._new_names(json.loads(shape)) for shape in shapes.dictionary.to_pylist()]
        codes = shapes.indices.to_numpy()
        clean = np.array([keys is not None for keys in new_keys], bool)[codes] & harmless
        with_new = np.array([bool(keys) for keys in new_keys], bool)[codes]
        hidden = (result["n"].to_numpy() + entries != colons) | self._wild
        unsure = np.flatnonzero(clean & hidden)
        if len(unsure):
            clean[unsure] = bools(
                duck.plan_of_query(_NO_TWINS, seen=pa.table({"v": texts.take(unsure)}))["good"].combine_chunks()
            )
        names: Counter[str] = Counter()
        for code, count in enumerate(np.bincount(codes[clean], minlength=len(new_keys))):
            if count:
                names.update({name: int(count) for name in new_keys[code] or ()})
        return NewKeys(clean, with_new, names)

    def _new_names(self, shape: list[list[str]]) -> list[str] | None:
        """The new names of a shape; None if one is invalid or duplicate."""
        names: list[str] = []
        for keys, (where, node) in zip(shape, self._levels, strict=True):
            if len({key.lower() for key in keys}) != len(keys):
                return None
            for key in keys:
                if key in node.children:
                    continue
                try:
                    if self._is_new_field(node, key, where):
                        names.append(where + key)
                except UnfitValue:
                    return None
        return names


def _where(path: tuple[str, ...]) -> str:
    return "".join(f"{part}." for part in path if part != "*")


def _keys(root: PayloadNode, path: tuple[str, ...]) -> str:
    if "*" in path:
        return f"flatten(json_keys(v, {duck.literal(json_path_of(root, path))}))"
    return f"json_keys(v, {duck.literal(pointer(path))})" if path else "json_keys(v)"
