"""Keys that the schema does not have but many records do are added to the paths that the prover looks at.

Without them each such record needs a survey of its keys. Measured in ADR 31.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from headrace.decode.base import DecodeLimits
from headrace.decode.inference import Structure, infer
from headrace.decode.json.extraction import Path
from headrace.decode.json.proof import Proof, Prover
from headrace.decode.payload import PayloadNode, PayloadSchema, with_skipped

_SAMPLE = 500  # rows
_SHARE = 50  # one row in 50 must need a survey before paths are added
_PLACES = 64
_WILD_PLACES = 8  # paths below lists: each costs a query of its own
_TIMES = 8
_PLAIN = re.compile(r"[^\"\\\0*]*[^\"\\\0*0-9-][^\"\\\0*]*")  # not a number: in a JSON pointer that is an index


class LearnedKeys:
    """The paths added so far."""

    def __init__(self, layout: PayloadSchema, ignore: bool, limits: DecodeLimits) -> None:
        self._layout = layout
        self._ignore = ignore  # False: only paths inside values that are not read
        self._limits = limits
        self._times = 0
        self._learned: dict[Path, bool] = {}  # path: whether it is a new field (or inside one)

    def learn(self, surveyed: pa.StringArray, rows: int) -> bool:
        """Add the paths of rows that a survey accepted; True if there are new ones."""
        if len(surveyed) * _SHARE < rows or self._times >= _TIMES:
            return False
        self._times += 1
        known = len(self._learned)
        for path, is_new in self._unlisted(self._layout.root, infer(surveyed.slice(0, _SAMPLE)), ()):
            if self._has_room(path):
                self._learned.setdefault(path, is_new)
        return len(self._learned) > known

    def _has_room(self, path: Path) -> bool:
        wild = sum("*" in other for other in self._learned)
        crowded = len(self._learned) >= _PLACES or ("*" in path and wild >= _WILD_PLACES)
        return not crowded and len(path) + 1 < self._limits.depth

    def prover(self) -> Prover:
        """A prover with the added paths."""
        # A parent is always added before its children.
        return Prover(with_skipped(self._layout, self._learned), self._limits, self._new_fields())

    def count(self, proof: Proof) -> Counter[str]:
        """The number of proven rows with each new field."""
        return Counter(
            {
                ".".join(part for part in path if part != "*"): count
                for path, present in zip(self._new_fields(), proof.new_fields, strict=True)
                if (count := int((present & proof.proven).sum()))
            }
        )

    def _new_fields(self) -> tuple[Path, ...]:
        return tuple(path for path, is_new in self._learned.items() if is_new)

    def _unlisted(self, node: PayloadNode | None, structure: Structure, path: Path) -> Iterator[tuple[Path, bool]]:
        """Keys that the layout does not have, parents first."""
        if "element" in structure and (node is None or node.kind == "list"):
            yield from self._unlisted(node and node.children["*"], structure["element"], (*path, "*"))
        if node is not None and node.kind != "object":
            return
        for key, item in structure.get("fields", {}).items():
            child = None if node is None else node.children.get(key)
            if child is not None:
                yield from self._unlisted(None if child.kind in ("json", "skip") else child, item, (*path, key))
            elif _PLAIN.fullmatch(key) and self._may_learn(node, path, key):
                yield (*path, key), node is not None
                yield from self._unlisted(None, item, (*path, key))

    def _may_learn(self, node: PayloadNode | None, path: Path, key: str) -> bool:
        if node is None:
            return True
        siblings = {*node.children, *(other[-1] for other in self._learned if other[:-1] == path)} - {key}
        return self._ignore and key.lower() not in {name.lower() for name in siblings}
