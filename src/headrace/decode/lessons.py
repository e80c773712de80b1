"""What a stream teaches its decoder: keys that come again and again but are not read become known places.

Without them every such row would need a survey of its keys. A known place costs next to nothing, and proves the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from headrace.decode.contract import Limits
from headrace.decode.layout import Layout, Node, with_skipped
from headrace.decode.proof import Proof, Prover
from headrace.decode.question import Path
from headrace.decode.structure import Structure, infer

_SAMPLE = 500  # rows to learn from
_SHARE = 50  # one row in so many must need a survey before anything is learned
_PLACES = 64
_WILD_PLACES = 8  # below lists: each costs a look of its own
_TIMES = 8
_PLAIN = re.compile(r"[^\"\\\0*]*[^\"\\\0*0-9-][^\"\\\0*]*")  # no number: a pointer would take it for an index


class Lessons:
    """The places learned so far."""

    def __init__(self, layout: Layout, ignore: bool, limits: Limits) -> None:
        self._layout = layout
        self._ignore = ignore  # new fields may be learned; else only what is inside values that are not read
        self._limits = limits
        self._times = 0
        self._learned: dict[Path, bool] = {}  # each place, and whether it is a new field (or only inside one)

    def learn(self, surveyed: pa.StringArray, rows: int) -> bool:
        """Learn from rows that a survey found good; True when there is something new to use."""
        if len(surveyed) * _SHARE < rows or self._times >= _TIMES:
            return False
        self._times += 1
        known = len(self._learned)
        for path, stranger in self._unlisted(self._layout.root, infer(surveyed.slice(0, _SAMPLE)), ()):
            if self._has_room(path):
                self._learned.setdefault(path, stranger)
        return len(self._learned) > known

    def _has_room(self, path: Path) -> bool:
        wild = sum("*" in other for other in self._learned)
        crowded = len(self._learned) >= _PLACES or ("*" in path and wild >= _WILD_PLACES)
        return not crowded and len(path) + 1 < self._limits.depth

    def prover(self) -> Prover:
        """A prover that knows them."""
        # A parent is always learned before what is below it.
        return Prover(with_skipped(self._layout, self._learned), self._limits, self._strangers())

    def count(self, proof: Proof) -> Counter[str]:
        """How often each new field is in the proven rows."""
        return Counter(
            {
                ".".join(part for part in path if part != "*"): count
                for path, present in zip(self._strangers(), proof.strangers, strict=True)
                if (count := int((present & proof.proven).sum()))
            }
        )

    def _strangers(self) -> tuple[Path, ...]:
        return tuple(path for path, stranger in self._learned.items() if stranger)

    def _unlisted(self, node: Node | None, structure: Structure, path: Path) -> Iterator[tuple[Path, bool]]:
        """Keys that the layout does not list, outer ones first."""
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

    def _may_learn(self, node: Node | None, path: Path, key: str) -> bool:
        if node is None:
            return True
        taken = {*node.children, *(other[-1] for other in self._learned if other[:-1] == path)} - {key}
        return self._ignore and key.lower() not in {name.lower() for name in taken}
